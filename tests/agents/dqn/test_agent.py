"""One update of DQN: gradient, target network, epsilon, priorities, and an update that must change nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from agents.dqn.agent import DqnAgent, DqnConfig
from agents.networks.base import NetworkConfig, make_network
from agents.networks.q_network import QNetwork
from agents.networks.settings import NetworkSettings
from agents.r2d2.agent import R2d2Agent, R2d2Config
from agents.returns.nstep import n_step
from replay.batch import Batch
from tests.support import same
from wrappers.spaces import ActionSpace, Box, Discrete, MultiDiscrete

A, K, B = 4, 2, 6
IMPLICIT = {"return_distribution": "iqn", "fractions": 16, "target_fractions": 16}
SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "double dueling": {"double": True, "dueling": True},
    "c51": {"return_distribution": "c51", "atoms": 7},
    "quantiles": {"return_distribution": "qr", "quantiles": 5, "double": True},
    "noisy": {"noisy": True},
    "munchausen": {"munchausen": True, "n_step": 2},
    "implicit": {**IMPLICIT, "double": True},
    "implicit, munchausen": {**IMPLICIT, "munchausen": True, "dueling": True, "head_units": 8},
    "quantiles, munchausen": {"return_distribution": "qr", "quantiles": 5, "munchausen": True},
    "bins": {"return_distribution": "hl_gauss", "v_min": -5.0, "v_max": 5.0, "atoms": 21},
    "bins, munchausen": {"return_distribution": "hl_gauss", "munchausen": True, "noisy": True, "head_units": 8},
    "rainbow": {"double": True, "dueling": True, "noisy": True, "return_distribution": "c51", "atoms": 7},
}


def config_of(**settings: Any) -> DqnConfig:
    return DqnConfig(**{"lr": 1e-3, "batches_at_once": 1, "gamma": 0.9, **settings})


def agent_of(config: DqnConfig, action: ActionSpace | None = None, threads: int = 1, **network: Any) -> DqnAgent:
    settings = NetworkSettings("mlp", hidden_sizes="16", **network)
    described = NetworkConfig(settings, (1, 5), action or Discrete(A), QNetwork, agent=config)
    DqnAgent.check(config, described)
    return DqnAgent(config, make_network(described, torch.Generator().manual_seed(1)), threads=threads)


def batch_of(steps: int = 1, count: int = B, seed: int = 0) -> Batch:
    """Windows; the first one's action was the end of an episode."""
    generator = torch.Generator().manual_seed(seed)
    terminated, used = torch.zeros(steps, count, dtype=torch.bool), torch.ones(steps, count, dtype=torch.bool)
    terminated[0, 0] = True
    return Batch(
        observations=torch.randn(steps + 1, count, 1, 5, generator=generator),
        actions=torch.randint(A, (steps, count), generator=generator),
        rewards=torch.randn(steps, count, generator=generator),
        terminated=terminated,
        reset=torch.zeros_like(terminated),
        action_used=used,
        acting={},
        is_replay=torch.ones(count, dtype=torch.bool),
        source=torch.zeros(count, dtype=torch.int64),
    )


def test_an_update_descends_the_huber_loss_of_double_targets() -> None:
    """The gradient of a whole update, against one that autograd takes of the formula."""
    agent, batch = agent_of(config_of(double=True, n_step=2)), batch_of(steps=2)
    weights = torch.linspace(0.2, 1.0, B)
    reference = copy.deepcopy(agent.network)
    found = n_step(batch.rewards, batch.terminated, batch.action_used, 0.9)
    following = batch.observations[found.rows, torch.arange(B)]
    best = reference(following).q.argmax(-1)
    targets = found.returns + found.discounts * agent.target.network(following).q[torch.arange(B), best]
    errors = targets.detach() - reference(batch.observations[0]).q[torch.arange(B), batch.actions[0]]
    huber = torch.where(errors.abs() < 1, 0.5 * errors.square(), errors.abs() - 0.5)
    (weights * huber).mean().backward()
    updated = agent.learn(replace(batch, weights=weights), 0.0)
    torch.testing.assert_close(updated.priorities, errors.detach().abs())
    for parameter, wanted in zip(agent.network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad)


def test_every_drawn_batch_gives_a_step_with_weights_of_its_own_maximum() -> None:
    agent = agent_of(config_of(batches_at_once=K))
    weights = torch.full((K * B,), 0.25)
    weights[1] = 1.0  # of the second batch
    updated = agent.learn(replace(batch_of(count=K * B), weights=weights), 0.0)
    assert agent.stepper.guard.steps == K
    assert updated.priorities is not None
    assert updated.priorities.shape == (K * B,)
    alone = agent_of(config_of())
    part = batch_of(count=K * B).take_columns(torch.arange(0, K * B, K))
    torch.testing.assert_close(updated.priorities[::K], alone.learn(part, 0.0).priorities)


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("name", SWITCHES)
def test_threads_share_a_batch_without_changing_its_step(name: str) -> None:
    one, two = agent_of(config_of(**SWITCHES[name])), agent_of(config_of(**SWITCHES[name]), threads=2)
    found = []
    for agent in (one, two):
        torch.manual_seed(0)  # of noise and fractions
        found.append(agent.learn(batch_of(count=7), 0.0).priorities)
    torch.testing.assert_close(*found)
    for single, double in zip(one.network.parameters(), two.network.parameters(), strict=True):
        torch.testing.assert_close(single.grad, double.grad)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_fixed_batch_is_learned(name: str) -> None:
    torch.manual_seed(0)
    agent = agent_of(config_of(**SWITCHES[name], lr=3e-3, target_update_period=1000, lr_end_value=-1.0))
    errors = [float(agent.learn(batch_of(), 0.0).scalars["losses/td_error"]) for _ in range(250)]
    assert min(errors[-20:]) < 0.4 * errors[0]


