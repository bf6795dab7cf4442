"""A resumed run ends where the command says, and a line says how its steps are counted."""

from __future__ import annotations

import pytest

from learner.runs.budget import settle_budget
from learner.settings.config import Settings
from learner.settings.schema import BUDGET_SETTINGS


def settled(typed: Settings, saved: tuple[int, int], steps: int) -> tuple[int, int, int]:
    """Total and more steps of the resumed run, and the number of lines. saved: total and more steps of the checkpoint."""
    kept = dict(zip(BUDGET_SETTINGS, saved, strict=True))
    settings, notes = settle_budget({**kept, **typed}, typed, kept, steps)
    return settings["environment_max_steps"], settings["more_steps"], len(notes)


@pytest.mark.parametrize(
    ("typed", "saved", "steps", "ends"),
    [
        # No number: the run ends where it was to end.
        ({}, (1000, 0), 400, (1000, 0, 0)),
        ({}, (2000, 1000), 1300, (2000, 1000, 0)),
        # A total counts from the start of the first run, as ever.
        ({"environment_max_steps": 1000}, (1000, 0), 400, (1000, 0, 1)),
        ({"environment_max_steps": 3000}, (1000, 0), 1004, (3000, 0, 1)),
        ({"environment_max_steps": 800}, (1000, 0), 400, (800, 0, 1)),
        ({"environment_max_steps": 3000}, (2000, 1000), 1300, (3000, 0, 1)),
        # The number of a finished run counts as more steps.
        ({"environment_max_steps": 1000}, (1000, 0), 1004, (2004, 1000, 1)),
        ({"environment_max_steps": 1000}, (2004, 1000), 2004, (3004, 1000, 1)),
        ({"environment_max_steps": 2000}, (2000, 1000), 2000, (4000, 2000, 1)),
        # The same command again, after an interruption, finishes the run that it began.
        ({"environment_max_steps": 1000}, (2004, 1000), 1300, (2004, 1000, 1)),
        # Other numbers that are reached are left to be refused.
        ({"environment_max_steps": 300}, (1000, 0), 400, (300, 0, 0)),
        ({"environment_max_steps": 500}, (1000, 0), 1004, (500, 0, 0)),
        # More steps count from the checkpoint, whether the run was finished or not.
        ({"more_steps": 500}, (1000, 0), 400, (900, 500, 1)),
        ({"more_steps": 500}, (1000, 0), 1004, (1504, 500, 1)),
        ({"more_steps": 500}, (1504, 500), 1304, (1804, 500, 1)),
    ],
)
def test_steps_are_counted(typed: Settings, saved: tuple[int, int], steps: int, ends: tuple[int, int, int]) -> None:
    assert settled(typed, saved, steps) == ends


def test_a_checkpoint_of_an_earlier_version_names_no_more_steps() -> None:
    settings, _ = settle_budget({}, {"environment_max_steps": 1000}, {"environment_max_steps": 1000}, 1000)
    assert settings == {"environment_max_steps": 2000, "more_steps": 1000}


def test_both_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="^more_steps: wanted either more_steps or environment_max_steps, got 5 and 900$"):
        settled({"more_steps": 5, "environment_max_steps": 900}, (1000, 0), 400)
