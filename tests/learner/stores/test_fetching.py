"""Loading from a store: the newest of local and remote, whatever is damaged or away."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from checked_files import LockedError
from learner.runs.checkpoint import load_checkpoint, save_checkpoint
from learner.runs.directory import RunDirectory
from learner.runs.loading import load_newest
from learner.runs.lock import locked
from learner.stores import fetching
from learner.stores.fetching import STAMP, Addresses, fetch_newest, store_notes, take_addresses
from learner.stores.naming import keep_name, name_in_store
from learner.stores.store import StoreError
from tests.learner.runs.support import make_checkpoint
from tests.learner.stores.support import RUN, UnsteadyStore, make_run, save


@pytest.fixture
def remote(tmp_path: Path) -> RunDirectory:
    """A run in the store `tmp_path/store`, with checkpoints of updates 3 and 4 and a replay."""
    run = make_run(tmp_path / "store")
    save(run, 3, 4, replay=True)
    shutil.copy(run.checkpoint_path(3), run.best)
    shutil.copy(run.replay_path(4), run.replay_path(4, rank=1))
    return run


def url(tmp_path: Path, rest: str = RUN) -> str:
    return f"file://{tmp_path}/store/{rest}"


def fetch(tmp_path: Path, load: str, *, with_replay: bool = True, **given: str) -> tuple[Path, list[str]]:
    """The checkpoint that would be loaded, and the lines for the user."""
    settings, addresses = take_addresses({"load": load, **given})
    results = tmp_path / "results"
    path, notes = fetch_newest(settings["load"], results, addresses, with_replay=with_replay)
    return load_newest(path, results)[0], notes


@pytest.mark.parametrize("rest", ["..", ".", "../..", "../best", ".hidden", "../checkpoints/update_000000003.pt"])
def test_an_address_whose_run_would_leave_the_results_folder_is_refused(
    tmp_path: Path, remote: RunDirectory, rest: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(ValueError, match="^load: wanted the address of a run in a store"):
        fetch(tmp_path, url(tmp_path, rest))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_name_in_the_store_that_leaves_it_does_not_count(tmp_path: Path) -> None:
    run = make_run(tmp_path / "results")
    for name in ("../other", "..", "a/b"):
        keep_name(run, name)
        assert name_in_store(run) == RUN


def local(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "results" / RUN)


def test_a_run_that_has_another_name_in_the_store_is_fetched_by_that_name(tmp_path: Path, remote: RunDirectory) -> None:
    """The run of another machine has its name in the store, with a newer checkpoint."""
    save(make_run(tmp_path / "store", f"{RUN}_second"), 2)
    run = make_run(tmp_path / "results")
    save(run, 1)
    keep_name(run, f"{RUN}_second")
    path, notes = fetch(tmp_path, str(run.path), checkpoint_store=url(tmp_path, ""))
    assert (path, len(notes)) == (run.checkpoint_path(2), 1)
    with pytest.raises(ValueError, match=f"{RUN}_second"):  # its files would go into the directory of this run
        fetch(tmp_path, url(tmp_path))
    assert run.checkpoint_paths() == [run.checkpoint_path(1), run.checkpoint_path(2)]


def test_a_run_of_the_store_is_fetched_with_its_reports(tmp_path: Path, remote: RunDirectory) -> None:
    path, notes = fetch(tmp_path, url(tmp_path))
    run = local(tmp_path)
    assert path == run.checkpoint_path(4)
    assert (load_checkpoint(path).counters.updates, run.metrics.read_text()) == (4, remote.metrics.read_text())
    for rank in (0, 1):
        assert run.replay_path(4, rank).read_bytes() == remote.replay_path(4, rank).read_bytes()
    assert run.config.is_file()
    assert run.best.is_file()
    assert len(notes) == 1


def test_test_mode_fetches_no_replay(tmp_path: Path, remote: RunDirectory) -> None:
    fetch(tmp_path, url(tmp_path), with_replay=False)
    assert not local(tmp_path).replay_paths()


@pytest.mark.parametrize(("here", "loaded"), [((1,), 4), ((4,), 4), ((4, 6), 6)])
def test_the_newest_of_local_and_remote_is_loaded(
    tmp_path: Path, remote: RunDirectory, here: tuple[int, ...], loaded: int
) -> None:
    save(make_run(tmp_path / "results"), *here)
    local(tmp_path).metrics.write_text("of the local run\n")
    for load in (url(tmp_path), str(local(tmp_path).path)):
        path, _ = fetch(tmp_path, load, checkpoint_store=url(tmp_path, ""))
        assert load_checkpoint(path).counters.updates == loaded
    assert ("local" in local(tmp_path).metrics.read_text()) is (loaded in here)  # reports belong to their checkpoint


def test_a_damaged_local_checkpoint_is_older_than_any_other(tmp_path: Path, remote: RunDirectory) -> None:
    run = make_run(tmp_path / "results")
    save(run, 9)
    run.checkpoint_path(9).write_bytes(run.checkpoint_path(9).read_bytes()[:-100])
    path, _ = fetch(tmp_path, url(tmp_path))
    assert load_checkpoint(path).counters.updates == 4


def test_a_damaged_remote_checkpoint_is_passed_over(tmp_path: Path, remote: RunDirectory) -> None:
    remote.checkpoint_path(4).write_bytes(b"damaged")
    path, notes = fetch(tmp_path, url(tmp_path))
    assert path == local(tmp_path).checkpoint_path(3)
    assert ["skipped" in note for note in notes] == [True, False]


def test_latest_and_best_and_one_checkpoint_can_be_named(tmp_path: Path, remote: RunDirectory) -> None:
    save(make_run(tmp_path / "store", "Catch-v0_1600000000"), 8)
    assert fetch(tmp_path, url(tmp_path, "latest"))[0] == local(tmp_path).checkpoint_path(4)
    shutil.rmtree(tmp_path / "results")
    assert fetch(tmp_path, url(tmp_path, f"{RUN}/best"))[0] == local(tmp_path).best
    shutil.rmtree(tmp_path / "results")
    name = "checkpoints/update_000000003.pt"
    assert fetch(tmp_path, url(tmp_path, f"{RUN}/{name}"))[0] == local(tmp_path).path / name
    assert local(tmp_path).checkpoint_paths() == [local(tmp_path).path / name]


@pytest.mark.parametrize(("here", "loaded"), [(None, 3), (b"damaged", 3), (1, 3), (3, 3), (5, 5)])
def test_the_best_is_fetched_if_it_is_asked_for_and_not_of_an_earlier_update(
    tmp_path: Path, remote: RunDirectory, here: int | bytes | None, loaded: int
) -> None:
    """The newest local checkpoint is as new as the store's, so nothing else is fetched."""
    run = make_run(tmp_path / "results")
    save(run, 4)
    run.metrics.write_text("of the local run\n")
    if isinstance(here, bytes):
        run.best.write_bytes(here)
    elif here:
        save_checkpoint(run.best, make_checkpoint(here))
    path, notes = fetch(tmp_path, url(tmp_path, f"{RUN}/best"))
    assert path == run.best
    assert load_checkpoint(path).counters.updates == loaded
    assert len(notes) == (here in (None, b"damaged", 1))
    assert run.metrics.read_text() == "of the local run\n"
    assert not run.replay_paths()