def test_several_choices_are_learned() -> None:
    agent = agent_of(config_of(dueling=True, lr=3e-3), MultiDiscrete((2, 3)))
    batch = batch_of()
    batch = replace(batch, actions=torch.stack([batch.actions % 2, batch.actions % 3], -1))
    losses = [float(agent.learn(batch, 0.0).scalars["losses/value_loss"]) for _ in range(200)]
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("name", SWITCHES)
def test_an_update_that_is_not_finite_changes_nothing(name: str) -> None:
    agent = agent_of(config_of(**SWITCHES[name], target_update_period=1, target_update_rate=0.5))
    agent.learn(batch_of(), 0.0)
    agent.take_skip_reasons()
    before = copy.deepcopy(agent.state_dict())
    batch = batch_of(seed=1)
    batch.rewards[0, 2] = torch.inf
    updated = agent.learn(batch, 0.05)
    assert same(before, agent.state_dict())
    assert agent.take_skip_reasons() == ["rewards"]
    assert updated.priorities is not None
    assert updated.priorities.isnan().all()


def test_epsilon_falls_with_the_run_and_stays_at_0_for_noisy_layers() -> None:
    agent = agent_of(config_of(epsilon_start=1.0, epsilon_end=0.1, epsilon_fraction=0.5))
    assert agent.network.epsilon == 1.0
    found = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        agent.learn(batch_of(), progress)
        found.append(float(agent.network.epsilon))
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])
    noisy = agent_of(config_of(noisy=True))
    noisy.learn(batch_of(), 0.3)
    assert noisy.network.epsilon == 0.0
    both = agent_of(config_of(noisy=True, noisy_epsilon=True, epsilon_end=0.0, epsilon_fraction=0.5))
    assert both.network.epsilon == 1.0
    both.learn(batch_of(), 0.3)
    assert float(both.network.epsilon) == pytest.approx(0.4)


def test_initial_errors_are_those_of_the_values_that_acting_stored() -> None:
    trajectory = {
        "rewards": torch.tensor([3.0, 0.0, 5.0]).numpy(),
        "terminated": torch.tensor([False, True, False]).numpy(),
        "action_used": torch.tensor([True, True, False]).numpy(),
        "behaviour_q": torch.tensor([1.0, 2.0, 0.0]).numpy(),
        "behaviour_q_max": torch.tensor([1.0, 4.0, 0.0]).numpy(),
    }
    config = config_of(clip_rewards=True)
    network = agent_of(config).network.config
    function = DqnAgent.initial_errors(config, network)
    assert function is not None
    assert function(trajectory).tolist() == pytest.approx([abs(1 + 0.9 * 4 - 1), 2.0, 0.0])
    # Neither a distribution's divergence nor Munchausen's log-probability follows from the values.
    assert DqnAgent.initial_errors(config_of(return_distribution="c51"), network) is None
    assert DqnAgent.initial_errors(config_of(munchausen=True), network) is None
    assert DqnAgent.initial_errors(config_of(return_distribution="iqn"), network) is None
    # Acting stores means over the components, in which errors of opposite signs would cancel.
    assert DqnAgent.initial_errors(config, replace(network, action=MultiDiscrete((2, 3)))) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"return_distribution": "c51", "v_min": 3.0, "v_max": 3.0}, "v_min: wanted less than v_max 3, got 3"),
        (
            {"return_distribution": "c51", "v_min": 1e6, "v_max": 1e6 + 1},
            "atoms: wanted atoms at least 119.209 apart, .* got 0.02",
        ),
        ({"noisy": True, "exploration": "ladder"}, "exploration: wanted schedule with --noisy"),
        ({"noisy": True, "epsilon_zeta": 2.0}, "epsilon_zeta: wanted 0 with --noisy, whose epsilon is 0, got 2"),
        ({"munchausen": True, "double": True}, "double: wanted False with --munchausen, got True"),
        (
            {"munchausen": True, "return_distribution": "c51"},
            "return_distribution: wanted none, qr, iqn or hl_gauss with --munchausen, got c51",
        ),
        ({"return_distribution": "hl_gauss", "v_min": 9.0, "v_max": 3.0}, "v_min: wanted less than v_max 3, got 9"),
    ],
)
def test_switches_that_exclude_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        config_of(**settings)


@pytest.mark.parametrize(
    ("settings", "action", "network", "message"),
    [
        ({"return_distribution": "c51"}, MultiDiscrete((2, 2)), {}, "return_distribution: wanted none for the 2 choices"),
        ({"munchausen": True}, MultiDiscrete((2, 2)), {}, "munchausen: wanted false for the 2 choices"),
        ({}, Box((-1.0,), (1.0,)), {}, "agent: wanted choices among actions"),
        ({}, Discrete(2), {"core": "lstm"}, "core: wanted none with agent dqn, got lstm"),
        ({}, Discrete(2), {"separate_value": True}, "separate_value: wanted false"),
        ({}, Discrete(2), {"action_distribution": "gaussian"}, "action_distribution: wanted auto with an agent"),
    ],
)
def test_networks_that_do_not_fit_are_refused(
    settings: dict[str, Any], action: ActionSpace, network: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        agent_of(config_of(**settings), action, **network)


def test_r2d2_refuses_what_it_cannot_learn_with() -> None:
    with pytest.raises(ValueError, match="^clip_rewards: wanted false with --value_rescaling"):
        R2d2Config(clip_rewards=True)
    without_core = NetworkConfig(NetworkSettings("mlp"), (1, 5), Discrete(2), QNetwork, agent=R2d2Config())
    with pytest.raises(ValueError, match="^core: wanted lstm or gru"):
        R2d2Agent.check(R2d2Config(), without_core)
