"""Saves the replay of a learner of rank 1 or up. Rank 0 saves everything else, see `learner/runs/saving.py`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from learner.ranks.several import SeveralLearners
from learner.runs.checkpoint import Checkpoint, generator_states, save_replay
from learner.runs.directory import RunDirectory
from learner.runs.saving import GENERATORS

log = logging.getLogger("springbok")


class RankSaver:
    """Takes the place of `Saver` on such a learner. Rank 0 removes its files with the checkpoints that they belong to.

    Args:
        run: where the replay is saved.
        learners: the learners of the run. Rank 0 gets the checksum of each replay file.
        generator: draws from the replays.

    Attributes:
        error: None, because a replay that cannot be saved fails no run.
    """

    error: str | None = None

    def __init__(self, run: RunDirectory, learners: SeveralLearners, generator: np.random.Generator) -> None:
        self._run = run
        self._learners = learners
        self._generator = generator

    def save(self, checkpoint: Checkpoint, replay: dict[str, Any] | None = None) -> Path:
        """Save the state of this learner's replay, if given, for this checkpoint. Returns the file that rank 0 writes."""
        update = checkpoint.counters.updates
        if replay is not None:
            self._learners.share_checksum(self._save(update, {**replay, GENERATORS: generator_states(self._generator)}))
        return self._run.checkpoint_path(update)

    def _save(self, update: int, state: dict[str, Any]) -> str | None:
        """The checksum of the replay file, or None if it could not be written."""
        try:
            return save_replay(self._run.replay_path(update, self._learners.rank), update, state)
        except OSError as error:
            log.warning("The replay of update %s was not saved: %s", f"{update:,}", error.strerror or error)
            return None
