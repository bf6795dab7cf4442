"""Loss terms against recorded values, hand-worked sums and closed-form gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.distributions import Categorical
from agents.losses import entropy_loss, policy_gradient_loss, value_loss
from tests.support import golden

POLICY = Categorical(5)
GOLDEN = golden("losses.json")


def random_case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits `[4, 3, 5]`, actions, advantages and a bool mask `[4, 3]`, float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 3, 5, generator=generator, dtype=torch.float64)
    actions = torch.randint(5, (4, 3), generator=generator)
    advantages = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[1, 2] = mask[3, 0] = False
    return logits, actions, advantages, mask


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_loss_sums_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    inputs = {name: torch.tensor(rows) for name, rows in case["inputs"].items()}
    outputs = case["outputs"]
    logits, actions = inputs["target_logits"], inputs["actions"]
    categorical = Categorical(logits.shape[-1])
    policy = policy_gradient_loss(categorical.log_prob(logits, actions), torch.tensor(outputs["pg_advantages"]))
    value = value_loss(inputs["values"], torch.tensor(outputs["vs"]))
    assert policy.item() == pytest.approx(outputs["policy_loss_sum"], rel=1e-5)
    assert value.item() == pytest.approx(outputs["half_squared_value_loss_sum"], rel=1e-5)
    assert entropy_loss(categorical.entropy(logits)).item() == pytest.approx(-outputs["entropy_sum"], rel=1e-5)


def test_policy_loss_gradient_is_advantage_times_pi_minus_one_hot() -> None:
    logits, actions, advantages, mask = random_case()
    logits.requires_grad_(True)
    (gradient,) = torch.autograd.grad(policy_gradient_loss(POLICY.log_prob(logits, actions), advantages, mask), logits)
    one_hot = torch.eye(5, dtype=torch.float64)[actions]
    expected = (mask * advantages).unsqueeze(-1) * (logits.detach().softmax(-1) - one_hot)
    torch.testing.assert_close(gradient, expected)


def test_value_loss_gradient_is_value_minus_target() -> None:
    _, _, values, mask = random_case()
    targets = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).view(4, 3)
    values.requires_grad_(True)
    (gradient,) = torch.autograd.grad(value_loss(values, targets, mask), values)
    torch.testing.assert_close(gradient, mask * (values.detach() - targets))


def test_entropy_loss_gradient_is_weight_times_p_times_log_p_plus_entropy() -> None:
    logits, _, _, _ = random_case()
    weights = torch.linspace(0.0, 1.0, 12, dtype=torch.float64).view(4, 3)
    logits.requires_grad_(True)
    (gradient,) = torch.autograd.grad(entropy_loss(POLICY.entropy(logits), weights), logits)
    p = logits.detach().softmax(-1)
    entropies = -(p * p.log()).sum(-1, keepdim=True)
    torch.testing.assert_close(gradient, weights.unsqueeze(-1) * p * (p.log() + entropies))


def test_targets_and_advantages_are_constants() -> None:
    logits, actions, advantages, mask = random_case()
    logits.requires_grad_(True)
    advantages.requires_grad_(True)
    (policy_gradient_loss(POLICY.log_prob(logits, actions), advantages, mask)).backward()
    assert logits.grad is not None
    assert advantages.grad is None
    values = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    value_loss(values, advantages).backward()
    assert values.grad is not None
    assert advantages.grad is None


def test_losses_are_sums_over_time_and_batch() -> None:
    logits, actions, advantages, mask = random_case()
    values = torch.zeros_like(advantages)
    whole = policy_gradient_loss(POLICY.log_prob(logits, actions), advantages, mask) + value_loss(values, advantages, mask)
    whole += entropy_loss(POLICY.entropy(logits), mask)
    parts = torch.zeros((), dtype=torch.float64)
    for t in range(4):
        for b in range(3):
            cell = (slice(t, t + 1), slice(b, b + 1))
            parts += policy_gradient_loss(POLICY.log_prob(logits[cell], actions[cell]), advantages[cell], mask[cell])
            parts += value_loss(values[cell], advantages[cell], mask[cell]) + entropy_loss(
                POLICY.entropy(logits[cell]), mask[cell]
            )
    torch.testing.assert_close(whole, parts)


@pytest.mark.parametrize("junk", [1e6, math.nan, math.inf])
def test_a_masked_step_contributes_nothing(junk: float) -> None:
    logits, actions, advantages, mask = random_case()
    log_probs, targets = POLICY.log_prob(logits, actions), advantages.clone()
    values = torch.zeros_like(advantages)
    before = policy_gradient_loss(log_probs, advantages, mask), value_loss(values, targets, mask)
    advantages[1, 2] = targets[1, 2] = junk
    after = policy_gradient_loss(log_probs, advantages, mask.double()), value_loss(values, targets, mask.double())
    assert torch.equal(torch.stack(before), torch.stack(after))
    assert not torch.equal(after[0], policy_gradient_loss(log_probs, advantages))


def test_entropy_weights_scale_each_step() -> None:
    logits, _, _, _ = random_case()
    weights = torch.zeros(4, 3, dtype=torch.float64)
    weights[2, 1] = 0.5
    torch.testing.assert_close(entropy_loss(POLICY.entropy(logits), weights), -0.5 * POLICY.entropy(logits[2, 1]))


def test_wrong_shapes_are_refused_with_wanted_and_got() -> None:
    logits, actions, advantages, mask = random_case()
    with pytest.raises(ValueError, match=r"advantages: wanted \[4, 3\] .*got \[3\]"):
        policy_gradient_loss(POLICY.log_prob(logits, actions), advantages[0], mask)
    with pytest.raises(ValueError, match=r"mask: wanted \[4, 3\] .*got \[3\]"):
        policy_gradient_loss(POLICY.log_prob(logits, actions), advantages, mask[0])
    with pytest.raises(ValueError, match=r"vs: wanted \[4, 3\] .*got \[3\]"):
        value_loss(advantages, advantages[0])
    with pytest.raises(ValueError, match=r"values: wanted \[T, B\], got \[3\]"):
        value_loss(advantages[0], advantages[0])
    with pytest.raises(ValueError, match=r"weights: wanted \[4, 3\] .*got \[3\]"):
        entropy_loss(POLICY.entropy(logits), torch.ones(3))
