"""Reward clipping by each formula, and reward scaling by the golden vectors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.rewards import REWARD_CLIPPING, RewardScale, clip_rewards
from replay.batch import Batch
from tests.agents.support import old_start, random_batch
from tests.support import golden

REWARDS = (-100.0, -2.0, -0.5, 0.0, 0.25, 1.0, 7.0)


def raw_rewards() -> Tensor:
    return torch.tensor(REWARDS)


def test_the_methods_are_those_of_the_flag() -> None:
    assert set(REWARD_CLIPPING) == {"abs_one_sign", "abs_one_clamp", "soft_asymmetric"}


def test_abs_one_sign_keeps_only_the_sign() -> None:
    expected = torch.tensor([-1.0, -1.0, -1.0, 0.0, 1.0, 1.0, 1.0])
    assert torch.equal(clip_rewards(raw_rewards(), "abs_one_sign"), expected)


def test_abs_one_clamp_cuts_at_one() -> None:
    expected = torch.tensor([-1.0, -1.0, -0.5, 0.0, 0.25, 1.0, 1.0])
    assert torch.equal(clip_rewards(raw_rewards(), "abs_one_clamp"), expected)


def test_soft_asymmetric_weighs_losses_at_three_tenths() -> None:
    expected = [(5.0 if r >= 0 else 1.5) * math.tanh(r / 5.0) for r in REWARDS]
    torch.testing.assert_close(clip_rewards(raw_rewards(), "soft_asymmetric"), torch.tensor(expected))


def test_none_leaves_rewards_raw() -> None:
    assert torch.equal(clip_rewards(raw_rewards(), None), raw_rewards())


@pytest.mark.parametrize(
    ("method", "expected"), [("abs_one_sign", 1.0), ("abs_one_clamp", 1.0), ("soft_asymmetric", 5.0 * math.tanh(0.4))]
)
def test_skipped_frames_are_summed_before_they_are_clipped(method: str, expected: float) -> None:
    frame_rewards = torch.tensor([4.0, -1.0, -1.0, 0.0])
    of_the_sum = clip_rewards(frame_rewards.sum(), method)
    assert of_the_sum.item() == pytest.approx(expected)
    assert of_the_sum.item() != pytest.approx(clip_rewards(frame_rewards, method).sum().item(), abs=1e-3)


@pytest.mark.parametrize("method", sorted(REWARD_CLIPPING))
def test_each_reward_is_clipped_alone_and_the_input_kept(method: str) -> None:
    rewards = raw_rewards().repeat(3, 1)
    clipped = clip_rewards(rewards, method)
    assert torch.equal(rewards, raw_rewards().repeat(3, 1))
    alone = torch.stack([clip_rewards(reward, method) for reward in rewards.flatten()])
    torch.testing.assert_close(clipped, alone.view(3, -1))


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"wanted None or one of .*abs_one_clamp.*got 'half'"):
        clip_rewards(raw_rewards(), "half")


CASES = golden("reward_scaling.json")


def chunk_of(case: dict[str, Any], rows: slice) -> Batch:
    """The rows of a golden case as a batch of fresh columns, with the discounted returns that workers store."""
    inputs = {name: torch.tensor(values)[rows] for name, values in case["inputs"].items()}
    returns = torch.tensor(case["outputs"]["discounted_returns"])[rows]
    return replace(
        random_batch(),
        rewards=inputs["rewards"],
        action_used=inputs["action_used"],
        is_replay=torch.zeros(case["N"], dtype=torch.bool),
        discounted_returns=returns,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_rewards_are_scaled_as_in_the_golden_vectors(case: dict[str, Any]) -> None:
    scale, first = RewardScale(torch.device("cpu")), 0
    scale.moments.take(old_start(case["initial_count"], 1))
    for count, after in zip(case["chunks"], case["outputs"]["after_chunk"], strict=True):
        rows = slice(first, first + count)
        batch = chunk_of(case, rows)
        scaled = scale.scaled(batch)
        scale.settle(torch.tensor(True))
        used = batch.action_used
        wanted = torch.tensor(case["outputs"]["scaled_per_chunk"])[rows]
        torch.testing.assert_close(scaled.rewards[used], wanted[used], rtol=1e-5, atol=1e-6)
        moments = scale.moments.now
        assert float(moments.weight) == pytest.approx(after["count"])
        assert float(moments.mean) == pytest.approx(after["mean"], rel=1e-5, abs=1e-6)
        assert float(moments.variance) == pytest.approx(after["var"], rel=1e-5)
        first += count


def test_returns_far_from_zero_are_divided_by_their_own_deviation() -> None:
    batch, scale = chunk_of(CASES[0], slice(0, 4)), RewardScale(torch.device("cpu"))
    assert batch.discounted_returns is not None
    far = batch.discounted_returns + 1e6
    scaled = scale.scaled(replace(batch, discounted_returns=far)).rewards
    torch.testing.assert_close(scaled, (batch.rewards / far.double().std(correction=0)).float())


def test_rewards_whose_returns_never_vary_stay_raw() -> None:
    batch, scale = chunk_of(CASES[0], slice(0, 4)), RewardScale(torch.device("cpu"))
    scaled = scale.scaled(replace(batch, discounted_returns=torch.full((4, 2), 3.0)))
    assert torch.equal(scaled.rewards, batch.rewards)


def test_replayed_columns_are_scaled_but_not_merged() -> None:
    batch = chunk_of(CASES[0], slice(0, 4))
    alone, beside = RewardScale(torch.device("cpu")), RewardScale(torch.device("cpu"))
    replayed = torch.tensor([False, True])
    scaled = beside.scaled(replace(batch, is_replay=replayed))
    first = replace(batch, **{name: getattr(batch, name)[:, :1] for name in ("rewards", "action_used", "discounted_returns")})
    torch.testing.assert_close(scaled.rewards[:, :1], alone.scaled(replace(first, is_replay=replayed[:1])).rewards)
    torch.testing.assert_close(scaled.rewards[:, 1] / batch.rewards[:, 1], (scaled.rewards / batch.rewards)[:, 0])


def test_a_skipped_update_leaves_the_scale_as_it_was() -> None:
    scale = RewardScale(torch.device("cpu"))
    before = [tensor.clone() for tensor in scale.moments.now]
    scale.scaled(chunk_of(CASES[0], slice(0, 4)))
    scale.settle(torch.tensor(False))
    assert all(map(torch.equal, scale.moments.now, before))
