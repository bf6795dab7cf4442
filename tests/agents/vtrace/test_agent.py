"""The V-trace agent's update against the same step written out by hand."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from agents.networks.actor_critic import ActorCritic
from agents.vtrace.agent import VTraceAgent, VTraceConfig
from replay.batch import Batch
from tests.agents.support import CLEAR, CONFIG, RATE, A, B, T, make_network_here, random_batch
from tests.builders import network_of


def relevant_by_hand(log_pi: torch.Tensor, log_mu: torch.Tensor, config: VTraceConfig) -> bool:
    if not config.use_kl_mask:
        return True
    pi, mu = log_pi.detach().exp(), log_mu.exp()
    implied = torch.minimum(config.rho_bar * mu, pi)
    reference = implied / implied.sum() if config.relevance == "implied" else mu
    return float((pi * (pi / reference).log()).sum()) < config.kl_div_threshold


def loss_by_hand(network: ActorCritic, batch: Batch, config: VTraceConfig) -> torch.Tensor:
    """The specification in words: every sum a Python loop over steps and columns."""
    outputs = [network(batch.observations[t]) for t in range(T + 1)]
    total = torch.zeros(())
    for b in range(B):
        values = [float(outputs[t].values[b].detach()) for t in range(T + 1)]
        error, vs = 0.0, [0.0] * T + [values[T]]
        replayed = float(batch.is_replay[b])
        for t in reversed(range(T)):
            log_pi = outputs[t].policy[b].log_softmax(-1)
            log_mu = batch.acting["behaviour_policy"][t, b].log_softmax(-1)
            action = int(batch.actions[t, b])
            ratio = float((log_pi[action].detach() - log_mu[action]).exp())
            discount = 0.0 if batch.terminated[t, b] else config.gamma
            reward = float(batch.rewards[t, b].clamp(-1, 1))
            acted = float(batch.action_used[t, b])
            if not acted:
                ratio = 1.0  # the environment replaced the action under either policy
            trusted = not acted or relevant_by_hand(log_pi, log_mu, config)
            kept = float(not batch.reset[t, b]) * trusted
            delta = min(config.rho_bar, ratio) * (reward + discount * values[t + 1] - values[t])
            error = kept * (delta + discount * config.vtrace_lambda * min(config.c_bar, ratio) * error)
            vs[t] = values[t] + error
            advantage = min(config.pg_rho_bar, ratio) * (reward + discount * vs[t + 1] - values[t])
            entropy = -(log_pi.exp() * log_pi).sum()
            total = total - config.policy_gradient_loss_weight * acted * trusted * advantage * log_pi[action]
            total = total + config.value_loss_weight * kept * 0.5 * (vs[t] - outputs[t].values[b]) ** 2
            total = total - config.entropy_loss_weight * acted * (1 - config.use_kl_mask * replayed) * entropy
            if config.use_policy_cloning_loss:
                total = total + config.policy_cloning_loss_weight * replayed * (log_mu.exp() * (log_mu - log_pi)).sum()
            if config.use_value_cloning_loss:
                squared = (outputs[t].values[b] - batch.acting["behaviour_values"][t, b]) ** 2
                total = total + config.value_cloning_loss_weight * replayed * squared
    return total


LASER = replace(CONFIG, use_kl_mask=True, kl_div_threshold=0.15, entropy_loss_weight=0.3)
OPTIONS = {
    "plain": CONFIG,
    "clear": CLEAR,
    "laser": LASER,
    "laser to the behaviour policy": replace(LASER, relevance="behaviour", kl_div_threshold=0.5),
    "both": replace(CLEAR, use_kl_mask=True, kl_div_threshold=0.15),
}


def test_the_trust_region_of_these_tests_rejects_some_steps_and_not_all() -> None:
    for config in (LASER, OPTIONS["laser to the behaviour policy"]):
        agent = VTraceAgent(config, make_network_here(), ("fresh", "old"))
        scalars = agent.learn(random_batch(), 0.0).scalars
        rejected = [float(scalars[f"replay/{name}/rejected_fraction"]) for name in agent.replay_names]
        assert all(0 < fraction < 1 for fraction in rejected)


@pytest.mark.parametrize("config", OPTIONS.values(), ids=OPTIONS.keys())
def test_update_is_one_rmsprop_step_on_the_summed_losses(config: VTraceConfig) -> None:
    network, by_hand = make_network_here(), make_network_here()
    batch, rate = random_batch(), RATE
    loss_by_hand(by_hand, batch, config).backward()
    gradients = [p.grad for p in by_hand.parameters()]
    norm = torch.stack([g.norm() for g in gradients]).norm()
    scale = min(1.0, config.gradient_clip_by_norm_threshold / float(norm))
    VTraceAgent(config, network).learn(batch, 0.0)
    for parameter, start, gradient in zip(network.parameters(), by_hand.parameters(), gradients, strict=True):
        clipped = gradient * scale
        root = clipped.abs()  # the running mean of squares starts at the first square
        expected = start.detach() - rate * clipped / (root + config.rmsprop_eps)
        torch.testing.assert_close(parameter.detach(), expected, rtol=2e-4, atol=2e-6)


def test_gradients_above_the_threshold_are_scaled_down() -> None:
    network = make_network_here()
    agent = VTraceAgent(replace(CONFIG, gradient_clip_by_norm_threshold=0.5), network)
    scalars = agent.learn(random_batch(), 0.0).scalars
    left = torch.stack([p.grad.norm() for p in network.parameters() if p.grad is not None]).norm()
    assert float(scalars["losses/gradient_norm"]) > 0.5
    assert float(left) == pytest.approx(0.5, rel=1e-3)


def test_an_autoreset_row_changes_no_weight() -> None:
    one, other = make_network_here(), make_network_here()
    batch = random_batch()
    changed = copy.deepcopy(batch)
    changed.rewards[2, 1] = 100.0
    change_action(changed, 2, 1)
    VTraceAgent(CONFIG, one).learn(batch, 0.0)
    VTraceAgent(CONFIG, other).learn(changed, 0.0)
    for left, right in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def change_action(batch: Batch, row: int, column: int) -> None:
    batch.actions[row, column] = (batch.actions[row, column] + 1) % A
    batch.acting["behaviour_policy"][row, column] += torch.arange(A)


def test_a_replaced_action_changes_no_weight_but_its_reward_does() -> None:
    def weights_after(batch: Batch) -> torch.Tensor:
        network = make_network_here()
        VTraceAgent(replace(CONFIG, clip_rewards=False), network).learn(batch, 0.0)
        return torch.nn.utils.parameters_to_vector(network.parameters())

    other_action, other_reward = random_batch(), random_batch()
    change_action(other_action, 1, 2)
    other_reward.rewards[1, 2] += 1.0
    torch.testing.assert_close(weights_after(other_action), weights_after(random_batch()), rtol=0, atol=0)
    assert not weights_after(other_reward).equal(weights_after(random_batch()))


def test_value_flows_back_through_a_row_in_which_the_environment_pressed_fire() -> None:
    """A -> a life is lost -> the environment presses FIRE -> B -> reward 1: the values are 0.99^2, 0.99 and 1."""
    rows = 3
    batch = Batch(
        observations=torch.eye(4)[: rows + 1].reshape(rows + 1, 1, 1, 4),  # A, the row of FIRE, B, and what follows B
        actions=torch.zeros(rows, 1, dtype=torch.int64),
        rewards=torch.tensor([[0.0], [0.0], [1.0]]),
        terminated=torch.tensor([[False], [False], [True]]),
        reset=torch.zeros(rows, 1, dtype=torch.bool),
        action_used=torch.tensor([[True], [False], [True]]),
        acting={"behaviour_policy": torch.zeros(rows, 1, A), "behaviour_values": torch.zeros(rows, 1)},
        is_replay=torch.tensor([False]),
        source=torch.tensor([0]),
    )
    config = VTraceConfig(
        lr=0.01, optimizer="adam", gamma=0.99, policy_gradient_loss_weight=0.0, entropy_loss_weight=0.0, value_loss_weight=1.0
    )
    network = network_of("mlp", (1, 4), A, generator=torch.Generator().manual_seed(1))
    agent = VTraceAgent(config, network)
    for update in range(200):
        agent.learn(batch, update / 200)
    values = network(batch.observations[:rows].flatten(0, 1)).values
    torch.testing.assert_close(values, torch.tensor([0.99**2, 0.99, 1.0]), atol=2e-3, rtol=0)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_state_dict_brings_back_the_same_next_step(optimizer: str) -> None:
    config = replace(CONFIG, optimizer=optimizer)
    agent = VTraceAgent(config, make_network_here())
    agent.learn(random_batch(0), 0.0)
    saved = copy.deepcopy(agent.state_dict())
    agent.learn(random_batch(1), 0.0)
    other = VTraceAgent(config, network_of("mlp", (2, 6), A))
    other.load_state_dict(saved, load_optimizer=True)
    other.learn(random_batch(1), 0.0)
    for left, right in zip(agent.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_without_the_optimizer_state_only_the_weights_come_back() -> None:
    agent = VTraceAgent(CONFIG, make_network_here())
    agent.learn(random_batch(0), 0.0)
    other = VTraceAgent(CONFIG, network_of("mlp", (2, 6), A))
    other.load_state_dict(agent.state_dict(), load_optimizer=False)
    assert not other.stepper.optimizer.state
    for left, right in zip(agent.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_clips_that_break_the_theory_are_refused() -> None:
    with pytest.raises(ValueError, match="rho_bar"):
        VTraceConfig(rho_bar=0.5, c_bar=1.0)


def test_the_effective_sample_size_is_one_on_policy_and_nan_without_data() -> None:
    network = make_network_here()
    batch = random_batch()
    with torch.no_grad():
        on_policy = network(batch.observations.flatten(0, 1)).policy.unflatten(0, (T + 1, B))[:-1]
    agent = VTraceAgent(CONFIG, network, ("fresh", "old", "absent"))
    scalars = agent.learn(replace(batch, acting={**batch.acting, "behaviour_policy": on_policy}), 0.0).scalars
    assert float(scalars["replay/old/effective_sample_size"]) == pytest.approx(1.0, abs=1e-5)
    assert float(scalars["replay/fresh/rejected_fraction"]) == 0.0
    assert torch.isnan(scalars["replay/absent/effective_sample_size"])
    far = VTraceAgent(CONFIG, network, ("fresh", "old")).learn(random_batch(), 0.0).scalars
    assert 0 < float(far["replay/old/effective_sample_size"]) < 0.99


def test_metrics_name_what_a_minute_must_show() -> None:
    scalars = VTraceAgent(CONFIG, make_network_here()).learn(random_batch(), 0.0).scalars
    assert {"losses/entropy", "losses/explained_variance", "losses/value_std", "losses/gradient_norm"} <= set(scalars)
    assert 0 < float(scalars["losses/entropy"]) <= torch.log(torch.tensor(float(A))) + 1e-6
    assert float(scalars["vtrace/kept_fraction"]) == pytest.approx(1 - 1 / (T * B))


def test_the_optimizer_s_settings_are_those_of_the_config_not_of_what_is_loaded() -> None:
    agent = VTraceAgent(replace(CONFIG, rmsprop_eps=0.5), make_network_here())
    other = VTraceAgent(replace(CONFIG, rmsprop_eps=0.25), make_network_here())
    other.load_state_dict(agent.state_dict(), load_optimizer=True)
    assert other.stepper.optimizer.param_groups[0]["eps"] == 0.25
