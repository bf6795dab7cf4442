"""Spaces of actions and the packing of observations with several leaves."""

from __future__ import annotations

import json

import numpy as np
import pytest

from wrappers.spaces import ActionSpace, Box, Discrete, Leaf, MultiDiscrete, Packing, action_space, same_actions

LEAVES = (Leaf("image", (2, 3), "uint8"), Leaf("vector", (3,), "float32"), Leaf("action_mask", (5,), "uint8"))
SPACES = [
    Discrete(3, ("LEFT", "STAY", "RIGHT")),
    MultiDiscrete((2, 3)),
    Box((-2.0, -np.inf, 0.0), (3.0, np.inf, np.inf)),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.kind)
def test_json_brings_back_the_same_space(space: ActionSpace) -> None:
    assert action_space(json.loads(json.dumps(space.to_json(), allow_nan=False))) == space


@pytest.mark.parametrize("data", [{}, {"kind": "graph"}, {"kind": "discrete"}, {"kind": "discrete", "count": 2, "low": 1}])
def test_what_describes_no_space_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="actions: wanted the description of a space"):
        action_space(data)


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.kind)
def test_samples_are_in_range_and_cover_it(space: ActionSpace) -> None:
    actions = space.sample(np.random.default_rng(0), 200)
    assert space.check(actions, 200).dtype == space.dtype
    assert actions.shape == (200, *space.shape)
    assert len(np.unique(actions, axis=0)) >= 3


@pytest.mark.parametrize(
    ("space", "actions", "wanted"),
    [
        (Discrete(3), np.array([3, 0]), "wanted values from 0 to 2"),
        (Discrete(3), np.array([0, -1]), "wanted values from 0 to 2"),
        (Discrete(3), np.array([0.0, 1.0]), r"wanted integers of shape \(2,\), got float64"),
        (Discrete(3), np.array([0]), r"wanted integers of shape \(2,\), got int64 \(1,\)"),
        (MultiDiscrete((2, 3)), np.array([[1, 2], [2, 2]]), "wanted components below 2, 3"),
        (Box((0.0,), (1.0,)), np.array([[0.5], [np.nan]]), "wanted finite numbers"),
        (Box((0.0,), (1.0,)), np.array([[1], [0]]), "wanted floating-point numbers"),
    ],
)
def test_actions_that_do_not_fit_are_refused(space: ActionSpace, actions: np.ndarray, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"actions: {wanted}"):
        space.check(actions, 2)


@pytest.mark.parametrize("make", [lambda: Discrete(0), lambda: MultiDiscrete(()), lambda: Box((1.0,), (0.0,))])
def test_spaces_without_an_action_are_refused(make: type[ActionSpace]) -> None:
    with pytest.raises(ValueError, match="actions: wanted"):
        make()


def test_box_actions_are_clipped_and_rescaled_between_finite_bounds_only() -> None:
    space = Box((-2.0, -np.inf, 0.0), (3.0, np.inf, np.inf))
    actions = np.array([[-1.0, 7.0, -5.0], [0.0, -7.0, 5.0], [4.0, 0.0, 0.0]], np.float32)
    np.testing.assert_array_equal(space.to_environment(actions), [[-2.0, 7.0, 0.0], [0.5, -7.0, 5.0], [3.0, 0.0, 0.0]])


def test_names_of_actions_do_not_matter_to_a_policy() -> None:
    assert same_actions(Discrete(2, ("A", "B")), Discrete(2))
    assert not same_actions(Discrete(2), Discrete(3))
    assert not same_actions(Discrete(2), MultiDiscrete((2,)))


def test_packed_leaves_come_back_unchanged_and_aligned() -> None:
    packing, generator = Packing(LEAVES), np.random.default_rng(0)
    values: dict[str, np.ndarray] = {
        "image": generator.integers(256, size=(4, 2, 3), dtype=np.uint8),
        "vector": generator.normal(size=(4, 3)).astype(np.float32),
        "action_mask": generator.integers(2, size=(4, 5), dtype=np.uint8),
    }
    frames = packing.pack(values)
    assert (frames.shape, frames.dtype) == ((4, 6 + 12 + 5), np.uint8)
    assert packing.parts["vector"].start % 4 == 0
    for name, value in packing.unpack(np.stack([frames, frames], 1)).items():
        np.testing.assert_array_equal(value[:, 1], values[name])
