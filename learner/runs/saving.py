"""Saves a run's checkpoints while it trains: the newest and the best are kept, and a save that fails costs only itself."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from learner.feeding.feeder import BatchFeeder, Feeder
from learner.runs.checkpoint import Checkpoint, load_checkpoint, remove_partial_files, save_checkpoint, save_replay
from learner.runs.directory import RunDirectory, put_aside, update_of
from learner.settings.config import Config
from replay import Mixture
from workers import SerialWorkers, Workers

log = logging.getLogger("springbok")

UNDER_WAY = "under_way"
"""Key of the environments, pending trajectories and workers' random states in a replay file."""


class Saver:
    """Keeps the newest `kept` checkpoints, the one with the highest mean return, and the replay of the newest.

    window: episodes whose mean return decides about the best; a checkpoint with fewer behind it is none. resumed: what the
    run goes on from; a best one of later updates is left behind. evaluated: evaluations decide about the best, not the returns.
    error: why the last save failed, None where it did not.
    """

    def __init__(
        self, run: RunDirectory, kept: int, window: int, resumed: Checkpoint | None = None, *, evaluated: bool = False
    ) -> None:
        self.error: str | None = None
        self._run = run
        self._kept = kept
        self._window = window
        self._evaluated = evaluated
        self._best: float | None = None
        if resumed:
            self._best = self._take_over_best(resumed.counters.updates)
            path = run.checkpoint_path(resumed.counters.updates)
            if path.is_file():  # it may have been killed just before it saw that this is the best
                self._keep_if_best(path, resumed)

    def save(self, checkpoint: Checkpoint, replay: dict[str, Any] | None = None) -> Path | None:
        """Save a checkpoint, and the state of its replay beside it; None where it failed, which is said in one line."""
        update = checkpoint.counters.updates
        path = self._run.checkpoint_path(update)
        try:
            self._run.checkpoints.mkdir(parents=True, exist_ok=True)
            remove_partial_files(self._run.checkpoints)
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
        """The checksum of the replay file; None where it could not be written, and the checkpoint goes without."""
        try:
            return save_replay(self._run.replay_path(update), update, state)
        except OSError as error:
            log.warning("The replay of update %s was not saved: %s", f"{update:,}", error.strerror or error)
            return None

    def _keep_if_best(self, path: Path, checkpoint: Checkpoint) -> None:
        mean = float(np.mean(checkpoint.returns)) if len(checkpoint.returns) >= self._window else None
        if self._evaluated or mean is None or (self._best is not None and mean <= self._best):
            return
        try:
            _second_name(path, self._run.best)
        except OSError as error:
            log.warning("The best checkpoint was not kept: %s", error.strerror or error)
        else:
            self._best = mean

    def _forget_old(self) -> None:
        """What cannot be removed now is tried again at the next save."""
        with contextlib.suppress(OSError):
            for path in self._run.checkpoint_paths()[: -self._kept]:
                path.unlink()
            updates = {update_of(path) for path in self._run.checkpoint_paths()}
            replays = self._run.replay_paths()
            for path in replays:
                if path != replays[-1] or update_of(path) not in updates:
                    path.unlink()

    def _take_over_best(self, update: int) -> float | None:
        """Mean return of the best checkpoint so far."""
        best = self._run.best
        if not best.is_file():
            return None
        try:
            checkpoint = load_checkpoint(best)
        except ValueError as error:
            log.warning("Left out: %s", error)
            return None
        if checkpoint.counters.updates > update:
            with contextlib.suppress(OSError):
                log.info("Newer than the checkpoint loaded, put aside: %s", put_aside(best))
            return None
        return float(np.mean(checkpoint.returns)) if checkpoint.returns else None


def _second_name(path: Path, name: Path) -> None:
    """Give a finished file another name, in one step; a system without hard links copies."""
    beside = name.with_name(f".{name.name}_{os.getpid()}")
    try:
        try:
            os.link(path, beside)
        except OSError:
            shutil.copyfile(path, beside)
        beside.replace(name)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def replay_to_save(config: Config, mixture: Mixture, workers: Workers, feeder: Feeder) -> dict[str, Any] | None:
    """The content of the replay file that goes with a checkpoint, None where the settings want none.

    A reproducible run always has one, with what is under way.
    """
    if not config.training.saves_replay:
        return None
    state: dict[str, Any] = {"mixture": mixture.state_dict()}
    if config.training.reproducible:
        assert isinstance(workers, SerialWorkers)
        assert isinstance(feeder, BatchFeeder)
        state |= {UNDER_WAY: {"workers": workers.state_dict(), "feeder": feeder.state_dict()}}
    return state
