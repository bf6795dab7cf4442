"""Saves a run's checkpoints while it trains, and decides which are kept. A save that fails never ends the run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from learner.feeding.feeder import BatchFeeder, Feeder
from learner.ranks.base import Learners
from learner.runs.checkpoint import Checkpoint, load_checkpoint, remove_partial_files, save_checkpoint, save_replay
from learner.runs.directory import RunDirectory, put_aside, second_name, update_of
from learner.settings.config import Config
from learner.settings.declarations import OutputConfig
from replay import Mixture
from workers import InProcessWorkers, Workers

log = logging.getLogger("springbok")


class SaveTimes:
    """Says when a run is saved: every `checkpoint_period` updates, and `checkpoint_seconds` after the last checkpoint.

    learners: of the run. Rank 0's clock decides, because all learners must save after the same update.
    """

    def __init__(self, output: OutputConfig, learners: Learners) -> None:
        self._period, self._seconds, self._learners = output.checkpoint_period, output.checkpoint_seconds, learners
        self._saved = monotonic()

    def due(self, updates: int) -> bool:
        """Whether to save now. Every learner calls it after every update. updates: of the run so far."""
        has_passed = self._seconds > 0 and self._learners.of_first(monotonic() - self._saved >= self._seconds)
        return has_passed or updates % self._period == 0

    def saved(self) -> None:
        """A checkpoint was written."""
        self._saved = monotonic()


UNDER_WAY = "under_way"
"""Key of the environments, pending trajectories and workers' random states in a replay file."""
GENERATORS = "generators"
"""Key of the random states of a learner of rank 1 or up in its replay file. Those of rank 0 are in the checkpoint."""


class Saver:
    """Keeps the newest checkpoints, the best one, and the replay of the newest.

    Args:
        run: where they are saved.
        kept: number of newest checkpoints to keep.
        window: episodes whose mean return decides which checkpoint is best. A checkpoint with fewer episodes never is.
        resumed: the checkpoint that the run resumes from. A best checkpoint of a later update or another protocol is put aside.
        evaluated: evaluations decide which is best (`learner/evaluation/schedule.py`), not the training's returns.
        rank_replays: returns the checksums of the replay files that other learners have written for the checkpoint.

    Attributes:
        error: why the last save failed, or None if it did not.
    """

    def __init__(
        self,
        run: RunDirectory,
        kept: int,
        window: int,
        resumed: Checkpoint | None = None,
        *,
        evaluated: bool = False,
        rank_replays: Callable[[], Sequence[str | None]] = tuple,
    ) -> None:
        self.error: str | None = None
        self._rank_replays = rank_replays
        self._run = run
        self._kept = kept
        self._window = window
        self._evaluated = evaluated
        self._best: float | None = None
        if resumed:
            self._best = self._take_over_best(resumed)
            path = run.checkpoint_path(resumed.counters.updates)
            if path.is_file():  # the run may have been killed after it saved this one and before it compared it with the best
                self._keep_if_best(path, resumed)

    def save(self, checkpoint: Checkpoint, replay: dict[str, Any] | None = None) -> Path | None:
        """Save a checkpoint and, if given, its replay state. Returns the file, or None after a failure, which is logged."""
        update = checkpoint.counters.updates
        path = self._run.checkpoint_path(update)
        if replay is not None:  # others must have written theirs before partial files are removed
            checkpoint = replace(checkpoint, rank_replays=tuple(self._rank_replays()))
        try:
            self._run.checkpoints.mkdir(parents=True, exist_ok=True)
            remove_partial_files(self._run.checkpoints)
            # The replay file comes first, because the checkpoint stores its checksum. A kill in between leaves a replay file
            # that belongs to no checkpoint, which the next save removes; the older checkpoint is still the newest.
            if replay is not None:
                checkpoint = replace(checkpoint, replay=self._save_replay(update, replay))
            save_checkpoint(path, checkpoint)
        except OSError as error:
            self.error = error.strerror or str(error)
            log.warning("The checkpoint of update %s was not saved: %s", f"{update:,}", self.error)
            return None
        self.error = None
        self._keep_if_best(path, checkpoint)
        self._forget_old()
        return path

    def _save_replay(self, update: int, state: dict[str, Any]) -> str | None:
        """The checksum of the replay file, or None if it could not be written. The checkpoint is then saved without it."""
        try:
            return save_replay(self._run.replay_path(update), update, state)
        except OSError as error:
            log.warning("The replay of update %s was not saved: %s", f"{update:,}", error.strerror or error)
            return None

    def _keep_if_best(self, path: Path, checkpoint: Checkpoint) -> None:
        """Give a saved checkpoint the name best.pt too, if its mean return is the highest so far."""
        mean = float(np.mean(checkpoint.returns)) if len(checkpoint.returns) >= self._window else None
        if self._evaluated or mean is None or (self._best is not None and mean <= self._best):
            return
        try:
            second_name(path, self._run.best)
        except OSError as error:
            log.warning("The checkpoint with the best mean return could not be kept as best.pt: %s", error.strerror or error)
        else:
            self._best = mean

    def _forget_old(self) -> None:
        """Remove old checkpoints, and every replay but that of the newest. The next save tries again what fails now."""
        with contextlib.suppress(OSError):
            for path in self._run.checkpoint_paths()[: -self._kept]:
                path.unlink()
            updates = {update_of(path) for path in self._run.checkpoint_paths()}
            replays = self._run.replay_paths()
            for path in replays:
                # Updates are compared and not files, because each learner has a replay file of the newest update.
                if update_of(path) != update_of(replays[-1]) or update_of(path) not in updates:
                    path.unlink()

    def _take_over_best(self, resumed: Checkpoint) -> float | None:
        """Mean return of the best checkpoint, or None if there is none that compares with the one loaded, see `Saver`."""
        best = self._run.best
        if not best.is_file():
            return None
        try:
            checkpoint = load_checkpoint(best)
        except ValueError as error:
            log.warning("The best checkpoint so far does not count: %s", error)
            return None
        is_newer = checkpoint.counters.updates > resumed.counters.updates
        if is_newer or checkpoint.protocol != resumed.protocol:
            reason = "newer than the one loaded" if is_newer else "of another environment or protocol"
            with contextlib.suppress(OSError):
                log.info("The best checkpoint is %s and was kept as %s", reason, put_aside(best))
            return None
        return float(np.mean(checkpoint.returns)) if checkpoint.returns else None


def replay_to_save(config: Config, mixture: Mixture, workers: Workers, feeder: Feeder) -> dict[str, Any] | None:
    """The content of the replay file that is saved with a checkpoint, or None if the settings ask for none.

    A reproducible run always has one. It also holds the environments, the trajectories that no replay has taken yet, and the
    workers' random states, so that the resumed run gives the same bits.
    """
    if not config.saves_replay:
        return None
    state: dict[str, Any] = {"mixture": mixture.state_dict()}
    if config.training.reproducible:
        assert isinstance(workers, InProcessWorkers)
        assert isinstance(feeder, BatchFeeder)
        state |= {UNDER_WAY: {"workers": workers.state_dict(), "feeder": feeder.state_dict()}}
    return state
