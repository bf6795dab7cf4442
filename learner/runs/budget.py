"""The number of steps to which a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learner.settings.config import Settings
from learner.settings.schema import DEFAULTS, MORE, TOTAL


def settle_budget(
    settings: Settings, typed: Mapping[str, Any], saved: Mapping[str, Any], steps: int
) -> tuple[Settings, list[str]]:
    """The settings with the steps at which the resumed run ends, and a line that says how they are counted.

    `--more_steps` counts from the checkpoint. `--environment_max_steps` counts from the start of the first run, with one
    exception: elite_buffer_vtrace counts it from the checkpoint, so that its commands repeat the number of the run before. The
    number of a run that has had that many steps would train nothing if it were the total. It therefore counts as more steps
    once the run is finished, and a repeated command finishes the run that it began.

    Args:
        settings: of the command and the checkpoint.
        typed: settings of the command line itself, without those of a preset.
        saved: settings of the checkpoint.
        steps: of the checkpoint.

    Raises ValueError if the command gives both numbers.
    """
    more, total = typed.get(MORE, 0), typed.get(TOTAL)
    if more and total:
        raise ValueError(f"{MORE}: wanted either {MORE} or {TOTAL}, got {more} and {total}")
    if more:
        return _more(settings, more, steps, f"{MORE}={more}")
    if total is None:
        return settings, []
    planned, added = saved.get(TOTAL, DEFAULTS[TOTAL]), saved.get(MORE, 0)
    if total > steps:
        counted = f"{TOTAL}={total} counts from the start of the first run: {total - steps:,} steps are left"
        return {**settings, MORE: 0}, [f"{counted}; --{MORE}={total} would count from the checkpoint"]
    if steps >= planned and total in (planned, added):
        return _more(settings, total, steps, f"{TOTAL}={total} counts as --{MORE}={total}, since the run has had those steps")
    if total == added:
        line = f"{TOTAL}={total} counts as --{MORE}={total}, which the run began with: it ends at step {planned:,}"
        return {**settings, TOTAL: planned}, [line]
    return settings, []


def _more(settings: Settings, more: int, steps: int, counted: str) -> tuple[Settings, list[str]]:
    line = f"{counted}: from step {steps:,} of the checkpoint to step {steps + more:,}"
    return {**settings, TOTAL: steps + more, MORE: more}, [line]
