"""A file is complete or absent, a wrong byte anywhere is found, and what comes from elsewhere does no harm."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import shutil
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from learner.runs import checkpoint_file as module
from learner.runs.checkpoint_file import TRAILER_BYTES, read_file, remove_partial_files, write_file
from tests.support import same

CONTENT: dict[str, Any] = {
    "name": "text",
    "numbers": [1, 2.5, True, None],
    "nested": {"weights": torch.arange(12.0).reshape(3, 4).t(), "empty": torch.zeros(0), "flags": torch.tensor([True, False])},
    "bytes": torch.arange(300, dtype=torch.uint8),
    3: ("a", 1),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.pt"


def write_without_checksum(path: Path, content: object) -> None:
    """As the first format was: nothing but what `torch.save` writes."""
    torch.save(content, path)


@pytest.mark.parametrize("mapped", [False, True])
def test_what_was_written_comes_back(path: Path, mapped: bool) -> None:
    checksum = write_file(path, CONTENT)
    content, read = read_file(path, mapped=mapped)
    assert same(content, CONTENT)
    assert read == checksum


def test_torch_reads_it_too(path: Path) -> None:
    write_file(path, CONTENT)
    assert same(torch.load(path, weights_only=True), CONTENT)


def test_a_file_without_a_checksum_is_read_and_told_apart(path: Path) -> None:
    write_without_checksum(path, CONTENT)
    content, checksum = read_file(path)
    assert same(content, CONTENT)
    assert checksum is None


def test_what_was_read_outlives_the_file(path: Path) -> None:
    write_file(path, CONTENT)
    content, _ = read_file(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert same(content, CONTENT)


def test_every_wrong_byte_is_found(path: Path) -> None:
    """One after the other, all through the file; the trailer's own are those of a file without a checksum, or a wrong one."""
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
    """At the sync of the file everything is written and under its name there is nothing; then the folder is synced."""
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
def test_a_folder_that_cannot_be_synced_costs_nothing(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_writing_a_large_tensor_needs_no_second_one(path: Path) -> None:
    """Tensors leave as they lie in memory."""
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
    for name in (
        ".update_000000005.pt_77",
        ".best.pt_1",
        ".replay_000000005.pt_123456",
        "update_000000005.pt",
        ".notes",
        "a_1",
    ):
        (tmp_path / name).touch()
    remove_partial_files(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".notes", "a_1", "update_000000005.pt"]


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.made,)


@pytest.mark.parametrize("written_by", ["pickle", "torch", "torch_before_zip", "us"])
def test_a_file_that_would_run_code_is_refused_and_runs_nothing(written_by: str, path: Path) -> None:
    made = path.with_name("made")
    content = {"format": 2, "agent": Malicious(made)}
    if written_by == "pickle":
        path.write_bytes(pickle.dumps(content))
    elif written_by == "us":
        write_file(path, content)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=written_by == "torch")
    with pytest.raises(ValueError, match="names 'pathlib Path.touch'|does not begin|names") as caught:
        read_file(path)
    assert "\n" not in str(caught.value)
    assert not made.exists()
    with contextlib.suppress(RuntimeError):
        torch.load(path, weights_only=False)
    assert made.exists() or written_by == "pickle"


class Reduced:
    """Pickled as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def huge_pickle() -> dict[str, Any]:
    return {"x": Reduced(bytearray, 2**46)}


def view_of_little() -> dict[str, Any]:
    return {"x": torch.zeros(1).expand(2**30, 2**10)}


def lists_of_lists() -> dict[str, Any]:
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    return {"x": value}


def list_of_itself() -> dict[str, Any]:
    value: list[Any] = []
    value.append(value)
    return {"x": value}


@pytest.mark.parametrize("make", [huge_pickle, view_of_little, lists_of_lists, list_of_itself])
def test_a_small_file_that_would_fill_the_memory_is_refused(make: Any, path: Path) -> None:
    write_file(path, make())
    assert path.stat().st_size < 10_000
    with pytest.raises(ValueError, match="."):
        read_file(path)


def repack(path: Path, compression: int = zipfile.ZIP_STORED, **replaced: bytes) -> None:
    """Write the entries anew, some of them replaced (by the last part of their name)."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, replaced.get(name.rsplit("/", 1)[1].replace(".", "_"), data))


def test_packed_entries_are_refused(path: Path) -> None:
    """Those that would fill the memory, and those that are no smaller and would be read as they are."""
    for content in (torch.zeros(10**6), torch.frombuffer(bytearray(random.Random(0).randbytes(40_000)), dtype=torch.uint8)):
        write_without_checksum(path, {"x": content})
        repack(path, zipfile.ZIP_DEFLATED)
        with pytest.raises(ValueError, match="not stored as they are"):
            read_file(path)
    assert path.stat().st_size > 40_000


def test_a_tensor_that_claims_more_than_its_entry_does_not_reach_beyond_the_file(path: Path) -> None:
    write_without_checksum(path, {"x": torch.zeros(3, dtype=torch.uint8)})
    with zipfile.ZipFile(path) as archive:
        (name,) = (entry for entry in archive.namelist() if entry.endswith("data.pkl"))
        pickled = archive.read(name)
    assert pickled.count(b"K\x03") >= 2  # its size, in the storage and in the shape
    repack(path, data_pkl=pickled.replace(b"K\x03", b"J\x00\x00\x00\x70"))
    with pytest.raises(ValueError, match="."):
        read_file(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"PK\x03\x04", b"{}", b"\x80\x02", b"\x80\x63K\x01.", bytes(1000), b"\x89PNG\r\n\x1a\n" + bytes(100)],
)
def test_what_is_no_such_file_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="."):
        read_file(path)


def test_a_huge_foreign_file_is_not_read(path: Path) -> None:
    """A terabyte with holes: looked at by its first bytes."""
    with path.open("wb") as file:
        try:
            file.truncate(2**40)
        except OSError:
            pytest.skip("no sparse files here")
    with pytest.raises(ValueError, match="does not begin like one"):
        read_file(path)


def test_a_foreign_zip_is_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/readme.txt", "hello")
    with pytest.raises(ValueError, match="data.pkl"):
        read_file(path)


def test_damage_without_a_checksum_never_raises_anything_else(path: Path) -> None:
    """Files of the first format have none: they are refused with one line or read."""
    write_without_checksum(path, CONTENT)
    whole = path.read_bytes()
    generator = random.Random(0)
    refusals: list[str] = []
    for _ in range(200):
        damaged = bytearray(whole)
        first = generator.randrange(len(damaged))
        damaged[first : first + 8] = generator.randbytes(8)
        path.write_bytes(damaged)
        try:
            read_file(path)
        except ValueError as error:
            refusals.append(str(error))
    assert len(refusals) > 30
    assert not [line for line in refusals if "\n" in line]


def test_what_torch_raises_is_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(path, CONTENT)
    for error in (IndexError, AssertionError, OverflowError, RecursionError, EOFError, pickle.UnpicklingError):

        def fail(*_: object, error: type[Exception] = error, **__: object) -> None:
            raise error("first line\nsecond line")

        monkeypatch.setattr(module.torch, "load", fail)
        with pytest.raises(ValueError, match="^first line$"):
            read_file(path)


def test_a_missing_file_and_a_folder_are_errors_of_the_system(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.pt", tmp_path):
        with pytest.raises(OSError, match=os.strerror(errno.ENOENT) + "|" + os.strerror(errno.EISDIR)):
            read_file(path)
