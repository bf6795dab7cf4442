"""The kinds of replays by name."""

from __future__ import annotations

from replay.base import Replay, ReplayConfig
from replay.kinds.attentive import AttentiveReplay
from replay.kinds.circular import CircularReplay
from replay.kinds.elite import EliteReplay
from replay.kinds.prioritised import PrioritisedReplay
from replay.kinds.queue import QueueReplay
from replay.kinds.standard import StandardReplay

REPLAYS: dict[str, type[Replay]] = {
    "attentive": AttentiveReplay,
    "circular": CircularReplay,
    "elite": EliteReplay,
    "prioritised": PrioritisedReplay,
    "queue": QueueReplay,
    "standard": StandardReplay,
}
"""Value of `type` in `--replay_parameters` -> class."""


def keeps_newest(config: ReplayConfig) -> bool:
    """Whether a full replay with these settings always evicts its oldest trajectory, and takes every new one."""
    return REPLAYS[config.type].keeps_newest and config.retention == "fifo" and config.insert_strategy is None
