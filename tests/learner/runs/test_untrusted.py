"""A file that comes from elsewhere runs no code, fills no memory, and is refused in one line."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from learner.runs import untrusted as module
from learner.runs.checkpoint import read_file, write_file
from tests.learner.runs.support import CONTENT, write_without_checksum


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.pt"


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


@pytest.mark.parametrize("mapped", [False, True])
def test_a_tensor_under_several_names_is_read_and_counted_once(mapped: bool, path: Path) -> None:
    """The second file claims as many views of equal size, but each begins elsewhere, so each would be a copy."""
    weights = torch.arange(40_000.0)
    write_file(path, {"names": {str(number): weights.detach() for number in range(100)}})
    assert path.stat().st_size < 2 * weights.nbytes
    content, _ = read_file(path, mapped=mapped)
    read = list(content["names"].values())
    assert len(read) == 100
    assert all(torch.equal(tensor, weights) for tensor in read)
    assert len({tensor.data_ptr() for tensor in read}) == 1
    write_file(path, {"names": [weights[number : number + 30_000] for number in range(100)]})
    with pytest.raises(ValueError, match="larger than the file"):
        read_file(path, mapped=mapped)


def test_views_of_one_storage_keep_their_shapes(path: Path) -> None:
    weights = torch.arange(6.0)
    views = [weights, weights.view(2, 3), weights.view(3, 2).t(), weights[:0]]
    write_file(path, {"views": views, "more": torch.zeros(100)})
    content, _ = read_file(path)
    for read, view in zip(content["views"], views, strict=True):
        assert torch.equal(read, view)


def repack(path: Path, compression: int = zipfile.ZIP_STORED, **replaced: bytes) -> None:
    """Write all entries again. replaced: new content of entries, by the last part of their name."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, replaced.get(name.rsplit("/", 1)[1].replace(".", "_"), data))


def test_packed_entries_are_refused(path: Path) -> None:
    """Compressed entries may unpack to more than the memory, or be no smaller than plain ones."""
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
def test_a_file_of_another_kind_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="."):
        read_file(path)


def test_a_huge_foreign_file_is_not_read(path: Path) -> None:
    """A sparse file of a terabyte is refused by its first bytes."""
    with path.open("wb") as file:
        try:
            file.truncate(2**40)
        except OSError:
            pytest.skip("no sparse files here")
    with pytest.raises(ValueError, match="does not begin like a ZIP file"):
        read_file(path)


def test_a_foreign_zip_is_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/readme.txt", "hello")
    with pytest.raises(ValueError, match="data.pkl"):
        read_file(path)


def test_damage_without_a_checksum_never_raises_anything_else(path: Path) -> None:
    """Files of format 1 have no checksum. They are read, or refused in one line."""
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


def test_an_error_of_torch_becomes_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
