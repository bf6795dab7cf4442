"""V-trace against recorded values, against the paper's double sum, and under masks and time limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agents.distributions import Categorical
from agents.returns.vtrace import VTraceReturns, clipped_rhos, vtrace
from tests.agents.support import each_golden_case, golden_targets, tensors

GAMMA = 0.9


def run_golden(case: dict[str, Any]) -> tuple[Tensor, VTraceReturns]:
    """log_rhos `[T, B]` and the targets of a recorded case, all in float32."""
    inputs = tensors(case["inputs"])
    if "target_logits" in inputs:
        policy = Categorical(inputs["target_logits"].shape[-1])
        target = policy.log_prob(inputs["target_logits"], inputs["actions"])
        behaviour = policy.log_prob(inputs["behaviour_logits"], inputs["actions"])
    else:
        target, behaviour = inputs["target_log_probs"], inputs["behaviour_log_probs"]
    explicit = {name: inputs.get(name) for name in ("next_values", "trace_continues")}
    return target - behaviour, golden_targets(case, target - behaviour, inputs["discounts"], **explicit)


@each_golden_case("vtrace.json", "vtrace_truncation.json")
def test_targets_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    log_rhos, returns = run_golden(case)
    assert returns.vs.dtype == returns.pg_advantages.dtype == torch.float32
    for got, name in ((log_rhos, "log_rhos"), (returns.vs, "vs"), (returns.pg_advantages, "pg_advantages")):
        torch.testing.assert_close(got, torch.tensor(case["outputs"][name]), rtol=2e-5, atol=1e-5)


def random_inputs(unroll_length: int, batch_size: int, seed: int, end_chance: float = 0.2) -> dict[str, Any]:
    """Float64 inputs with ratios on both sides of 1 and a few terminations."""
    rng = np.random.default_rng(seed)
    shape = (unroll_length, batch_size)
    inputs = {
        "log_rhos": rng.normal(0.0, 1.0, shape),
        "discounts": GAMMA * (rng.random(shape) >= end_chance),
        "rewards": rng.normal(size=shape),
        "values": rng.normal(size=shape),
        "bootstrap_value": rng.normal(size=batch_size),
    }
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


def paper_targets(
    inputs: dict[str, Any], rho_bar: float, c_bar: float, pg_rho_bar: float, lambda_: float
) -> tuple[np.ndarray, np.ndarray]:
    """IMPALA equation 1 as printed: for every s, the sum over t of discounted products of c_i times delta_t."""
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    ratios, discounts, rewards = np.exp(arrays["log_rhos"]), arrays["discounts"], arrays["rewards"]
    values = np.concatenate([arrays["values"], arrays["bootstrap_value"][None]])
    unroll_length, batch_size = ratios.shape
    vs = values.copy()
    advantages = np.zeros_like(rewards)
    for b in range(batch_size):
        for s in range(unroll_length):
            for t in range(s, unroll_length):
                product = 1.0
                for i in range(s, t):
                    product *= discounts[i, b] * lambda_ * min(c_bar, ratios[i, b])
                rho = min(rho_bar, ratios[t, b])
                delta = rho * (rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b])
                vs[s, b] += product * delta
        for s in range(unroll_length):
            rho = min(pg_rho_bar, ratios[s, b])
            advantages[s, b] = rho * (rewards[s, b] + discounts[s, b] * vs[s + 1, b] - values[s, b])
    return vs[:-1], advantages


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    unroll_length=st.integers(1, 9),
    batch_size=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    c_bar=st.floats(0.1, 3.0),
    rho_excess=st.floats(0.0, 3.0),
    pg_rho_bar=st.floats(0.1, 5.0),
    lambda_=st.floats(0.0, 1.0),
)
def test_targets_equal_the_double_sum_of_the_paper(
    unroll_length: int, batch_size: int, seed: int, c_bar: float, rho_excess: float, pg_rho_bar: float, lambda_: float
) -> None:
    inputs = random_inputs(unroll_length, batch_size, seed)
    clips: dict[str, Any] = {"rho_bar": c_bar + rho_excess, "c_bar": c_bar, "pg_rho_bar": pg_rho_bar}
    clips["lambda_"] = lambda_
    returns = vtrace(**inputs, **clips)
    vs, advantages = paper_targets(inputs, **clips)
    np.testing.assert_allclose(returns.vs.numpy(), vs, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(returns.pg_advantages.numpy(), advantages, rtol=1e-9, atol=1e-9)


def test_none_leaves_each_ratio_unclipped() -> None:
    inputs = random_inputs(6, 2, seed=1)
    returns = vtrace(**inputs, rho_bar=None, c_bar=None, pg_rho_bar=None)
    vs, advantages = paper_targets(inputs, math.inf, math.inf, math.inf, 1.0)
    np.testing.assert_allclose(returns.vs.numpy(), vs, rtol=1e-9)
    np.testing.assert_allclose(returns.pg_advantages.numpy(), advantages, rtol=1e-9)


def test_on_policy_targets_are_n_step_bellman_returns() -> None:
    inputs = random_inputs(8, 3, seed=2)
    inputs["log_rhos"] = torch.zeros_like(inputs["log_rhos"])
    returns = vtrace(**inputs)
    expected = inputs["bootstrap_value"]
    for t in reversed(range(8)):
        expected = inputs["rewards"][t] + inputs["discounts"][t] * expected
        torch.testing.assert_close(returns.vs[t], expected)
        torch.testing.assert_close(returns.pg_advantages[t], expected - inputs["values"][t])


def test_one_step_of_one_trajectory_by_hand() -> None:
    returns = vtrace(
        log_rhos=torch.tensor([[math.log(0.5)]]),
        discounts=torch.tensor([[0.9]]),
        rewards=torch.tensor([[2.0]]),
        values=torch.tensor([[1.0]]),
        bootstrap_value=torch.tensor([10.0]),
    )
    torch.testing.assert_close(returns.vs, torch.tensor([[1.0 + 0.5 * (2.0 + 9.0 - 1.0)]]))
    torch.testing.assert_close(returns.pg_advantages, torch.tensor([[0.5 * (2.0 + 9.0 - 1.0)]]))


def test_lambda_zero_is_the_one_step_target() -> None:
    inputs = random_inputs(5, 2, seed=3)
    next_values = torch.cat([inputs["values"][1:], inputs["bootstrap_value"][None]])
    rhos = inputs["log_rhos"].exp().clamp(max=1.0)
    delta = rhos * (inputs["rewards"] + inputs["discounts"] * next_values - inputs["values"])
    torch.testing.assert_close(vtrace(**inputs, lambda_=0.0).vs, inputs["values"] + delta)


def test_a_termination_keeps_everything_later_out() -> None:
    inputs = random_inputs(7, 2, seed=4, end_chance=0.0)
    inputs["discounts"][3] = 0.0
    changed = {name: tensor.clone() for name, tensor in inputs.items()}
    changed["rewards"][4:] += 5.0
    changed["values"][4:] -= 3.0
    before, after = vtrace(**inputs), vtrace(**changed)
    assert torch.equal(before.vs[:4], after.vs[:4])
    assert torch.equal(before.pg_advantages[:4], after.pg_advantages[:4])
    assert (before.vs[4:] != after.vs[4:]).all()


def test_targets_carry_no_gradient() -> None:
    inputs = random_inputs(4, 2, seed=5)
    for name in ("log_rhos", "values", "bootstrap_value", "rewards"):
        inputs[name].requires_grad_(True)
    returns = vtrace(**inputs)
    assert not returns.vs.requires_grad
    assert not returns.pg_advantages.requires_grad


def test_inputs_are_left_as_they_were() -> None:
    inputs = random_inputs(4, 2, seed=6)
    copies = {name: tensor.clone() for name, tensor in inputs.items()}
    vtrace(**inputs, mask=torch.tensor([[True, False]] * 4))
    assert all(torch.equal(inputs[name], copies[name]) for name in inputs)


def test_clipping_never_meets_an_infinity() -> None:
    log_rhos = torch.tensor([-math.inf, -1e4, 0.0, 1e4, math.inf])
    torch.testing.assert_close(clipped_rhos(log_rhos, 2.0), torch.tensor([0.0, 0.0, 1.0, 2.0, 2.0]))


def rejected_case() -> tuple[dict[str, Any], Tensor]:
    """Eight steps of three trajectories; step 4 of the middle one is rejected."""
    inputs = random_inputs(8, 3, seed=7, end_chance=0.0)
    mask = torch.ones(8, 3, dtype=torch.bool)
    mask[4, 1] = False
    return inputs, mask


def test_returns_before_a_rejected_step_bootstrap_from_its_value() -> None:
    inputs, mask = rejected_case()
    returns = vtrace(**inputs, mask=mask)
    head = {name: inputs[name][:4, 1:2] for name in ("log_rhos", "discounts", "rewards", "values")}
    tail = {name: inputs[name][5:, 1:2] for name in ("log_rhos", "discounts", "rewards", "values")}
    expected_head = vtrace(**head, bootstrap_value=inputs["values"][4, 1:2])
    expected_tail = vtrace(**tail, bootstrap_value=inputs["bootstrap_value"][1:2])
    for got, first, last in zip(returns, expected_head, expected_tail, strict=True):
        torch.testing.assert_close(got[:4, 1:2], first)
        torch.testing.assert_close(got[5:, 1:2], last)


def test_a_rejected_step_has_its_own_value_and_no_advantage() -> None:
    inputs, mask = rejected_case()
    returns = vtrace(**inputs, mask=mask)
    assert returns.vs[4, 1] == inputs["values"][4, 1]
    assert returns.pg_advantages[4, 1] == 0.0
    others = vtrace(**inputs)
    assert torch.equal(returns.vs[:, [0, 2]], others.vs[:, [0, 2]])


@pytest.mark.parametrize("junk", [100.0, math.nan, math.inf])
def test_reward_and_ratio_of_a_rejected_step_change_nothing(junk: float) -> None:
    inputs, mask = rejected_case()
    before = vtrace(**inputs, mask=mask)
    inputs["rewards"][4, 1] = junk
    inputs["log_rhos"][4, 1] = junk
    after = vtrace(**inputs, mask=mask)
    assert torch.equal(before.vs, after.vs)
    assert torch.equal(before.pg_advantages, after.pg_advantages)


def test_float_and_bool_masks_say_the_same() -> None:
    inputs, mask = rejected_case()
    for of_bool, of_float in zip(vtrace(**inputs, mask=mask), vtrace(**inputs, mask=mask.float()), strict=True):
        assert torch.equal(of_bool, of_float)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("lambda_", [1.0, 0.8])
def test_masking_autoreset_rows_equals_explicit_final_values(seed: int, lambda_: float) -> None:
    """Next-step autoreset puts a masked row after each end; without these rows V' and k must say the same."""
    steps, ended, terminated = _autoreset_trajectory(seed)
    reset = torch.cat([torch.zeros(1, 1, dtype=torch.bool), ended[:-1]])
    assert reset.any()
    assert (ended & ~terminated).any()
    discounts = GAMMA * (~terminated).double()
    with_mask = vtrace(**steps, discounts=discounts, lambda_=lambda_, mask=~reset)
    next_values = torch.cat([steps["values"][1:], steps["bootstrap_value"][None]])
    kept = ~reset[:, 0]
    explicit = vtrace(
        **{name: tensor[kept] for name, tensor in steps.items() if name != "bootstrap_value"},
        bootstrap_value=steps["bootstrap_value"],
        discounts=discounts[kept],
        lambda_=lambda_,
        next_values=next_values[kept],
        trace_continues=~ended[kept],
    )
    assert torch.equal(with_mask.vs[kept], explicit.vs)
    assert torch.equal(with_mask.pg_advantages[kept], explicit.pg_advantages)
    assert torch.equal(with_mask.vs[~kept], steps["values"][~kept])
    assert (with_mask.pg_advantages[~kept] == 0.0).all()


