"""Minibatches: every used step once, runs as recorded, advantages normalised run by run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.minibatches import cut, normalised_runs, shuffled, used_steps
from agents.returns.advantages import normalised
from agents.surrogate import approx_kl, ratio_bounds, surrogate
from tests.agents.returns.test_gae import golden_cases


@pytest.mark.parametrize("case", golden_cases("ppo_minibatches.json"))
def test_minibatches_and_their_losses_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    inputs = {name: torch.tensor(values) for name, values in case["inputs"].items()}
    used, advantages = inputs["action_used"], inputs["advantages"]
    log_ratios = inputs["target_log_prob"] - inputs["behaviour_log_prob"]
    runs, wanted = cut(inputs["order"], case["minibatches"]), case["outputs"]["minibatches"]
    assert [run.tolist() for run in runs] == [each["members"] for each in wanted]
    for run, each in zip(runs, wanted, strict=True):
        member = torch.zeros_like(used)
        if case["unit"] == "steps":
            member.view(-1)[run] = True
        else:
            member[:, run] = used[:, run]
        assert int(member.sum()) == each["used_steps"]
        scaled = normalised(advantages, member)
        torch.testing.assert_close(scaled, torch.tensor(each["advantages_normalized"]), rtol=2e-5, atol=1e-5)
        objective = surrogate(torch.where(member, log_ratios, 0.0), scaled, ratio_bounds(scaled, case["clip"]))
        assert -objective[member].mean().item() == pytest.approx(each["policy_loss"], rel=2e-5, abs=1e-5)
        assert approx_kl(log_ratios)[member].mean().item() == pytest.approx(each["approx_kl_k3"], rel=2e-5, abs=1e-5)


@pytest.mark.parametrize("case", [case for case in golden_cases("ppo_minibatches.json") if case.values[0]["unit"] == "steps"])
def test_all_runs_are_normalised_as_each_would_be_alone(case: dict[str, Any]) -> None:
    order, advantages = torch.tensor(case["inputs"]["order"]), torch.tensor(case["inputs"]["advantages"])
    together = normalised_runs(advantages.flatten()[order], case["minibatches"])
    for run, part, each in zip(
        cut(order, case["minibatches"]), cut(together, case["minibatches"]), case["outputs"]["minibatches"], strict=True
    ):
        wanted = torch.tensor(each["advantages_normalized"]).flatten()[run]
        torch.testing.assert_close(part, wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(("count", "parts"), [(7, 3), (3, 5), (1, 1), (0, 4), (12, 4)])
def test_runs_are_never_empty_and_drop_nothing(count: int, parts: int) -> None:
    order = torch.randperm(count)
    runs = cut(order, parts)
    lengths = [len(run) for run in runs]
    assert sum(lengths) == count
    assert lengths == sorted(lengths, reverse=True)
    assert not count or max(lengths) - min(lengths) <= 1
    assert len(normalised_runs(torch.randn(count), parts)) == count
    if count:
        assert len(runs) == min(count, parts)
        assert torch.equal(torch.cat(runs), order)


def test_a_run_of_one_step_has_advantage_zero() -> None:
    assert normalised_runs(torch.tensor([5.0, -3.0]), 2).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [100.1, -37.3, 1.1])
def test_runs_of_equal_advantages_become_zero(value: float) -> None:
    assert not normalised_runs(torch.full((641,), value), 2).any()


def test_only_used_steps_are_drawn_and_each_once() -> None:
    mask = torch.rand(6, 3, generator=torch.Generator().manual_seed(1)) < 0.7
    members = used_steps(mask)
    drawn = shuffled(members)
    assert sorted(drawn.tolist()) == members.tolist()
    assert mask.flatten()[drawn].all()
    assert len(drawn) == int(mask.sum())


def test_the_order_is_that_of_the_global_generator() -> None:
    """Checkpoints keep its state, so a resumed run draws the same minibatches."""
    members, state = torch.arange(50), torch.get_rng_state()
    first, second = shuffled(members), shuffled(members)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(shuffled(members), first)
