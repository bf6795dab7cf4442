"""A checkpoint is complete or absent, gives back what was saved, and nothing that is none of ours gets in or runs."""

from __future__ import annotations

import contextlib
import pickle
import random
import shutil
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner import checkpoint as module
from learner.checkpoint import (
    KEPT,
    Checkpoint,
    Counters,
    generator_states,
    load_checkpoint,
    restore_generators,
    save_checkpoint,
)
from learner.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "Catch-v0")


def make_checkpoint(updates: int = 5, seed: int = 0) -> Checkpoint:
    """Weights and RMSProp moments of a tiny network after one step."""
    torch.manual_seed(seed)
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.RMSprop(network.parameters(), lr=0.1)
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return Checkpoint(
        settings={"env": "Catch-v0", "seed": 7, "lr": 1e-3, "render": False},
        spec={"env": "Catch-v0", "action_count": 3, "frame_shape": [10, 5]},
        protocol={"sticky_actions": 0.25},
        counters=Counters(steps=2**40, frames=2**42, updates=updates, episodes=11, trajectories=12, seconds=13.5),
        agent={"network": network.state_dict(), "optimizer": optimizer.state_dict()},
        learning_rate=2.5e-4,
        generators=generator_states(np.random.default_rng(3)),
        returns=[1.0, -21.0, 0.5],
    )


def same(first: Any, second: Any) -> bool:
    """Equal, tensors bit for bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    return type(first) is type(second) and bool(first == second)


def refused(path: Path) -> str:
    """The one line with which the file is refused; nothing else is said."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="wanted a checkpoint of this program") as caught:
            load_checkpoint(path)
    assert warned == []
    line = str(caught.value)
    assert line.splitlines() == [line]
    assert line.startswith(f"{path}: ")
    return line


def test_what_was_saved_comes_back(run: RunDirectory) -> None:
    checkpoint = make_checkpoint()
    path = save_checkpoint(run, checkpoint)
    assert path == run.checkpoint_path(5)
    loaded = load_checkpoint(path)
    for name in ("settings", "spec", "protocol", "counters", "agent", "learning_rate", "generators", "returns"):
        wanted, got = getattr(checkpoint, name), getattr(loaded, name)
        assert same(asdict(wanted), asdict(got)) if name == "counters" else same(wanted, got), name


def test_settings_of_another_version_are_left_out(run: RunDirectory) -> None:
    path = save_checkpoint(run, replace(make_checkpoint(), settings={"seed": 7, "no_longer_there": 1}))
    assert load_checkpoint(path).settings == {"seed": 7}


def test_the_file_holds_tensors_and_plain_data_only(run: RunDirectory) -> None:
    content = torch.load(save_checkpoint(run, make_checkpoint()), weights_only=True)
    assert content["format"] == module.FORMAT

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(plain(part) for pair in value.items() for part in pair)
        if isinstance(value, list | tuple):
            return all(plain(part) for part in value)
        return isinstance(value, torch.Tensor | int | float | str | bool | None)

    assert plain(content)