def _autoreset_trajectory(seed: int) -> tuple[dict[str, Any], Tensor, Tensor]:
    """One trajectory of 16 rows, its ends, and which ends are terminations; the row after an end is an autoreset.

    Step 2 is always truncated. In every other seed so is the last row, whose final observation is then x_T itself.
    """
    steps = random_inputs(16, 1, seed)
    del steps["discounts"]
    rng = np.random.default_rng(seed + 100)
    ended = torch.zeros(16, 1, dtype=torch.bool)
    terminated = torch.zeros(16, 1, dtype=torch.bool)
    for t in range(16):
        if t > 0 and ended[t - 1]:
            steps["rewards"][t] = 0.0
            continue
        ended[t] = t == 2 or (t == 15 and seed % 2 == 0) or (3 < t < 14 and rng.random() < 0.3)
        terminated[t] = ended[t] and t not in (2, 15) and rng.random() < 0.5
    return steps, ended, terminated


@pytest.mark.parametrize("continues", [True, False])
def test_next_values_of_the_last_row_replace_the_bootstrap_value(continues: bool) -> None:
    inputs = random_inputs(3, 1, seed=8, end_chance=0.0)
    next_values = torch.cat([inputs["values"][1:], torch.tensor([[7.0]], dtype=torch.float64)])
    trace_continues = torch.tensor([[True], [True], [continues]])
    explicit = vtrace(**inputs, next_values=next_values, trace_continues=trace_continues)
    inputs["bootstrap_value"] = next_values[-1]
    for got, expected in zip(explicit, vtrace(**inputs), strict=True):
        assert torch.equal(got, expected)


