"""A few random combinations, and the detection of those that are refused only after they were trained."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks import fuzz_environments
from benchmarks.fuzzed_environments import ENVIRONMENTS, fuzzed_case
from learner.settings.check import find_setting


def test_combinations_work_or_are_refused_in_one_line(tmp_path: Path) -> None:
    row = fuzz_environments.fuzz_environments(2, random.Random(251), tmp_path)
    assert row.bad == []
    assert row.cases >= 9  # train, resume and test, then the same from a recording
    assert row.taken >= 9


def test_cases_repeat_by_seed_and_hold_values_that_settings_accept() -> None:
    cases = [fuzzed_case(random.Random(seed)) for seed in range(30)]
    assert cases == [fuzzed_case(random.Random(seed)) for seed in range(30)]
    assert len({case[0] for case in cases}) > 10
    for case in cases:
        name, value = case[0].removeprefix("--").split("=", 1)
        assert (name, value in ENVIRONMENTS) == ("env", True)
        find_setting("replay_parameters").check(next(flag for flag in case if "replay_parameters" in flag).split("=", 1)[1])


def test_no_case_has_a_learning_rate_that_lets_it_diverge() -> None:
    flags = {flag.split("=")[0] for seed in range(300) for flag in fuzzed_case(random.Random(seed))}
    assert "--rmsprop_eps" in flags, "wanted cases that set the optimiser's other numbers"
    assert not flags & {"--lr", "--lr_end_value"}


def test_a_refusal_after_training_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(given: tuple[str, ...], results: Path) -> None:
        (results / "latest").mkdir(parents=True, exist_ok=True)
        if given[0] == "test":
            raise ValueError("no")

    monkeypatch.setattr(fuzz_environments, "run", run)
    row = fuzz_environments.fuzz_environments(2, random.Random(0), tmp_path)
    assert (row.cases, row.refused, len(row.bad)) == (6, 2, 2)
