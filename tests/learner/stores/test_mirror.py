"""The mirror: what it sends, in which order, and what an outage costs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from learner.stores import mirror
from learner.stores.mirror import Mirror
from learner.stores.naming import name_in_store
from tests.learner.stores.support import RUN, UnsteadyStore, make_run, save
from tests.workers.support import wait_until


@pytest.fixture(autouse=True)
def _without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "LOOK_SECONDS", 0.01)


def make_mirror(
    run: RunDirectory, store: UnsteadyStore, *, resumed_at: int | None = None, only_new: bool = False, wait: float = 20.0
) -> Mirror:
    return Mirror(run, store, kept=2, resumed_at=resumed_at, only_new=only_new, wait=wait)


def checkpoints_in(store: UnsteadyStore) -> list[str]:
    return [name.rsplit("/", 1)[1] for name in store.names(f"{RUN}/checkpoints")]


def files(*updates: int, kind: str = "update") -> list[str]:
    return [f"{kind}_{update:09d}.pt" for update in updates]


def test_a_finished_run_is_complete_in_the_store(tmp_path: Path) -> None:
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    save(run, 1)
    (run.checkpoints / "candidate.pt").write_bytes(b"under evaluation")
    (run.checkpoints / ".update_000000009.pt_77").write_bytes(b"half")
    with make_mirror(run, store):
        wait_until(lambda: checkpoints_in(store) == files(1))
        save(run, 2, 3, 4)
    assert checkpoints_in(store) == files(3, 4)
    assert (store.folder / RUN / "metrics.csv").read_text() == "steps,updates\n10,1\n"
    assert (store.folder / RUN / "config.json").read_text() == "{}"
    assert load_checkpoint(store.folder / RUN / "checkpoints" / files(4)[0]).counters.updates == 4


def test_files_are_found_while_the_current_folder_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, store = make_run(Path("results")), UnsteadyStore(tmp_path / "store")
    save(run, 1)
    mirrored = make_mirror(run, store)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    with mirrored:
        wait_until(lambda: checkpoints_in(store) == files(1))
    assert (store.folder / RUN / "config.json").read_text() == "{}"


def test_whatever_a_checkpoint_needs_is_in_the_store_before_it(tmp_path: Path) -> None:
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    save(run, 1, 2, replay=True)
    with make_mirror(run, store):
        pass
    sent = [name.rsplit("/", 1)[1] for name in store.transfers]
    assert sent == [
        "config.json",
        "metrics.csv",
        *files(2, kind="replay"),
        *files(2, 1),
    ]  # the newest first, which has a replay


def test_reports_that_grow_are_not_sent_at_every_look(tmp_path: Path) -> None:
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    with make_mirror(run, store):
        wait_until(lambda: f"{RUN}/metrics.csv" in store.transfers)
        for _ in range(20):
            with run.metrics.open("a") as file:
                file.write("3,4\n")
            time.sleep(0.01)
        assert store.transfers.count(f"{RUN}/metrics.csv") == 1
        save(run, 1)  # metrics reach the store with each checkpoint
        wait_until(lambda: checkpoints_in(store) == files(1))
        assert store.transfers.count(f"{RUN}/metrics.csv") == 2


def test_an_outage_is_one_warning_and_is_caught_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "springbok")
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    with make_mirror(run, store):
        save(run, 1)
        wait_until(lambda: checkpoints_in(store) == files(1))
        store.away = True
        save(run, 2, 3, 4)
        wait_until(lambda: "away" in caplog.text)
        time.sleep(0.1)  # several more looks
        store.away = False
        wait_until(lambda: checkpoints_in(store) == files(3, 4))
    assert [record.levelname for record in caplog.records if "away" in record.message] == ["WARNING"]
    assert sum("again" in record.message for record in caplog.records) == 1
    assert store.transfers.count(f"{RUN}/checkpoints/{files(2)[0]}") == 0  # it was old before the store came back


def test_the_end_of_a_run_waits_a_bounded_time_and_names_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store", away=True)
    save(run, 1)
    started = time.monotonic()
    with make_mirror(run, store, wait=0.3):
        pass
    assert 0.2 < time.monotonic() - started < 5
    assert files(1)[0] in caplog.messages[-1]


def test_the_end_of_a_run_waits_for_a_store_that_comes_back(tmp_path: Path) -> None:
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store", away=True)
    save(run, 1)
    with make_mirror(run, store) as leaving:
        wait_until(lambda: leaving._failing)
        leaving._ending.set()
        store.away = False
    assert checkpoints_in(store) == files(1)


def test_a_checkpoint_that_is_removed_while_its_replay_is_sent_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    save(run, 1, replay=True)
    (run.checkpoints / ".sending_update_000000000.pt").write_bytes(b"of a killed run")
    send = UnsteadyStore.send

    def send_slowly(self: UnsteadyStore, name: str, local: Path) -> None:
        if "replay" in name:
            run.checkpoint_path(1).unlink(missing_ok=True)
        send(self, name, local)

    monkeypatch.setattr(UnsteadyStore, "send", send_slowly)
    with make_mirror(run, store):
        pass
    assert set(checkpoints_in(store)) == {*files(1), *files(1, kind="replay")}
    assert not list(run.checkpoints.glob(".sending*"))


def test_a_checkpoint_whose_replay_is_gone_waits_for_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run saves its second checkpoint, and removes the first one's replay, right after the mirror has looked."""
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    save(run, 1, replay=True)
    look = Mirror._changed

    def look_too_early(self: Mirror) -> dict[str, tuple[int, int]]:
        found = look(self)
        if run.replay_path(1).exists():
            save(run, 2, replay=True)
        return found

    monkeypatch.setattr(Mirror, "_changed", look_too_early)
    with make_mirror(run, store):
        wait_until(lambda: files(2)[0] in checkpoints_in(store))
    sent = [name.rsplit("/", 1)[1] for name in store.transfers]
    assert [name for name in sent if name.endswith(".pt")] == [*files(2, kind="replay"), *files(2), *files(1)]


