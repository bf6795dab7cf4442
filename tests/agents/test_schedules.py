"""Schedules over a run's progress."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents import AGENTS
from agents.schedules import linear_schedule
from tests.agents.support import random_batch
from tests.learner.ranks.test_group import agent_of
from tests.support import same

REWARD_ENTROPY = [name for name, kind in AGENTS.items() if hasattr(kind.config_class(), "entropy_loss_weight")]


@pytest.mark.parametrize(("progress", "expected"), [(0, 6e-4), (0.25, 4.5e-4), (0.5, 3e-4), (1.0, 0.0), (5.0, 0.0)])
def test_linear_schedule_to_zero_is_half_at_half_way(progress: float, expected: float) -> None:
    assert linear_schedule(6e-4, 0.0, progress) == pytest.approx(expected)


def test_linear_schedule_ends_at_its_end_and_may_rise() -> None:
    assert linear_schedule(2.0, 4.0, 0.75) == pytest.approx(3.5)
    assert linear_schedule(2.0, 4.0, 1.01) == 4.0


def test_linear_schedule_is_exact_at_both_ends() -> None:
    assert linear_schedule(4.8e-4, 1e-7, 0.0) == 4.8e-4
    assert linear_schedule(4.8e-4, 0.0, 1.0) == 0.0


def test_negative_progress_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^progress: wanted"):
        linear_schedule(1.0, 0.0, -0.1)


@pytest.mark.parametrize("name", REWARD_ENTROPY)
def test_the_entropy_weight_of_an_update_is_that_of_its_progress(name: str) -> None:
    def learned(**weights: float) -> dict[str, Any]:
        agent = agent_of(name, **weights)
        torch.manual_seed(1)  # PPO draws minibatches
        agent.learn(random_batch(), 0.25)
        return agent.state_dict()

    falling = learned(entropy_loss_weight=4.0, entropy_loss_weight_end=2.0)
    assert same(falling, learned(entropy_loss_weight=3.5))
    assert not same(falling, learned(entropy_loss_weight=4.0))