def test_an_older_checkpoint_that_is_asked_for_brings_no_older_reports(tmp_path: Path, remote: RunDirectory) -> None:
    remote.evaluations.write_text("of the store\n")
    run = make_run(tmp_path / "results")
    save(run, 4)
    run.metrics.write_text("of the local run\n")
    path, notes = fetch(tmp_path, url(tmp_path, f"{RUN}/checkpoints/update_000000003.pt"))
    assert (path, len(notes)) == (run.checkpoint_path(3), 1)
    assert run.metrics.read_text() == "of the local run\n"
    assert not run.evaluations.exists()
    assert not run.best.exists()


DAMAGED = pytest.mark.parametrize(
    ("name", "part"), [("best.pt", "/best"), ("update_000000003.pt", "/checkpoints/update_000000003.pt")]
)


@DAMAGED
def test_a_damaged_file_of_the_store_replaces_no_local_one(tmp_path: Path, remote: RunDirectory, name: str, part: str) -> None:
    (remote.checkpoints / name).write_bytes(b"damaged")
    sound = make_run(tmp_path / "results").checkpoints / name
    save_checkpoint(sound, make_checkpoint(3))
    before = sound.read_bytes()
    assert fetch(tmp_path, url(tmp_path))[0] == local(tmp_path).checkpoint_path(4)  # the best comes with the newest
    assert sound.read_bytes() == before
    path, (note,) = fetch(tmp_path, url(tmp_path, RUN + part))
    assert (path, path.read_bytes()) == (sound, before)
    assert note.startswith(f"skipped {url(tmp_path)}/checkpoints/{name}: ")


