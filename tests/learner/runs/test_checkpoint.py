"""A checkpoint is loaded as it was saved. A damaged or foreign file is refused in one line."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import stat
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.runs import checkpoint as module
from learner.runs.checkpoint import (
    TRAILER_BYTES,
    _upgraded_settings,
    generator_states,
    load_checkpoint,
    load_replay,
    read_file,
    remove_partial_files,
    restore_generators,
    save_checkpoint,
    save_replay,
    write_file,
)
from tests.learner.runs.support import CONTENT, make_checkpoint, write_without_checksum
from tests.support import same


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "update_000000005.pt"


def refused(path: Path) -> str:
    """The one line with which the file is refused. There must be no warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="wanted a checkpoint of this program") as caught:
            load_checkpoint(path)
    assert warned == []
    line = str(caught.value)
    assert line.splitlines() == [line]
    assert line.startswith(f"{path}: ")
    return line


def test_a_checkpoint_is_loaded_as_it_was_saved(path: Path) -> None:
    checkpoint = replace(make_checkpoint(), replay="checksum")
    save_checkpoint(path, checkpoint)
    loaded = load_checkpoint(path)
    for name, wanted in vars(checkpoint).items():
        got = getattr(loaded, name)
        assert same(asdict(wanted), asdict(got)) if name == "counters" else same(wanted, got), name


def test_settings_have_the_names_of_today(path: Path) -> None:
    """Unknown ones stay, so that their reader can say what is left out."""
    save_checkpoint(path, replace(make_checkpoint(), settings={"seed": 7, "return_window": 9, "no_longer_there": 1}))
    assert load_checkpoint(path).settings == {"seed": 7, "return_window": 9, "no_longer_there": 1}


def content_of(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def test_the_first_format_is_still_read(path: Path) -> None:
    """It had no checksum and no entry for replays."""
    checkpoint = make_checkpoint()
    save_checkpoint(path, checkpoint)
    content = content_of(path)
    del content["replay"]
    state = content["agent"]
    content["agent"] = {"network": state["modules"]["network"], "optimizer": state["optimizers"]["network"]}
    torch.save({**content, "format": 1}, path)
    loaded = load_checkpoint(path)
    assert loaded.counters == checkpoint.counters
    assert same(loaded.agent, checkpoint.agent)
    assert loaded.replay is None


FOREIGN: dict[str, object] = {
    "weights": torch.nn.Linear(2, 2).state_dict(),
    "tensor": torch.ones(3),
    "list": [1, 2],
    "text": "format",
    "none": None,
    "number": 3,
    "dictionary": {"format": 1},
    "other_format": {"format": 99},
    "format of tensors": {"format": torch.ones(3)},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_torch_file_is_refused(name: str, path: Path) -> None:
    torch.save(FOREIGN[name], path)
    assert "wanted a checkpoint of this program" in refused(path)


def test_another_format_is_named(path: Path) -> None:
    torch.save(FOREIGN["other_format"], path)
    assert refused(path).endswith("(wanted format 3, got 99)")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "nowhere.pt")
    assert "Is a directory" in refused(tmp_path)


PARTS = ["settings", "spec", "protocol", "counters", "agent", "learning_rate", "generators", "returns"]


@pytest.mark.parametrize("missing", PARTS)
def test_a_file_with_a_part_missing_is_refused(missing: str, path: Path) -> None:
    save_checkpoint(path, make_checkpoint())
    content = content_of(path)
    del content[missing]
    torch.save({**content, "format": 1}, path)
    assert missing in refused(path)


def test_a_file_whose_checksum_was_cut_off_is_refused(path: Path) -> None:
    save_checkpoint(path, make_checkpoint())
    path.write_bytes(path.read_bytes()[:-73])
    assert refused(path).endswith("(damaged: its checksum is missing)")


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "settings that are no JSON": lambda content: content.update(settings="{"),
    "settings that are no table": lambda content: content.update(settings="[1]"),
    "settings of a million brackets": lambda content: content.update(settings="[" * 10**6),
    "a spec without actions": lambda content: content.update(spec=json.dumps({"env": "x", "frame_shape": []})),
    "actions that are text": lambda content: content.update(
        spec=json.dumps({"env": "x", "frame_shape": [], "action_count": "3"})
    ),
    "a network of numbers": lambda content: content["agent"]["modules"].update(network={"a": 1}),
    "an agent that is a list": lambda content: content.update(agent=[1]),
    "an optimizer that is a tensor": lambda content: content["agent"]["optimizers"].update(network=torch.ones(1)),
    "counters below zero": lambda content: content["counters"].update(steps=-1),
    "counters beyond all bounds": lambda content: content["counters"].update(frames=10**30),
    "counters with a fraction": lambda content: content["counters"].update(updates=1.5),
    "counters nobody knows": lambda content: content["counters"].update(apples=1),
    "seconds that are no number": lambda content: content["counters"].update(seconds=float("nan")),
    "an infinite learning rate": lambda content: content.update(learning_rate=float("inf")),
    "returns of text": lambda content: content.update(returns=["1"]),
    "infos of text": lambda content: content.update(infos=[{"cost": "1"}]),
    "infos without names": lambda content: content.update(infos=[1.0]),
    "a returns tensor": lambda content: content.update(returns=torch.ones(1)),
    "a random state of three bytes": lambda content: content["generators"].update(torch=torch.zeros(3, dtype=torch.uint8)),
    "a random state of another kind": lambda content: content["generators"].update(numpy=json.dumps({"bit_generator": "X"})),
    "a random state that is no JSON": lambda content: content["generators"].update(numpy="?"),
    "no random state": lambda content: content.update(generators={}),
    "a replay that is a number": lambda content: content.update(replay=3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_part_is_refused(name: str, path: Path) -> None:
    save_checkpoint(path, make_checkpoint())
    content = content_of(path)
    CHANGES[name](content)
    torch.save({**content, "format": 1}, path)
    assert "wanted a checkpoint of this program" in refused(path)


def test_a_damaged_checkpoint_is_refused(path: Path) -> None:
    """The damaged bytes may lie anywhere, and the error is always one line."""
    save_checkpoint(path, make_checkpoint())
    whole = path.read_bytes()
    generator = random.Random(0)
    for _ in range(100):
        damaged = bytearray(whole)
        first = generator.randrange(len(damaged) - 8)
        damaged[first : first + 8] = bytes(byte ^ 0xFF for byte in damaged[first : first + 8])
        path.write_bytes(damaged)
        assert "wanted a checkpoint of this program" in refused(path)


def test_random_states_are_restored(path: Path) -> None:
    sampling = np.random.default_rng(5)
    sampling.random(3)
    torch.manual_seed(8)
    save_checkpoint(path, replace(make_checkpoint(), generators=generator_states(sampling)))
    wanted = (sampling.random(4).tolist(), torch.rand(4).tolist())
    other = np.random.default_rng(99)
    torch.manual_seed(1)
    restore_generators(load_checkpoint(path).generators, other)
    assert (other.random(4).tolist(), torch.rand(4).tolist()) == wanted


def test_the_random_state_of_a_gpu_is_restored_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [torch.arange(16, dtype=torch.uint8)]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: states[-1])
    monkeypatch.setattr(torch.cuda, "set_rng_state", states.append)
    sampling = np.random.default_rng(5)
    save_checkpoint(path, replace(make_checkpoint(), generators=generator_states(sampling)))
    restore_generators(load_checkpoint(path).generators, sampling)
    assert len(states) == 2
    assert torch.equal(*states)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)  # a machine without one goes on
    restore_generators(load_checkpoint(path).generators, sampling)
    assert len(states) == 2
    damaged = {**generator_states(sampling), "cuda": torch.zeros(3)}
    save_checkpoint(path, replace(make_checkpoint(), generators=damaged))
    with pytest.raises(ValueError, match=r"wanted the state of a GPU's generator as uint8 \[16\], got float32 \[3\]"):
        load_checkpoint(path)


