"""TensorBoard has the graph of every kind of network, and a run with it learns the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from agents.networks.base import make_network
from learner.metrics import graph as module
from learner.metrics.graph import trace, traceable
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from tests.learner.launching import trained
from tests.support import same, small_plan


def inputs_of(folder: Path) -> int:
    """The inputs of the graph in TensorBoard's files."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return sum(node.name.startswith("input/") for node in events.Graph().node)


@pytest.mark.parametrize(
    ("settings", "inputs"),
    [
        ({}, 1),
        ({"core": "lstm"}, 2),
        ({"core": "gru", "core_inputs": True}, 4),
        ({"agent": "dqn", "learning_starts": 100, "noisy": True, "return_distribution": "c51"}, 1),
        ({"agent": "sac", "env": "Reach-v0", "learning_starts": 100}, 1),
        ({"agent": "linucb", "env": "Bandit-v0", "network": "flat"}, 1),
        ({"env": "tests.matrix_env:Matrix-dict-multi-mask-v0", "network": "auto"}, 3),
    ],
)
def test_a_graph_has_an_input_for_each_part_of_an_observation(settings: dict[str, Any], inputs: int, tmp_path: Path) -> None:
    plan = small_plan(**settings)
    with SummaryWriter(str(tmp_path)) as writer:
        assert trace(make_network(plan.network), plan.spec, writer) == ""
    assert inputs_of(tmp_path) == inputs
    traced, tensors = traceable(make_network(plan.network), plan.spec)
    assert len(traced(*tensors)) == len(traced.policy.output_names)


def test_a_run_with_a_graph_learns_the_same(tmp_path: Path) -> None:
    one, other = (trained(tmp_path / name, reproducible=True, log_graph=name == "with") for name in ("with", "without"))
    assert inputs_of(one.tensorboard) == 1

    def agent(run: RunDirectory) -> dict[str, Any]:
        return load_checkpoint(run.checkpoint_paths()[-1]).agent

    assert same(agent(one), agent(other))


def test_a_network_that_cannot_be_traced_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("no tracer\nfor this")

    monkeypatch.setattr(module, "traceable", failing)
    run = trained(tmp_path, log_graph=True)
    assert run.checkpoint_paths()
    assert "log_graph: wanted a network that can be traced, got no tracer for this\n" in run.log.read_text()
