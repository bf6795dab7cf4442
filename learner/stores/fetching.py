"""Brings the newest files of a run from a store into the results folder, before `--load` is looked up there.

The store may hold files that anybody wrote. Names are checked by `Store.names`, and checkpoints are loaded as untrusted files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from checked_files import is_plain_name
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import BEST, CHECKPOINT_FOLDER, CHECKPOINT_PATTERN, LATEST, REPLAY_PATTERN, RunDirectory, update_of
from learner.runs.lock import locked
from learner.settings.config import Settings
from learner.stores.naming import name_in_store
from learner.stores.store import NO_STORE, Store, StoreError, is_url, redacted

STAMP = re.compile(r"_(\d{9,})(?:_[^/]*)?$")
"""The time at the end of a run's name, in seconds, which a host may follow (`Mirror`). An id may have short numbers."""

BEST_FILE = f"{CHECKPOINT_FOLDER}/{BEST}.pt"


@dataclass(frozen=True)
class Addresses:
    """The addresses that a command names, with their credentials. All other parts of the program see redacted ones.

    store: of `--checkpoint_store`, or the folder of the run that `--load` names in a store; None without a store. load: of
    `--load` if it is in a store.
    """

    store: str | None = field(default=None, repr=False)
    load: str | None = field(default=None, repr=False)

    def open_store(self, folder: str = "") -> Store | None:
        """The store that the run is mirrored into, or a folder in it. Raises ValueError with one line."""
        if self.store is None:
            return None
        try:
            return Store(f"{self.store.rstrip('/')}/{folder}")
        except ValueError as error:
            raise ValueError(f"{'load' if self.load else 'checkpoint_store'}: {error}") from None


def take_addresses(given: Settings) -> tuple[Settings, Addresses]:
    """The settings with redacted addresses, and the addresses themselves."""
    load = str(given.get("load", LATEST))
    address = load if is_url(load) else None
    store = given.get("checkpoint_store", _split(address)[0] if address else NO_STORE)
    hidden: Settings = {name: redacted(str(given[name])) for name in ("checkpoint_store", "load") if name in given}
    return given | hidden, Addresses(None if store == NO_STORE else str(store), address)


def store_notes(run: RunDirectory | None, given: Settings, addresses: Addresses) -> list[str]:
    """A line if the run's last command copied it to a store and this one, which does not mention a store, will not.

    The address is not taken over: it may have held credentials, which no file keeps.
    """
    before = run.settings.get("checkpoint_store", NO_STORE) if run else NO_STORE
    if before == NO_STORE or addresses.store or "checkpoint_store" in given:
        return []
    return [f"this run is no longer copied to {before}; give --checkpoint_store to continue the copy"]


def fetch_newest(load: str, results: Path, addresses: Addresses, *, with_replay: bool) -> tuple[str, list[str]]:
    """Fetch what is newer in the store than here. Returns the path that `load` now means, and lines for the user.

    Args:
        load: a setting's value, redacted.
        results: the folder of run directories, which a run from a store is put into.
        addresses: of the command.
        with_replay: whether to fetch the replay that was saved with the checkpoint.

    Raises ValueError with one line if `load` names a store that has no such run or only a damaged file, or that cannot be
    reached, while no local checkpoint can take its place. Also if the local run of that name is another one.
    """
    if addresses.load:
        base, name, part = _split(addresses.load)
        if "://" not in base or not is_plain_name(name):  # its files would go elsewhere than below results_dir
            raise ValueError(f"load: wanted the address of a run in a store, such as s3://bucket/runs/NAME, got {load!r}")
        if name == LATEST:
            name = _latest(Store(base), load)
        run, wanted, store = RunDirectory(results / name), f"{results / name}{part}", Store(f"{base}/{name}")
        if (own := name_in_store(run)) != name:
            raise ValueError(f"load: wanted a results_dir without another run of this name, got {run.path} (stored as {own})")
    elif (found := _run_named(load, results)) and (opened := addresses.open_store(name_in_store(found))):
        run, wanted, part, store = found, load, "", opened
    else:
        return load, []
    try:
        notes = _fetch_run(store, run, part, with_replay=with_replay)
    except StoreError as error:
        if not run.checkpoint_paths():
            raise ValueError(f"load: wanted a store that can be reached, got {redacted(load)!r} ({error})") from None
        notes = [f"The store could not be reached, so the newest local checkpoint is loaded ({error})"]
    except OSError as error:
        raise ValueError(f"load: wanted a folder that can be written to, got {str(run.path)!r} ({error})") from None
    if addresses.load and not run.path.is_dir():
        raise ValueError(f"load: wanted a run or a checkpoint in the store, got {load!r} (it has none)")
    return wanted, notes


def _split(url: str) -> tuple[str, str, str]:
    """The folder of runs, the run's name, and the part within the run: empty, `/best`, or `/checkpoints/FILE`."""
    folder, _, last = url.rstrip("/").rpartition("/")
    part = ""
    if last == BEST:
        part, url = f"/{BEST}", folder
    elif last.endswith(".pt") and folder.endswith(f"/{CHECKPOINT_FOLDER}"):
        part, url = f"/{CHECKPOINT_FOLDER}/{last}", folder.removesuffix(f"/{CHECKPOINT_FOLDER}")
    base, _, name = url.rstrip("/").rpartition("/")
    return base, name, part


