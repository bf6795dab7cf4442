"""IMPACT on a simulated GPU: the target network and the circular replay give the bits of a CPU, and nothing waits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents.networks.inputs import calibrate
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.gpu.support import assert_a_gpu_learns_the_same
from tests.gpu.test_program import CORE
from tests.learner.runs.reproducible import settings_of


def circular(device: str) -> str:
    return f'[{{"type": "circular", "slots": 2, "uses": 3, "sample_ratio": 1.0, "device": "{device}"}}]'


def test_a_gpu_learns_what_a_cpu_learns_and_waits_nowhere_else(gpu: SimulatedGpu, tmp_path: Path) -> None:
    own: dict[str, Any] = {"agent": "impact", "kl_weight": 0.5, "target_update_period": 3, "frames_stacked": 3, **CORE}
    # Adam is fused on a CPU alone, which gives other bits.
    settings = {**settings_of("queue"), "environment_max_steps": 280, "optimizer": "rmsprop", **own}
    assert_a_gpu_learns_the_same(gpu, tmp_path, circular, settings, (calibrate,))
