"""A run may have a number of failures within an hour: a rare failure is forgotten, and a permanent one ends the run."""

from __future__ import annotations

from workers.processes.restarts import WINDOW_SECONDS, Cause, RestartBudget


def test_no_more_failures_than_allowed() -> None:
    budget = RestartBudget(3)
    assert [budget.allows(Cause(f"worker {n} died"), float(n)) for n in range(5)] == [True, True, True, False, False]


def test_no_failure_allowed() -> None:
    assert not RestartBudget(0).allows(Cause("worker 0 died"), 5.0)


def test_one_failure_an_hour_never_ends_the_run() -> None:
    budget = RestartBudget(1)
    assert all(budget.allows(Cause("worker 0 died"), hour * WINDOW_SECONDS) for hour in range(100))
    assert not budget.allows(Cause("worker 0 died"), 99 * WINDOW_SECONDS + WINDOW_SECONDS / 2)


def test_workers_that_die_with_the_same_process_are_one_failure() -> None:
    budget = RestartBudget(2)
    assert all(budget.allows(Cause(f"worker {n} died", died_with=7), float(n)) for n in range(16))
    assert budget.used == 1
    assert budget.allows(Cause("worker 0 died", died_with=8), 20.0)
    assert not budget.allows(Cause("worker 1 died", died_with=9), 21.0)


def test_the_message_ends_with_the_first_cause_within_the_hour() -> None:
    budget = RestartBudget(1)
    budget.allows(Cause("worker 0 failed long ago"), 0.0)
    budget.allows(Cause("worker 1 failed: ValueError: first", "Traceback\nValueError: first"), WINDOW_SECONDS)
    budget.allows(Cause("worker 0 was killed by SIGKILL"), WINDOW_SECONDS + 1)
    counted, *lines = budget.message().splitlines()
    assert lines == ["Traceback", "ValueError: first", "worker 1 failed: ValueError: first"]
    assert "2 times" in counted
    assert "max_worker_restarts=1" in counted


def test_a_process_id_that_comes_again_after_an_hour_is_another_failure() -> None:
    budget = RestartBudget(1)
    assert budget.allows(Cause("worker 0 died", died_with=7), 0.0)
    assert budget.allows(Cause("worker 0 died", died_with=7), WINDOW_SECONDS)
    assert budget.used == 1


def test_details_of_one_line_are_not_repeated() -> None:
    budget = RestartBudget(0)
    budget.allows(Cause("worker 1 failed: out of memory (MemoryError)", "out of memory (MemoryError)"), 0.0)
    assert budget.message().splitlines()[1:] == ["worker 1 failed: out of memory (MemoryError)"]
