"""The tables of results: they are those of docs/curves/, and each number is the mean that it says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tools import results_page
from tools.curves import Curve, read_table
from tools.results_page import (
    CHOSEN,
    CURVES,
    PAGES,
    REGION,
    TESTS,
    all_results,
    at,
    ends,
    filled,
    milestones,
    training_curves,
)

MILLION = 4e6  # frames of a million steps of Atari
RISING = Curve("PongNoFrameskip-v4", "ours", 1, np.linspace(0, 2.5 * MILLION, 11), np.linspace(-20, 20, 11))
PUBLISHED = Curve("PongNoFrameskip-v4", "theirs", 0, np.array([MILLION, 2.5 * MILLION]), np.array([3.0, 19.3]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_curves(page: Path) -> None:
    text = page.read_text()
    assert REGION.findall(text)
    assert filled(text) == text, "wanted the tables that `python -m tools.results_page` writes"


def test_the_table_of_all_results_has_every_kept_curve() -> None:
    curves = [*training_curves(), *read_table(CURVES / TESTS)]
    assert len(all_results().rows) == len({(curve.env, curve.setting) for curve in curves})
    assert set(CHOSEN) <= {(curve.env, curve.setting) for curve in curves}
    assert {path.name for path in CURVES.glob("*.csv")} == {*results_page.TRAINING, TESTS}


def test_no_seed_is_counted_twice() -> None:
    counts = Counter(curve.key for curve in training_curves())
    assert not [key for key, count in counts.items() if count > 1]


def test_a_mean_has_the_lowest_and_the_highest_seed() -> None:
    second = RISING._replace(seed=2, returns=RISING.returns - 5)
    assert ends([RISING, second]) == "17.5 (15.0 to 20.0)"
    assert ends([RISING, RISING]) == "20.0"
    assert ends([]) == ""


def test_published_points_count_at_their_own_steps_only() -> None:
    assert at([RISING], 1e6) == "-4.00"
    assert at([RISING], 3e6) == ""
    assert [at([PUBLISHED], steps) for steps in (1e6, 1.5e6, 2.5e6)] == ["3.00", "", "19.3"]


def test_a_game_whose_first_setting_was_stopped_early_has_no_milestones(monkeypatch: pytest.MonkeyPatch) -> None:
    short = RISING._replace(env="BreakoutNoFrameskip-v4", frames=RISING.frames / 2)
    toy = RISING._replace(env="Catch-v0", frames=RISING.frames / 4)
    monkeypatch.setattr(results_page, "training_curves", lambda: [RISING, PUBLISHED, short, toy])
    rows = milestones("ours", "theirs").rows
    assert [row[:2] for row in rows] == [["Pong", "ours"], ["Pong", "theirs"]]
    assert rows[0][-1] == "20.0"
    assert rows[1][2:] == ["", "3.00", "", "", "19.3"]
