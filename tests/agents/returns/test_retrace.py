"""Peng's Q(lambda) and Retrace against recorded values, sums over n-step returns, and a value that is known."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.returns.retrace import peng_q_lambda, retrace, trace_coefficients
from tests.support import golden

F64 = torch.float64
Q_LAMBDA = [case for case in golden("pqn.json") if "lambda" in case]
RETRACE = golden("retrace.json")
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float32, F64])


def tensors(part: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    integers = {"actions": torch.int64, "terminated": torch.bool, "action_used": torch.bool}
    return {name: torch.tensor(value, dtype=integers.get(name, dtype)) for name, value in part.items()}


def assert_near(got: Tensor, wanted: Tensor) -> None:
    tolerance = 1e-10 if got.dtype == F64 else 2e-6
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@PRECISIONS
@pytest.mark.parametrize("case", Q_LAMBDA, ids=itemgetter("name"))
def test_q_lambda_gives_the_recorded_targets(case: dict[str, Any], dtype: torch.dtype) -> None:
    inputs, wanted = tensors(case["inputs"], dtype), tensors(case["outputs"], dtype)
    targets = peng_q_lambda(
        rewards=inputs["rewards"],
        discounts=case["gamma"] * (~inputs["terminated"]).to(dtype),
        values=inputs["q"].amax(-1),
        lambda_=case["lambda"],
        mask=inputs["action_used"],
    )
    assert_near(targets, wanted["targets"])


def policy_of(case: dict[str, Any], inputs: dict[str, Tensor]) -> Tensor:
    """log pi(.|x_t), `[T+1, B, A]`."""
    if case["greedy"]:
        best = torch.nn.functional.one_hot(inputs["q_target"].argmax(-1), case["A"])
        return best.to(inputs["rewards"].dtype).log()
    return inputs["policy_logits"].log_softmax(-1)


@PRECISIONS
@pytest.mark.parametrize("case", RETRACE, ids=itemgetter("name"))
def test_retrace_gives_the_recorded_targets(case: dict[str, Any], dtype: torch.dtype) -> None:
    inputs, wanted = tensors(case["inputs"], dtype), tensors(case["outputs"], dtype)
    actions, log_pi = inputs["actions"].unsqueeze(-1), policy_of(case, inputs)
    values = torch.where(log_pi > -math.inf, log_pi.exp() * inputs["q_target"], 0.0).sum(-1)
    assert_near(values, wanted["expected_q"])
    log_mu = inputs["behaviour_logits"].log_softmax(-1).gather(-1, actions).squeeze(-1)
    traces = trace_coefficients(log_pi[:-1].gather(-1, actions).squeeze(-1), log_mu, case["lambda"])
    assert_near(traces, wanted["c"])
    ignored = ~inputs["action_used"]  # these rows' numbers may be anything
    targets = retrace(
        rewards=inputs["rewards"].masked_fill(ignored, math.nan),
        discounts=case["gamma"] * (~inputs["terminated"]).to(dtype),
        values=values,
        taken=inputs["q_target"][:-1].gather(-1, actions).squeeze(-1),
        traces=traces.masked_fill(ignored, math.nan),
        mask=inputs["action_used"],
    )
    assert_near(targets, wanted["targets"])


def test_retrace_learns_the_value_of_a_policy_that_never_acted() -> None:
    """Float64, two states in turn, uniform mu. Tables that move to the mean target reach Q^pi = r + gamma E_pi Q^pi."""
    gamma, steps, generator = 0.8, 6, torch.Generator().manual_seed(1)
    gains = torch.tensor([[1.0, -0.5], [0.3, 2.0]], dtype=F64)  # r of state and action; the states take turns
    pi = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=F64)
    exact = torch.zeros(2, 2, dtype=F64)
    for _ in range(200):
        exact = gains + gamma * (pi * exact).sum(-1).flip(0).unsqueeze(-1)
    states = torch.arange(steps + 1).remainder(2).unsqueeze(-1).expand(-1, 5_000)  # [T+1, B]
    table = torch.zeros(2, 2, dtype=F64)
    for _ in range(40):
        actions = torch.randint(2, states[:-1].shape, generator=generator)
        at = (states[:-1], actions)
        targets = retrace(
            rewards=gains[at],
            discounts=torch.full(actions.shape, gamma, dtype=F64),
            values=(pi * table).sum(-1)[states],
            taken=table[at],
            traces=trace_coefficients(pi[at].log(), torch.full(actions.shape, math.log(0.5), dtype=F64), 1.0),
            mask=torch.ones(actions.shape, dtype=torch.bool),
        )
        index = (2 * states[:-1] + actions).flatten()
        table = torch.stack([targets.flatten()[index == each].mean() for each in range(4)]).view(2, 2)
    torch.testing.assert_close(table, exact, rtol=0, atol=0.03)


@pytest.mark.parametrize("name", ["discounts", "values", "taken", "traces", "mask"])
def test_tensors_of_another_shape_are_refused(name: str) -> None:
    given = {each: torch.zeros(3, 2) for each in ("rewards", "discounts", "taken", "traces")}
    given |= {"values": torch.zeros(4, 2), "mask": torch.ones(3, 2, dtype=torch.bool), name: torch.zeros(3, 1)}
    with pytest.raises(ValueError, match=f"^{name}: wanted .*, got "):
        retrace(**given)
