"""Targets, losses and noise of SAC, TD3 and DDPG against golden vectors and their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agents.continuous.actors import ActorOutput
from agents.continuous.losses import (
    critic_loss,
    deterministic_policy_loss,
    drawn_critics,
    hard_targets,
    kept_quantiles,
    mean_entropy,
    next_noise,
    smoothed_actions,
    soft_choice_policy_loss,
    soft_choice_targets,
    soft_policy_loss,
    soft_targets,
    temperature_loss,
)
from agents.distributions import SquashedGaussian
from agents.networks.base import NetworkOutput
from tests.agents.continuous.support import agent_of
from tests.support import golden
from wrappers.spaces import Box

CASES = {
    name: {case["name"]: case for case in golden(f"{name}.json")} for name in ("sac", "sac_discrete", "td3", "ddpg", "tqc")
}
SMOOTHED = [name for name in CASES["td3"] if not name.startswith("policy_delay")]


class Recorded:
    """A recorded case as float64 tensors. Critics are linear in the action."""

    def __init__(self, file: str, name: str) -> None:
        self.case: dict[str, Any] = CASES[file][name]
        self.outputs = self.case["outputs"]

    def __getattr__(self, name: str) -> Tensor:
        return torch.tensor(self.case["inputs"][name], dtype=torch.float64)

    def q(self, whose: str, actions: Tensor) -> Tensor:
        """Values of both critics, `[2, M]`."""
        each = ((getattr(self, f"{whose}{index}_constant"), getattr(self, f"{whose}{index}_slope")) for index in (1, 2))
        return torch.stack([constant + (slope * actions).sum(-1) for constant, slope in each])

    def check(self, name: str, got: Tensor) -> None:
        wanted = torch.tensor(self.outputs[name], dtype=torch.float64)
        torch.testing.assert_close(got.detach(), wanted, rtol=1e-10, atol=1e-10, msg=lambda text: f"{name}: {text}")


def check_critic_loss(recorded: Recorded, targets: Tensor, weight: float) -> None:
    q = torch.stack([recorded.q1_online, recorded.q2_online]).requires_grad_()
    loss = weight * critic_loss(q, targets)
    recorded.check("critic_loss", loss)
    (gradient,) = torch.autograd.grad(loss, q)
    for index in (0, 1):
        recorded.check(f"grad_wrt_q{index + 1}_online", gradient[index])


@pytest.mark.parametrize("name", CASES["sac"])
def test_soft_actor_critic_has_the_golden_losses_and_gradients(name: str) -> None:
    recorded = Recorded("sac", name)
    case, distribution = recorded.case, SquashedGaussian(recorded.case["dim"], log_stds=(-20.0, 2.0))
    alpha = torch.tensor(case["alpha"], dtype=torch.float64)
    following = torch.cat([recorded.next_mean, recorded.next_log_std], -1)
    next_actions, next_log_probs = distribution.reparametrised(following, recorded.next_normals)
    recorded.check("next_actions", next_actions)
    recorded.check("next_log_probabilities", next_log_probs)
    targets = soft_targets(recorded.returns, recorded.discounts, recorded.q("target", next_actions), next_log_probs, alpha)
    recorded.check("targets", targets)
    check_critic_loss(recorded, targets, 0.5)
    parameters = torch.cat([recorded.mean, recorded.log_std], -1).requires_grad_()
    actions, log_probs = distribution.reparametrised(parameters, recorded.normals)
    recorded.check("log_probabilities", log_probs)
    loss = soft_policy_loss(recorded.q("critic", actions), log_probs, alpha)
    recorded.check("policy_loss", loss)
    (gradient,) = torch.autograd.grad(loss, parameters)
    for part, got in zip(("mean", "log_std"), gradient.chunk(2, -1), strict=True):
        recorded.check(f"grad_policy_loss_wrt_{part}", got)
    log_alpha = alpha.log().requires_grad_()
    loss = temperature_loss(log_alpha, -log_probs.detach().mean(), case["target_entropy"])
    recorded.check("temperature_loss_log_form", loss)
    recorded.check("grad_temperature_wrt_log_alpha_log_form", torch.autograd.grad(loss, log_alpha)[0])


@pytest.mark.parametrize("name", CASES["sac_discrete"])
def test_discrete_soft_actor_critic_has_the_golden_losses_and_gradients(name: str) -> None:
    recorded = Recorded("sac_discrete", name)
    alpha = torch.tensor(recorded.case["alpha"], dtype=torch.float64)
    next_q = torch.stack([recorded.next_q1_target, recorded.next_q2_target])
    targets = soft_choice_targets(recorded.returns, recorded.discounts, next_q, recorded.next_logits, alpha)
    recorded.check("targets", targets)
    q = torch.stack([recorded.q1, recorded.q2])
    taken = q.gather(-1, recorded.actions.long().expand(2, -1).unsqueeze(-1)).squeeze(-1)
    recorded.check("critic_loss", 0.5 * critic_loss(taken, targets))
    logits = recorded.logits.requires_grad_()
    loss = soft_choice_policy_loss(q, logits, alpha)
    recorded.check("policy_loss", loss)
    recorded.check("grad_policy_loss_wrt_logits", torch.autograd.grad(loss, logits)[0])
    entropy = mean_entropy(logits)
    torch.testing.assert_close(entropy, torch.tensor(recorded.outputs["entropy"], dtype=torch.float64).mean())
    log_alpha = alpha.log().requires_grad_()
    gradient = torch.autograd.grad(temperature_loss(log_alpha, entropy, recorded.case["target_entropy"]), log_alpha)[0]
    recorded.check("grad_temperature_wrt_log_alpha_log_form", gradient)


@pytest.mark.parametrize("name", CASES["tqc"])
def test_truncated_quantiles_have_the_golden_targets_and_losses(name: str) -> None:
    recorded = Recorded("tqc", name)
    dropped, alpha = recorded.case["drop_per_net"], torch.tensor(recorded.case["alpha"], dtype=torch.float64)
    q, next_q = (atoms.transpose(0, 1) for atoms in (recorded.atoms_online, recorded.next_atoms_target))  # [k, M, K]
    recorded.check("kept", kept_quantiles(next_q, dropped))
    targets = soft_targets(recorded.returns, recorded.discounts, next_q, recorded.next_log_probs, alpha, dropped)
    recorded.check("targets", targets)
    without_bonus = hard_targets(recorded.returns, recorded.discounts, next_q, dropped)
    bonus = recorded.discounts * alpha * recorded.next_log_probs
    torch.testing.assert_close(without_bonus, targets + bonus.unsqueeze(-1))
    q = q.clone().requires_grad_()
    recorded.check("loss_sum_over_nets", critic_loss(q, targets))
    (gradient,) = torch.autograd.grad(critic_loss(q, targets) / len(q), q)
    recorded.check("grad_loss_mean_over_nets_wrt_atoms_online", gradient.transpose(0, 1))
    recorded.check("loss_of_each_net", torch.stack([critic_loss(one.unsqueeze(0), targets) for one in q]))
    policy_q = recorded.policy_atoms.transpose(0, 1)
    recorded.check("policy_loss", soft_policy_loss(policy_q, recorded.log_probs, alpha))
    torch.testing.assert_close(deterministic_policy_loss(policy_q), -policy_q.mean())


def test_weights_of_prioritised_replay_are_of_rows_also_for_quantiles() -> None:
    q, targets = torch.randn(2, 3, 4), torch.randn(3, 6)
    alone = critic_loss(q[:, 1:2], targets[1:2])
    torch.testing.assert_close(critic_loss(q, targets, torch.tensor([0.0, 3.0, 0.0])), alone)


def test_targets_see_those_critics_alone_that_are_drawn() -> None:
    next_q = torch.arange(4.0).view(4, 1, 1).expand(4, 2, 3)  # critic k has the value k everywhere
    ranks = torch.tensor([[0.1, 0.9, 0.8, 0.2], [0.9, 0.1, 0.2, 0.8]])
    found = drawn_critics(next_q, ranks, 2)
    assert [set(found[:, row].flatten().tolist()) for row in (0, 1)] == [{0.0, 3.0}, {1.0, 2.0}]
    assert drawn_critics(next_q[..., 0], ranks, 1).tolist() == [[0.0, 1.0]]


def test_the_actor_may_maximise_the_mean_of_the_critics() -> None:
    q, nothing, alpha = torch.tensor([[1.0], [4.0]]), torch.zeros(1), torch.ones(())
    assert float(soft_policy_loss(q, nothing, alpha)) == -1.0
    assert float(soft_policy_loss(q, nothing, alpha, mean=True)) == -2.5
    assert float(soft_choice_policy_loss(q.unsqueeze(-1), torch.zeros(1, 1), alpha, mean=True)) == -2.5


@pytest.mark.parametrize("name", SMOOTHED)
def test_td3_has_the_golden_targets_and_losses(name: str) -> None:
    recorded = Recorded("td3", name)
    noise = recorded.case["target_noise"], recorded.case["target_noise_clip"]
    actions = smoothed_actions(recorded.next_actions_target, recorded.normals, *noise)
    recorded.check("smoothed_actions", actions)
    targets = hard_targets(recorded.returns, recorded.discounts, recorded.q("critic", actions))
    recorded.check("targets", targets)
    check_critic_loss(recorded, targets, 1.0)


def test_ddpg_has_the_golden_losses_and_gradients() -> None:
    recorded = Recorded("ddpg", "losses")
    targets = hard_targets(recorded.returns, recorded.discounts, recorded.next_q_target.unsqueeze(0))
    recorded.check("targets", targets)
    q = recorded.q_online.requires_grad_()
    loss = critic_loss(q.unsqueeze(0), targets)
    recorded.check("critic_loss_mean", loss)
    recorded.check("grad_critic_loss_mean_wrt_q_online", torch.autograd.grad(loss, q)[0])
    before = recorded.policy_before_tanh.requires_grad_()
    of_policy = recorded.critic_constant + (recorded.critic_slope * before.tanh()).sum(-1)
    actor_loss = deterministic_policy_loss(of_policy.unsqueeze(0))
    recorded.check("actor_loss_mean", actor_loss)
    recorded.check("grad_actor_loss_mean_wrt_policy_before_tanh", torch.autograd.grad(actor_loss, before)[0])


def test_noise_is_clipped_before_the_action_is_stored_and_rescaled(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded("ddpg", "gaussian_noise")
    space = Box(tuple(recorded.low.tolist()), tuple(recorded.high.tolist()))
    network = agent_of("ddpg", action=space, exploration_noise=recorded.case["sigma"]).network
    network.acts_randomly.zero_()
    monkeypatch.setattr(Tensor, "normal_", lambda tensor, generator=None: tensor.copy_(recorded.normals))
    inferred = NetworkOutput(ActorOutput(recorded.policy_actions), torch.empty(0))
    stored = network.choose(inferred, None, torch.tensor([[recorded.case["sigma"]]], dtype=torch.float64)).actions
    recorded.check("stored_actions", stored)
    for found, wanted in zip(space.to_environment(stored.numpy()), recorded.outputs["environment_actions"], strict=True):
        assert found == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", ["ou_dt_1", "ou_dt_0.01"])
def test_correlated_noise_is_golden(name: str) -> None:
    recorded = Recorded("ddpg", name)
    noise, found = torch.zeros_like(recorded.normals[0]), []
    for normals, reset in zip(recorded.normals, recorded.reset, strict=True):
        noise = next_noise(noise * (1 - reset), normals, *(recorded.case[each] for each in ("theta", "sigma", "dt")))
        found.append(noise)
    recorded.check("noise", torch.stack(found))
