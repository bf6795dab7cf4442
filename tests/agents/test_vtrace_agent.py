"""The V-trace agent's update against the same step written out by hand."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from agents.networks import ActorCritic, make_network
from agents.vtrace_agent import VTraceAgent, VTraceConfig
from replay.trajectory import Batch

T, B, A = 5, 3, 4
CONFIG = VTraceConfig(gamma=0.9, rho_bar=1.5, c_bar=1.0, pg_rho_bar=2.0, lambda_=0.95, reward_clipping="abs_one_clamp")


def make_network_here() -> ActorCritic:
    return make_network("mlp", (2, 6), A, generator=torch.Generator().manual_seed(1))


def random_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    action_used = torch.ones(T, B, dtype=torch.bool)
    action_used[2, 1] = False
    terminated = torch.zeros(T, B, dtype=torch.bool)
    terminated[3, 0] = True
    return Batch(
        observations=rand(T + 1, B, 2, 6),
        actions=torch.randint(A, (T, B), generator=generator),
        rewards=3 * rand(T, B),
        terminated=terminated,
        truncated=torch.zeros(T, B, dtype=torch.bool),
        action_used=action_used,
        behaviour_logits=rand(T, B, A),
        behaviour_values=rand(T, B),
        policy_version=torch.zeros(T, B, dtype=torch.int64),
        is_replay=torch.zeros(B, dtype=torch.bool),
        source=torch.zeros(B, dtype=torch.int64),
    )


def loss_by_hand(network: ActorCritic, batch: Batch, config: VTraceConfig) -> torch.Tensor:
    """ALGORITHMS in words: every sum a Python loop over steps and columns."""
    outputs = [network(batch.observations[t]) for t in range(T + 1)]
    total = torch.zeros(())
    for b in range(B):
        values = [float(outputs[t].values[b].detach()) for t in range(T + 1)]
        error, vs = 0.0, [0.0] * T + [values[T]]
        for t in reversed(range(T)):
            log_pi = outputs[t].logits[b].log_softmax(-1)
            action = int(batch.actions[t, b])
            ratio = float((log_pi[action].detach() - batch.behaviour_logits[t, b].log_softmax(-1)[action]).exp())
            discount = 0.0 if batch.terminated[t, b] else config.gamma
            reward = float(batch.rewards[t, b].clamp(-1, 1))
            used = float(batch.action_used[t, b])
            delta = min(config.rho_bar, ratio) * (reward + discount * values[t + 1] - values[t])
            error = used * (delta + discount * config.lambda_ * min(config.c_bar, ratio) * error)
            vs[t] = values[t] + error
            advantage = min(config.pg_rho_bar, ratio) * (reward + discount * vs[t + 1] - values[t])
            entropy = -(log_pi.exp() * log_pi).sum()
            total = total + used * (
                -config.policy_gradient_loss_weight * advantage * log_pi[action]
                + config.value_loss_weight * 0.5 * (vs[t] - outputs[t].values[b]) ** 2
                - config.entropy_loss_weight * entropy
            )
    return total


def test_update_is_one_rmsprop_step_on_the_summed_losses() -> None:
    network, by_hand = make_network_here(), make_network_here()
    batch, rate = random_batch(), 1e-3
    loss_by_hand(by_hand, batch, CONFIG).backward()
    gradients = [p.grad for p in by_hand.parameters()]
    norm = torch.stack([g.norm() for g in gradients]).norm()
    scale = min(1.0, CONFIG.gradient_clip_by_norm_threshold / float(norm))
    VTraceAgent(CONFIG, network).update(batch, rate)
    for parameter, start, gradient in zip(network.parameters(), by_hand.parameters(), gradients, strict=True):
        clipped = gradient * scale
        root = clipped.abs()  # the running mean of squares starts at the first square
        expected = start.detach() - rate * clipped / (root + CONFIG.rmsprop_eps)
        torch.testing.assert_close(parameter.detach(), expected, rtol=2e-4, atol=2e-6)


def test_gradients_above_the_threshold_are_scaled_down() -> None:
    network = make_network_here()
    agent = VTraceAgent(replace(CONFIG, gradient_clip_by_norm_threshold=0.5), network)
    scalars = agent.update(random_batch(), 0.0)
    left = torch.stack([p.grad.norm() for p in network.parameters() if p.grad is not None]).norm()
    assert float(scalars["losses/gradient_norm"]) > 0.5
    assert float(left) == pytest.approx(0.5, rel=1e-3)


def test_an_ignored_action_teaches_nothing() -> None:
    """Reward, action and logits of a step whose action was not used change no weight."""
    one, other = make_network_here(), make_network_here()
    batch = random_batch()
    changed = copy.deepcopy(batch)
    changed.rewards[2, 1] = 100.0
    changed.actions[2, 1] = (changed.actions[2, 1] + 1) % A
    changed.behaviour_logits[2, 1] += torch.arange(A)
    VTraceAgent(CONFIG, one).update(batch, 1e-2)
    VTraceAgent(CONFIG, other).update(changed, 1e-2)
    for left, right in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_state_dict_brings_back_the_same_next_step(optimizer: str) -> None:
    config = replace(CONFIG, optimizer=optimizer)
    agent = VTraceAgent(config, make_network_here())
    agent.update(random_batch(0), 1e-3)
    saved = copy.deepcopy(agent.state_dict())
    agent.update(random_batch(1), 1e-3)
    other = VTraceAgent(config, make_network("mlp", (2, 6), A))
    other.load_state_dict(saved, load_optimizer=True)
    other.update(random_batch(1), 1e-3)
    for left, right in zip(agent.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_without_the_optimizer_state_only_the_weights_come_back() -> None:
    agent = VTraceAgent(CONFIG, make_network_here())
    agent.update(random_batch(0), 1e-3)
    other = VTraceAgent(CONFIG, make_network("mlp", (2, 6), A))
    other.load_state_dict(agent.state_dict(), load_optimizer=False)
    assert not other.optimizer.state
    for left, right in zip(agent.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_clips_that_break_the_theory_are_refused() -> None:
    with pytest.raises(ValueError, match="rho_bar"):
        VTraceConfig(rho_bar=0.5, c_bar=1.0)


def test_metrics_name_what_a_minute_must_show() -> None:
    scalars = VTraceAgent(CONFIG, make_network_here()).update(random_batch(), 0.0)
    assert {"losses/entropy", "losses/explained_variance", "losses/value_std", "losses/gradient_norm"} <= set(scalars)
    assert 0 < float(scalars["losses/entropy"]) <= torch.log(torch.tensor(float(A))) + 1e-6
    assert float(scalars["vtrace/used_fraction"]) == pytest.approx(1 - 1 / (T * B))