def _latest(store: Store, load: str) -> str:
    """The name of the run that began last, by the time in its name. Raises ValueError."""
    try:
        names = {name.split("/", 1)[0] for name in store.names() if f"/{CHECKPOINT_FOLDER}/" in name}
    except StoreError as error:
        raise ValueError(f"load: wanted a store that can be reached, got {load!r} ({error})") from None
    stamps = {name: int(match[1]) for name in names if (match := STAMP.search(name))}
    if not stamps:
        raise ValueError(f"load: wanted a store with runs, got {load!r} (it has none)")
    return max(stamps, key=lambda name: stamps[name])


def _run_named(load: str, results: Path) -> RunDirectory | None:
    """The run directory that a local `load` means, whether it exists or not; None for a file or a path within a run."""
    path = results / LATEST if load == LATEST else Path(load)
    try:
        path = path.resolve()
        named = path.name not in (LATEST, BEST) and not path.is_file()
    except (OSError, ValueError):
        return None  # `find_checkpoints` says what is wrong
    return RunDirectory(path) if named else None


def _fetch_run(store: Store, run: RunDirectory, part: str, *, with_replay: bool) -> list[str]:
    """Fetch the checkpoint that `part` names, and a run's reports and newest checkpoint if the local ones are older.

    store: the run's folder.

    Raises ValueError with one line if the named checkpoint is damaged and there is no local one, StoreError, or LockedError.
    """
    names = store.names()
    here = _newest_sound(run)
    updates = sorted((update_of(Path(name)) for name in names if _is_in_checkpoints(name, CHECKPOINT_PATTERN)), reverse=True)
    newer = [update for update in updates if update > here]
    explicit = part.removeprefix("/") if part.endswith(".pt") else ""
    asked = BEST_FILE if part == f"/{BEST}" else explicit
    if asked not in names and (explicit or not newer):
        return []
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    notes = []
    # No training may write into the run directory meanwhile.
    with locked(run.path):
        wanted = {asked}
        if newer or here < 0:  # otherwise the local reports and the local best checkpoint are as new as the store's
            wanted.add(BEST_FILE)
            _fetch_files(store, run, (name for name in names if not name.startswith(f"{CHECKPOINT_FOLDER}/")))
        for name in sorted(wanted & set(names)):
            try:
                # A run that has trained on here may have a better best checkpoint than the store.
                fetched = _fetch_checkpoint(store, run, name, only_later=name == BEST_FILE and not newer)
            except ValueError as error:
                if name == asked and not (run.path / name).is_file():
                    raise
                notes.append(f"skipped {error}")
                continue
            if fetched and name == asked:
                notes.append(f"fetched {name} from {store.address}")
        return notes if explicit else notes + _fetch_first_sound(store, run, names, newer, here, with_replay=with_replay)


def _fetch_first_sound(
    store: Store, run: RunDirectory, names: list[str], updates: list[int], here: int, *, with_replay: bool
) -> list[str]:
    """Fetch the first sound checkpoint of these updates, and its replays. Returns lines for the user.

    names: of the run's files in the store. here: update of the newest local checkpoint, -1 without one.
    """
    notes = []
    for update in updates:
        replays = (Path(name) for name in names if with_replay and _is_in_checkpoints(name, REPLAY_PATTERN))
        _fetch_files(store, run, (name.as_posix() for name in replays if update_of(name) == update))
        # The checkpoint comes last, so that a fetch that is cut short leaves no newer checkpoint without its replay.
        try:
            _fetch_checkpoint(store, run, run.checkpoint_path(update).relative_to(run.path).as_posix())
        except ValueError as error:
            notes.append(f"skipped {error}")
            continue
        local = f"{run.path} has update {here:,}" if here >= 0 else f"{run.path} has none"
        return [*notes, f"fetched the checkpoint of update {update:,} from {store.address} ({local})"]
    return notes


def _fetch_files(store: Store, run: RunDirectory, names: Iterable[str]) -> None:
    """Download files into the run directory. Each is complete when it gets its name. Raises StoreError or OSError."""
    for name in names:
        with _fetched(store, run, name) as partial:
            partial.replace(run.path / name)


def _fetch_checkpoint(store: Store, run: RunDirectory, name: str, *, only_later: bool = False) -> bool:
    """Download a checkpoint and check it before it gets its name. Returns whether it got it.

    only_later: leave a sound local file of the same or a later update as it is.

    Raises ValueError with one line if it is damaged; the local file is then as before. Raises StoreError or OSError.
    """
    with _fetched(store, run, name) as partial:
        try:
            update = load_checkpoint(partial).counters.updates
        except ValueError as error:
            raise ValueError(str(error).replace(str(partial), f"{store.address}/{name}")) from None
        if only_later and update <= _update_in(run.path / name):
            return False
        partial.replace(run.path / name)
    return True


@contextmanager
def _fetched(store: Store, run: RunDirectory, name: str) -> Iterator[Path]:
    """Download a file under a hidden name, which the context may change. Raises StoreError or OSError."""
    path = run.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}_{os.getpid()}")
    try:
        store.fetch(name, partial)
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _newest_sound(run: RunDirectory) -> int:
    """The update of the newest local checkpoint that can be loaded, -1 if there is none."""
    return next((update for path in reversed(run.checkpoint_paths()) if (update := _update_in(path)) >= 0), -1)


def _update_in(path: Path) -> int:
    """The update of a local checkpoint, -1 if there is none or it is damaged."""
    try:
        return load_checkpoint(path).counters.updates
    except ValueError:
        return -1


def _is_in_checkpoints(name: str, pattern: re.Pattern[str]) -> bool:
    path = Path(name)
    return path.parent.as_posix() == CHECKPOINT_FOLDER and pattern.match(path.name) is not None
