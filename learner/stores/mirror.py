"""Copies a run's files into a store while the run trains, in one thread.

There is no queue of uploads. At each look the thread compares the run directory with what it has sent, and sends what differs.
So nothing can fill up while the store is slow or away, and after an outage the next look catches up. Files of a checkpoint that
were replaced meanwhile are never sent.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from learner.runs.directory import (
    CHECKPOINT_FOLDER,
    CHECKPOINT_PATTERN,
    LEFT_BEHIND,
    REPLAY_PATTERN,
    RunDirectory,
    second_name,
    update_of,
)
from learner.settings.declarations import OutputConfig
from learner.stores.fetching import Addresses
from learner.stores.naming import keep_name, name_in_store
from learner.stores.store import NO_STORE, Store

log = logging.getLogger("springbok")

LOOK_SECONDS = 2.0
"""Time between two looks at the run directory."""

REPORT_SECONDS = 60.0
"""Reports grow with every record and are sent as a whole: this often, before each checkpoint, and at the end."""

GROWING = {".csv", ".jsonl", ".txt"}
"""Suffixes of files that grow by lines. They are sent up to their last whole line."""

SENDING = ".sending_"
"""Prefix of the second name of a checkpoint that waits for its replay to be sent."""

LISTINGS = 5
"""Times that the run directory is read again if a checkpoint was saved meanwhile."""

UNFINISHED = {"candidate.pt"}
SHOWN = 5  # names of missing files in a message


class Mirror:
    """Keeps the folder of one run in a store equal to the run directory.

    A context manager. Leaving it waits for the last files.

    Args:
        run: the run directory.
        store: the folder that all runs of the user are mirrored into.
        kept: newest checkpoints that stay in the store, as in the run directory.
        resumed_at: the update that the run resumes from; None for a new run. Later checkpoints in the store are renamed.
        only_new: whether to send only files that change from now on. Test mode and export do: training sends all others.
        wait: seconds that leaving waits at most.
    """

    def __init__(
        self,
        run: RunDirectory,
        store: Store,
        *,
        kept: int,
        resumed_at: int | None = None,
        only_new: bool = False,
        wait: float = 60.0,
    ) -> None:
        # An environment in this process may change the current folder for a while, so the thread looks at absolute paths.
        self._run = RunDirectory(run.path.absolute())
        self._store, self._kept, self._wait = store, kept, wait
        self._resumed_at, self._only_new = resumed_at, only_new
        self._name = name_in_store(run)
        self._sent: dict[str, tuple[int, int]] = dict(self._files()) if only_new else {}
        self._begun = only_new
        self._failing = False
        self._reports_at = -REPORT_SECONDS  # seconds of the monotonic clock
        self._ending, self._given_up = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)

    def __enter__(self) -> Mirror:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the last files, at most `wait` seconds, and log which are missing."""
        self._ending.set()
        try:
            self._thread.join(self._wait)
        finally:  # also after Ctrl-C
            unfinished = self._thread.is_alive()
            self._given_up.set()
            if unfinished:
                names = list(self._changed())
                shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
                log.warning("The store %s lacks files of this run after %g s: %s", self._address, self._wait, shown)
            elif not self._only_new:
                log.info("The store has all files of this run: %s", self._address)

    @property
    def _address(self) -> str:
        return f"{self._store.address}/{self._name}"

    def _work(self) -> None:
        """The thread: look until the run ends, then until all is sent."""
        while not self._ending.wait(LOOK_SECONDS):
            self._look(everything=False)
        while not self._look(everything=True) and not self._given_up.wait(LOOK_SECONDS):
            pass

    def _look(self, *, everything: bool) -> bool:
        """Send what has changed. Returns whether that succeeded; an outage is one warning, whatever it hits first."""
        try:
            if not self._begun:
                self._begin()
            self._send_changed(everything=everything)
        except OSError as error:  # StoreError is one, and so are errors of the local disk
            if not self._failing:
                log.warning(
                    "The store %s does not take files (%s); training continues, and they are sent later", self._address, error
                )
            self._failing = True
            return False
        if self._failing:
            log.info("The store %s takes files again; all are sent", self._address)
        self._failing = False
        return True

    def _begin(self) -> None:
        """Prepare the run's folder at the first contact. Raises StoreError."""
        for hidden in self._run.checkpoints.glob(f"{SENDING}*"):  # a killed process left them behind
            hidden.unlink(missing_ok=True)
        there = self._store.names(self._name)
        if self._resumed_at is None:
            if there:  # another machine began a run of this name in the same second
                self._name = f"{self._name}_{socket.gethostname()}"
                log.warning("The store has another run of this name, so this one is mirrored to %s", self._address)
        else:
            for name in there:
                self._put_aside(Path(name))
        keep_name(self._run, self._name)  # a later command has to find this folder again
        self._begun = True

    def _put_aside(self, name: Path) -> None:
        """Rename a checkpoint of the store that is newer than the one resumed from; remove its replay. Raises StoreError."""
        assert self._resumed_at is not None
        if name.parent.name != CHECKPOINT_FOLDER or not _is_numbered(name) or update_of(name) <= self._resumed_at:
            return
        if REPLAY_PATTERN.match(name.name):
            self._store.remove(name.as_posix())
        else:
            self._store.move(name.as_posix(), name.with_name(f"{LEFT_BEHIND}_{name.name}").as_posix())

    def _send_changed(self, *, everything: bool) -> None:
        """Send changed files: reports, then checkpoints, so that whatever a checkpoint needs is there before it.

        everything: send reports too, whenever they were last sent. Raises OSError.
        """
        changed = self._changed()
        checkpoints = [name for name in changed if name.startswith(f"{CHECKPOINT_FOLDER}/")]
        now = time.monotonic()
        if everything or checkpoints or now - self._reports_at >= REPORT_SECONDS:
            for name in changed:
                if name not in checkpoints:
                    self._send(name, changed[name])
            self._reports_at = now
        replays = [name for name in checkpoints if REPLAY_PATTERN.match(Path(name).name)]
        with self._kept_until_sent(replays) as kept:
            # A replay is large. Newer checkpoints may be saved while it is sent, and the run then removes both.
            owners = {name: self._checkpoint_of(name) for name in replays}
            unready = {owner for name, owner in owners.items() if not (owner in changed and {name, owner} <= kept.keys())}
            newest = max((update_of(Path(owner)) for owner in owners.values() if owner not in unready), default=-1)
            # The newest checkpoint comes first: only its replay is kept, and a run may be killed before the others are sent.
            for name in (*replays, *(name for name in reversed(checkpoints) if name not in replays)):
                if owners.get(name, name) in unready:  # removed, or being saved: the next look finds a pair
                    continue
                if replays and not everything and _is_checkpoint(name) and update_of(Path(name)) > newest:
                    continue  # it would be the newest of the store, and without a replay
                self._send(name, changed[name], kept.get(name))
        if checkpoints and not self._only_new:
            self._remove_old()

    @contextmanager
    def _kept_until_sent(self, replays: Iterable[str]) -> Iterator[dict[str, Path]]:
        """Give replays and their checkpoints hidden second names meanwhile. Yields name -> second name. Raises OSError."""
        kept = {}
        checkpoints = {self._run.path / self._checkpoint_of(name) for name in replays}
        try:
            for path in (*(self._run.path / name for name in replays), *checkpoints):
                hidden = path.with_name(f"{SENDING}{path.name}")
                with suppress(FileNotFoundError):  # the run has removed it since it was listed
                    second_name(path, hidden)
                    kept[path.relative_to(self._run.path).as_posix()] = hidden
            yield kept
        finally:
            for hidden in kept.values():
                hidden.unlink(missing_ok=True)

    def _checkpoint_of(self, replay: str) -> str:
        """The name of the checkpoint that a replay belongs to."""
        return self._run.checkpoint_path(update_of(Path(replay))).relative_to(self._run.path).as_posix()

    def _send(self, name: str, state: tuple[int, int], source: Path | None = None) -> None:
        """Send one file, from its second name if it has one. A file that was removed meanwhile is left out. Raises OSError."""
        local, remote = source or self._run.path / name, f"{self._name}/{name}"
        try:
            if local.suffix in GROWING:
                content = local.read_bytes()
                self._store.send_bytes(remote, content[: content.rfind(b"\n") + 1])
            else:
                self._store.send(remote, local)
        except OSError:
            if local.exists():
                raise
        else:
            # The state was read before the transfer, so a file that grew meanwhile is sent again at the next look.
            self._sent[name] = state

    def _remove_old(self) -> None:
        """Remove old checkpoints from the store, and every replay but that of the newest checkpoint. Raises StoreError."""
        names = [Path(name) for name in self._store.names(f"{self._name}/{CHECKPOINT_FOLDER}")]
        checkpoints = sorted((name for name in names if CHECKPOINT_PATTERN.match(name.name)), key=update_of)
        replays = [name for name in names if REPLAY_PATTERN.match(name.name)]
        newest = update_of(checkpoints[-1]) if checkpoints else -1
        for name in (*checkpoints[: -self._kept], *(name for name in replays if update_of(name) < newest)):
            self._store.remove(name.as_posix())

    def _changed(self) -> dict[str, tuple[int, int]]:
        """Files that differ from what was sent, oldest checkpoint first. No replay that is there is missing in the list."""
        for _ in range(LISTINGS):
            files = dict(sorted(self._files()))
            # A checkpoint that was saved while the folder was read may be listed without its replay.
            if all(path.relative_to(self._run.path).as_posix() in files for path in self._run.replay_paths()):
                break
        return {name: state for name, state in files.items() if self._sent.get(name) != state}

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Name, size and time of change of each finished file. Hidden files are being written, or belong to this machine."""
        for path in self._run.path.rglob("*"):
            name = path.relative_to(self._run.path)
            if any(part.startswith(".") for part in name.parts) or path.name in UNFINISHED or ".new" in path.suffixes:
                continue
            try:
                if path.is_file():
                    found = path.stat()
                    yield name.as_posix(), (found.st_size, found.st_mtime_ns)
            except OSError:  # removed since it was listed
                continue


def mirror_training(
    output: OutputConfig, addresses: Addresses, run: RunDirectory, resumed_at: int | None
) -> AbstractContextManager[object]:
    """A context in which the files of a training are copied into the command's store, if it has one.

    resumed_at: the update that a run resumes from in its own directory, otherwise None.
    """
    store = addresses.open_store()
    if store is None:
        return nullcontext()
    log.info("Store: %s/%s", store.address, name_in_store(run))
    return Mirror(run, store, kept=output.checkpoints_kept, resumed_at=resumed_at, wait=output.store_wait)


def mirror_new_files(output: OutputConfig, addresses: Addresses, run: RunDirectory | None) -> AbstractContextManager[object]:
    """A context in which files that are written into a run directory are copied into the store that the command asks for."""
    store = addresses.open_store()
    if output.checkpoint_store == NO_STORE or store is None or run is None:
        return nullcontext()
    return Mirror(run, store, kept=output.checkpoints_kept, only_new=True, wait=output.store_wait)


def _is_numbered(name: Path) -> bool:
    return bool(CHECKPOINT_PATTERN.match(name.name) or REPLAY_PATTERN.match(name.name))


def _is_checkpoint(name: str) -> bool:
    return bool(CHECKPOINT_PATTERN.match(Path(name).name))