def test_a_replay_file_is_loaded_with_its_own_checkpoint_only(tmp_path: Path) -> None:
    file, state = tmp_path / "replay.pt", {"frames": torch.arange(100)}
    mine = replace(make_checkpoint(), replay=save_replay(file, 5, state))
    assert same(load_replay(file, mine), state)
    with pytest.raises(ValueError, match="belongs to another checkpoint"):
        load_replay(file, replace(mine, replay="0" * 64))
    with pytest.raises(ValueError, match="belongs to another checkpoint"):
        load_replay(file, make_checkpoint())
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum does not match"):
        load_replay(file, mine)
    file.unlink()
    with pytest.raises(ValueError, match="No such file"):
        load_replay(file, mine)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_is_read_as_it_was_written(path: Path, mapped: bool) -> None:
    checksum = write_file(path, CONTENT)
    content, read = read_file(path, mapped=mapped)
    assert same(content, CONTENT)
    assert read == checksum


def test_torch_load_reads_the_file(path: Path) -> None:
    write_file(path, CONTENT)
    assert same(torch.load(path, weights_only=True), CONTENT)


def test_a_file_without_a_checksum_is_read_and_has_none(path: Path) -> None:
    write_without_checksum(path, CONTENT)
    content, checksum = read_file(path)
    assert same(content, CONTENT)
    assert checksum is None


