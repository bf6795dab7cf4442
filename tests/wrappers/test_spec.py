"""An invalid `EnvConfig` cannot be built."""

from __future__ import annotations

from typing import Any

import pytest

from wrappers.spaces import Discrete
from wrappers.spec import EnvConfig, EnvSpec


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("env", ""),
        ("frame_scale_resolution", "0,84"),
        ("frame_scale_resolution", "84,-84"),
        ("frames_stacked", 0),
        ("skipped_frames", 0),
        ("skipped_frames", 4.0),
        ("noop_threshold", -1),
        ("noop_threshold", True),
        ("max_episode_frames", 0),
        ("max_episode_frames", 2**31),
        ("sticky_actions", -0.1),
        ("sticky_actions", 1.1),
        ("sticky_actions", float("nan")),
        ("grayscaling_frames", 1),
        ("episodic_life", "yes"),
        ("fire_reset", None),
        ("full_action_space", 0),
    ],
)
def test_a_bad_field_is_refused_by_name_in_one_line(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}: wanted .*, got ") as error:
        EnvConfig(**{field: value})
    assert "\n" not in str(error.value)


def test_values_at_the_limits_are_accepted() -> None:
    config = EnvConfig(frame_scale_resolution="1,1", frames_stacked=1, skipped_frames=1, noop_threshold=0)
    assert (config.noop_threshold, EnvConfig(sticky_actions=1).sticky_actions) == (0, 1)


def test_an_observation_is_a_stack_of_frames() -> None:
    spec = EnvSpec("x", (84, 42, 3), "uint8", 3, Discrete(6, ("NOOP",) * 6), 4)
    assert spec.observation_shape == (3, 84, 42, 3)
