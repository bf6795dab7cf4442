"""Updates as CUDA graphs: a recorded update does what it does kernel by kernel, to the bit, for every agent that allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents import AGENTS
from agents.engine import graphs
from agents.engine.graphs import GraphError, UpdateGraphs
from agents.losses import Losses
from agents.networks.base import on_device
from agents.vtrace.agent import VTraceAgent, VTraceConfig
from learner import launch
from learner.metrics.writer import read_metrics
from replay.batch import Batch
from tests.agents.continuous.support import NUMBERS_ALONE
from tests.builders import network_of
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.gpu.test_agents import OWN
from tests.learner.test_recorded import make_recording
from tests.learner.test_skipping import spoil_updates
from tests.support import same
from tests.test_matrix import FEW_STEPS, TOYS, directory, newest, run, settings_of

GRAPHED = [agent for agent, kind in AGENTS.items() if kind.graphed(kind.config_class())]
CASES = {
    **{(agent, f"vector-{'box' if agent in NUMBERS_ALONE else 'discrete-mask'}"): "none" for agent in GRAPHED},
    ("r2d2", "vector-discrete-mask"): "lstm",
    ("vtrace", "image-box"): "none",
    ("a2c", "dict-multi-mask"): "lstm",
    ("ppo", "dict-box"): "none",
    ("sac", "vector-box"): "none",
    ("vmpo", "dict-box"): "lstm",
    ("crossq", "vector-box"): "none",
}
"""Agents, environments of tests/matrix_env.py, and cores."""
RESUMED = [
    *((agent, "vector-box") for agent in ("crossq", "sac", "td3")),
    *((agent, "vector-discrete-mask") for agent in ("ppo", "vtrace")),
]
MORE: dict[str, dict[str, Any]] = {
    "a2c": {"entropy_loss_weight_end": 0.0, "popart": True, "intrinsic": "icm"},
    "appo": {"epochs": 2, "entropy_loss_weight_end": 0.0, "intrinsic": "rnd"},
    "crossq": {"batches_at_once": 3, "delay": 2},
    "dqn": {
        "batches_at_once": 3,
        "normalise_rewards": True,
        "clip_rewards": False,
        "return_distribution": "iqn",
        "munchausen": True,
        "fractions": 4,
    },
    "impact": {**TOYS, "kl_weight": 0.5, "popart": True, "clip_rewards": False},
    "ppo": {"popart": True, "intrinsic": "rnd", "predictor_share": 0.5},
    "td3": {"batches_at_once": 3},  # with a delay of two steps: every second update begins with the actor's turn
    "vtrace": {
        "use_kl_mask": True,
        "relevance": "behaviour",
        "use_value_cloning_loss": True,
        "popart": True,
        "intrinsic": "rnd",
    },
}
STEPWISE = [agent for agent in GRAPHED if AGENTS[agent].graphed(AGENTS[agent].config_class()) == "step"]
"""Agents whose steps are recorded, not their updates."""
STEPS = 32
WARM_UP = 1


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated GPU needs one update to make the optimiser's moments, and has no kernels to load."""
    monkeypatch.setattr(graphs, "WARM_UP", WARM_UP)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Gets a graph each time that one is launched."""
    launched: list[object] = []
    replay = UpdateGraphs._replay

    def seen(graphs: UpdateGraphs, recorded: Any, batch: Batch) -> Any:
        launched.append(recorded.graph)
        return replay(graphs, recorded, batch)

    monkeypatch.setattr(UpdateGraphs, "_replay", seen)
    return launched


def settings(agent: str, environment: str, folder: Path, core: str = "none") -> dict[str, Any]:
    own = {**OWN.get(agent, {}), **MORE.get(agent, {})}
    given = settings_of(environment, core, agent=agent, device="cuda", **own)
    given |= {"calibrate_input": False, "environment_max_steps": STEPS, "eval_seconds": 0.0, "lr": given["lr_end_value"]}
    if AGENTS[agent].needs(AGENTS[agent].config_class()).recorded:
        given |= {"recording": str(make_recording(folder / "recording", given["env"])), "frames_stacked": 1}
    return given


@pytest.mark.parametrize(("agent", "environment"), CASES)
def test_a_graph_learns_what_its_kernels_learn(
    agent: str, environment: str, gpu: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replays: list[object]
) -> None:
    """Also if it is recorded at another update, after the run was resumed."""
    given = settings(agent, environment, tmp_path, CASES[agent, environment])
    whole, parts, by_kernel = (tmp_path / name for name in ("whole", "parts", "by_kernel"))
    assert run("train", whole, **given) == 0
    launches = newest(whole).counters.updates * (FEW_STEPS["epochs"] * FEW_STEPS["minibatches"] if agent in STEPWISE else 1)
    assert len(replays) == launches - len(set(replays)) * WARM_UP > 0
    if (agent, environment) in RESUMED:
        assert run("train", parts, **{**given, "environment_max_steps": STEPS - 8}) == 0
        assert run("train_w_load", parts, load="latest", environment_max_steps=STEPS) == 0
        assert same(newest(whole).agent, newest(parts).agent)
    monkeypatch.setattr(graphs, "WARM_UP", STEPS)
    replays.clear()
    assert run("train", by_kernel, **given) == 0
    assert not replays
    assert same(newest(whole).agent, newest(by_kernel).agent)
    rows, others = (read_metrics(directory(results).metrics) for results in (whole, by_kernel))
    for name in rows:
        if name.startswith("losses/"):
            assert np.array_equal(rows[name], others[name], equal_nan=True), name
    assert not gpu.reports


def test_refused_updates_are_counted_and_weights_restored(
    gpu: SimulatedGpu, tmp_path: Path, replays: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph takes its steps back, to the bit. After a restart from kept weights, which are other tensors, one is recorded."""
    found = []
    for warm_up in (WARM_UP, STEPS):
        with monkeypatch.context() as patch:
            patch.setattr(graphs, "WARM_UP", warm_up)
            spoil_updates(patch, lambda number: number == 5 or 8 <= number <= 10)
            given = settings("vtrace", "vector-discrete-mask", tmp_path)
            given |= {"max_skipped_updates": 3, "environment_max_steps": 112}
            assert run("train", tmp_path / str(warm_up), **given) == 0
            found.append(tmp_path / str(warm_up))
    columns = [read_metrics(directory(results).metrics) for results in found]
    assert [each["updates/skipped"][-1] for each in columns] == [4, 4]
    assert len(set(replays)) == 2
    assert same(*(newest(results).agent for results in found))


