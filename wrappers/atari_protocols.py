"""The two evaluation protocols by which Atari scores are published, and how the settings of a game are described.

`classic` is the protocol of Mnih et al. 2015 (doi:10.1038/nature14236), as IMPALA (arXiv:1802.01561) and its successors use it.
`machado` is the recommendation of Machado et al. 2018 (arXiv:1709.06009), with the usual limit of half an hour per episode.
Scores of different protocols are not comparable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wrappers.spec import EnvConfig

PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {
        "skipped_frames": 4,
        "sticky_actions": 0.0,
        "full_action_space": False,
        "noop_threshold": 30,
        "fire_reset": True,
        "max_episode_frames": 108_000,
    },
    "machado": {
        "skipped_frames": 4,
        "sticky_actions": 0.25,
        "full_action_space": True,
        "noop_threshold": 0,
        "fire_reset": False,
        "max_episode_frames": 108_000,
        "episodic_life": False,  # in training too: the agent gets no signal when it loses a life
    },
}
"""Name -> the settings that the protocol prescribes. Both evaluate on full games."""


def protocol_settings(config: EnvConfig, presses_fire: bool) -> dict[str, Any]:
    """The Atari settings on which a score depends. presses_fire: whether FIRE starts each life of this game."""
    return {
        "noop_threshold": config.noop_threshold,
        "fire_at_start": presses_fire,
        "fire_after_lost_life": presses_fire,
        "sticky_actions": config.sticky_actions,
        "action_set": "full" if config.full_action_space else "minimal",
        "colour": "grey" if config.grayscaling_frames else "RGB",
    }


def protocol_text(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The result of `protocol_settings` as phrases for a printed line."""
    # The emulator draws the number of no-ops below the threshold, and a FIRE at the start counts as one of them.
    most = max(0, settings["noop_threshold"] - 1)
    return (
        f"{settings['action_set']} action set",
        f"{settings['colour']} frames",
        "a lost life does not end a game",
        f"0 to {most} no-op frames at the start" if most else "no no-ops at the start",
        "FIRE pressed at the start and after a lost life" if settings["fire_at_start"] else "no FIRE pressed",
        f"sticky actions {settings['sticky_actions']:g}",
    )


def preprocessing(config: EnvConfig) -> tuple[str, ...]:
    """The steps from emulator frames to one frame of an observation, in order."""
    return (
        f"repeat the action for {config.skipped_frames} emulator frames",
        "take the pixel-wise maximum of the last two of these frames",
        "convert to grey (the emulator's luminance)" if config.grayscaling_frames else "keep RGB",
        f"resize to {config.frame_height} x {config.frame_width} by area averaging (OpenCV's INTER_AREA)",
    )
