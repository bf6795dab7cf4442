"""V-trace on every action space: ratios of whole actions, finite updates, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from agents.distributions import ILLEGAL_LOGIT
from agents.networks.actor_critic import ActorCritic, PolicyOutput
from agents.networks.base import NetworkOutput
from agents.returns.vtrace import vtrace
from agents.vtrace import agent as module
from agents.vtrace.agent import VTraceAgent, VTraceConfig
from replay.batch import Batch
from tests.agents.networks.test_policy_heads import SPACES, config_of, network_for
from tests.agents.support import CLEAR, B, T, random_batch

BEHAVIOUR = "behaviour relevance"


def batch_of(network: ActorCritic, seed: int = 0) -> Batch:
    """A batch whose behaviour policy is near the network's, and whose actions it drew."""
    generator = torch.Generator().manual_seed(seed)
    batch = replace(random_batch(seed), observations=torch.randn(T + 1, B, 1, 5, generator=generator))
    with torch.no_grad():
        policy, values = (part.unflatten(0, (T + 1, B))[:-1] for part in network(batch.observations.flatten(0, 1)))
    policy = policy + 0.3 * torch.randn(policy.shape, generator=generator)
    chosen = network.choose(_inferred(policy, values), generator)
    return replace(batch, actions=chosen.actions, acting=chosen.fields)


def _inferred(policy: Tensor, values: Tensor) -> NetworkOutput:
    return NetworkOutput(PolicyOutput(policy, values), values)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("settings", ["V-trace", "CLEAR", BEHAVIOUR])
def test_an_update_is_finite_and_changes_every_weight(name: str, settings: str) -> None:
    laser = replace(CLEAR, use_kl_mask=True, relevance="behaviour", kl_div_threshold=10.0)
    config = {"V-trace": VTraceConfig(), "CLEAR": CLEAR, BEHAVIOUR: laser}[settings]
    network = network_for(name)
    agent = VTraceAgent(config, network)
    before = {key: value.clone() for key, value in network.named_parameters()}
    scalars = agent.learn(batch_of(network), 0.0).scalars
    assert all(value.isfinite() for value in scalars.values())
    assert agent.take_skip_reasons(everything=True) == [None]
    assert all((value != before[key]).any() for key, value in network.named_parameters())


@pytest.mark.parametrize("name", SPACES)
def test_the_ratio_is_one_number_of_all_components(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, seen = network_for(name), []
    agent, batch = VTraceAgent(VTraceConfig(), network), batch_of(network)
    monkeypatch.setattr(module, "vtrace", lambda **given: seen.append(given["log_rhos"]) or vtrace(**given))
    distribution, drawn = network.distribution, batch.acting.get("raw_action", batch.actions)
    with torch.no_grad():
        policy = network(batch.observations.flatten(0, 1)).policy.unflatten(0, (T + 1, B))[:-1]
        wanted = distribution.log_prob(policy, drawn) - distribution.log_prob(batch.acting["behaviour_policy"], drawn)
    agent.learn(batch, 0.0)
    (log_rhos,) = seen
    assert log_rhos.shape == (T, B)
    assert log_rhos[~batch.action_used].tolist() == [0.0, 0.0]
    assert torch.equal(log_rhos[batch.action_used], wanted[batch.action_used])
    assert log_rhos.abs().max() > 0.01


@pytest.mark.parametrize("name", ["categorical", "multi_categorical"])
def test_masked_policies_give_finite_losses_and_gradients(name: str) -> None:
    """With the trust region and cloning, whose divergences meet probabilities of 0 under both policies."""
    network, count = network_for(name), SPACES[name][2]
    batch = batch_of(network)
    mask = torch.ones(T + 1, B, count, dtype=torch.uint8)
    mask[:, :, 1] = mask[2:, :, 3] = 0
    network.initialise(torch.Generator().manual_seed(2))  # another policy than the one that acted
    behaviour = batch.acting["behaviour_policy"].masked_fill(mask[:-1] == 0, ILLEGAL_LOGIT)
    actions = network.choose(_inferred(behaviour, batch.acting["behaviour_values"]), torch.Generator().manual_seed(3)).actions
    batch = replace(batch, actions=actions, acting={**batch.acting, "behaviour_policy": behaviour})
    agent = VTraceAgent(replace(CLEAR, use_kl_mask=True, relevance="behaviour", kl_div_threshold=10.0), network)
    policy, values = network.heads(network.features(batch.observations.flatten(0, 1)), mask.flatten(0, 1))
    terms, metrics, _ = agent.losses(batch, PolicyOutput(policy.unflatten(0, (T + 1, B)), values.unflatten(0, (T + 1, B))))
    torch.stack([term.value for term in terms.values()]).sum().backward()
    quantities = [*(term.value for term in terms.values()), *metrics.values()]
    assert all(float(quantity.abs()) < 100 for quantity in quantities)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in network.parameters())
    assert float(metrics["vtrace/kept_fraction"]) == pytest.approx(1 - 1 / (T * B))


@pytest.mark.parametrize("name", SPACES)
def test_the_implied_relevance_is_refused_for_all_but_one_choice(name: str) -> None:
    laser = VTraceConfig(use_kl_mask=True)
    for config in (VTraceConfig(), replace(laser, relevance="behaviour"), *([laser] if name == "categorical" else [])):
        VTraceAgent.check(config, config_of(name))
    if name != "categorical":
        with pytest.raises(ValueError, match=r"relevance: wanted behaviour .*got implied") as caught:
            VTraceAgent.check(laser, config_of(name))
        assert len(str(caught.value).splitlines()) == 1


def test_a_mean_outside_its_bounds_is_pulled_back() -> None:
    """The advantages are 0, so only the penalty on the bounds moves the means."""
    network = network_for("gaussian")
    config = VTraceConfig(policy_gradient_loss_weight=0.0, entropy_loss_weight=0.0, action_bound_loss_weight=0.5)
    batch = batch_of(network)
    policy = torch.full((T + 1, B, network.distribution.parameter_count), 2.1, requires_grad=True)
    terms, *_ = VTraceAgent(config, network).losses(batch, PolicyOutput(policy, torch.zeros(T + 1, B)))
    chosen, size = batch.action_used & ~batch.reset, batch.actions.shape[-1]
    loss = terms["action_bound_loss"]
    assert loss.value.item() == pytest.approx(float(chosen.sum()) * size)  # each mean is 1 beyond 1.1
    (gradient,) = torch.autograd.grad(loss.weight * loss.value, policy)
    torch.testing.assert_close(gradient[:-1, ..., :size], chosen.unsqueeze(-1).expand(-1, -1, size).float())
    free, *_ = VTraceAgent(replace(config, action_bound_loss_weight=0.0), network).losses(
        batch, PolicyOutput(policy, torch.zeros(T + 1, B))
    )
    assert "action_bound_loss" not in free
    # LASER leaves out steps whose behaviour policy is far, here with means of 0 or so.
    far = replace(config, use_kl_mask=True, relevance="behaviour", kl_div_threshold=1e-6)
    left_out, *_ = VTraceAgent(far, network).losses(batch, PolicyOutput(policy, torch.zeros(T + 1, B)))
    assert left_out["action_bound_loss"].value == 0
