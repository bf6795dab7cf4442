"""A window of a stored trajectory shows the observations that the whole trajectory shows in those rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay.ring.ring import Ring
from tests.builders import trajectory_contract
from tests.replay.ring.support import Environment, check_window, raw, ring_of

PLACES: dict[str, dict[str, Any]] = {"plain": {}, "compressed": {"compress": True}, "device": {"device": torch.device("cpu")}}
PLACE = pytest.mark.parametrize("place", PLACES)


def filled_ring(place: str, frames_stacked: int = 3, frame_dtype: str = "uint8", resets: float = 0.3) -> Ring:
    """Eight trajectories of six rows from two environments, after twelve were inserted."""
    contract = trajectory_contract(6, (2, 2), frame_dtype, frames_stacked, 2)
    ring = ring_of(contract, 8, **PLACES[place])
    generator = np.random.default_rng(7)
    environments = [Environment(number, contract, generator, resets) for number in range(2)]
    for number in range(12):
        ring.insert(environments[number % 2].next())
    return ring


@PLACE
@pytest.mark.parametrize("frame_dtype", ["uint8", "float32"])
@pytest.mark.parametrize("frames_stacked", [1, 2, 3, 4, 8])
def test_every_start_and_length_shows_the_same_observations(place: str, frame_dtype: str, frames_stacked: int) -> None:
    ring = filled_ring(place, frames_stacked, frame_dtype)
    for length in range(1, 7):
        for start in range(7 - length):
            check_window(ring, ring.slots, start, length)


@PLACE
def test_each_slot_may_have_its_own_start(place: str) -> None:
    ring = filled_ring(place)
    generator = np.random.default_rng(1)
    for length in range(1, 7):
        slots = generator.choice(ring.slots, size=20)
        check_window(ring, slots, generator.integers(0, 7 - length, size=20), length)


@PLACE
def test_a_window_of_all_rows_is_the_whole_trajectory(place: str) -> None:
    ring = filled_ring(place)
    window, whole = ring.read_window(ring.slots, 0, 6), ring.read(ring.slots)
    assert {name: raw(array) for name, array in window.items()} == {name: raw(array) for name, array in whole.items()}


def test_a_reset_before_the_window_blackens_the_frames_before_it() -> None:
    """The episode's first observation is at row 2: at row 3 a stack of four has two frames of it."""
    contract = trajectory_contract(6, (1,), "uint8", 4, 2)
    ring = ring_of(contract, 2)
    trajectory = {name: np.zeros(shape, dtype) for name, (shape, dtype) in contract.fields.items()}
    trajectory["frames"][:, 0] = np.arange(1, 11)
    trajectory["reset"][1] = True
    slot = ring.insert(trajectory)
    assert slot is not None
    frames = ring.read_window(np.array([slot]), 3, 1)["frames"]
    assert frames[0, :, 0].tolist() == [0, 0, 6, 7, 8]


@PLACE
@pytest.mark.parametrize(("starts", "length"), [(0, 0), (-1, 2), (0, 7), (5, 2), ([0, 5], 2), ([0, -1], 1)])
def test_a_window_beyond_its_trajectory_is_refused(place: str, starts: Any, length: int) -> None:
    ring = filled_ring(place)
    with pytest.raises(ValueError, match=f"6 rows, got {length} rows"):
        ring.read_window(ring.slots[:2], starts, length)


@PLACE
def test_a_read_window_is_a_copy(place: str) -> None:
    ring = filled_ring(place)
    slots = ring.slots[:2].copy()
    before, window = ring.read_window(slots, 1, 3), ring.read_window(slots, 1, 3)
    for array in window.values():
        array[...] = 1
    after = ring.read_window(slots, 1, 3)
    assert all(raw(after[name]) == raw(array) for name, array in before.items())
