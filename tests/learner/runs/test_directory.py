"""Run directories are distinct, `latest` names the newest, and every name leads to a checkpoint or to one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from learner.runs import directory as module
from learner.runs.directory import (
    RunDirectory,
    check_run_folder,
    check_writable,
    find_checkpoints,
    run_of_checkpoint,
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "some" / "results"


def make_run(results: Path, *updates: int) -> RunDirectory:
    """A run with a config and an empty file for each of these checkpoints."""
    run = RunDirectory.create(results, "Catch-v0")
    run.write_config({"seed": 3}, ["main.py"], [])
    for update in updates:
        run.checkpoint_path(update).touch()
    return run


def test_the_name_is_environment_and_unix_time(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "time", lambda: 1_700_000_000.9)
    assert RunDirectory.create(results, "PongNoFrameskip-v4").path == results / "PongNoFrameskip-v4_1700000000"
    assert RunDirectory.create(results, "ALE/Pong-v5").path == results / "ALE-Pong-v5_1700000000"


def test_runs_of_the_same_second_get_folders_of_their_own(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "time", lambda: 1_700_000_000.0)
    runs = []
    for _ in range(4):
        runs.append(RunDirectory.create(results, "Catch-v0"))
        runs[-1].config.write_text(runs[-1].path.name)
    assert [run.path.name for run in runs] == [f"Catch-v0_{1_700_000_000 + later}" for later in range(4)]
    assert [run.config.read_text() for run in runs] == [run.path.name for run in runs]


def test_latest_is_a_relative_link_to_the_newest_run(results: Path, tmp_path: Path) -> None:
    make_run(results)
    newest = make_run(results)
    link = results / "latest"
    assert os.readlink(link) == newest.path.name
    (tmp_path / "some").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "results" / "latest").resolve().name == newest.path.name


def test_a_run_without_checkpoints_gives_latest_back(results: Path) -> None:
    link = results / "latest"
    first, second, third = (make_run(results) for _ in range(3))
    second.give_latest_back()
    assert os.readlink(link) == third.path.name, "another run has it by now"
    third.point_latest_here()  # as when its command resumes it
    third.give_latest_back()
    assert os.readlink(link) == second.path.name
    second.give_latest_back()
    assert os.readlink(link) == first.path.name
    first.give_latest_back()
    assert os.readlink(link) == first.path.name, "there is none before it"


def test_latest_is_replaced_in_one_step(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two steps the link names a run."""
    make_run(results)
    seen = []
    for name in ("symlink_to", "replace", "unlink"):
        original = getattr(Path, name)

        def look(path: Path, *arguments: object, original: Callable[..., object] = original, **options: object) -> object:
            seen.append((results / "latest").is_dir())
            result = original(path, *arguments, **options)
            seen.append((results / "latest").is_dir())
            return result

        monkeypatch.setattr(Path, name, look)
    make_run(results)
    assert seen
    assert all(seen)


def test_no_temporary_link_is_left(results: Path) -> None:
    """This holds if `latest` cannot be replaced, and if an earlier process with the same id left a temporary link."""
    results.mkdir(parents=True)
    (results / "latest").mkdir()
    make_run(results)
    assert sorted(path.name for path in results.iterdir() if path.name.startswith(".")) == []
    (results / "latest").rmdir()
    (results / f".latest_{os.getpid()}").symlink_to("gone")
    run = make_run(results)
    assert os.readlink(results / "latest") == run.path.name
    assert [path.name for path in results.iterdir() if path.name.startswith(".")] == []


