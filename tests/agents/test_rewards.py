"""Reward clipping: each method by its formula, applied to sums and to one reward at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from agents.rewards import REWARD_CLIPPING, clip_rewards

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
