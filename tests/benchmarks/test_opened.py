"""An update enters few files and functions, and the program that counts them leaves none out."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents import AGENTS
from agents.schedules import linear_schedule
from benchmarks.opened import CASES, Opened, left_out, opened_below, opened_by_run
from tests.support import REPOSITORY

LIMITS: dict[str, dict[str, tuple[int, int]]] = {
    "vtrace": {"update": (13, 55), "action": (9, 30), "evaluation": (12, 52)},
    "ppo": {"update": (18, 80), "action": (9, 30), "evaluation": (12, 52)},
    "sac": {"update": (14, 48), "action": (8, 28), "evaluation": (13, 54)},
    "dqn": {"update": (15, 59), "action": (10, 34), "evaluation": (12, 53)},
    "no replay saved": {"checkpoint": (12, 50)},
}
"""Most files and functions of each call. A change may lower them."""
FEW_UPDATES = {"sac": ["--updates_per_step=0.1"], "dqn": ["--updates_per_step=0.1"]}
"""The number of updates does not change what one of them enters."""
HERE = str(Path(__file__).relative_to(REPOSITORY))


class Called:
    """Calls a function of the program, a nested one, and one of Python's own."""

    def begin(self, value: float) -> float:
        def nested() -> float:
            return self.further(value)

        return max(nested() for _ in range(2))

    def further(self, value: float) -> float:
        return linear_schedule(value, 0.0, 0.5) if value else 0.0


def test_what_the_last_call_enters_is_counted_once() -> None:
    found: Opened = {}
    with opened_below(Called, "begin", found):
        assert Called().begin(2.0) == 1.0
        schedules = {"agents/schedules.py": {"linear_schedule"}}
        assert found == {HERE: {"Called.begin", "Called.further"}, **schedules}
        Called().begin(0.0)
        assert found == {HERE: {"Called.begin", "Called.further"}}
    Called().begin(2.0)  # is no longer watched
    assert "agents/schedules.py" not in found


def test_a_call_that_is_left_out_and_what_it_enters_are_not_counted() -> None:
    found: Opened = {}
    with opened_below(Called, "begin", found), left_out(Called, "further"):
        assert Called().begin(2.0) == 1.0
    assert found == {HERE: {"Called.begin"}}


@pytest.mark.parametrize("name", CASES)
def test_a_call_enters_no_more_files_and_functions_than_its_limits(name: str, tmp_path: Path) -> None:
    opened = opened_by_run([*CASES[name], *FEW_UPDATES.get(name, [])], tmp_path)
    for kind, (files, functions) in LIMITS[name].items():
        found = opened[kind]
        listed = "\n".join(
            [f"{name}, {kind}:", *(f"{path}: {', '.join(sorted(names))}" for path, names in sorted(found.items()))]
        )
        assert 0 < len(found) <= files, listed
        assert sum(map(len, found.values())) <= functions, listed
    assert name not in AGENTS or f"agents/{name}/agent.py" in opened["update"]