def test_a_run_is_made_on_a_system_without_links(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert make_run(results).path.is_dir()


def test_checkpoints_are_listed_oldest_first(results: Path) -> None:
    run = make_run(results, 1000, 5, 20, 12_345_678_901)
    (run.checkpoints / "update_x.pt").touch()
    (run.checkpoints / ".update_000000009.pt_12").touch()
    (run.checkpoints / "notes.txt").touch()
    assert [path.name for path in run.checkpoint_paths()] == [
        "update_000000005.pt",
        "update_000000020.pt",
        "update_000001000.pt",
        "update_12345678901.pt",
    ]


def test_config_json_says_how_the_run_was_started(results: Path) -> None:
    run = RunDirectory.create(results, "Catch-v0")
    run.write_config({"lr": 1e-3, "env": "Catch-v0"}, ["main.py", "--lr=0.001"], ["worker_count=2 (one a core)"])
    content = json.loads(run.config.read_text())
    assert content["settings"] == {"lr": 1e-3, "env": "Catch-v0"}
    assert content["command"] == ["main.py", "--lr=0.001"]
    assert content["chosen_for_this_machine"] == ["worker_count=2 (one a core)"]
    assert {"python", "torch", "numpy", "ale-py"} <= set(content["versions"])
    assert "git_commit" in content


def test_every_command_of_a_run_keeps_its_config(results: Path) -> None:
    run = RunDirectory.create(results, "Catch-v0")
    for number in range(3):
        run.write_config({"seed": number}, [f"command {number}"], [], parent=f"parent {number}")
    configs = {path.name: json.loads(path.read_text()) for path in run.path.glob("*.json")}
    assert {name: content["command"] for name, content in configs.items()} == {
        "config.json": ["command 2"],
        "config_1.json": ["command 0"],
        "config_2.json": ["command 1"],
    }
    assert configs["config.json"]["parent"] == "parent 2"
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []


def test_a_run_has_a_whole_config_at_every_instant(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two steps of writing the next one, with hard links and on a file system without them."""
    run = make_run(results)
    seen = []
    steps = [(Path, "rename"), (Path, "replace"), (Path, "unlink"), (Path, "write_text"), (os, "link"), (shutil, "copyfile")]
    for place, name in steps:
        original = getattr(place, name)

        def look(*arguments: object, original: Callable[..., object] = original, **options: object) -> object:
            seen.append(json.loads(run.config.read_text())["command"])
            result = original(*arguments, **options)
            seen.append(json.loads(run.config.read_text())["command"])
            return result

        monkeypatch.setattr(place, name, look)
    run.write_config({}, ["second"], [])

    def no_links(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    run.write_config({}, ["third"], [])
    assert {str(command) for command in seen} == {"['main.py']", "['second']", "['third']"}
    commands = {path.name: json.loads(path.read_text())["command"] for path in run.path.glob("*.json")}
    assert commands == {"config.json": ["third"], "config_1.json": ["main.py"], "config_2.json": ["second"]}


def test_a_full_disk_leaves_the_config_and_no_part_of_another(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(results)
    before = {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()}

    def write_half(path: Path, text: str) -> None:
        path.write_bytes(text.encode()[: len(text) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(OSError, match="No space left"):
        run.write_config({}, ["second"], [])
    assert {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()} == before


def test_the_best_checkpoint_is_found_by_its_name(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(results, 3, 12)
    for url in (f"{run.path}/best", "latest/best"):
        with pytest.raises(ValueError, match="too few episodes"):
            find_checkpoints(url, results)
    run.best.touch()
    for url in (f"{run.path}/best", "latest/best", str(run.best)):
        assert find_checkpoints(url, results) == [run.best.resolve()], url
    assert find_checkpoints(str(run.path), results)[-1] == run.best.resolve()
    monkeypatch.chdir(results)
    (results / "best").mkdir()
    with pytest.raises(ValueError, match="it has none"):
        find_checkpoints("best", results)  # a folder of that name is what it is


def test_the_reason_for_a_missing_best_names_what_decides_it(results: Path) -> None:
    run = make_run(results, 3)
    for settings, reason in (({"eval_period": 0}, "too few episodes"), ({"eval_period": 5}, "no evaluation has ended yet")):
        run.write_config(settings, ["main.py"], [])
        with pytest.raises(ValueError, match=reason):
            find_checkpoints(f"{run.path}/best", results)
    for text in ("not json", "[]", '{"settings": 3}'):
        run.config.write_text(text)
        with pytest.raises(ValueError, match=r"\(this run has none yet\)$"):
            find_checkpoints(f"{run.path}/best", results)


def test_a_folder_that_is_not_a_run_has_no_best(results: Path) -> None:
    make_run(results, 3)
    with pytest.raises(ValueError, match="no such file or directory"):
        find_checkpoints(f"{results}/best", results)


def test_a_run_that_cannot_be_written_to_is_refused(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(results)
    check_run_folder(run)
    for folder in (run.path, run.checkpoints):
        with monkeypatch.context() as patch:
            patch.setattr(module.os, "access", lambda path, mode, folder=folder: path != folder)
            with pytest.raises(ValueError, match="^load: .*--resume_in=new"):
                check_run_folder(run)


def test_a_checkout_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(module.subprocess, "run", no_git)
    assert module.git_commit() is None


def test_the_commit_is_that_of_the_program_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout of another project that contains the program does not count."""
    program = tmp_path / "theirs" / "ours"
    program.mkdir(parents=True)
    monkeypatch.setattr(module, "PROGRAM", program)
    theirs = make_commit(program.parent)
    assert module.git_commit() is None
    ours = make_commit(program)
    assert ours != theirs
    assert module.git_commit() == ours
    (program / "file").write_text("changed")
    assert module.git_commit() == f"{ours}-dirty"


def make_commit(folder: Path) -> str:
    """A checkout with one file. Returns the commit."""
    (folder / "file").write_text(folder.name)
    for command in ("init", "add file", "-c user.name=a -c user.email=b commit -m first", "rev-parse HEAD"):
        done = subprocess.run(["git", *command.split()], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_run_checkpoint_and_latest_name_the_same_file(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(results, 7)
    run = make_run(results, 3, 12)
    wanted = run.checkpoint_path(12).resolve()
    for url in (str(run.path), f"{run.path}/", str(wanted), "latest", str(results / "latest")):
        assert find_checkpoints(url, results)[0] == wanted, url
    monkeypatch.chdir(run.path)
    assert find_checkpoints(".", results) == [wanted, run.checkpoint_path(3).resolve()]
    assert find_checkpoints("checkpoints/update_000000003.pt", results) == [run.checkpoint_path(3).resolve()]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("latest", "no run under .* yet"),
        ("nowhere", r"got 'nowhere' \(no such file or directory\)"),
        ("x" * 5000, "wanted something readable"),
    ],
)
def test_a_name_without_a_checkpoint_is_refused_in_one_line(url: str, reason: str, results: Path) -> None:
    with pytest.raises(ValueError, match=f"^load: .*{reason}") as caught:
        find_checkpoints(url, results)
    assert "\n" not in str(caught.value)


def test_a_run_without_checkpoints_is_refused_in_one_line(results: Path) -> None:
    run = make_run(results)
    for url in ("latest", str(run.path), str(results)):
        with pytest.raises(ValueError, match=r"^load: wanted a run directory with checkpoints, got .* \(it has none\)$"):
            find_checkpoints(url, results)


def test_a_dangling_latest_is_refused_in_one_line(results: Path) -> None:
    results.mkdir(parents=True)
    (results / "latest").symlink_to("gone")
    with pytest.raises(ValueError, match=r"^load: .*no run under"):
        find_checkpoints("latest", results)


def test_the_run_of_a_checkpoint_is_found(results: Path, tmp_path: Path) -> None:
    run = make_run(results, 4)
    found = run_of_checkpoint(results / "latest" / "checkpoints" / "update_000000004.pt")
    assert found is not None
    assert found.path == run.path.resolve()
    alone = tmp_path / "update_000000004.pt"
    alone.touch()
    assert run_of_checkpoint(alone) is None
    (tmp_path / "checkpoints").mkdir()
    assert run_of_checkpoint(tmp_path / "checkpoints" / "update_000000004.pt") is None


def test_resuming_from_an_older_checkpoint_renames_the_newer_ones(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "Catch-v0")
    for update in (20, 30, 40):
        run.checkpoint_path(update).write_text(str(update))
        for rank in (0, 1):
            run.replay_path(update, rank).write_text(str(update))
    aside = run.put_aside_after(20)
    assert set(run.replay_paths()) == {run.replay_path(20), run.replay_path(20, 1)}
    assert [path.read_text() for path in aside] == ["30", "40"]
    assert run.checkpoint_paths() == [run.checkpoint_path(20)]
    run.checkpoint_path(21).write_text("21")
    assert find_checkpoints(str(run.path), tmp_path)[0] == run.checkpoint_path(21).resolve()


def test_a_second_rewind_keeps_the_checkpoints_of_the_first(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "Catch-v0")
    for text in ("first", "second", "third"):
        run.checkpoint_path(30).write_text(text)
        run.put_aside_after(20)
    aside = {path.name: path.read_text() for path in run.checkpoints.iterdir()}
    assert aside == {
        "left_behind_update_000000030.pt": "first",
        "left_behind_update_000000030_2.pt": "second",
        "left_behind_update_000000030_3.pt": "third",
    }
    assert run.checkpoint_paths() == []


def test_a_results_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for results in (file, file / "below"):
        with pytest.raises(ValueError, match="is not a folder"):
            check_writable(results, "results_dir")
    check_writable(tmp_path / "made" / "later", "results_dir")
    with pytest.raises(ValueError, match="^results_dir: wanted .*File name too long"):
        check_writable(tmp_path / ("x" * 300), "results_dir")


@pytest.mark.parametrize("env", ["../x", "..", "a\\b", "C:x", ".hidden", "x" * 400])
def test_a_run_lies_in_its_results_folder_whatever_its_environment_is_called(tmp_path: Path, env: str) -> None:
    run = RunDirectory.create(tmp_path / "results", env)
    assert run.path.resolve().parent == tmp_path / "results"
    assert not run.path.name.startswith(".")
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize("content", ["", "null", "[]", '{"settings": []}', '{"settings": {"eval_period": "x"}}', "[" * 10**6])
def test_a_damaged_config_has_no_settings(tmp_path: Path, content: str) -> None:
    run = RunDirectory.create(tmp_path, "Catch-v0")
    run.checkpoint_path(1).touch()
    run.config.write_text(content)
    assert run.settings in ({}, {"eval_period": "x"})
    with pytest.raises(ValueError, match=r"^load: wanted a run directory, its best"):
        find_checkpoints(f"{run.path}/best", tmp_path)