@DAMAGED
def test_a_damaged_file_that_is_asked_for_is_one_line(tmp_path: Path, remote: RunDirectory, name: str, part: str) -> None:
    (remote.checkpoints / name).write_bytes(b"damaged")
    with pytest.raises(ValueError, match=f"^{url(tmp_path)}/checkpoints/{name}: wanted .*[^\\n]$"):
        fetch(tmp_path, url(tmp_path, RUN + part))
    run = local(tmp_path)
    assert not (run.checkpoints / name).exists()
    assert [path for path in run.checkpoints.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("rest", "said"), [("Catch-v0_1", "no such|has none"), ("nothing/latest", "has none")])
def test_a_run_that_the_store_lacks_is_one_line(tmp_path: Path, remote: RunDirectory, rest: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fetch(tmp_path, url(tmp_path, rest))


def test_a_store_that_is_away_costs_nothing_if_there_is_a_local_checkpoint(
    tmp_path: Path, remote: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "Store", lambda url: UnsteadyStore(Path(url.removeprefix("file://")), away=True))
    with pytest.raises(ValueError, match="wanted a store that can be reached"):
        fetch(tmp_path, url(tmp_path))
    save(make_run(tmp_path / "results"), 2)
    path, notes = fetch(tmp_path, url(tmp_path))
    assert path == local(tmp_path).checkpoint_path(2)
    assert len(notes) == 1


def test_a_fetch_that_breaks_off_leaves_no_half_file(
    tmp_path: Path, remote: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(self: UnsteadyStore, name: str, path: Path) -> None:
        path.write_bytes(b"half")
        raise StoreError("broken")

    monkeypatch.setattr(UnsteadyStore, "fetch", break_off)
    monkeypatch.setattr(fetching, "Store", lambda url: UnsteadyStore(Path(url.removeprefix("file://"))))
    with pytest.raises(ValueError, match="broken"):
        fetch(tmp_path, url(tmp_path))
    assert [path for path in local(tmp_path).path.rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_nothing_is_fetched_into_a_run_that_trains(tmp_path: Path, remote: RunDirectory) -> None:
    run = make_run(tmp_path / "results")
    save(run, 1)
    with locked(run.path), pytest.raises(LockedError):
        fetch(tmp_path, url(tmp_path))


def test_addresses_keep_their_credentials_and_settings_do_not() -> None:
    secret = "ftp://user:pass@host/path"
    settings, addresses = take_addresses({"checkpoint_store": secret, "load": f"{secret}/{RUN}", "lr": 0.1})
    assert settings == {"checkpoint_store": "ftp://***@host/path", "load": f"ftp://***@host/path/{RUN}", "lr": 0.1}
    assert (addresses.store, addresses.load) == (secret, f"{secret}/{RUN}")
    assert "pass" not in repr(addresses)


def test_a_run_from_a_store_stays_in_it_unless_the_command_says_otherwise() -> None:
    load = f"s3://bucket/path/{RUN}"
    assert take_addresses({"load": load})[1] == Addresses("s3://bucket/path", load)
    assert take_addresses({"load": load, "checkpoint_store": "none"})[1] == Addresses(None, load)
    assert take_addresses({"load": "latest"})[1] == Addresses()


def test_a_run_that_leaves_its_store_is_noted(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert store_notes(run, {}, Addresses()) == []
    assert store_notes(None, {}, Addresses()) == []
    run.config.write_text(json.dumps({"settings": {"checkpoint_store": "s3://bucket/runs"}}))
    note = "this run is no longer copied to s3://bucket/runs; give --checkpoint_store to continue the copy"
    assert store_notes(run, {}, Addresses()) == [note]
    assert store_notes(run, {"checkpoint_store": "none"}, Addresses()) == []
    assert store_notes(run, {}, Addresses(store="s3://bucket/runs")) == []


@pytest.mark.parametrize(
    ("name", "stamp"),
    [
        ("Catch-v0_1600000000", 1600000000),
        ("Catch-v0_1600000000_host_7", 1600000000),
        ("mine-Maze_3_Hard-v0_1700000000", 1700000000),
        ("mine-Maze_3_Hard-v0", None),
    ],
)
def test_the_time_of_a_run_is_found_behind_numbers_of_its_environment(name: str, stamp: int | None) -> None:
    match = STAMP.search(name)
    assert (int(match[1]) if match else None) == stamp
