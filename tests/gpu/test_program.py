"""The program with a GPU, on a simulated one: everything lies where it must, nothing is read before it is there, and
the loop never waits by accident."""

from __future__ import annotations

import gc
import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.engine.guard import Guard
from agents.networks.base import on_device
from agents.networks.inputs import calibrate
from learner.machine.measuring import measure_costs
from learner.metrics.statistics import UpdateMetrics
from learner.metrics.writer import read_metrics
from learner.parts import build
from learner.runs.checkpoint import load_checkpoint, write_file
from learner.runs.directory import RunDirectory
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.learner.runs.reproducible import assert_same_end, play, play_until_killed, settings_of
from tests.learner.test_skipping import spoil_updates
from tests.support import REPOSITORY, small_plan

LOOP = ("agents/", "workers/", "replay/", "learner/")
"""The path of a trajectory, a batch and an action, with the code that counts and judges them."""


def mixture(device: str) -> str:
    """Fresh trajectories, and two replays that keep their frames on `device`; elite asks the network for features."""
    share = {"capacity": 30, "sample_ratio": 0.25, "device": device}
    return json.dumps(
        [
            {"type": "queue", "capacity": 1, "sample_ratio": 0.5},
            {"type": "standard", **share},
            {"type": "elite", "lambda_batch_multiplier": 2, "annealing_factor": 1.0, **share},
        ]
    )


def lines_of(*functions: Callable[..., object]) -> set[str]:
    """The lines of functions of the program, as the simulated GPU names places."""
    found = set()
    for function in map(inspect.unwrap, functions):
        lines, first = inspect.getsourcelines(function)
        path = Path(inspect.getfile(function)).relative_to(REPOSITORY)
        found |= {f"{path}:{number}" for number in range(first, first + len(lines))}
    return found


CORE = {"core": "lstm", "core_size": 16, "burn_in": 3}


@pytest.mark.parametrize(("worker_kind", "core"), [("central", CORE), ("cpu", CORE), ("cpu", {})], ids=str)
def test_a_run_waits_where_it_must_and_nowhere_else(
    worker_kind: str, core: dict[str, Any], gpu: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that runs beside the updates: acting, batches prepared in the background, replays on the device, encoding. One
    update is undone by the device itself."""
    run = RunDirectory.create(tmp_path, worker_kind)
    spoil_updates(monkeypatch, lambda number: number == 5, field="behaviour_policy")
    settings: dict[str, Any] = {"use_kl_mask": True, "use_policy_cloning_loss": True, "log_period": 1e5, **core}
    play(
        run,
        device="cuda",
        precision="bfloat16",
        worker_kind=worker_kind,
        worker_count=1,
        frames_stacked=2,
        prepared_batches=2,
        replay_parameters=mixture("cuda"),
        environment_max_steps=200,
        **settings,
    )
    gc.collect()
    assert gpu.reports == []
    columns = read_metrics(run.metrics)
    first_update, rows = lines_of(Guard.step), lines_of(UpdateMetrics.read)
    outside = lines_of(on_device, calibrate, build, write_file)  # at the start, and what is saved
    publishing = ("workers/weights.py",) if worker_kind == "cpu" else ()  # worker processes get weights through host memory
    places = [wait.partition(" at ")[2] for wait in gpu.waits]
    in_the_loop = [
        place for place in places if place.startswith(LOOP) and not (place in outside or place.startswith(publishing))
    ]
    assert [place for place in in_the_loop if place not in first_update | rows] == []
    assert len([place for place in in_the_loop if place in first_update]) == 1
    assert len([place for place in in_the_loop if place in rows]) == len(columns["updates"])
    assert columns["updates"][-1] >= 6
    assert columns["updates/skipped"][-1] == 1
    assert np.isfinite(columns["losses/total_loss"][-1])
    weights = load_checkpoint(run.checkpoint_paths()[-1]).agent["modules"]["network"]
    assert all(math.isfinite(float(tensor.abs().max())) for tensor in weights.values())


def test_a_gpu_learns_what_a_cpu_learns(gpu: SimulatedGpu, tmp_path: Path) -> None:
    """To the bit, with replays on the device, and after a kill: what is saved there comes back."""
    straight, broken = (RunDirectory.create(tmp_path, name) for name in ("straight", "broken"))
    on_cpu = {**settings_of("queue"), "environment_max_steps": 240, "frames_stacked": 3, **CORE}
    on_cpu["checkpoint_period"] = 5
    on_cpu["replay_parameters"] = mixture("cpu")
    on_gpu = {**on_cpu, "device": "cuda", "cuda_graphs": False, "replay_parameters": mixture("cuda")}
    play(straight, **on_cpu)
    assert not gpu.launched
    play(broken, *play_until_killed(broken, **on_gpu), **on_gpu)
    assert_same_end(straight, broken, interrupted=True)
    assert gpu.launched > 1000
    assert gpu.reports == []


def test_a_gpu_s_part_of_a_step_is_measured(gpu: SimulatedGpu) -> None:
    costs = measure_costs(small_plan(device="cuda", worker_kind="central", replay_parameters=mixture("cpu")), 0.02, brief=True)
    assert costs.gpu_acts
    assert costs.gpu_learns
    assert min(costs.env, costs.act, costs.act_doubled, costs.learn) > 0
    workers_act = measure_costs(small_plan(device="cuda", worker_kind="cpu"), 0.02, brief=True)
    assert (workers_act.gpu_acts, workers_act.gpu_learns) == (False, True)
