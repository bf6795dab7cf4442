"""Preflight: when some two seconds of measurement before a run may decide something."""

from __future__ import annotations

from learner.machine.machine import is_small
from learner.machine.measuring import fresh_part
from learner.settings.config import AUTO, Config, Settings
from wrappers import ENVIRONMENTS

PART_SECONDS = 0.2  # for each part; to build them takes the rest of two seconds
MEASURED = ("worker_count", "envs_per_worker", "learner_threads")
"""Settings that a measurement may move, the last one on a small machine only."""


def wants_preflight(settings: Settings, config: Config, cores: int) -> bool:
    """Whether to measure. settings: as they were given, with `auto`; config: what follows from them without a measurement.

    Not for toy environments, which learn in seconds, nor where everything runs in one process, nor without fresh data to count.
    """
    undecided = [name for name in MEASURED if settings[name] == AUTO]
    if not is_small(cores, config.training.device):
        undecided = [name for name in undecided if name != "learner_threads"]
    toy = ENVIRONMENTS["toy"].matches(config.env.env)
    return settings["preflight"] and bool(undecided) and not toy and config.workers.kind != "serial" and fresh_part(config) > 0
