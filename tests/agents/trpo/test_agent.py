"""TRPO's update: the policy stays in its region, the values are fitted apart, and nothing that must not count does."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.networks.actor_critic import ActorCritic
from agents.trpo import agent as module
from agents.trpo.agent import TRPOAgent, TRPOConfig
from agents.trpo.region import TrustRegion
from replay.batch import Batch
from tests.agents.ppo.test_agent import acted_batch, advantages_by_hand
from tests.agents.support import A, B, T, with_nan, with_other_unused_rows
from tests.builders import network_of
from tests.support import same
from wrappers.spaces import Box

CONFIG = TRPOConfig(lr_end_value=1e-3, gamma=0.9, gae_lambda=0.8, minibatches=2)


def network_here(core: str = "none", seed: int = 1, **settings: Any) -> ActorCritic:
    generator = torch.Generator().manual_seed(seed)
    network = network_of("mlp", (2, 6), A, core=core, generator=generator, agent=TRPOConfig(), separate_value=True, **settings)
    assert isinstance(network, ActorCritic)
    return network


def policies(network: ActorCritic, batch: Batch) -> Tensor:
    with torch.no_grad():
        if batch.recurrent_state is None:
            return network(batch.observations.flatten(0, 1)).policy.unflatten(0, (T + 1, B))[:-1]
        return network(batch.observations, batch.recurrent_state, batch.reset).policy[:-1]


def parts(network: ActorCritic) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Copies of the weights of the policy and of the others, by name."""
    own = {id(weights) for weights in network.policy_parameters}
    copies = {name: (id(weights) in own, weights.detach().clone()) for name, weights in network.named_parameters()}
    return tuple({name: copy for name, (mine, copy) in copies.items() if mine == wanted} for wanted in (True, False))  # type: ignore[return-value]


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_policy_and_values_share_no_weight(core: str) -> None:
    """Each output depends on its own weights alone, and all weights belong to one of them."""
    network = network_here(core)
    batch = acted_batch_here(network)
    if core == "none":
        outputs = network(batch.observations.flatten(0, 1))
    else:
        outputs = network(batch.observations, batch.recurrent_state, batch.reset)
    of_policy, of_values = parts(network)
    weights = dict(network.named_parameters())
    for output, own, others in ((outputs.policy, of_policy, of_values), (outputs.values, of_values, of_policy)):
        gradients = torch.autograd.grad(
            output.square().sum(), [weights[name] for name in (*own, *others)], retain_graph=True, materialize_grads=True
        )
        found = dict(zip((*own, *others), gradients, strict=True))
        assert all(found[name].any() for name in own)
        assert not any(found[name].any() for name in others)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_a_part_alone_gives_its_output_without_the_layers_of_the_other(core: str) -> None:
    network = network_here(core)
    batch = acted_batch_here(network)
    arguments = (batch.observations.flatten(0, 1),)
    if batch.recurrent_state is not None:
        arguments = (batch.observations, batch.recurrent_state, batch.reset)
    whole, policy, values = (each(*arguments) for each in (network, network.alone("policy"), network.alone("values")))
    torch.testing.assert_close(policy.policy, whole.policy)
    torch.testing.assert_close(values.values, whole.values)
    every, of_policy, of_values = (
        {id(weights) for weights in each.parameters()} for each in (network, network.alone("policy"), network.alone("values"))
    )
    heads = {id(weights) for head in (network.policy_head, network.value_head) for weights in head.parameters()}
    assert of_policy & of_values == heads
    assert of_policy | of_values == every
    assert network.value_torso is not None


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_fit_of_the_values_does_not_compute_the_policys_layers(core: str) -> None:
    """Their gradient is 0 in any case, so only the time shows it."""
    agent = TRPOAgent(CONFIG, network_here(core))
    passed = {id(weights) for weights in agent.stepper.passes.network.parameters()}
    assert not passed & {id(weights) for weights in agent.network.torso.parameters()}
    assert agent.network.value_torso is not None
    assert passed >= {id(weights) for weights in agent.network.value_torso.parameters()}


def acted_batch_here(network: ActorCritic) -> Batch:
    batch = acted_batch(network)
    generator = torch.Generator().manual_seed(3)
    if batch.recurrent_state is not None:
        batch = replace(batch, recurrent_state=torch.randn(batch.recurrent_state.shape, generator=generator))
        batch.acting["behaviour_policy"] = policies(network, batch)
    return batch


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_the_policy_gains_and_stays_in_its_region(core: str) -> None:
    network = network_here(core)
    batch = acted_batch_here(network)
    before = policies(network, batch)
    scalars = TRPOAgent(CONFIG, network).learn(batch, 0.0).scalars
    divergence = network.distribution.kl(before, policies(network, batch))[batch.action_used].mean()
    assert float(scalars["losses/kl"]) == pytest.approx(float(divergence), rel=1e-4)
    assert 0.3 * CONFIG.max_kl < float(divergence) <= CONFIG.max_kl
    assert float(scalars["losses/surrogate_gain"]) > 0
    assert float(scalars["trpo/step_accepted"]) == 1
    assert float(scalars["losses/first_ratio_error"]) < 1e-5
    assert 0 < float(scalars["losses/entropy"]) <= math.log(A)