def test_rho_bar_below_c_bar_is_refused() -> None:
    inputs = random_inputs(2, 1, seed=9)
    with pytest.raises(ValueError, match=r"rho_bar >= c_bar.*got 1.0 and 1.5"):
        vtrace(**inputs, rho_bar=1.0, c_bar=1.5)
    with pytest.raises(ValueError, match=r"rho_bar >= c_bar.*got 1.0 and None"):
        vtrace(**inputs, rho_bar=1.0, c_bar=None)


@pytest.mark.parametrize("setting", ["rho_bar", "c_bar", "pg_rho_bar"])
def test_bars_that_are_not_positive_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=rf"^{setting}: wanted .* got 0.0"):
        vtrace(**{**random_inputs(2, 1, seed=9), setting: 0.0})


@pytest.mark.parametrize("lambda_", [-0.1, 1.1])
def test_lambda_outside_0_to_1_is_refused(lambda_: float) -> None:
    with pytest.raises(ValueError, match=rf"lambda_: wanted 0 to 1, got {lambda_}"):
        vtrace(**random_inputs(2, 1, seed=9), lambda_=lambda_)


def test_next_values_without_trace_continues_are_refused() -> None:
    inputs = random_inputs(2, 1, seed=9)
    with pytest.raises(ValueError, match="next_values needs trace_continues"):
        vtrace(**inputs, next_values=inputs["values"])


