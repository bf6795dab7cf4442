"""Restores what was saved with a checkpoint: the replays and, for a reproducible run, all that was under way.

Environments, trajectories that no replay had taken yet, and the workers' random states are under way.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from learner.feeding.feeder import BatchFeeder, Feeder
from learner.metrics.progress import ProgressLine
from learner.plan import Plan
from learner.ranks.base import RankError
from learner.runs.checkpoint import Checkpoint
from learner.runs.directory import RunDirectory
from learner.runs.loading import load_fitting_replay
from learner.runs.saving import UNDER_WAY
from learner.settings.config import Config
from replay import Mixture, settle_capacities
from workers import InProcessWorkers, Workers

log = logging.getLogger("springbok")

SHOW_PERIOD = 0.5  # seconds between two looks of the progress line


class ResumeError(RuntimeError):
    """The state saved with a checkpoint does not fit this run."""


def continued(checkpoint: Checkpoint, protocol: dict[str, Any]) -> Checkpoint:
    """The checkpoint as a run with this evaluation protocol continues it: without the episodes of another one.

    The protocol names the environment and its settings, so returns of different protocols are never compared or averaged.
    """
    if checkpoint.protocol == protocol:
        return checkpoint
    if checkpoint.returns:
        log.info("The mean return starts anew (the returns so far are of another environment or protocol)")
    return replace(checkpoint, protocol=protocol, returns=[], infos=[], task_returns=[])


def load_saved_replay(
    plan: Plan, checkpoint: Checkpoint | None, checkpoint_path: Path | None, rank: int = 0
) -> dict[str, Any] | None:
    """The replay state saved with the checkpoint that a run resumes from, or None. Log lines say which, and what follows.

    rank: of the learner whose replays they are. checkpoint: as that learner reads it.
    """
    config, count = plan.config, trajectories_to_fill_in(plan)
    if config.workers.on_policy and not config.training.reproducible:
        return None  # a queue holds a part of a batch, and every environment begins another trajectory
    if not checkpoint or not checkpoint_path:
        if count > config.training.batch_size:
            log.info("%s trajectories fill the replays before training begins", f"{count:,}")
        return None
    # The replay file lies in the checkpoint's folder, also if the run resumes in a new directory.
    path = RunDirectory(checkpoint_path.parent.parent).replay_path(checkpoint.counters.updates, rank)
    state, reason = None, "the environments were not saved, because that run was not reproducible"
    try:
        state = load_fitting_replay(path, checkpoint, plan)
        log.info("The replays are restored from %s", path)
    except ValueError as error:
        reason = str(error)
        if count:
            log.info("The replays start empty (%s): %s trajectories fill them before training resumes", reason, f"{count:,}")
            _warn_of_a_small_budget(config, checkpoint, count)
    if config.training.reproducible and UNDER_WAY not in (state or {}):
        log.warning("The run resumes with fresh episodes, so it will not be bit-identical (%s)", reason)
    # As above: without its environments an on-policy run begins with an empty queue.
    return None if config.workers.on_policy and UNDER_WAY not in (state or {}) else state


def _warn_of_a_small_budget(config: Config, checkpoint: Checkpoint, to_fill: int) -> None:
    left = config.training.environment_max_steps - checkpoint.counters.steps
    needed = config.training.learner_count * to_fill * config.training.unroll_length
    if needed >= left:
        log.warning(
            "Filling the replays takes %s steps, but --environment_max_steps leaves %s: the run ends after one update",
            f"{needed:,}",
            f"{left:,}",
        )


def restore_replays(state: dict[str, Any], mixture: Mixture) -> None:
    """Fill empty replays with their saved contents. Raises ResumeError."""
    with _one_line("--load names a checkpoint whose replay file this program has not written"):
        mixture.load_state_dict(state["mixture"])


def restore_under_way(
    config: Config, state: dict[str, Any] | None, workers: Workers, feeder: Feeder, should_stop: Callable[[], bool]
) -> bool:
    """Restore environments and pending trajectories, after the workers were started. Returns whether there were any.

    The environments replay all their actions, which takes as long as it took at first. So `should_stop` is asked before every
    step. Raises ReplayStopped once it returns true, and ResumeError if the state does not fit.
    """
    if not config.training.reproducible or UNDER_WAY not in (state or {}):
        return False
    assert state is not None
    assert isinstance(workers, InProcessWorkers)
    assert isinstance(feeder, BatchFeeder)
    with _one_line("--noreproducible resumes with fresh episodes"):
        steps = workers.steps_to_replay(state[UNDER_WAY]["workers"])
        log.info("Replaying %s steps to restore the environments", f"{steps:,}")
        with _ReplayProgress(steps, config.workers.envs_per_worker, should_stop) as progress:
            workers.load_state_dict(state[UNDER_WAY]["workers"], progress.should_stop)
        feeder.load_state_dict(state[UNDER_WAY]["feeder"])
    return True


class _ReplayProgress:
    """The live line while actions are replayed. A context manager.

    Args:
        total: environment steps to replay.
        at_once: environment steps that are taken together.
        should_stop: asked before each step.
    """

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
        """Whether to stop. Called once before each step: counts it, and shows the count now and then."""
        now = time.monotonic()
        if now - self._shown_at > SHOW_PERIOD:
            self._shown_at = now
            self._line.show(f"replaying steps: {self._done:,} of {self._total:,}")
        self._done += self._at_once
        return self._should_stop()


@contextmanager
def _one_line(hint: str) -> Iterator[None]:
    """Turn errors about a state that does not fit into a ResumeError with one line."""
    try:
        yield
    except RankError:
        raise  # another learner failed meanwhile, which says nothing about this state
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:400] or type(error).__name__
        raise ResumeError(f"wanted a saved state that fits this run, got one that does not: {reason}; {hint}") from error


def trajectories_to_fill_in(plan: Plan) -> int:
    """Number of trajectories that empty replays take in before the first batch is drawn; 0 if none waits to be filled."""
    config, contract = plan.config, plan.contract
    starts = math.ceil(config.pace.first_draw / contract.fresh_steps) if config.pace else 0
    settled = settle_capacities(config.replays, contract, config.training.batch_size)
    factor = config.replay_settings.replay_fill_fraction
    fills = (max(1, math.ceil(factor * replay.capacity)) for replay in settled if not replay.is_fresh)
    return max(starts, *fills, 0)
