"""SAC and TD3 on a simulated GPU: they learn there what they learn on a CPU, and no update waits for the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.continuous.agent import ContinuousAgent
from agents.guard import Guard
from agents.networks.base import on_device
from agents.sac.agent import SACAgent
from learner.metrics.statistics import UpdateMetrics
from learner.parts import build
from learner.runs.checkpoint import write_file
from learner.runs.directory import RunDirectory
from replay.ring.pages import DevicePagePool
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.gpu.test_program import lines_of
from tests.learner.runs.reproducible import assert_same_end, play

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


def replay(device: str) -> str:
    return f'[{{"type": "standard", "steps": 200, "sample_ratio": 1.0, "device": "{device}"}}]'


@pytest.mark.parametrize("agent", ["sac", "td3"])
def test_a_gpu_learns_what_a_cpu_learns_and_waits_nowhere_else(agent: str, gpu: SimulatedGpu, tmp_path: Path) -> None:
    on_cpu, on_gpu = (RunDirectory.create(tmp_path, name) for name in ("cpu", "gpu"))
    play(on_cpu, **SETTINGS, agent=agent, replay_parameters=replay("cpu"))
    assert not gpu.launched
    play(on_gpu, **SETTINGS, agent=agent, device="cuda", replay_parameters=replay("cuda"))
    assert_same_end(on_cpu, on_gpu, interrupted=True)
    assert gpu.launched > 1000
    assert gpu.reports == []
    # Beside the loop: what is made at the start, the first finite check, rows of metrics, and what is saved.
    made = (on_device, build, ContinuousAgent.make_modules, SACAgent.make_modules)
    expected = lines_of(Guard.step, UpdateMetrics.read, write_file, DevicePagePool._claimed_bytes, *made)
    places = [wait.partition(" at ")[2] for wait in gpu.waits]
    assert [place for place in places if place.startswith(("agents/", "replay/")) and place not in expected] == []
