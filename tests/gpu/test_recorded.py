"""MARWIL and BCQ on a simulated GPU: they learn from a recording what they learn on a CPU, and nothing waits for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents import AGENTS
from agents.networks.inputs import calibrate
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.gpu.support import assert_a_gpu_learns_the_same
from tests.gpu.test_values import SETTINGS
from tests.learner.test_skipping import spoil_updates
from tests.recordings import playing_at_random, record
from wrappers.spec import EnvConfig

OF_BCQ = {name: SETTINGS[name] for name in ("learning_starts", "updates_per_step", "target_update_period")}
COMMON = {name: value for name, value in SETTINGS.items() if name not in OF_BCQ}
CASES: dict[str, dict[str, Any]] = {
    "marwil": {"agent": "marwil", "core": "lstm", "core_size": 8, "lr": 1e-3, "lr_end_value": 1e-3, "normalise_rewards": True},
    "bcq": {"agent": "bcq", "batches_at_once": 2, **OF_BCQ},
}
UPDATES = {"marwil": 5, "bcq": 6}
REPLAYS = {
    "marwil": '{"type": "queue", "capacity": 1, "sample_ratio": 1.0}',
    "bcq": '{"type": "standard", "steps": 80, "sample_ratio": 1.0, "device": "DEVICE"}',
}


@pytest.mark.parametrize("case", CASES)
def test_a_gpu_learns_what_a_cpu_learns_and_waits_nowhere_else(
    case: str, gpu: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an update is refused, which the device undoes."""
    record(tmp_path / "recording", EnvConfig(env="Catch-v0", frames_stacked=1), playing_at_random, steps=60)
    recorded = {"worker_kind": "recorded", "worker_count": 1, "recording": str(tmp_path / "recording")}
    settings = {**COMMON, "clip_rewards": case == "bcq", **CASES[case], **recorded}
    spoil_updates(monkeypatch, lambda number: number % UPDATES[case] == 4, kind=AGENTS[case])
    assert_a_gpu_learns_the_same(
        gpu, tmp_path, lambda device: f"[{REPLAYS[case].replace('DEVICE', device)}]", settings, (calibrate,)
    )
