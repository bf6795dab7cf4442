"""Elite sampling measures more candidates than it takes, until annealing ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replay.kinds.elite import EliteReplay
from tests.replay.support import NumberEncoder, build, context, now_at, ring_of, sample


def elite(written: int, encode: NumberEncoder, progress: float = 0.0, **settings: Any) -> EliteReplay:
    defaults: dict[str, Any] = {"elite_sampling_strategy": "strategy1", "lambda_batch_multiplier": 1000.0}
    replay = build("elite", 64, written, made_in=context(encode, progress), **{**defaults, **settings})
    assert isinstance(replay, EliteReplay)
    return replay


@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [("strategy1", [0, 1, 1]), ("strategy2", [0, 5, 11]), ("strategy3", [0, 1, 1]), ("strategy4", [0, 5, 11])],
)
def test_the_strategy_chooses_among_measured_candidates(strategy: str, wanted: list[int]) -> None:
    """All of 0 to 29 are candidates. Of distances to 20, 0 occurs once, 1 to 9 twice, 10 to 20 once."""
    drawn = sample(elite(30, now_at(20), elite_sampling_strategy=strategy), 3)
    assert sorted(abs(number - 20) for number in drawn) == wanted


def test_the_least_replayed_take_turns() -> None:
    replay = elite(12, now_at(0), elite_sampling_strategy="strategy3")
    assert [sorted(sample(replay, 4)) for _ in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [0, 1, 2, 3]]


@pytest.mark.parametrize("dist_function", ["ln_norm", "kl_policy"])
def test_features_are_compared_with_features_and_logits_with_logits(dist_function: str) -> None:
    """Logits that are all equal are the same policy for every number. Features differ."""
    drawn = sample(elite(30, now_at(25), dist_function=dist_function), 1)
    assert (drawn == [25]) is (dist_function == "ln_norm")


def test_the_schedule_sets_the_number_of_encoded_candidates() -> None:
    for progress, wanted in ((0.0, 24), (0.5, 14), (0.9, 6)):
        encode = now_at(3)
        replay = elite(64, encode, progress, lambda_batch_multiplier=6.0, annealing_factor=1.0)
        sample(replay, 4)
        assert [len(asked) for asked in encode.asked] == [wanted]


def test_metrics_count_the_selected_trajectories_only() -> None:
    replay = elite(30, now_at(29))
    sample(replay, 3)
    metrics = replay.metrics()
    assert metrics["distance"] == pytest.approx(np.sqrt(8) * (0 + 1 + 2) / 3)
    assert metrics["age"] == 1
    assert (metrics["draws"], metrics["draws_max"]) == (1, 1)
    assert ring_of(replay).draws.sum() == 3
