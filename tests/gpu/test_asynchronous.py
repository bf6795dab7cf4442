"""IMPACT on a simulated GPU: the target network and the circular replay give the bits of a CPU, and nothing waits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents.guard import Guard
from agents.networks.base import on_device
from agents.networks.inputs import calibrate
from learner.metrics.statistics import UpdateMetrics
from learner.parts import build
from learner.runs.checkpoint import write_file
from learner.runs.directory import RunDirectory
from replay.ring.pages import DevicePagePool
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.gpu.test_program import CORE, lines_of
from tests.learner.runs.reproducible import assert_same_end, play, settings_of


def circular(device: str) -> str:
    return f'[{{"type": "circular", "slots": 2, "uses": 3, "sample_ratio": 1.0, "device": "{device}"}}]'


def test_a_gpu_learns_what_a_cpu_learns_and_waits_nowhere_else(gpu: SimulatedGpu, tmp_path: Path) -> None:
    on_cpu, on_gpu = (RunDirectory.create(tmp_path, name) for name in ("cpu", "gpu"))
    own: dict[str, Any] = {"agent": "impact", "kl_weight": 0.5, "target_update_period": 3, "frames_stacked": 3, **CORE}
    # Adam is fused on a CPU alone, which gives other bits.
    settings = {**settings_of("queue"), "environment_max_steps": 280, "optimizer": "rmsprop", **own}
    play(on_cpu, **{**settings, "replay_parameters": circular("cpu")})
    assert not gpu.launched
    play(on_gpu, **{**settings, "device": "cuda", "replay_parameters": circular("cuda")})
    assert_same_end(on_cpu, on_gpu, interrupted=True)
    assert gpu.launched > 1000
    assert gpu.reports == []
    # Beside the loop: the start, the first finite check, rows of metrics, and what is saved.
    expected = lines_of(Guard.step, UpdateMetrics.read, on_device, calibrate, build, write_file, DevicePagePool._claimed_bytes)
    places = [wait.partition(" at ")[2] for wait in gpu.waits]
    assert [place for place in places if place.startswith(("agents/", "replay/")) and place not in expected] == []
