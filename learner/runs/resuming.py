"""What a run goes on with beside its checkpoint: the replays' contents and, in a reproducible run, all that is under way.

Under way are the environments, trajectories that no replay had room for yet, and the workers' random numbers.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from learner.feeding.feeder import BatchFeeder, Feeder
from learner.metrics.progress import ProgressLine
from learner.runs.saving import UNDER_WAY
from learner.settings.config import Config, make_contract
from replay import Mixture, settle_capacities
from workers import SerialWorkers, Workers
from wrappers import make_spec

log = logging.getLogger("springbok")

SHOW_PERIOD = 0.5  # seconds between two looks of the progress line


class ResumeError(RuntimeError):
    """What was saved beside a checkpoint does not fit."""


def restore_replays(state: dict[str, Any], mixture: Mixture) -> None:
    """Fill empty replays with what was saved. Raises ResumeError."""
    with _one_line("--load_model_url names a checkpoint whose replay is none of this program's"):
        mixture.load_state_dict(state["mixture"])


def restore_under_way(
    config: Config, state: dict[str, Any] | None, workers: Workers, feeder: Feeder, should_stop: Callable[[], bool]
) -> bool:
    """Restore environments and pending trajectories after the workers were started. Returns false if there are none.

    Replaying the environments' actions takes as long as they took at first, so `should_stop` is asked before every step. Raises
    ReplayStopped once it returns true, ResumeError if the state does not fit.
    """
    if not config.training.reproducible or UNDER_WAY not in (state or {}):
        return False
    assert state is not None
    assert isinstance(workers, SerialWorkers)
    assert isinstance(feeder, BatchFeeder)
    with _one_line("--noreproducible goes on with fresh episodes"):
        steps = sum(env["actions"].numel() for env in state[UNDER_WAY]["workers"]["envs"])
        log.info("Replaying %s steps to restore the environments", f"{steps:,}")
        with _ReplayProgress(steps, config.workers.envs_per_worker, should_stop) as progress:
            workers.load_state_dict(state[UNDER_WAY]["workers"], progress.should_stop)
        feeder.load_state_dict(state[UNDER_WAY]["feeder"])
    return True


class _ReplayProgress:
    """The live line of a replay of `total` steps, of which `at_once` are taken together."""

    def __init__(self, total: int, at_once: int, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop
        self._total = total
        self._at_once = at_once
        self._done = 0
        self._line = ProgressLine()
        self._shown_at = time.monotonic()

    def __enter__(self) -> _ReplayProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()

    def should_stop(self) -> bool:
        """Asked once before each step: counts it, shows the count now and then, and passes the answer on."""
        now = time.monotonic()
        if now - self._shown_at > SHOW_PERIOD:
            self._shown_at = now
            self._line.show(f"replaying steps: {self._done:,} of {self._total:,}")
        self._done += self._at_once
        return self._should_stop()


@contextmanager
def _one_line(hint: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:400] or type(error).__name__
        raise ResumeError(f"wanted a saved state that fits, got another: {reason}; {hint}") from error


def trajectories_to_fill_in(config: Config) -> int:
    """How many trajectories replays that start empty take in before they give any; 0 where none gives any twice."""
    contract = make_contract(config, make_spec(config.env))
    settled = settle_capacities(config.replays, contract, config.training.batch_size)
    factor = config.training.training_fill_in_factor
    return max((max(1, math.ceil(factor * replay.capacity)) for replay in settled if replay.type != "queue"), default=0)