def test_a_checkpoint_whose_replay_was_replaced_waits_until_the_newer_one_is_saved(tmp_path: Path) -> None:
    """The run is saving its second checkpoint: the replay is there, and the first one's is gone."""
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    save(run, 1, 2, replay=True)
    second = run.checkpoint_path(2).rename(tmp_path / "being_saved.pt")
    with make_mirror(run, store):
        wait_until(lambda: f"{RUN}/metrics.csv" in store.transfers)
        time.sleep(0.1)  # several more looks
        assert checkpoints_in(store) == []  # a run that is killed now would resume from the first one, without a replay
        second.rename(run.checkpoint_path(2))
        wait_until(lambda: files(1)[0] in checkpoints_in(store))
    sent = [name.rsplit("/", 1)[1] for name in store.transfers]
    assert [name for name in sent if name.endswith(".pt")] == [*files(2, kind="replay"), *files(2), *files(1)]


def test_a_checkpoint_that_is_saved_right_after_a_look_is_sent_before_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look finds the replay of the second checkpoint; the checkpoint itself is saved right after it."""
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    save(run, 1, 2, replay=True)
    look = Mirror._changed

    def look_too_early(self: Mirror) -> dict[str, tuple[int, int]]:
        found = look(self)
        if not store.transfers:
            del found[f"checkpoints/{files(2)[0]}"]
        return found

    monkeypatch.setattr(Mirror, "_changed", look_too_early)
    with make_mirror(run, store):
        wait_until(lambda: files(1)[0] in checkpoints_in(store))
    sent = [name.rsplit("/", 1)[1] for name in store.transfers]
    assert [name for name in sent if name.endswith(".pt")] == [*files(2, kind="replay"), *files(2), *files(1)]


def test_a_checkpoint_that_was_saved_while_the_folder_was_read_is_sent_with_its_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reading finds the checkpoint and not the replay that was saved just before it."""
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    save(run, 1, replay=True)
    read, readings = Mirror._files, []

    def read_too_early(self: Mirror) -> Iterator[tuple[str, tuple[int, int]]]:
        readings.append(None)
        return ((name, state) for name, state in read(self) if len(readings) > 1 or "replay_" not in name)

    monkeypatch.setattr(Mirror, "_files", read_too_early)
    with make_mirror(run, store):
        wait_until(lambda: files(1)[0] in checkpoints_in(store))
    sent = [name.rsplit("/", 1)[1] for name in store.transfers]
    assert [name for name in sent if name.endswith(".pt")] == [*files(1, kind="replay"), *files(1)]


def test_later_checkpoints_in_the_store_are_put_aside_when_an_earlier_one_is_resumed(tmp_path: Path) -> None:
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    save(run, 1, 2, 3, kept=3, replay=True)
    with make_mirror(run, store):
        pass
    assert checkpoints_in(store) == [*files(3, kind="replay"), *files(2, 3)]
    run.put_aside_after(1)
    with make_mirror(run, store, resumed_at=1):
        pass
    aside = [f"left_behind_{name}" for name in files(2, 3)]
    assert checkpoints_in(store) == [*aside, *files(1)]


def test_a_run_of_the_same_name_is_not_overwritten(tmp_path: Path) -> None:
    store = UnsteadyStore(tmp_path / "store")
    for machine, update in (("one", 1), ("two", 2)):
        run = make_run(tmp_path / machine)
        save(run, update)
        with make_mirror(run, store):
            pass
    assert checkpoints_in(store) == files(1)
    (other,) = (path for path in store.folder.iterdir() if path.name != RUN)
    assert [path.name for path in (other / "checkpoints").iterdir()] == files(2)


@pytest.mark.parametrize("only_new", [False, True])
def test_a_later_command_finds_the_folder_of_a_run_whose_name_was_taken(tmp_path: Path, only_new: bool) -> None:
    store = UnsteadyStore(tmp_path / "store")
    for machine in ("one", "two"):
        run = make_run(tmp_path / machine)
        save(run, 1)
        with make_mirror(run, store):
            pass
    before = store.names(RUN)
    with make_mirror(run, store, resumed_at=None if only_new else 1, only_new=only_new):
        save(run, 2)
    assert store.names(RUN) == before
    assert f"{name_in_store(run)}/checkpoints/{files(2)[0]}" in store.names()


def test_only_new_files_are_sent_after_a_test(tmp_path: Path) -> None:
    run, store = make_run(tmp_path), UnsteadyStore(tmp_path / "store")
    save(run, 1)
    with make_mirror(run, store, only_new=True):
        (run.path / "evaluation_1.json").write_text("{}\n")
    assert store.names() == [f"{RUN}/evaluation_1.json"]
