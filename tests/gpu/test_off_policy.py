"""SAC and TD3 on a simulated GPU: they learn there what they learn on a CPU, and no update waits for the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents import AGENTS
from agents.continuous.critics import make_critics
from agents.sac.agent import SACAgent
from agents.td3.agent import TD3Agent
from learner.metrics.writer import read_metrics
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.gpu.support import assert_a_gpu_learns_the_same
from tests.learner.test_skipping import spoil_updates

SETTINGS = {
    "env": "Reach-v0",
    "reproducible": True,
    "environment_max_steps": 150,
    "learning_starts": 60,
    "batch_size": 8,
    "batches_at_once": 3,
    "unroll_length": 5,
    "hidden_sizes": "8",
    "lr_end_value": -1.0,
    "optimizer": "rmsprop",  # Adam is fused on a CPU alone, which gives other bits
    "checkpoint_period": 1000,
    "log_period": 1e5,
    "precision": "float32",
    "calibrate_input": False,
    "replay_fill_fraction": 0.0,
}


UPDATES = 29


def replay(device: str) -> str:
    return f'[{{"type": "standard", "steps": 200, "sample_ratio": 1.0, "device": "{device}"}}]'


@pytest.mark.parametrize("agent", ["sac", "td3"])
def test_a_gpu_learns_what_a_cpu_learns_and_waits_nowhere_else(
    agent: str, gpu: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an update whose three steps were refused: an odd number, so that a delay of two could lose its turn."""
    made = (make_critics, SACAgent.__init__, TD3Agent.__init__)
    spoil_updates(monkeypatch, lambda number: number % UPDATES == 4, kind=AGENTS[agent])
    run = assert_a_gpu_learns_the_same(gpu, tmp_path, replay, {**SETTINGS, "agent": agent}, made)
    columns = read_metrics(run.metrics)
    assert (columns["updates"][-1], columns["updates/skipped"][-1]) == (UPDATES, 1)
