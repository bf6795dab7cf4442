"""Priorities of slots and rows: golden values, new rows, evicted and moved trajectories, and saved states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay.priorities.priorities import Priorities, Tickets, importance_weights, normalised, stratified
from tests.replay.support import resident_bytes
from tests.support import golden

CASES = {case["name"]: case for case in golden("prioritised.json")}
DRAWS = [case for case in CASES.values() if "stratified" in case["outputs"]]
ROWS = 3
USED = np.ones(ROWS, bool)


def plain(slots: int, leaves: int = ROWS) -> Priorities:
    """Priorities whose leaves are the errors themselves."""
    return Priorities(slots, leaves, alpha=1.0, epsilon=0.0)


def filled(priorities: Priorities, errors: list[list[float]]) -> Priorities:
    """errors: `[slots][leaves]`; a leaf of 0 may not be drawn."""
    for slot, row in enumerate(errors):
        priorities.add(slot, np.array(row) > 0)
        priorities.start(slot, np.array(row))
    return priorities


@pytest.mark.parametrize("case", DRAWS, ids=lambda case: case["name"])
def test_leaves_targets_and_weights_are_those_of_the_paper(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    errors = [[each] for each in given["priorities"]]
    priorities = filled(Priorities(len(errors), 1, alpha=case["alpha"], epsilon=0.0), errors)
    np.testing.assert_allclose(priorities.tree.leaves, wanted["leaves"], rtol=1e-10)
    assert priorities.count == wanted["count"]
    found = priorities.tree.find(stratified(np.array(given["uniforms"]), priorities.tree.total))
    assert found.tolist() == wanted["stratified"]
    weights = importance_weights(priorities.count * priorities.tree[found] / priorities.tree.total, case["beta"])
    np.testing.assert_allclose(weights, wanted["weights_unnormalised"], rtol=1e-10)
    np.testing.assert_allclose(normalised(weights), wanted["weights_batch_max"], rtol=1e-10)


def test_a_ring_of_adds_and_updates() -> None:
    """New leaves take the largest priority, and of repeated updates the last one counts."""
    case = CASES["operations"]
    priorities = Priorities(case["capacity"], 1, alpha=case["alpha"], epsilon=case["epsilon"])
    added = 0
    for operation, wanted in zip(case["inputs"]["operations"], case["outputs"]["after"], strict=True):
        if operation["op"] == "add":
            slot = added % case["capacity"]
            if added >= case["capacity"]:
                priorities.remove(slot, np.ones(1, bool))
            priorities.add(slot, np.ones(1, bool))
            if operation["priority"] is not None:
                priorities.start(slot, np.array([operation["priority"] - case["epsilon"]]))
            added += 1
        else:
            slots = np.array(operation["indices"])
            tickets = Tickets(slots, np.zeros_like(slots), priorities._inserted[slots])
            assert priorities.update(tickets, np.array(operation["td_errors"])) == 0
        np.testing.assert_allclose(priorities.tree.leaves, wanted["leaves"], rtol=1e-10)
        assert priorities.tree.total == pytest.approx(wanted["total"], rel=1e-10)
        assert priorities.largest == pytest.approx(wanted["max_priority"], rel=1e-10)


def test_draws_are_proportional_and_each_part_of_them_is_a_fair_sample() -> None:
    errors = [[1.0, 0.0, 2.0], [3.0, 4.0, 0.0]]
    priorities, generator = filled(plain(4), errors), np.random.default_rng(1)
    drawn = [priorities.draw(8, generator) for _ in range(2000)]
    for columns in (slice(0, 8), slice(0, 3), slice(7, 8)):
        numbers = np.concatenate([ROWS * tickets.slots[columns] + tickets.rows[columns] for tickets, _ in drawn])
        frequencies = np.bincount(numbers, minlength=6) / len(numbers)
        np.testing.assert_allclose(frequencies, np.ravel(errors) / 10, atol=0.025)
    tickets, relative = drawn[0]
    np.testing.assert_allclose(relative, 4 * np.array(errors)[tickets.slots, tickets.rows] / 10)


def test_a_draw_has_one_leaf_of_each_part_of_the_total() -> None:
    priorities = filled(plain(2), [[1.0, 1.0, 2.0]])
    for seed in range(20):
        tickets, _ = priorities.draw(4, np.random.default_rng(seed))
        assert sorted(tickets.rows.tolist()) == [0, 1, 2, 2]


def test_unknown_rows_take_the_largest_priority_of_their_trajectory_or_of_all() -> None:
    priorities = filled(plain(4), [[1.0, 7.0, 0.0]])
    priorities.add(1, np.array([True, True, False]))
    priorities.start(1, np.array([3.0, np.nan, 9.0]))
    priorities.add(2, np.array([True, False, True]))
    priorities.start(2, np.full(3, np.nan))
    np.testing.assert_array_equal(priorities.tree.leaves[3:9], [3, 3, 0, 7, 0, 7])
    assert priorities.largest == 7.0
    assert priorities.count == 6


def test_an_update_of_a_trajectory_that_is_gone_changes_nothing() -> None:
    priorities, generator = filled(plain(3), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), np.random.default_rng(2)
    tickets, _ = priorities.draw(64, generator)
    priorities.remove(1, USED)
    priorities.add(1, np.ones(3, bool))
    before = priorities.tree.leaves.copy()
    gone = int((tickets.slots == 1).sum())
    assert priorities.update(tickets, np.full(64, 0.5)) == gone
    drawn = np.zeros(9, bool)
    drawn[tickets.rows[tickets.slots == 0]] = True
    np.testing.assert_array_equal(priorities.tree.leaves, np.where(drawn, 0.5, before))


def test_an_update_that_is_not_finite_changes_nothing() -> None:
    priorities = filled(plain(2), [[1.0, 2.0, 3.0]])
    tickets, _ = priorities.draw(16, np.random.default_rng(3))
    before = priorities.tree.leaves.copy()
    assert priorities.update(tickets, np.where(np.arange(16) % 2, np.nan, np.inf)) == 0
    np.testing.assert_array_equal(priorities.tree.leaves, before)
    assert priorities.largest == 3.0


def test_a_moved_trajectory_keeps_its_priorities_and_old_tickets_are_void() -> None:
    priorities = filled(plain(4), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    tickets, _ = priorities.draw(64, np.random.default_rng(4))
    priorities.remove(0, USED)
    priorities.move({2: 0}, np.ones((4, ROWS), bool))
    priorities.give_back(2)
    np.testing.assert_array_equal(priorities.tree.leaves, [7, 8, 9, 4, 5, 6, 0, 0, 0, 0, 0, 0])
    assert priorities.update(tickets, np.full(64, 100.0)) == int((tickets.slots != 1).sum())
    np.testing.assert_array_equal(priorities.tree.leaves[:3], [7, 8, 9])
    np.testing.assert_array_equal(priorities.tree.leaves[6:], 0)
    fresh, _ = priorities.draw(64, np.random.default_rng(5))
    assert priorities.update(fresh, np.full(64, 1.0)) == 0


def test_a_whole_trajectory_is_drawn_if_a_row_after_the_burn_in_was_used() -> None:
    priorities = Priorities(3, 4, alpha=1.0, epsilon=0.0, whole=True, burn_in=2)
    for slot, used in enumerate(([1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1])):
        priorities.add(slot, np.array(used, bool))
    assert priorities.tree.leaves.tolist() == [0.0, 1.0, 1.0]
    assert priorities.count == 2


def test_a_loaded_state_draws_and_updates_the_same() -> None:
    one, other = filled(plain(5), [[1.0, 2.0, 0.0], [4.0, 5.0, 6.0]]), filled(plain(5), 5 * [[1.0, 1.0, 1.0]])
    tickets, _ = one.draw(8, np.random.default_rng(6))
    one.remove(0, USED)
    one.add(0, np.ones(3, bool))
    state = {name: value.clone() if hasattr(value, "clone") else value for name, value in one.state_dict().items()}
    other.load_state_dict(state)
    for priorities in (one, other):
        priorities.update(tickets, np.full(8, 2.5))
        priorities.add(2, np.ones(3, bool))
    np.testing.assert_array_equal(other.tree.leaves, one.tree.leaves)
    for mine, theirs in zip(
        one.draw(32, np.random.default_rng(7))[0], other.draw(32, np.random.default_rng(7))[0], strict=True
    ):
        np.testing.assert_array_equal(theirs, mine)
    assert other.count == one.count == 9


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="needs Linux")
def test_a_loaded_state_claims_no_memory_of_slots_that_were_never_used() -> None:
    state = filled(plain(20_000_000), [[1.0, 2.0, 3.0]]).state_dict()
    other = plain(20_000_000)  # whose leaves would take 480 MB
    before = resident_bytes()
    other.load_state_dict(state)
    assert resident_bytes() - before < 20_000_000
    assert other.tree.total == 6.0
