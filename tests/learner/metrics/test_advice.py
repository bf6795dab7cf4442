"""Advice on rewards comes only where they are large, raw and the reason for clipped gradients."""

from __future__ import annotations

from typing import Any

import pytest

from learner.metrics.advice import reward_advice
from tests.support import small_config

PENDULUM = {"charts/episodic_return": -1200.0, "charts/episodic_length": 200.0, "losses/gradient_clipped": 0.97}


def test_large_rewards_that_clip_nearly_every_gradient_get_one_line() -> None:
    line = reward_advice(PENDULUM, small_config(clip_rewards=False))
    assert line.startswith("Rewards are about 6 a step, and 97 % of the gradients were clipped: --normalise_rewards")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("record", "settings"),
    [
        ({}, {"clip_rewards": True}),
        ({}, {"clip_rewards": False, "normalise_rewards": True}),
        ({"losses/gradient_clipped": 0.5}, {"clip_rewards": False}),
        ({"charts/episodic_return": 190.0}, {"clip_rewards": False}),
        ({"charts/episodic_length": 0.0}, {"clip_rewards": False}),
    ],
)
def test_other_runs_get_none(record: dict[str, float], settings: dict[str, Any]) -> None:
    assert reward_advice({**PENDULUM, **record}, small_config(**settings)) == ""
