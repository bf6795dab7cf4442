"""PPO's update against the same steps written out by hand, and its controls."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.engine.stepper import Stepper
from agents.networks.actor_critic import ActorCritic
from agents.ppo.agent import PPOAgent
from agents.ppo.config import PPOConfig
from replay.batch import Batch
from tests.agents.support import B, T, random_batch, with_nan, with_other_unused_rows
from tests.builders import network_of
from tests.support import same

CONFIG = PPOConfig(lr=1e-2, lr_end_value=1e-2, gamma=0.9, gae_lambda=0.8, epochs=3, minibatches=2, entropy_loss_weight=0.1)


def make_network_here(core: str = "none") -> ActorCritic:
    return network_of("mlp", (2, 6), 4, core=core, generator=torch.Generator().manual_seed(1))


def acted_batch(network: ActorCritic, seed: int = 0) -> Batch:
    """A batch that this network acted. Row 2 of column 1 is an autoreset; in row 1 of column 2 an action was replaced."""
    batch = random_batch(seed)
    state = torch.zeros(B, network.state_size) if network.state_size else None
    with torch.no_grad():
        if state is None:
            policy = network(batch.observations.flatten(0, 1)).policy.unflatten(0, (T + 1, B))
        else:
            policy = network(batch.observations, state, batch.reset).policy
    acting = {**batch.acting, "behaviour_policy": policy[:-1].contiguous()}
    return replace(batch, acting=acting, recurrent_state=state, is_replay=torch.zeros(B, dtype=torch.bool))


def advantages_by_hand(batch: Batch, values: Tensor, config: PPOConfig) -> Tensor:
    found, following = torch.zeros(T, B), torch.zeros(B)
    for t in reversed(range(T)):
        for b in range(B):
            if not batch.action_used[t, b]:
                following[b] = 0.0
                continue
            discount = 0.0 if batch.terminated[t, b] else config.gamma
            delta = batch.rewards[t, b] + discount * values[t + 1, b] - values[t, b]
            following[b] = delta + discount * config.gae_lambda * following[b]
            found[t, b] = following[b]
    return found


def loss_by_hand(network: ActorCritic, batch: Batch, members: list[tuple[int, int]], given: dict[str, Tensor]) -> Tensor:
    """The loss of a minibatch of steps (row, column), one step after the other."""
    advantages = torch.stack([given["advantages"][step] for step in members])
    advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
    total = torch.zeros(())
    for step, advantage in zip(members, advantages, strict=True):
        output = network(batch.observations[step][None])
        log_pi, log_mu = (policy.log_softmax(-1) for policy in (output.policy[0], batch.acting["behaviour_policy"][step]))
        ratio = (log_pi - log_mu)[batch.actions[step]].exp()
        objective = torch.minimum(ratio * advantage, ratio.clamp(1 - CONFIG.clip, 1 + CONFIG.clip) * advantage)
        error = 0.5 * (given["targets"][step] - output.values[0]) ** 2
        entropy = -(log_pi.exp() * log_pi).sum()
        total = total - objective + CONFIG.value_loss_weight * error - CONFIG.entropy_loss_weight * entropy
    return total / len(members)


def orders(count: int) -> list[Tensor]:
    """The permutations that an update of CONFIG draws."""
    state = torch.get_rng_state()
    drawn = [torch.randperm(count) for _ in range(CONFIG.epochs)]
    torch.set_rng_state(state)
    return drawn


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("unit", ["steps", "columns"])
def test_an_update_is_the_steps_written_out(unit: Any, minibatches: int) -> None:
    """Adam steps on clipped gradients of each minibatch, with constants from before the update."""
    config = replace(CONFIG, minibatch_unit=unit, minibatches=minibatches)
    network, by_hand = make_network_here(), make_network_here()
    batch = acted_batch(network)
    with torch.no_grad():
        values = by_hand(batch.observations.flatten(0, 1)).values.unflatten(0, (T + 1, B))
    advantages = advantages_by_hand(batch, values, config)
    given = {"advantages": advantages, "targets": advantages + values[:-1]}
    used = [tuple(step) for step in batch.action_used.nonzero().tolist()]
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=1e-2, eps=1e-5)
    for order in orders(len(used) if unit == "steps" else B):
        for run in order.tensor_split(config.minibatches):
            members = [used[index] for index in run] if unit == "steps" else [step for step in used if step[1] in run.tolist()]
            optimizer.zero_grad()
            loss_by_hand(by_hand, batch, members, given).backward()
            torch.nn.utils.clip_grad_norm_(by_hand.parameters(), config.gradient_clip_by_norm_threshold)
            optimizer.step()
    agent = PPOAgent(config, network)
    updated = agent.learn(batch, 0.0)
    assert updated.optimizer_steps in (0, config.epochs * config.minibatches)
    for parameter, wanted in zip(network.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_the_first_ratios_are_1_and_metrics_are_means_over_the_steps(core: str) -> None:
    network = make_network_here(core)
    agent = PPOAgent(replace(CONFIG, entropy_loss_weight=0.0), network)
    scalars = agent.learn(acted_batch(network), 0.0).scalars
    assert float(scalars["losses/first_ratio_error"]) < 1e-5
    assert 0 < float(scalars["losses/approx_kl"]) < 1
    assert 0 < float(scalars["losses/entropy"]) <= math.log(4)
    assert float(scalars["losses/zero_gradient_fraction"]) <= float(scalars["losses/clip_fraction"]) <= 1
    names = ("policy_loss", "value_loss", "total_loss", "explained_variance", "gradient_norm")
    assert all(f"losses/{name}" in scalars and scalars[f"losses/{name}"].isfinite() for name in names)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_row_whose_action_was_ignored_changes_no_weight(core: str) -> None:
    agents = [PPOAgent(CONFIG, make_network_here(core)) for _ in range(2)]
    batch = acted_batch(make_network_here(core))
    for agent, given in zip(agents, (batch, with_other_unused_rows(batch)), strict=True):
        torch.manual_seed(1)
        agent.learn(given, 0.0)
    assert same(agents[0].state_dict(), agents[1].state_dict())


@pytest.mark.parametrize("normalisation", ["minibatch", "none"])
def test_minibatches_that_are_filled_up_teach_the_same(normalisation: Any) -> None:
    """A CUDA graph needs minibatches of one size."""
    config, found = replace(CONFIG, minibatches=4, advantage_normalisation=normalisation), []
    for filled in (False, True):
        agent = PPOAgent(config, make_network_here())
        batch = acted_batch(agent.network)
        assert batch.action_used.sum() % 4
        if filled:
            agent.stepper.records_steps = True
        torch.manual_seed(3)
        updated = agent.learn(batch, 0.0)
        found.append({**updated.scalars, **agent.network.state_dict()})
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_a_batch_without_a_used_step_takes_no_step() -> None:
    agent = PPOAgent(CONFIG, make_network_here())
    batch = acted_batch(make_network_here())
    before = copy.deepcopy(agent.state_dict()["modules"])
    agent.learn(replace(batch, action_used=torch.zeros(T, B, dtype=torch.bool)), 0.0)
    assert same(agent.state_dict()["modules"], before)
    assert agent.take_skip_reasons(everything=True) == [None]


@pytest.mark.parametrize("name", ["rewards", "observations", "behaviour_policy"])
def test_a_bad_input_is_named_and_changes_nothing(name: str) -> None:
    agent = PPOAgent(replace(CONFIG, normalise_rewards=True), make_network_here())
    batch = replace(acted_batch(make_network_here()), discounted_returns=torch.randn(T, B))
    agent.learn(batch, 0.0)
    before = copy.deepcopy(agent.state_dict())
    agent.learn(with_nan(batch, name), 0.0)
    assert agent.take_skip_reasons(everything=True) == [None, name]
    assert same(agent.state_dict(), before)


def test_an_update_stops_before_the_step_that_is_too_far() -> None:
    """A large learning rate: after the first step the policy is far away, so nothing more is taken."""
    far = replace(CONFIG, lr=0.5, lr_end_value=0.5, target_kl=1e-3)
    for config, most in ((far, 2), (replace(far, target_kl=0.0), CONFIG.epochs * CONFIG.minibatches)):
        agent = PPOAgent(config, make_network_here())
        agent.learn(acted_batch(make_network_here()), 0.0)
        agent.take_skip_reasons(everything=True)
        assert 1 <= agent.stepper.guard.steps <= most
    assert agent.stepper.guard.steps == most


def test_a_refused_update_leaves_the_weight_of_the_kl_penalty() -> None:
    agent = PPOAgent(replace(CONFIG, policy_objective="kl", target_kl=0.5), make_network_here())
    bad = acted_batch(make_network_here())
    bad.rewards[0, 0] = math.nan
    agent.learn(bad, 0.0)
    assert agent.kl_weight == 1.0  # a divergence of 0 would halve it


def test_the_weight_of_the_kl_penalty_adapts_and_is_saved() -> None:
    config = replace(CONFIG, policy_objective="kl", target_kl=1e-9)
    agent = PPOAgent(config, make_network_here())
    scalars = agent.learn(acted_batch(make_network_here()), 0.0).scalars
    assert agent.kl_weight == 2.0  # the divergence is above 1.5 targets
    assert float(scalars["losses/clip_fraction"]) >= 0
    assert float(scalars["losses/kl_loss"]) > 0
    assert float(scalars["losses/kl_weight"]) == 1.0  # that of this update
    other = PPOAgent(config, make_network_here())
    other.load_state_dict(copy.deepcopy(agent.state_dict()), load_optimizer=True)
    assert (other.kl_weight, other.stepper.guard.steps) == (2.0, CONFIG.epochs * CONFIG.minibatches)
    wrong = {**agent.state_dict(), "numbers": {"optimizer_steps": {"count": torch.zeros(2)}}}
    with pytest.raises(ValueError, match=r"^wanted count as int64 \[\], got float32 \[2\]$"):
        other.check_state_dict(wrong, load_optimizer=True)


@pytest.mark.parametrize(
    "options",
    [
        {"value_clip": 0.2},
        {"dual_clip": 1.01},
        {"advantage_normalisation": "batch"},
        {"advantage_normalisation": "none"},
        {"recompute_advantages": True},
        {"policy_objective": "clip_and_kl", "target_kl": 0.01},
        {"clip": 0.01},
    ],
    ids=str,
)
def test_every_option_changes_the_update(options: dict[str, Any]) -> None:
    """And leaves finite weights. Data and minibatches are the same."""
    ends = []
    for config in (CONFIG, replace(CONFIG, **options)):
        agent = PPOAgent(replace(config, epochs=6), make_network_here())
        torch.manual_seed(1)
        batch = acted_batch(make_network_here())
        agent.learn(replace(batch, rewards=10 * batch.rewards), 0.0)
        ends.append(agent.state_dict()["modules"])
    assert not same(*ends)
    assert all(weights.isfinite().all() for weights in ends[1]["network"].values())


def test_learning_rate_and_clip_fall_linearly() -> None:
    config = replace(CONFIG, lr_end_value=0.0, clip=0.2, clip_end_value=0.1)
    agent = PPOAgent(config, make_network_here())
    clips = []
    minibatches = agent._minibatches

    def seen(batch: Batch, step: Stepper, clip: float) -> Any:
        clips.append(clip)
        return minibatches(batch, step, clip)

    agent._minibatches = seen  # type: ignore[method-assign]
    rates = [agent.learn(acted_batch(make_network_here()), progress).learning_rate for progress in (0.0, 0.5, 1.0)]
    assert rates == pytest.approx([1e-2, 5e-3, 0.0])
    assert clips == pytest.approx([0.2, 0.15, 0.1])


def test_single_steps_are_refused_with_a_core() -> None:
    config = replace(CONFIG, minibatch_unit="steps")
    with pytest.raises(ValueError, match="^minibatch_unit: wanted columns or auto with --core=lstm, .*, got steps$"):
        PPOAgent.check(config, make_network_here("lstm").config)