def test_a_failed_save_leaves_the_old_file_and_nothing_else(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_checkpoint(run, make_checkpoint(seed=0))
    before = path.read_bytes()

    def half_a_file(content: object, file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(module.torch, "save", half_a_file)
    for updates in (5, 6):
        with pytest.raises(OSError, match="disk full"):
            save_checkpoint(run, make_checkpoint(updates, seed=1))
    assert [file.name for file in run.checkpoints.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_file_appears_only_when_it_is_complete(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment of the sync everything is written, and under its name there is nothing yet."""
    seen: list[tuple[bool, bool]] = []
    sync = module.os.fsync

    def look(descriptor: int) -> None:
        sync(descriptor)
        (beside,) = run.checkpoints.iterdir()
        shutil.copy(beside, run.path / "copy.pt")
        seen.append(
            (run.checkpoint_path(5).exists(), same(load_checkpoint(run.path / "copy.pt").agent, make_checkpoint().agent))
        )

    monkeypatch.setattr(module.os, "fsync", look)
    save_checkpoint(run, make_checkpoint())
    assert seen == [(False, True)]


def test_only_the_newest_are_kept(run: RunDirectory) -> None:
    for updates in (1, 20, 300, 4000, 50000):
        assert save_checkpoint(run, make_checkpoint(updates)).is_file()
    assert KEPT == 3
    assert [path.name for path in run.checkpoint_paths()] == [f"update_{updates:09d}.pt" for updates in (300, 4000, 50000)]


def test_an_update_saved_twice_is_one_file(run: RunDirectory) -> None:
    save_checkpoint(run, make_checkpoint(seed=0))
    path = save_checkpoint(run, make_checkpoint(seed=1))
    assert run.checkpoint_paths() == [path]
    assert same(load_checkpoint(path).agent, make_checkpoint(seed=1).agent)


FOREIGN: dict[str, object] = {
    "weights": torch.nn.Linear(2, 2).state_dict(),
    "tensor": torch.ones(3),
    "list": [1, 2],
    "text": "format",
    "none": None,
    "number": 3,
    "dictionary": {"format": 1},
    "other_format": {"format": 99},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_torch_file_is_refused(name: str, tmp_path: Path) -> None:
    torch.save(FOREIGN[name], tmp_path / "foreign.pt")
    refused(tmp_path / "foreign.pt")


def test_another_format_is_named(tmp_path: Path) -> None:
    torch.save(FOREIGN["other_format"], tmp_path / "foreign.pt")
    assert refused(tmp_path / "foreign.pt").endswith("(wanted format 1, got 99)")


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"PK\x03\x04", b"{}", b"\x80\x02", b"\x80\x63K\x01.", bytes(1000), b"\x89PNG\r\n\x1a\n" + bytes(100)],
)
def test_what_is_no_torch_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "foreign.pt"
    path.write_bytes(content)
    refused(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere.pt")
    refused(tmp_path)


@pytest.mark.parametrize(
    "missing", ["settings", "spec", "protocol", "counters", "agent", "learning_rate", "generators", "returns"]
)
def test_a_file_with_a_part_missing_is_refused(missing: str, run: RunDirectory) -> None:
    path = save_checkpoint(run, make_checkpoint())
    content = torch.load(path, weights_only=True)
    del content[missing]
    torch.save(content, path)
    assert missing in refused(path)


def test_a_cut_file_is_refused(run: RunDirectory) -> None:
    path = save_checkpoint(run, make_checkpoint())
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        refused(path)


def test_damage_is_refused_or_does_no_harm(run: RunDirectory) -> None:
    """Never another exception than the one line, whichever bytes are wrong."""
    path = save_checkpoint(run, make_checkpoint())
    whole = path.read_bytes()
    generator = random.Random(0)
    refusals: list[str] = []
    for _ in range(150):
        damaged = bytearray(whole)
        first = generator.randrange(len(damaged))
        damaged[first : first + 8] = generator.randbytes(8)
        path.write_bytes(damaged)
        try:
            load_checkpoint(path)
        except ValueError as error:
            refusals.append(str(error))
    assert len(refusals) > 15
    assert not [line for line in refusals if "\n" in line]


@pytest.mark.parametrize("error", [IndexError, AssertionError, OverflowError, RecursionError, EOFError, pickle.UnpicklingError])
def test_whatever_the_unpickler_raises_is_one_line(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("first line\nsecond line")

    monkeypatch.setattr(module.torch, "load", fail)
    assert refused(tmp_path / "x.pt").endswith("(first line)")


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.made,)


@pytest.mark.parametrize("written_by", ["pickle", "torch", "torch_before_zip"])
def test_a_file_that_would_run_code_is_refused_and_runs_nothing(written_by: str, tmp_path: Path) -> None:
    path, made = tmp_path / "evil.pt", tmp_path / "made"
    content = {"format": module.FORMAT, "agent": Malicious(made)}
    if written_by == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=written_by == "torch")
    refused(path)
    assert not made.exists()
    with contextlib.suppress(RuntimeError):
        torch.load(path, weights_only=False)
    assert made.exists()


def test_random_states_go_on_where_they_were(run: RunDirectory) -> None:
    sampling = np.random.default_rng(5)
    sampling.random(3)
    torch.manual_seed(8)
    path = save_checkpoint(run, replace(make_checkpoint(), generators=generator_states(sampling)))
    wanted = (sampling.random(4).tolist(), torch.rand(4).tolist())
    other = np.random.default_rng(99)
    torch.manual_seed(1)
    restore_generators(load_checkpoint(path).generators, other)
    assert (other.random(4).tolist(), torch.rand(4).tolist()) == wanted
