"""Every stored row whose action was used starts a window with the same probability, whatever came and went before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from replay.base import ReplayConfig, ReplayContext
from replay.kinds.standard import StandardReplay
from replay.ring.starts import Starts
from replay.trajectory import Arrays
from tests.builders import trajectory_contract
from tests.replay.ring.support import Environment

T, WINDOW = 6, 3
CONTRACT = replace(trajectory_contract(T, (2,), "uint8", 2, 2), window=WINDOW)


def listed(starts: Starts) -> list[int]:
    return sorted(starts.state_dict().tolist())


def test_the_list_holds_used_rows_alone_after_any_order_of_inserts_evictions_and_moves() -> None:
    generator = np.random.default_rng(3)
    starts, used, stored = Starts(20, T), np.zeros((20, T), bool), set[int]()
    for _ in range(300):
        slot = int(generator.integers(20))
        if slot in stored:
            starts.remove(slot, used[slot])
            stored.remove(slot)
        else:
            used[slot] = generator.random(T) < generator.choice([0.0, 0.5, 1.0])
            starts.add(slot, used[slot])
            stored.add(slot)
        if generator.random() < 0.1 and len(stored) < 10:  # the highest trajectories move into the lowest holes
            old = sorted(stored, reverse=True)[:2]
            new = sorted(set(range(20)) - stored)[: len(old)]
            moves = {one: other for one, other in zip(old, new, strict=True) if other < one}
            used[list(moves.values())] = used[list(moves)]
            starts.move(moves, used)
            stored = {moves.get(each, each) for each in stored}
        assert listed(starts) == sorted(each * T + row for each in stored for row in np.flatnonzero(used[each]))


def replay_of(capacity: int, memory: int | None = None, retention: str = "fifo", seed: int = 5) -> StandardReplay:
    config = ReplayConfig("standard", capacity, 1.0, memory=memory, retention=retention)
    return StandardReplay(config, ReplayContext(CONTRACT, 1, 1, np.random.default_rng(seed)))


def filled(replay: StandardReplay, count: int, seed: int = 1) -> StandardReplay:
    """With trajectories whose rewards number their rows through, and whose rows are used or not at random."""
    generator = np.random.default_rng(seed)
    environment = Environment(0, CONTRACT, generator, 0.2)
    for number in range(count):
        trajectory = environment.next()
        trajectory["rewards"] = number * T + np.arange(T, dtype=np.float32)
        replay.insert(trajectory)
    return replay


def drawn(replay: StandardReplay, count: int) -> Arrays:
    out = CONTRACT.allocate_batch(count)
    replay.sample(count, out)
    return out


@pytest.mark.parametrize("retention", ["fifo", "reservoir"])
@pytest.mark.parametrize("size", ["capacity", "memory"])
def test_windows_start_uniformly_at_used_rows(retention: str, size: str) -> None:
    limit = {"capacity": 7} if size == "capacity" else {"capacity": 1, "memory": 9_000}
    replay = filled(replay_of(**limit, retention=retention), 40)
    storage, slots = replay.ring.storage, replay.ring.slots
    used = storage.columns["action_used"][slots]
    wanted = set(storage.columns["rewards"][slots][used].tolist())
    count = 200 * len(wanted)
    found = Counter(drawn(replay, count)["rewards"][:, 0].tolist())
    assert found.keys() == wanted
    squares = sum((found[each] - 200) ** 2 / 200 for each in wanted)  # chi-squared with len(wanted) - 1 degrees
    assert squares < len(wanted) + 5 * np.sqrt(2 * len(wanted))


def test_a_window_shows_the_rows_of_its_trajectory_and_ends_in_unused_rows() -> None:
    replay = filled(replay_of(9), 9)
    columns = drawn(replay, 500)
    storage = replay.ring.storage.columns
    for index, first in enumerate(columns["rewards"][:, 0].tolist()):
        number, start = divmod(int(first), T)
        slot = int(np.flatnonzero(storage["rewards"][:, 0] == number * T)[0])
        inside = min(WINDOW, T - start)
        for name in ("actions", "rewards", "terminated", "action_used", "behaviour_values"):
            assert (columns[name][index, :inside] == storage[name][slot, start : start + inside]).all()
        assert not columns["action_used"][index, inside:].any()
        assert not columns["rewards"][index, inside:].any()
        frames = replay.ring.read(np.array([slot]))["frames"][0]
        last = frames[np.minimum(np.arange(start, start + WINDOW + 2), len(frames) - 1)]
        shown = columns["frames"][index]
        before = (shown[:1] != last[:1]).any()  # the frame before an episode's first one is black
        assert (shown[1:] == last[1:]).all()
        assert not before or not shown[0].any()


def test_a_batch_of_windows_has_only_what_a_learner_reads() -> None:
    names = CONTRACT.allocate_batch(2).keys()
    assert "policy_version" in names
    assert not names & {"episode_return", "environment_id", "truncated"}


def test_a_restored_replay_draws_the_same_windows() -> None:
    replay, other = filled(replay_of(7), 20), replay_of(7, seed=99)
    drawn(replay, 3)
    other.load_state_dict(replay.state_dict())
    for one in (replay, other):
        filled(one, 5, seed=2)
    assert torch.from_numpy(drawn(replay, 64)["frames"]).equal(torch.from_numpy(drawn(other, 64)["frames"]))


def test_nothing_is_drawn_before_a_row_was_used() -> None:
    replay = replay_of(7)
    unused = {name: np.zeros(shape, dtype) for name, (shape, dtype) in CONTRACT.fields.items()}
    replay.insert(unused)
    assert not replay.can_sample(1)
    filled(replay, 3)
    assert replay.can_sample(1)
