"""DQN to Rainbow and R2D2 on a simulated GPU: they learn there what they learn on a CPU, and no update waits for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents import AGENTS
from learner.feeding.feedback import PriorityFeedback
from learner.metrics.writer import read_metrics
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.gpu.support import assert_a_gpu_learns_the_same
from tests.learner.test_skipping import spoil_updates

SETTINGS: dict[str, Any] = {
    "reproducible": True,
    "environment_max_steps": 100,
    "learning_starts": 40,
    "updates_per_step": 0.2,
    "batch_size": 4,
    "unroll_length": 5,
    "hidden_sizes": "8",
    "target_update_period": 3,
    "lr_end_value": -1.0,
    "optimizer": "rmsprop",  # Adam is fused on a CPU alone, which gives other bits
    "checkpoint_period": 1000,
    "log_period": 1e5,
    "precision": "float32",
    "calibrate_input": False,
    "replay_fill_fraction": 0.0,
}
DQN = {"agent": "dqn", "batches_at_once": 2}
UPDATES = 6
CASES: dict[str, dict[str, Any]] = {
    "rainbow": {**DQN, "double": True, "dueling": True, "noisy": True, "n_step": 3, "return_distribution": "c51", "atoms": 5},
    "quantiles, ladder": {
        **DQN,
        "double": True,
        "exploration": "ladder",
        "epsilon_zeta": 2.0,
        "return_distribution": "qr",
        "quantiles": 3,
    },
    "implicit quantiles": {**DQN, "return_distribution": "iqn", "fractions": 3, "acting_fractions": 2, "munchausen": True},
    "bins": {**DQN, "return_distribution": "hl_gauss", "atoms": 5, "head_units": 4},
    "munchausen, schedule": {**DQN, "munchausen": True, "clip_rewards": True, "target_update_rate": 0.5},
    "r2d2": {"agent": "r2d2", "updates_per_step": 0.1, "core_size": 8, "burn_in": 2, "n_step": 2},
}


def prioritised(device: str) -> str:
    return f'[{{"type": "prioritised", "steps": 80, "sample_ratio": 1.0, "device": "{device}"}}]'


@pytest.mark.parametrize("case", CASES)
def test_a_gpu_learns_what_a_cpu_learns_and_waits_nowhere_else(
    case: str, gpu: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an update is refused, which the device undoes. Priorities reach the replay an update late, as on a GPU."""
    begin = PriorityFeedback.__init__

    def begin_late(feedback: PriorityFeedback, *arguments: Any) -> None:
        begin(feedback, *arguments)
        feedback._waits = False

    monkeypatch.setattr(PriorityFeedback, "__init__", begin_late)
    settings = {**SETTINGS, **CASES[case]}
    spoil_updates(monkeypatch, lambda number: number % UPDATES == 4, kind=AGENTS[settings["agent"]])
    run = assert_a_gpu_learns_the_same(gpu, tmp_path, prioritised, settings)
    columns = read_metrics(run.metrics)
    assert (columns["updates"][-1], columns["updates/skipped"][-1]) == (UPDATES, 1)
