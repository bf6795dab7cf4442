"""Run directories and stores in temporary folders."""

from __future__ import annotations

from pathlib import Path

from learner.runs.directory import RunDirectory
from learner.runs.saving import Saver
from learner.stores.store import Store, StoreError
from tests.learner.runs.support import make_checkpoint

RUN = "Catch-v0_1700000000"


class UnsteadyStore(Store):
    """A store that can be away. transfers: the names that were sent, in order."""

    def __init__(self, folder: Path, *, away: bool = False) -> None:
        super().__init__(folder.as_uri())
        self.folder = folder
        self.away = away
        self.transfers: list[str] = []

    def _check(self) -> None:
        if self.away:
            raise StoreError("away")

    def names(self, folder: str = "") -> list[str]:
        self._check()
        return super().names(folder)

    def send(self, name: str, local: Path) -> None:
        self._check()
        super().send(name, local)
        self.transfers.append(name)

    def send_bytes(self, name: str, content: bytes) -> None:
        self._check()
        super().send_bytes(name, content)
        self.transfers.append(name)

    def fetch(self, name: str, local: Path) -> None:
        self._check()
        super().fetch(name, local)


def make_run(results: Path, name: str = RUN) -> RunDirectory:
    """A run directory with reports and no checkpoint."""
    run = RunDirectory(results / name)
    run.checkpoints.mkdir(parents=True)
    run.config.write_text("{}")
    run.metrics.write_text("steps,updates\n10,1\n2")  # the last line is being written
    return run


def save(run: RunDirectory, *updates: int, kept: int = 2, replay: bool = False) -> None:
    """Save checkpoints of these updates, of which the newest stay."""
    saver = Saver(run, kept, window=100)
    for update in updates:
        assert saver.save(make_checkpoint(update), {"mixture": {}} if replay else None)
