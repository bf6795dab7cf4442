"""One file of tensors and plain data: complete or absent, every byte under a checksum, and nothing in it is ever run.

A file is what `torch.save` writes, with one line behind it that holds the SHA-256 of all before; `torch.load` reads it too.
What comes from elsewhere is looked at from outside first: plain entries that fit into the file, no name in the pickle but
those that tensors need. Then it is mapped, not read, so that nothing reaches beyond it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pickletools
import re
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

TRAILER = re.compile(rb"\nsha256:([0-9a-f]{64})\n")
TRAILER_BYTES = 73
PARTIAL = re.compile(r"^\..+\.pt_\d+$")  # a file that is being written, or was when its process was killed
CHUNK_BYTES = 2**20
LARGEST_PICKLE = 2**24  # bytes; it holds names and numbers, the tensors lie beside it
CANNOT_SYNC_FOLDERS = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EPERM, errno.EBADF}
"""Answers of file systems (FUSE, SMB, 9p) that sync files but no folders. The file itself is complete and synced by then."""
TENSOR_NAMES = re.compile(r"collections OrderedDict|torch\._utils _rebuild_tensor_v2|torch [A-Z][A-Za-z0-9]*Storage")


class _HashingFile:
    """What `torch.save` writes to: hashes as it goes, and keeps the error that the writer would hide behind its own."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self.file.flush()


def write_file(path: Path, content: dict[str, Any]) -> str:
    """Write beside, sync, rename, sync the folder; tensors go out one by one. Returns the checksum; raises OSError."""
    beside = path.with_name(f".{path.name}_{os.getpid()}")
    try:
        with beside.open("wb") as file:
            hashing = _HashingFile(file)
            try:
                torch.save(content, cast(IO[bytes], hashing))
            except RuntimeError:
                if hashing.error:
                    raise hashing.error from None
                raise
            checksum = hashing.hash.hexdigest()
            file.write(f"\nsha256:{checksum}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    sync_folder(path.parent)
    return checksum


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as its files, where the file system can. Raises OSError if the disk fails."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC_FOLDERS:
            raise


def remove_partial_files(folder: Path) -> None:
    """Remove what processes that were killed had begun to write."""
    for path in folder.iterdir():
        if PARTIAL.match(path.name):
            path.unlink(missing_ok=True)


def read_file(path: Path, *, mapped: bool = False) -> tuple[dict[str, Any], str | None]:
    """What `write_file` wrote, and its checksum: None for a file without one, as the first format was.

    mapped: leave the tensors in the file, for contents too large to be in memory twice. Raises ValueError with a short
    reason, or OSError.
    """
    checksum = _verified_checksum(path)
    _inspect(path)
    with warnings.catch_warnings(), path.open("rb") as file:
        warnings.simplefilter("ignore")
        try:
            content = torch.load(_name_for_torch(path, file), map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # and the unpickler too
            raise ValueError(_in_short(error)) from None
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}")
    return _own(content, [path.stat().st_size], set(), mapped=mapped), checksum


def _name_for_torch(path: Path, file: IO[bytes]) -> str:
    """The path of an open file, or the system's other name for it where the path holds bytes that are not UTF-8.

    PyTorch takes only UTF-8, and maps only files that it opens by name.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return f"/dev/fd/{file.fileno()}"
    return str(path)


def _verified_checksum(path: Path) -> str | None:
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise ValueError("it does not begin like one")
        end = file.seek(0, os.SEEK_END) - TRAILER_BYTES
        file.seek(max(0, end))
        trailer = TRAILER.fullmatch(file.read())
        if not trailer:
            return None
        file.seek(0)
        hashed = hashlib.sha256()
        while end > 0:
            data = file.read(min(end, CHUNK_BYTES))
            if not data:
                break
            hashed.update(data)
            end -= len(data)
    if hashed.hexdigest() != trailer[1].decode():
        raise ValueError("damaged: its checksum does not match")
    return hashed.hexdigest()


def _inspect(path: Path) -> None:
    """Refuse what `write_file` never writes: packed or overlong entries, other names in the pickle than tensors need."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
            if packed or sum(entry.file_size for entry in entries) > path.stat().st_size:
                raise ValueError("its entries are not stored as they are")
            pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            if len(pickles) != 1 or pickles[0].file_size > LARGEST_PICKLE:
                raise ValueError("it has no small data.pkl")
            operations = pickletools.genops(archive.read(pickles[0]))
            named = [str(argument) for operation, argument, _ in operations if "GLOBAL" in operation.name]
    except Exception as error:  # damage makes the archive's reader raise nearly anything
        raise ValueError(_in_short(error)) from None
    if strange := [name for name in named if not TENSOR_NAMES.fullmatch(name)]:
        raise ValueError(f"it names {strange[0][:60]!r}, which is no part of a tensor")


def _in_short(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:120] or type(error).__name__


def _own(value: Any, bytes_left: list[int], seen: set[int], *, mapped: bool) -> Any:
    """A copy of plain data and tensors that together take no more than the file's size; anything else is refused."""
    if isinstance(value, Tensor):
        bytes_left[0] -= value.numel() * value.element_size()
        if value.layout != torch.strided or bytes_left[0] < 0:
            raise ValueError("its tensors are larger than the file")
        return value if mapped else value.clone()
    if isinstance(value, bool | int | float | str | None):
        return value
    if not isinstance(value, dict | list | tuple):
        raise ValueError(f"it holds a {type(value).__name__}")
    if value and id(value) in seen:
        raise ValueError("a part of it contains another twice")
    seen.add(id(value))
    if isinstance(value, dict):
        if not all(isinstance(key, str | int) for key in value):
            raise ValueError("its keys are no names")
        return {key: _own(part, bytes_left, seen, mapped=mapped) for key, part in value.items()}
    return type(value)(_own(part, bytes_left, seen, mapped=mapped) for part in value)
