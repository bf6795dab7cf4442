"""Cloning, the weights of MARWIL and the constraint of BCQ against recorded cases."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.bcq.agent import mean_square_of_legal
from agents.bcq.network import allowed_choices
from agents.distributions import ILLEGAL_LOGIT, Categorical, DiagonalGaussian
from agents.dqn.errors import NStepTransitions, expected_errors, expected_targets
from agents.imitation.losses import accuracy, advantage_weights, cloning_loss, squared_scale
from agents.networks.q_network import ILLEGAL_VALUE, QOutput
from agents.returns.gae import gae
from tests.support import golden

CASES = {case["name"]: case for case in (*golden("imitation.json"), *golden("bcq.json"))}
MARWIL = [name for name in CASES if name.startswith("marwil")]
BCQ = [case["name"] for case in golden("bcq.json")]


def inputs_of(case: dict[str, Any]) -> dict[str, Tensor]:
    def read(value: Any) -> Tensor:
        tensor = torch.tensor(value)
        return tensor.double() if tensor.is_floating_point() else tensor

    return {name: read(value) for name, value in case["inputs"].items()}


def wanted_of(case: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in case["outputs"].items()}


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.detach().double(), wanted, rtol=1e-10, atol=1e-10)


def test_cloning_of_choices() -> None:
    case = CASES["cloning_discrete"]
    given, wanted = inputs_of(case), wanted_of(case)
    logits, used = given["logits"].requires_grad_(), given["action_used"].bool()
    policy = Categorical(case["A"])
    loss = cloning_loss(policy.log_prob(logits, given["actions"]), used)
    loss.backward()
    close(loss, wanted["loss"])
    close(logits.grad, wanted["grad_wrt_logits"])
    found = accuracy(policy.mode(logits), given["actions"], used)
    assert float(found) == pytest.approx(float(wanted["accuracy"]), rel=1e-6)


def test_cloning_of_numbers() -> None:
    case = CASES["cloning_gaussian"]
    given, wanted = inputs_of(case), wanted_of(case)
    policy = torch.cat([given["mean"], given["log_std"]], -1).requires_grad_()
    log_probs = DiagonalGaussian(case["dim"]).log_prob(policy, given["actions"])
    loss = cloning_loss(log_probs, torch.ones(len(log_probs), dtype=torch.bool))
    loss.backward()
    close(loss, wanted["loss"])
    close(policy.grad, torch.cat([wanted["grad_wrt_mean"], wanted["grad_wrt_log_std"]], -1))


def test_all_components_of_an_action_must_agree() -> None:
    best, actions = torch.tensor([[[1, 2], [1, 2], [0, 0]]]), torch.tensor([[[1, 2], [1, 0], [0, 0]]])
    assert float(accuracy(best, actions, torch.tensor([[True, True, False]]))) == 0.5


@pytest.mark.parametrize("name", MARWIL)
def test_advantages_and_weights_of_marwil(name: str) -> None:
    case = CASES[name]
    given, wanted = inputs_of(case), wanted_of(case)
    used, values = given["action_used"].bool(), given["values"].requires_grad_()
    logits = given["logits"].requires_grad_()
    advantages, returns = gae(
        rewards=given["rewards"],
        discounts=case["gamma"] * (1 - given["terminated"].double()),
        values=values.detach()[:-1],
        bootstrap_value=values.detach()[-1],
        lambda_=1.0,
        mask=used,
    )
    close(torch.where(used, advantages, 0.0), wanted["advantages"])
    close(torch.where(used, returns, 0.0), wanted["returns"])
    scale = squared_scale(given["squared_norm"], advantages, used, case["rate"])
    close(scale, wanted["squared_norm_after"])
    weights = advantage_weights(advantages, scale, case["beta"], case["max_weight"] or math.inf)
    close(torch.where(used, weights, 0.0), wanted["weights"])
    policy_loss = cloning_loss(Categorical(case["A"]).log_prob(logits, given["actions"]), used, weights)
    value_loss = 0.5 * ((returns - values[:-1]).square() * used).sum() / used.sum()
    total = policy_loss + case["value_coef"] * value_loss
    total.backward()
    for found, key in ((policy_loss, "policy_loss"), (value_loss, "value_loss"), (total, "total")):
        close(found, wanted[key])
    close(logits.grad, wanted["grad_total_wrt_logits"])
    close(values.grad, wanted["grad_total_wrt_values"])


def test_a_huge_advantage_has_the_largest_weight() -> None:
    """The exponential of it would not be finite."""
    weights = advantage_weights(torch.tensor([[1e6, -1e6]]), torch.tensor(1.0), 1.0, 20.0)
    torch.testing.assert_close(weights, torch.tensor([[20.0, 0.0]]))


@pytest.mark.parametrize("name", BCQ)
def test_targets_and_losses_of_bcq(name: str) -> None:
    case = CASES[name]
    given, wanted = inputs_of(case), wanted_of(case)
    counts = (case["A"],)
    allowed = allowed_choices(given["next_behaviour_logits"], counts, case["threshold"])
    assert torch.equal(allowed, wanted["allowed"].bool())
    selecting = QOutput(torch.where(allowed, given["next_q_online"], ILLEGAL_VALUE))
    assert torch.equal(selecting.q.argmax(-1), wanted["next_actions"].long())
    window = NStepTransitions(given["actions"].unsqueeze(-1), given["returns"], given["discounts"])
    targets = expected_targets(window, QOutput(given["next_q_target"]), selecting, counts)
    close(targets, wanted["targets"])
    q, behaviour = given["q_online"].requires_grad_(), given["behaviour_logits"].requires_grad_()
    value_loss = expected_errors(QOutput(q), targets, window.choices, counts).losses.mean()
    behaviour_loss = -Categorical(case["A"]).log_prob(behaviour, given["actions"]).mean()
    penalty = mean_square_of_legal(behaviour)
    total = value_loss + behaviour_loss + case["logit_penalty"] * penalty
    total.backward()
    found = {"q_loss": value_loss, "behaviour_loss": behaviour_loss, "logit_penalty_mean_square": penalty, "total": total}
    for key, value in found.items():
        close(value, wanted[key])
    close(q.grad, wanted["grad_total_wrt_q_online"])
    close(behaviour.grad, wanted["grad_total_wrt_behaviour_logits"])


def test_each_component_has_its_own_likeliest_choice() -> None:
    """The ratio must be above the threshold: 0.3 exactly is too little."""
    logits = torch.tensor([1.0, 0.3, 0.31, 0.5, 0.1]).log()
    assert allowed_choices(logits[None], (3, 2), 0.3).tolist() == [[True, False, True, True, False]]
    assert allowed_choices(logits[None], (3, 2), 0.0).all()


def test_illegal_actions_are_neither_allowed_nor_penalised() -> None:
    logits = torch.tensor([[2.0, ILLEGAL_LOGIT, -1.0]])
    assert float(mean_square_of_legal(logits)) == pytest.approx(5 / 3)
    assert allowed_choices(logits, (3,), 1e-6).tolist() == [[True, False, True]]
