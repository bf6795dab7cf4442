"""Observations of truth values are images of one byte a value, which the network sees as 0 and 1. Masks may come with info."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.builders import network_of
from tests.wrappers.environments import HERE
from wrappers import EnvConfig, make_single_env, make_spec, make_vector_env
from wrappers.errors import import_failed
from wrappers.gymnasium_spaces import FrameBuffer, ObservationPlan, translate_actions
from wrappers.gymnasium_vector import picture_of
from wrappers.spaces import ACTION_MASK

CONFIG = EnvConfig(env=f"{HERE}:TestPlanes-v1", frames_stacked=1)


def test_planes_of_truth_values_are_images_with_their_channels_last() -> None:
    spec = make_spec(CONFIG)
    assert (spec.frame_shape, spec.frame_dtype, spec.leaves) == ((10, 10, 6), "uint8", ())
    env = make_vector_env(CONFIG, 2)
    env.reset(1)
    shown = env.step(np.ones(2, np.int64)).observations
    expected = np.zeros((2, 1, 10, 10, 6), np.uint8)
    expected[:, 0, 2, 7, 1] = 255
    np.testing.assert_array_equal(shown, expected)


def test_a_convolution_reads_each_plane_as_a_channel_of_zeros_and_ones() -> None:
    network = network_of("conv", (1, 10, 10, 6), 3, conv="16x3x1", hidden_sizes="128")
    first = next(layer for layer in network.modules() if isinstance(layer, torch.nn.Conv2d))
    seen: list[torch.Tensor] = []
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    observations = torch.zeros((1, 1, 10, 10, 6), dtype=torch.uint8)
    observations[0, 0, 2, 7, 4] = 255
    network(observations)
    expected = torch.zeros((1, 6, 10, 10))
    expected[0, 4, 2, 7] = 1
    torch.testing.assert_close(seen[0], expected)
    assert first.weight.shape == (16, 6, 3, 3)


def test_pictures_of_floats_up_to_1_are_as_bright_as_those_of_bytes() -> None:
    picture = picture_of(make_single_env(CONFIG, render_mode="rgb_array").render(), CONFIG.env)
    assert picture.dtype == np.uint8
    assert picture[3, 3].tolist() == [0, 128, 255]
    assert picture_of(np.full((2, 2, 3), 200.0), CONFIG.env).max() == 200


@pytest.mark.parametrize(("missing", "hint"), [("minatar", "pip install minatar"), ("nix", None)])
def test_a_missing_package_is_named_with_its_installation(missing: str, hint: str | None) -> None:
    line = import_failed("the module", ModuleNotFoundError("gone", name=f"{missing}.gym"))
    assert line.rpartition("; ")[2] == hint if hint else "pip" not in line


def masks_of(info: Mapping[str, Any], ended: list[bool]) -> list[list[int]]:
    """The masks that three environments of a vector get from info."""
    plan = ObservationPlan(spaces.Box(-1, 1, (2,)), (2,), "auto", info={"action_mask": np.ones(2)})
    buffer = FrameBuffer(plan, len(ended))
    buffer.put(slice(None), np.zeros((len(ended), 2)), info, ended=np.array(ended))
    assert plan.packing is not None
    found: list[list[int]] = plan.packing.unpack(buffer.frames())[ACTION_MASK].tolist()
    return found


def test_masks_of_a_vector_may_be_missing_only_where_an_episode_ends() -> None:
    masks = np.array([[1, 0], [1, 1], [0, 1]])
    given = {"action_mask": masks, "_action_mask": np.array([True, False, True])}
    assert masks_of({"action_mask": masks}, [False, False, False]) == masks.tolist()
    # Gymnasium fills up with zeros, which would forbid every action.
    given["action_mask"] = np.array([[1, 0], [0, 0], [0, 1]])
    assert masks_of(given, [False, True, True]) == [[1, 0], [1, 1], [0, 1]]
    assert masks_of({}, [True, True, True]) == [[1, 1]] * 3
    for info, ended in ((given, [True, False, True]), ({}, [True, False, True])):
        with pytest.raises(RuntimeError, match="^action_mask: wanted an entry action_mask of info, got "):
            masks_of(info, ended)


PARTS = (np.array([1, 0, 1], np.int8), np.array([0, 1], np.int8))
"""A mask for choices among three and two values, as `MultiDiscrete.sample` takes it."""


def test_a_mask_in_info_may_have_an_array_for_each_choice() -> None:
    space, numbers = spaces.Box(-1, 1, (2,)), np.zeros(2)
    for mask in (PARTS, list(PARTS), (PARTS[:1], PARTS[1:]), [1, 0, 1, 0, 1]):
        buffer = FrameBuffer(plan := ObservationPlan(space, (3, 2), "auto", info={"action_mask": mask}), 2)
        buffer.put(0, numbers, {"action_mask": mask})
        buffer.put(1, numbers, {}, ended=True)
        assert plan.packing is not None
        assert plan.packing.unpack(buffer.frames())[ACTION_MASK].tolist() == [[1, 0, 1, 0, 1], [1, 1, 1, 1, 1]]
    several = np.full(2, None, object)  # as Gymnasium keeps the tuples of a vector
    several[1] = PARTS
    buffer.put(
        slice(None), np.zeros((2, 2)), {"action_mask": several, "_action_mask": np.array([False, True])}, ended=np.ones(2, bool)
    )
    assert plan.packing.unpack(buffer.frames())[ACTION_MASK].tolist() == [[1, 1, 1, 1, 1], [1, 0, 1, 0, 1]]
    with pytest.raises(ValueError, match="action_mask: wanted 4 numbers for these actions, got 5 in the entry action_mask"):
        ObservationPlan(space, (2, 2), "auto", info={"action_mask": PARTS})


def test_a_mask_in_the_observation_may_be_a_tuple() -> None:
    choices = spaces.Tuple([spaces.MultiBinary(3), spaces.MultiBinary(2)])
    space = spaces.Dict({"action_mask": choices, "x": spaces.Box(-1, 1, (1,))})
    buffer = FrameBuffer(plan := ObservationPlan(space, (3, 2), "auto"), 2)
    assert [leaf.shape for leaf in plan.leaves] == [(1,), (5,)]
    assert plan.packing is not None
    buffer.put(0, {"action_mask": PARTS, "x": np.zeros(1)}, {})
    buffer.put(1, {"action_mask": PARTS, "x": np.zeros(1)}, {})
    assert plan.packing.unpack(buffer.frames())[ACTION_MASK].tolist() == [[1, 0, 1, 0, 1]] * 2
    several = tuple(np.stack([part, 1 - part]) for part in PARTS)
    buffer.put(slice(None), {"action_mask": several, "x": np.zeros((2, 1))}, {})
    assert plan.packing.unpack(buffer.frames())[ACTION_MASK].tolist() == [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0]]
    with pytest.raises(ValueError, match="action_mask: wanted 4 numbers for these actions, got 5 in the entry action_mask"):
        ObservationPlan(space, (2, 2), "auto")


def test_a_choice_whose_values_are_all_forbidden_may_take_any() -> None:
    mask = spaces.Box(0, 1, (5,), np.int8)
    plan = ObservationPlan(spaces.Dict({"action_mask": mask, "x": spaces.Box(-1, 1, (1,))}), (2, 3), "auto")
    buffer = FrameBuffer(plan, 3)
    for environment, values in enumerate(([1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0])):
        buffer.put(environment, {"action_mask": np.array(values), "x": np.zeros(1)}, {})
    assert plan.packing is not None
    found = plan.packing.unpack(buffer.frames())[ACTION_MASK]
    assert found.tolist() == [[1, 0, 1, 1, 1], [1, 1, 0, 1, 0], [1, 1, 1, 1, 1]]


WHOLE_NUMBERS = [
    (spaces.Box(0, 2**31 - 1, (1,), np.int32), {-1: 0, 0: 2**30, 1: 2**31 - 1, 7: 2**31 - 1}),
    (spaces.Box(-(2**31), 2**31 - 1, (1,), np.int32), {-7: -(2**31), 0: 0, 1: 2**31 - 1}),
    (spaces.Box(0, 2**32 - 1, (1,), np.uint32), {-1: 0, 1: 2**32 - 1}),
    (spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64), {-1: -(2**63), 1: 2**63 - 2**10}),  # as near as float64 comes
    (spaces.Box(0, 255, (1,), np.uint8), {-1: 0, -0.9: 13, 1: 255, 7: 255}),
    (spaces.Box(0, 1, (1,), np.bool_), {-1: 0, -0.9: 0, -0.1: 0, 0.1: 1, 1: 1}),
    (spaces.Box(-np.inf, np.inf, (1,), np.int64), {-7.4: -7, 0: 0, 1: 1, 1e30: 2**63 - 2**10}),
    (spaces.Box(0, np.inf, (1,), np.int32), {-7: 0, 5.4: 5, 1e30: 2**31 - 1}),
]


@pytest.mark.parametrize(("space", "wanted"), WHOLE_NUMBERS, ids=[str(space) for space, _ in WHOLE_NUMBERS])
@pytest.mark.filterwarnings("error")  # NumPy warns of casts that wrap around
def test_whole_numbers_and_truth_values_are_the_nearest_within_their_bounds(
    space: spaces.Box, wanted: dict[float, int]
) -> None:
    _, decode = translate_actions(space)
    decoded = decode(np.array([[action] for action in wanted], np.float32))
    assert [int(action[0]) for action in decoded] == list(wanted.values())
    assert all(map(space.contains, decoded))
