"""Images have their channels first or last, by their shape or by the setting."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from wrappers.gymnasium_spaces import FrameBuffer, ObservationPlan
from wrappers.spec import AUTO_NAME, BY_COLOURS, CHANNELS_FIRST, CHANNELS_LAST

Shape = tuple[int, ...]


def plan_of(shape: Shape, layout: str = AUTO_NAME, dtype: type = np.uint8) -> ObservationPlan:
    return ObservationPlan(spaces.Box(0, 255 if dtype is np.uint8 else 1, shape, dtype), (2,), AUTO_NAME, layout=layout)


AS_BEFORE: list[tuple[Shape, Shape]] = [
    ((84, 84, 3), (84, 84, 3)),
    ((3, 64, 64), (64, 64, 3)),
    ((4, 84, 84), (84, 84, 4)),
    ((1, 40, 36), (40, 36)),
    ((40, 36, 1), (40, 36)),
    ((3, 210, 160), (210, 160, 3)),
    ((210, 160, 3), (210, 160, 3)),
    ((10, 10, 4), (10, 10, 4)),
    ((10, 10, 7), (10, 10, 7)),
    ((20, 10, 7), (20, 10, 7)),
    ((10, 20, 30), (10, 20, 30)),
    ((6, 7, 3), (6, 7, 3)),
    ((3, 3, 3), (3, 3, 3)),
]


@pytest.mark.parametrize(("shape", "frame"), AS_BEFORE)
def test_usual_images_are_read_as_before(shape: Shape, frame: Shape) -> None:
    assert plan_of(shape).frame_shape == plan_of(shape, BY_COLOURS).frame_shape == frame


@pytest.mark.parametrize(
    ("shape", "frame", "before"),
    [
        ((4, 4, 16), (4, 4, 16), (4, 16, 4)),
        ((3, 3, 5), (3, 3, 5), (3, 5, 3)),
        ((16, 4, 4), (4, 4, 16), (16, 4, 4)),
        ((119, 8, 8), (8, 8, 119), (119, 8, 8)),
        ((12, 84, 84), (84, 84, 12), (12, 84, 84)),
        ((2, 6, 7), (6, 7, 2), (2, 6, 7)),
    ],
)
def test_equal_sides_are_not_channels(shape: Shape, frame: Shape, before: Shape) -> None:
    assert (plan_of(shape).frame_shape, plan_of(shape, BY_COLOURS).frame_shape) == (frame, before)


def test_the_setting_decides_and_the_line_says_how() -> None:
    first, last = (plan_of((4, 4, 16), layout) for layout in (CHANNELS_FIRST, CHANNELS_LAST))
    assert (first.frame_shape, last.frame_shape) == ((4, 16, 4), (4, 4, 16))
    image = np.arange(256, dtype=np.uint8).reshape(4, 4, 16)
    for plan, shown in ((first, np.moveaxis(image, 0, -1)), (last, image)):
        buffer = FrameBuffer(plan, 1)
        buffer.put(0, image, {})
        np.testing.assert_array_equal(buffer.frames()[0], shown)
    assert "image 4x16 with 4 channels (channels first; otherwise --observation_layout=channels_last)" in first.lines()[0]
    assert "image 4x4 with 16 channels (channels last; otherwise --observation_layout=channels_first)" in last.lines()[0]
    assert "19x19 with 1 channel" in plan_of((19, 19)).lines()[0]
    assert "8x8x12 numbers of float32" in plan_of((8, 8, 12), dtype=np.float32).lines()[0]
    assert plan_of((5,), dtype=np.float32).lines() == ()


@pytest.mark.parametrize("layout", [CHANNELS_FIRST, CHANNELS_LAST])
def test_a_layout_without_an_image_of_three_dimensions_is_refused(layout: str) -> None:
    with pytest.raises(ValueError, match=f"^observation_layout: wanted auto .*, got '{layout}'"):
        plan_of((19, 19), layout)
