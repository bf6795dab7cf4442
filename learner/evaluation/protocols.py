"""The two evaluation protocols that published Atari scores are made by; a score of one says nothing beside one of the other.

`classic` is that of Mnih et al. 2015 (doi:10.1038/nature14236) as IMPALA (arXiv:1802.01561) and its successors use it;
`machado` is what Machado et al. 2018 (arXiv:1709.06009) recommend, with the cut at half an hour that most who follow them take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AS_SET, OWN = "as_set", "own"

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
        "episodic_life": False,  # for training too: the agent is not told of lives
    },
}
"""What each prescribes. Evaluation plays whole games by both."""

DECISIVE = tuple(PROTOCOLS["classic"])
"""What a score depends on, and so what tells them apart."""


def apply_protocol(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what `settings["protocol"]` prescribes; what was given stays, for `check_protocol` to see."""
    prescribed = PROTOCOLS.get(settings["protocol"], {})
    return {**settings, **{name: value for name, value in prescribed.items() if name not in given}}


def check_protocol(settings: Mapping[str, Any]) -> None:
    """Refuse settings that contradict their protocol. Raises ValueError with one line."""
    for name, value in PROTOCOLS.get(settings["protocol"], {}).items():
        if settings[name] != value:
            raise ValueError(f"{name}: wanted {value}, which protocol={settings['protocol']} prescribes, got {settings[name]}")


def check_same_protocol(settings: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """A run that goes on keeps its protocol, or its evaluations would be mixed. Raises ValueError."""
    before = saved.get("protocol", AS_SET)
    if before != AS_SET and settings["protocol"] != before:
        raise ValueError(f"protocol: wanted {before}, which the run to go on with was trained by, got {settings['protocol']}")
