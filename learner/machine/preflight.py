"""Preflight: when some two seconds of measurement before a run may decide something."""

from __future__ import annotations

from learner.machine.machine import is_small
from learner.machine.measuring import fresh_part
from learner.settings.config import AUTO, Config, Settings
from learner.settings.schema import MEASURED_SETTINGS
from wrappers import ENVIRONMENTS

PART_SECONDS = 0.2  # for each part; to build them takes the rest of two seconds


def wants_preflight(settings: Settings, config: Config, cores: int) -> bool:
    """Whether to measure. settings: as they were given, with `auto`; config: what follows from them without a measurement.

    Not for toy environments, which learn in seconds, nor where everything runs in one process, nor without fresh data to count.
    """
    undecided = [name for name in MEASURED_SETTINGS if settings[name] == AUTO]
    # On a larger machine the learner has all the threads that it can use, whatever was measured.
    if not is_small(cores, config.training.device):
        undecided = [name for name in undecided if name != "learner_threads"]
    toy = ENVIRONMENTS["toy"].matches(config.env.env)
    return (
        settings["preflight"]
        and bool(undecided)
        and not toy
        and config.workers.worker_kind != "serial"
        and fresh_part(config) > 0
    )