@pytest.mark.parametrize("name", ["discounts", "rewards", "values", "mask", "next_values", "trace_continues"])
def test_a_wrong_shape_is_refused_by_name(name: str) -> None:
    inputs = random_inputs(3, 2, seed=10)
    inputs |= {extra: torch.ones(3, 2) for extra in ("mask", "next_values", "trace_continues")}
    inputs[name] = torch.ones(3, 1)
    with pytest.raises(ValueError, match=rf"^{name}: wanted \[3, 2\] as log_rhos, got \[3, 1\]"):
        vtrace(**inputs)


def test_a_wrong_bootstrap_or_rank_is_refused() -> None:
    inputs = random_inputs(3, 2, seed=11)
    with pytest.raises(ValueError, match=r"bootstrap_value: wanted \[2\], got \[1, 2\]"):
        vtrace(**{**inputs, "bootstrap_value": torch.ones(1, 2)})
    with pytest.raises(ValueError, match=r"log_rhos: wanted \[T, B\] with T >= 1, got \[3\]"):
        vtrace(**{**inputs, "log_rhos": torch.ones(3)})
    with pytest.raises(ValueError, match=r"log_rhos: wanted \[T, B\] with T >= 1, got \[0, 2\]"):
        vtrace(**{**inputs, "log_rhos": torch.ones(0, 2)})
