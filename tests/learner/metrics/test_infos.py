"""Means of the numbers in infos, at the end of episodes and over steps."""

from __future__ import annotations

import numpy as np
import pytest

from learner.metrics.infos import InfoStatistics, added, means, row_of, success_rate, sums_of
from wrappers.infos import MOST_NAMES, Infos


def infos(names: tuple[str, ...], *rows: list[float]) -> Infos:
    values = np.full((len(rows), MOST_NAMES), np.nan)
    for index, row in enumerate(rows):
        values[index, : len(row)] = row
    return Infos(names, values)


def test_numbers_that_are_not_finite_are_left_out() -> None:
    found = infos(("a", "b", "c"), [1.0, np.nan, np.inf], [2.0, 4.0, -np.inf])
    assert row_of(found, 0) == {"a": 1.0}
    assert sums_of(found) == {"a": (3.0, 2), "b": (4.0, 1), "c": (0.0, 0)}
    assert means([row_of(found, 1)], sums_of(found)) == {"a_at_end": 2.0, "b_at_end": 4.0, "a_mean": 1.5, "b_mean": 4.0}
    assert means([{"a": 1e308}, {"a": 1e308}], {}) == {}


def test_the_end_is_over_the_window_and_the_mean_since_the_last_reading() -> None:
    statistics = InfoStatistics(window=2)
    assert statistics.read() == {}
    statistics.add([{"is_success": 1.0}, {"is_success": 0.0}, {}], {"is_success": (1.0, 4), "cost": (6.0, 3)})
    wanted = {"info/is_success_at_end": 0.0, "info/is_success_mean": 0.25, "info/cost_mean": 2.0}
    assert statistics.read() == wanted
    statistics.add([{"is_success": 1.0}], {"cost": (1.0, 1)})
    assert statistics.read() == {"info/is_success_at_end": 1.0, "info/cost_mean": 1.0}
    assert statistics.at_end == {"is_success_at_end": 1.0}


@pytest.mark.parametrize(("names", "rate"), [(("success",), 0.5), (("success", "is_success"), 0.25), (("cost",), None)])
def test_the_rate_of_success_is_its_mean_at_the_end(names: tuple[str, ...], rate: float | None) -> None:
    assert success_rate({f"{name}_at_end": 0.5 if name == "success" else 0.25 for name in names}) == rate
    assert success_rate({"success_mean": 0.5}) is None


def test_one_line_says_which_names_are_left_out(lines: list[str]) -> None:
    """Workers may see their names in different orders, so there can be more than each of them records."""
    statistics = InfoStatistics(window=5)
    statistics.add([{"n0": 1.0}], {f"n{index}": (1.0, 1) for index in range(MOST_NAMES)})
    assert lines == []
    for _ in range(2):
        statistics.add([{"late": 1.0, "n1": 2.0}], {"further": (0.0, 0)})
    (line,) = lines
    assert "further" in line
    assert "late" in line
    assert set(statistics.read()) == {f"info/n{index}_mean" for index in range(MOST_NAMES)} | {
        "info/n0_at_end",
        "info/n1_at_end",
    }


def test_sums_are_added_by_name() -> None:
    assert added([{"a": (1.0, 2)}, {"b": (0.0, 0)}, {"a": (3.0, 1)}]) == {"a": (4.0, 3), "b": (0.0, 0)}