def test_an_agent_says_whether_it_is_recorded(gpu: SimulatedGpu) -> None:
    class Own(VTraceAgent):
        @classmethod
        def graphed(cls, config: Any) -> Any:
            return ""

    network = on_device(network_of("mlp", (2, 5), 3), torch.device("cuda"))
    own, recorded = (kind(VTraceConfig(), network, cuda_graphs=True) for kind in (Own, VTraceAgent))
    assert not own.stepper._graphs
    assert recorded.stepper._graphs


def test_an_update_that_waits_for_the_device_is_refused_in_one_line(
    gpu: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = VTraceAgent.losses

    def waiting(agent: VTraceAgent, batch: Batch, outputs: Any) -> Losses:
        float(batch.rewards.sum())
        return losses(agent, batch, outputs)

    monkeypatch.setattr(VTraceAgent, "losses", waiting)
    assert run("train", tmp_path, **settings("vtrace", "vector-discrete-mask", tmp_path)) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("updates cannot be a CUDA graph: operation not permitted when stream is capturing: item at ")
    assert line.endswith("; --nocuda_graphs launches them kernel by kernel")
    assert newest(tmp_path).counters.updates == WARM_UP
    assert run("train_w_load", tmp_path, load="latest", cuda_graphs=False) == 0


def test_the_measurement_before_a_run_refuses_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(job: launch.Job) -> launch.Job:
        raise GraphError("no graph")

    monkeypatch.setattr(launch, "measured", fail)
    assert run("train", tmp_path, **{**settings("vtrace", "vector-discrete-mask", tmp_path), "device": "cpu"}) == 1
    assert capsys.readouterr().out == "error: no graph\n"


def test_no_graph_is_made_where_it_is_refused_or_cannot_be(gpu: SimulatedGpu, tmp_path: Path, replays: list[object]) -> None:
    given = {**settings("vtrace", "vector-discrete-mask", tmp_path), "environment_max_steps": 24}
    assert run("train", tmp_path, cuda_graphs=False, **given) == 0
    minibatches = {**settings("appo", "vector-discrete-mask", tmp_path), "environment_max_steps": 24, "minibatches": 2}
    assert run("train", tmp_path, **minibatches) == 0
    assert not replays
