"""Off-policy estimates against recorded cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from agents.returns.estimates import estimate
from tests.support import golden

NAMES = {
    "recorded": "behaviour_value",
    "importance_sampling": "is",
    "weighted": "wis",
    "per_decision": "step_is",
    "weighted_per_decision": "step_wis",
}


@pytest.mark.parametrize("case", golden("off_policy_estimates.json"), ids=lambda case: case["name"])
def test_estimates_are_those_of_recorded_cases(case: dict[str, Any]) -> None:
    given = case["inputs"]
    with np.errstate(divide="ignore"):
        ratios = [np.log(np.array(each)) for each in given["ratios"]]
    found = estimate(ratios, [np.array(each) for each in given["rewards"]], case["gamma"])
    for name, key in NAMES.items():
        assert getattr(found, name) == pytest.approx(case["outputs"][key], rel=1e-10, abs=1e-10), name
    last = np.array([each[-1] for each in case["outputs"]["cumulative_ratios"]])
    assert found.effective_episodes == pytest.approx(last.sum() ** 2 / np.square(last).sum())


def test_weights_beyond_the_range_of_numbers_are_compared() -> None:
    """Weighted estimates need their relation alone."""
    rewards = [np.ones(1000), 3 * np.ones(1000)]
    for size in (5.0, -5.0):
        found = estimate([np.full(1000, size), np.full(1000, size)], rewards)
        assert found.weighted == pytest.approx(2000)
        assert found.weighted_per_decision == pytest.approx(2000)
        assert found.effective_episodes == pytest.approx(2)
    assert estimate([np.full(1000, 5.0)], [np.zeros(1000)]).importance_sampling == 0


def test_there_is_no_estimate_of_a_policy_that_plays_none_of_the_episodes() -> None:
    found = estimate([np.array([-np.inf]), np.array([0.0, -np.inf])], [np.ones(1), np.ones(2)])
    assert found.importance_sampling == 0
    assert math.isnan(found.weighted)
    assert math.isnan(found.weighted_per_decision)


@pytest.mark.parametrize("lengths", [([], []), ([0], [0]), ([2], [3]), ([1, 2], [1])])
def test_episodes_without_a_ratio_for_each_step_are_refused(lengths: tuple[list[int], list[int]]) -> None:
    ratios, rewards = ([np.zeros(length) for length in part] for part in lengths)
    with pytest.raises(ValueError, match="^estimates: wanted episodes of one step or more, with a ratio for each step$"):
        estimate(ratios, rewards)