def test_the_step_is_that_of_normalised_advantages_by_hand() -> None:
    """The natural gradient, solved with the whole Fisher matrix: mean of J (diag(p) - p p') J' over the used steps."""
    config = replace(CONFIG, cg_iterations=200)
    network, by_hand = network_here(hidden_sizes="4"), network_here(hidden_sizes="4")
    batch, used = acted_batch(network), [tuple(step) for step in acted_batch(network).action_used.nonzero().tolist()]
    with torch.no_grad():
        values = by_hand(batch.observations.flatten(0, 1)).values.unflatten(0, (T + 1, B))
    advantages = torch.stack([advantages_by_hand(batch, values, config)[step] for step in used])
    advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
    weights = by_hand.policy_parameters
    gradient, fisher = torch.zeros(()), torch.zeros(())
    for step, advantage in zip(used, advantages, strict=True):
        logits = by_hand(batch.observations[step][None]).policy[0]
        jacobian = torch.stack([flat(torch.autograd.grad(each, weights, retain_graph=True)) for each in logits])
        p = logits.detach().softmax(-1)
        indicator = torch.zeros(A).index_fill(0, batch.actions[step], 1.0)
        gradient = gradient + advantage * (indicator - p) @ jacobian / len(used)
        fisher = fisher + jacobian.T @ (p.diag() - p.outer(p)) @ jacobian / len(used)
    damped = (fisher + config.cg_damping * torch.eye(len(fisher))).double()
    direction = torch.linalg.solve(damped, gradient.double())
    step_by_hand = (2 * config.max_kl / (direction @ damped @ direction)).sqrt() * direction
    before = flat(network.policy_parameters)
    scalars = TRPOAgent(config, network).learn(batch, 0.0).scalars
    fraction = config.backtrack_coefficient ** (float(scalars["trpo/steps_tried"]) - 1)
    torch.testing.assert_close(
        flat(network.policy_parameters) - before, (fraction * step_by_hand).float(), rtol=1e-3, atol=1e-4
    )
    log_pi, log_old = (policies(each, batch).log_softmax(-1) for each in (network, by_hand))
    ratios = (log_pi - log_old).gather(-1, batch.actions.unsqueeze(-1)).exp()
    gain = sum(float((ratios[step] - 1) * advantage) for step, advantage in zip(used, advantages, strict=True)) / len(used)
    assert float(scalars["losses/surrogate_gain"]) == pytest.approx(gain, rel=1e-3)


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_values_are_fitted_without_moving_the_policy(core: str) -> None:
    """With epochs and learning rate for the values alone: their weights move, and the policy's differ by its own step alone."""
    ends = []
    for config in (CONFIG, replace(CONFIG, lr=0.0, lr_end_value=0.0)):
        network = network_here(core)
        before = parts(network)
        torch.manual_seed(1)
        TRPOAgent(config, network).learn(acted_batch_here(network), 0.0)
        ends.append(parts(network))
        assert not same(ends[-1][0], before[0])
        assert same(ends[-1][1], before[1]) == (config.lr == 0)
    assert same(ends[0][0], ends[1][0])


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_columns_in_parts_give_the_step_of_all_at_once(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, scalars = [], []
    for at_once in (10**6, 1):
        monkeypatch.setattr(module, "NUMBERS_AT_ONCE", at_once)
        network = network_here(core)
        torch.manual_seed(1)
        agent = TRPOAgent(replace(CONFIG, entropy_loss_weight=0.1, cg_iterations=3), network)
        scalars.append(agent.learn(acted_batch_here(network), 0.0).scalars)
        ends.append(dict(network.named_parameters()))
    for name, weights in ends[0].items():
        torch.testing.assert_close(weights, ends[1][name], rtol=1e-3, atol=1e-6)
    for name in ("losses/surrogate_gain", "losses/kl"):
        assert float(scalars[0][name]) == pytest.approx(float(scalars[1][name]), rel=1e-3)
    assert not same(flat(ends[0].values()), flat(ends[1].values()))  # another order of the sums, so other rounding


def test_values_approach_their_targets() -> None:
    network = network_here()
    agent = TRPOAgent(replace(CONFIG, epochs=100, lr=1e-2, lr_end_value=1e-2), network)
    batch = acted_batch(network)
    updates = [agent.learn(batch, 0.0) for _ in range(3)]
    losses = [float(update.scalars["losses/explained_variance"]) for update in updates]
    assert losses[2] > max(0.5, losses[0])
    agent.take_skip_reasons(everything=True)
    assert agent.stepper.guard.steps == 3 * (1 + 100 * 2)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_row_whose_action_was_ignored_changes_no_weight(core: str) -> None:
    agents = [TRPOAgent(CONFIG, network_here(core)) for _ in range(2)]
    batch = acted_batch(network_here(core))
    for agent, given in zip(agents, (batch, with_other_unused_rows(batch)), strict=True):
        torch.manual_seed(1)
        agent.learn(given, 0.0)
    assert same(agents[0].state_dict(), agents[1].state_dict())


def test_a_batch_without_a_used_step_takes_no_step() -> None:
    agent = TRPOAgent(CONFIG, network_here())
    batch = acted_batch(network_here())
    before = copy.deepcopy(agent.state_dict()["modules"])
    scalars = agent.learn(replace(batch, action_used=torch.zeros(T, B, dtype=torch.bool)), 0.0).scalars
    assert same(agent.state_dict()["modules"], before)
    assert agent.take_skip_reasons(everything=True) == [None]
    assert float(scalars["trpo/step_accepted"]) == float(scalars["trpo/steps_tried"]) == 0


@pytest.mark.parametrize("reads_late", [False, True])
@pytest.mark.parametrize("name", ["rewards", "observations", "behaviour_policy"])
def test_a_bad_input_is_named_and_changes_nothing(name: str, reads_late: bool) -> None:
    """Also where steps are reverted as on a GPU. The count of the optimiser's steps is part of the state."""
    agent = TRPOAgent(replace(CONFIG, normalise_rewards=True), network_here())
    agent.stepper.guard.reads_late = reads_late
    batch = replace(acted_batch(network_here()), discounted_returns=torch.randn(T, B))
    agent.learn(batch, 0.0)
    before = copy.deepcopy(agent.state_dict())
    agent.learn(with_nan(batch, name), 0.0)
    assert agent.take_skip_reasons(everything=True) == [None, name]
    assert same(agent.state_dict(), before)


def test_the_policy_stays_to_the_bit_if_no_step_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrustRegion, "measure", lambda self: (1.0, 1.0))
    network = network_here()
    before = parts(network)[0]
    scalars = TRPOAgent(CONFIG, network).learn(acted_batch(network), 0.0).scalars
    assert same(parts(network)[0], before)
    assert float(scalars["trpo/steps_tried"]) == CONFIG.max_backtracks
    assert float(scalars["losses/kl"]) == float(scalars["trpo/step_accepted"]) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"max_kl": 0.02},
        {"cg_iterations": 1},
        {"cg_damping": 1.0},
        {"entropy_loss_weight": 0.5},
        {"gae_lambda": 0.5},
        {"epochs": 3},
        {"minibatches": 1},
        {"value_loss_weight": 100.0, "gradient_clip_by_norm_threshold": 1e-6},
        {"minibatch_unit": "columns"},
    ],
    ids=str,
)
def test_every_option_changes_the_update(options: dict[str, Any]) -> None:
    ends = []
    for config in (CONFIG, replace(CONFIG, **options)):
        network = network_here()
        torch.manual_seed(1)
        TRPOAgent(config, network).learn(acted_batch(network), 0.0)
        ends.append(parts(network))
    assert not same(*ends)


