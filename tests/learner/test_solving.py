"""Every agent setting, network and replay kind solves the toy environment.

A random policy catches about a quarter of the balls, mean return -0.5; the solution is +1, a little less where actions are
sampled with much entropy. About one run in sixteen settles for four columns of five, mean return 0.6, whatever its settings;
what is broken does so with every seed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agents.networks.torsos import TORSOS, Torso
from replay import REPLAYS
from tests.learner import solving
from tests.learner.test_train import KINDS, mixture_with
from wrappers import ENVIRONMENTS, EnvConfig, EnvDescription, EnvSpec, Step, VectorEnv, toy
from wrappers.toys.catch import COLUMNS, ROWS

SOLVED = 0.7  # mean return of the last hundred episodes
SEEDS = (1, 2, 3)
QUICKLY: dict[str, Any] = {
    "environment_max_steps": 12_000,
    "envs_per_worker": 8,
    "batch_size": 8,
    "lr": 4e-3,
    "entropy_loss_weight": 0.05,  # with less a policy settles for four columns oftener
    "log_period": 60.0,
}

AGENTS = {
    "V-trace": {},
    "CLEAR": {"use_policy_cloning_loss": True, "use_value_cloning_loss": True},
    "LASER": {"use_kl_mask": True},
    "LASER, behaviour relevance": {"use_kl_mask": True, "relevance": "behaviour"},
    "APPO": {"agent": "appo"},
    "IMPACT": {"agent": "impact"},
    "V-MPO": {"agent": "vmpo", "initial_eta": 0.5, "initial_alpha": 0.1, "eps_alpha": 0.05, "target_update_period": 5},
}


class LargeCatch(VectorEnv):
    """Catch on frames that are large enough for the networks that convolve: every cell has `cell` pixels (height, width)."""

    def __init__(self, env: VectorEnv, cell: tuple[int, int]) -> None:
        self.num_envs = env.num_envs
        self._env = env
        self._cell = cell
        self.spec = enlarged(env.spec, cell)

    def reset(self, seed: int) -> np.ndarray:
        return self._enlarge(self._env.reset(seed))

    def step(self, actions: np.ndarray) -> Step:
        step = self._env.step(actions)
        return step._replace(observations=self._enlarge(step.observations))

    def _enlarge(self, observations: np.ndarray) -> np.ndarray:
        return np.kron(observations, np.ones(self._cell, dtype=np.uint8))


def enlarged(spec: EnvSpec, cell: tuple[int, int]) -> EnvSpec:
    return replace(spec, frame_shape=(spec.frame_shape[0] * cell[0], spec.frame_shape[1] * cell[1]))


def large_toy(smallest: int) -> SimpleNamespace:
    """The family of one game, "LargeCatch", whose frames have `smallest` pixels or more in both directions."""
    cell = (-(-smallest // ROWS), -(-smallest // COLUMNS))

    def small(config: EnvConfig) -> EnvConfig:
        return replace(config, env="Catch-v0")

    def make_vector(config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
        return LargeCatch(toy.make_vector(small(config), num_envs, num_threads), cell)

    return SimpleNamespace(
        matches=lambda env_id: env_id == "LargeCatch",
        make_spec=lambda config: enlarged(toy.make_spec(small(config)), cell),
        describe=EnvDescription,
        make_vector=make_vector,
    )


def solves(folder: Path, kind: str = "standard", **settings: Any) -> bool:
    """With one seed or another, and half of each batch from a replay of this kind."""
    own = {**QUICKLY, "replay_parameters": mixture_with(kind), **settings}
    if settings.get("agent") == "vmpo":
        del own["entropy_loss_weight"]
    return any(solving.solves(SOLVED, folder / str(seed), **own, seed=seed) for seed in SEEDS)


@pytest.mark.parametrize(
    ("worker_kind", "prepared_batches", "steps"), [("serial", 0, 60_000), ("cpu", 3, 120_000), ("central", 3, 60_000)]
)
def test_every_kind_of_workers_solves_the_toy_environment_almost_perfectly(
    tmp_path: Path, worker_kind: str, prepared_batches: int, steps: int
) -> None:
    """Processes in parallel make no two runs the same, so another seed tries if one settles for a part of the balls."""
    settings = {"worker_count": 1, "prepared_batches": prepared_batches, "envs_per_worker": 8, "batch_size": 8, "lr": 2e-3}
    settings |= {"worker_kind": worker_kind, "environment_max_steps": steps}
    seeds = SEEDS[:1] if worker_kind == "serial" else SEEDS
    assert any(solving.solves(0.9, tmp_path / str(seed), **settings, seed=seed) for seed in seeds)


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_setting_solves_the_toy_environment(tmp_path: Path, agent: str) -> None:
    assert solves(tmp_path, **AGENTS[agent])


ON_POLICY: dict[str, dict[str, Any]] = {
    "PPO": {"agent": "ppo", "unroll_length": 32, "environment_max_steps": 30_000, "lr": 2e-3},
    "PPO with a KL penalty": {
        "agent": "ppo",
        "unroll_length": 32,
        "environment_max_steps": 30_000,
        "lr": 2e-3,
        "policy_objective": "kl",
        "target_kl": 0.02,
    },
    "A2C": {"agent": "a2c", "environment_max_steps": 40_000, "lr": 2e-3},
    "TRPO": {"agent": "trpo", "unroll_length": 32, "environment_max_steps": 40_000, "separate_value": True},
}
FLAT: dict[str, Any] = {"environment_max_steps": 30_000, "lr": 1e-2, "optimizer": "adam", "gamma": 0.0, "clip_rewards": False}
SEARCH: dict[str, Any] = {"environment_max_steps": 150_000, "envs_per_worker": 8, "batch_size": 8, "log_period": 60.0}


@pytest.mark.parametrize("name", ON_POLICY)
def test_on_policy_agents_solve_the_toy_environment(tmp_path: Path, name: str) -> None:
    settings = {**QUICKLY, "entropy_loss_weight": 0.01, "hidden_sizes": "64,64", **ON_POLICY[name]}
    assert any(solving.solves(SOLVED, tmp_path / str(seed), **settings, seed=seed) for seed in SEEDS)


@pytest.mark.parametrize("agent", ["es", "cem"])
def test_evolutionary_agents_solve_the_toy_environment(tmp_path: Path, agent: str) -> None:
    own = {
        "es": {"hidden_sizes": "16", "lr": 0.1, "noise_std": 0.3, "population": 48, "envs_per_worker": 48, "batch_size": 48},
        "cem": {"network": "flat", "population": 48, "elites": 8},  # a linear policy suffices, and its search is short
    }
    settings = {**SEARCH, **own[agent]}
    assert any(solving.solves(SOLVED, tmp_path / str(seed), agent=agent, **settings, seed=seed) for seed in SEEDS)


@pytest.mark.parametrize("own", [{"agent": "linucb"}, {"agent": "linucb", "thompson": True}, {"network": "flat", **FLAT}])
def test_a_bandit_is_solved(tmp_path: Path, own: dict[str, Any]) -> None:
    """By V-trace too, with a policy that is linear in the context. The best arms pay 9.2 an episode, arms at random nothing."""
    assert solving.solves(7.5, tmp_path, **{"env": "Bandit-v0", "frames_stacked": 1, "environment_max_steps": 3000, **own})


@pytest.mark.parametrize("network", [network for network in TORSOS if network not in ("mlp", "flat")])  # others have these
def test_every_network_solves_the_toy_environment(tmp_path: Path, network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = TORSOS[network]
    assert isinstance(kind, type)
    assert issubclass(kind, Torso)
    monkeypatch.setitem(ENVIRONMENTS, "large toy", large_toy(kind.minimum_frame_size or 1))
    assert solves(tmp_path, env="LargeCatch", network=network)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "standard"])
def test_every_replay_kind_solves_the_toy_environment(tmp_path: Path, kind: str) -> None:
    assert solves(tmp_path, kind)


def test_no_replay_kind_was_forgotten() -> None:
    of_agents_with_priorities = "prioritised"  # tests/learner/test_value_based.py
    kinds = {"queue", of_agents_with_priorities, *(str(kind["type"]) for kind in KINDS.values())}
    assert kinds == {*REPLAYS, "custom"}
