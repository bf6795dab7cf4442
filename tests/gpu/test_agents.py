"""Every agent trains, resumes and plays on a simulated GPU, which refuses to mix its tensors with those of the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents import AGENTS
from learner.metrics.writer import read_metrics
from tests.agents.continuous.support import NUMBERS_ALONE
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.learner.test_recorded import make_recording
from tests.test_matrix import FEW_STEPS, directory, newest, run, settings_of

STEPS = 24
WINDOWS: dict[str, Any] = {"learning_starts": 8, "batches_at_once": 1, "updates_per_step": 0.5}
POPULATION: dict[str, Any] = {"population": 2}
OWN: dict[str, dict[str, Any]] = {
    "bcq": WINDOWS,
    "cem": {**POPULATION, "elites": 1},
    "crossq": {**WINDOWS, "renorm_warm_up": 2, "delay": 2},
    "ddpg": WINDOWS,
    "dqn": {**WINDOWS, "noisy": True, "return_distribution": "c51"},
    "es": POPULATION,
    "linucb": {"thompson": True, "hidden_sizes": "256,256"},
    "impact": {"target_kl": 0.01},
    "marwil": {"normalise_rewards": True, "clip_rewards": False},
    "ppo": {"policy_objective": "kl", "target_kl": 0.01, **FEW_STEPS},
    "pqn": FEW_STEPS,
    "r2d2": {"learning_starts": 12, "burn_in": 0, "updates_per_step": 0.2, "exploration": "ladder"},
    "sac": {**WINDOWS, "critics": 3, "critic_subset": 2, "actor_value": "mean"},
    "sqn": {**WINDOWS, "n_step": 3, "retrace_lambda": 0.9, "learn_temperature": True},
    "td3": WINDOWS,
    "tqc": {**WINDOWS, "weight_decay": 0.1},
    "trpo": {**FEW_STEPS, "cg_iterations": 2},
}
"""Settings of agents that bring in more of their code."""
CASES = [(agent, "box" if agent in NUMBERS_ALONE else "discrete-mask") for agent in AGENTS] + [("sac", "box")]


@pytest.mark.parametrize(("agent", "actions"), CASES)
def test_it_trains_resumes_and_plays(agent: str, actions: str, gpu: SimulatedGpu, tmp_path: Path) -> None:
    kind = AGENTS[agent]
    config = kind.config_class()
    settings = settings_of(f"vector-{actions}", "none", agent=agent, device="cuda", **OWN.get(agent, {}))
    settings |= {"calibrate_input": False, "environment_max_steps": STEPS}
    if agent == "r2d2":
        settings["core"] = "lstm"
    if agent in ("cem", "linucb"):  # they have no optimiser
        del settings["lr_end_value"]
    if kind.needs(config).recorded:
        settings |= {"recording": str(make_recording(tmp_path / "recording", settings["env"])), "frames_stacked": 1}
        settings["eval_seconds"] = 0.0
    assert run("train", tmp_path, **settings) == 0
    assert newest(tmp_path).counters.updates > 0
    assert run("train_w_load", tmp_path, load="latest", environment_max_steps=2 * STEPS) == 0
    assert read_metrics(directory(tmp_path).metrics)["updates"][-1] > 0
    for greedy in (True, False):
        assert run("test", tmp_path, load="latest", test_episode_count=2, test_environments=2, greedy=greedy) == 0
    assert gpu.launched > 100
    assert not gpu.reports