@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian", "beta"])
def test_real_actions_stay_in_the_region_too(distribution: str) -> None:
    space = Box((-1.0, -1.0), (1.0, 1.0))
    network = network_of("mlp", (2, 6), space, agent=TRPOConfig(), separate_value=True, action_distribution=distribution)
    assert isinstance(network, ActorCritic)
    batch = acted_batch(network_here())
    acting = {"behaviour_policy": policies(network, batch)}
    drawn = network.distribution.sample(acting["behaviour_policy"], torch.Generator().manual_seed(1))
    batch = replace(batch, actions=network.distribution.action(drawn), acting={**acting, "raw_action": drawn})
    before = policies(network, batch)
    scalars = TRPOAgent(replace(CONFIG, action_bound_loss_weight=1.0), network).learn(batch, 0.0).scalars
    divergence = network.distribution.kl(before, policies(network, batch))[batch.action_used].mean()
    assert float(scalars["losses/first_ratio_error"]) < 1e-4
    assert 0.3 * CONFIG.max_kl < float(divergence) <= 1.001 * CONFIG.max_kl


def test_a_shared_torso_is_refused() -> None:
    network = network_of("mlp", (2, 6), A, agent=TRPOConfig())
    with pytest.raises(ValueError, match="^separate_value: wanted true with agent trpo, .*, got false$"):
        TRPOAgent.check(CONFIG, network.config)