def test_content_does_not_depend_on_the_file_after_reading(path: Path) -> None:
    write_file(path, CONTENT)
    content, _ = read_file(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert same(content, CONTENT)


def test_every_wrong_byte_is_found(path: Path) -> None:
    """Each byte is changed in turn. A change in the trailer leaves a file without a checksum, or with a wrong one."""
    write_file(path, {"weights": torch.arange(5.0)})
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with contextlib.suppress(ValueError):
            assert read_file(path)[1] is None, place
            assert place >= len(whole) - TRAILER_BYTES, place


def test_a_cut_file_is_found(path: Path) -> None:
    write_file(path, CONTENT)
    whole = path.read_bytes()
    for length in range(0, len(whole), 41):
        path.write_bytes(whole[:length])
        with contextlib.suppress(ValueError):
            assert read_file(path)[1] is None, length
            assert length > len(whole) - TRAILER_BYTES, length


def test_a_file_appears_only_when_it_is_complete(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the file is synced, it is complete and its name does not exist yet. The folder is synced afterwards."""
    seen: list[tuple[bool, bool]] = []
    sync = module.os.fsync

    def look(descriptor: int) -> None:
        sync(descriptor)
        (newest,) = path.parent.iterdir()
        shutil.copy(newest, path.parent.parent / "copy.pt")
        seen.append((path.exists(), same(read_file(path.parent.parent / "copy.pt")[0], CONTENT)))

    monkeypatch.setattr(module.os, "fsync", look)
    path = path.parent / "folder" / path.name
    path.parent.mkdir()
    write_file(path, CONTENT)
    assert seen == [(False, True), (True, True)]


def refuse_to_sync(monkeypatch: pytest.MonkeyPatch, number: int, *, folders: bool) -> None:
    """Let every sync of a folder, or of a file, fail with this error."""
    sync = module.os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == folders:
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(module.os, "fsync", fail)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EACCES])
def test_a_file_is_written_in_a_folder_that_cannot_be_synced(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some FUSE, SMB and 9p mounts."""
    refuse_to_sync(monkeypatch, number, folders=True)
    write_file(path, CONTENT)
    assert same(read_file(path)[0], CONTENT)


@pytest.mark.parametrize(("number", "folders"), [(errno.EIO, True), (errno.EIO, False), (errno.EINVAL, False)])
def test_a_disk_that_fails_at_a_sync_is_an_error(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch, *, folders: bool
) -> None:
    refuse_to_sync(monkeypatch, number, folders=folders)
    with pytest.raises(OSError, match=os.strerror(number)):
        write_file(path, CONTENT)


@pytest.mark.parametrize("room", [0, 1, 500, 2000, 5000])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(path: Path, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(path, {"old": 1})
    before = path.read_bytes()
    left = [room]
    write = module._HashingFile.write

    def limited(self: Any, data: bytes) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            self.file = _Full()
        return write(self, data)

    monkeypatch.setattr(module._HashingFile, "write", limited)
    for target in (path, path.with_name("other.pt")):
        with pytest.raises(OSError, match="No space left") as caught:
            write_file(target, {"large": torch.zeros(10_000)})
        assert caught.value.errno == errno.ENOSPC
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


class _Full:
    """A file on a disk without room."""

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_writing_a_tensor_does_not_copy_it(path: Path) -> None:
    """Tensors are written from where they lie in memory."""
    longest = 0
    write = module._HashingFile.write

    def look(self: Any, data: Any) -> int:
        nonlocal longest
        assert not isinstance(data, bytes) or len(data) < 100_000
        longest = max(longest, len(data))
        return write(self, data)

    module._HashingFile.write = look  # type: ignore[method-assign]
    try:
        write_file(path, {"large": torch.zeros(1_000_000)})
    finally:
        module._HashingFile.write = write  # type: ignore[method-assign]
    assert longest == 4_000_000  # one memoryview, no copy


def test_partial_files_are_removed_and_no_others(tmp_path: Path) -> None:
    partial = (".update_000000005.pt_77", ".best.pt_1", ".replay_000000005.pt_123456")
    for name in (*partial, "update_000000005.pt", ".notes", "a_1"):
        (tmp_path / name).touch()
    remove_partial_files(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".notes", "a_1", "update_000000005.pt"]


def test_settings_of_before_the_layout_keep_its_guess() -> None:
    image, vector = ({"frame_shape": shape, "leaves": []} for shape in ([4, 16, 4], [4]))
    leafy = {"frame_shape": [280], "leaves": [{"name": "board", "shape": [4, 16, 4], "dtype": "uint8"}]}
    before = {"observation_layout": "by_colours"}
    assert [_upgraded_settings({}, spec) for spec in (image, leafy, vector)] == [before, before, {}]
    assert _upgraded_settings({"observation_layout": "auto"}, image) == {"observation_layout": "auto"}


def test_tasks_that_shared_the_statistics_of_their_images_each_have_them(path: Path) -> None:
    """Vectors share theirs still."""
    checkpoint = make_checkpoint()
    image, vector = torch.rand(4, 8, 8), torch.rand(4, 3)
    inputs = {
        "inputs.0.mean": image,
        "inputs.0.scale": torch.tensor(3.0),
        "inputs.1.mean": vector,
        "inputs.1.scale": torch.ones(()),
    }
    for env, wanted in (("A-v0,B-v0", (image.expand(2, 4, 8, 8), torch.full((2,), 3.0))), ("A-v0", (image, torch.tensor(3.0)))):
        agent = {**checkpoint.agent, "modules": {"network": dict(inputs), "target": dict(inputs)}}
        save_checkpoint(path, replace(checkpoint, agent=agent, spec={**checkpoint.spec, "env": env}))
        for weights in load_checkpoint(path).agent["modules"].values():
            assert same((weights["inputs.0.mean"], weights["inputs.0.scale"]), wanted)
            assert same((weights["inputs.1.mean"], weights["inputs.1.scale"]), (vector, torch.ones(())))
