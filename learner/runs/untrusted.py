"""Loads a PyTorch file that may come from anywhere. Nothing in it is run, and it takes no more memory than its own size.

Unpickling can call any function, so the file is inspected from outside first: the pickle may name only the functions that build
tensors, and no entry may be compressed. Then the file is mapped, not read, so that a tensor cannot reach beyond it.
"""

from __future__ import annotations

import pickletools
import re
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

LARGEST_PICKLE = 2**24  # bytes; the pickle holds names and numbers, and the tensors are entries of their own
TENSOR_NAMES = re.compile(r"collections OrderedDict|torch\._utils _rebuild_tensor_v2|torch [A-Z][A-Za-z0-9]*Storage")


def load_plain(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """The dictionary of tensors and plain data in a file that `torch.save` wrote.

    mapped: leave the tensors in the file, for contents too large to be in memory twice. Raises ValueError with a reason, or
    OSError.
    """
    _inspect(path)  # before anything is unpickled
    with warnings.catch_warnings(), path.open("rb") as file:
        warnings.simplefilter("ignore")
        try:
            content = torch.load(_name_for_torch(path, file), map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # damage makes the unpickler raise nearly anything
            raise ValueError(_in_short(error)) from None
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}")
    return _own(content, [path.stat().st_size], set(), mapped=mapped)


def _name_for_torch(path: Path, file: IO[bytes]) -> str:
    """The path of an open file, or `/dev/fd/N` if it is not UTF-8. PyTorch maps only files that it opens by a UTF-8 name."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return f"/dev/fd/{file.fileno()}"
    return str(path)


def _inspect(path: Path) -> None:
    """Refuse entries that `write_file` never writes: compressed or overlong ones, or a pickle that names other functions.

    Raises ValueError with a short reason.
    """
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
        raise ValueError(f"it names {strange[0][:60]!r}, which is not part of a tensor")


def _in_short(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:120] or type(error).__name__


def _own(value: Any, bytes_left: list[int], seen: set[int], *, mapped: bool) -> Any:
    """A copy of plain data and tensors that together take at most the file's size. Raises ValueError for anything else.

    Args:
        bytes_left: one number, the bytes that the tensors still to come may take. A tensor may be a view that repeats its data.
        seen: ids of containers that were copied. A list that contains another twice could double its size at every level.
        mapped: return the tensors as they are in the file, without a copy.
    """
    if isinstance(value, Tensor):
        bytes_left[0] -= value.numel() * value.element_size()
        if value.layout != torch.strided or bytes_left[0] < 0:
            raise ValueError("its tensors are larger than the file")
        return value if mapped else value.clone()
    if isinstance(value, bool | int | float | str | None):
        return value
    if not isinstance(value, dict | list | tuple):
        raise ValueError(f"it holds a {type(value).__name__}")
    # Python has only one empty tuple, so an empty container may occur twice.
    if value and id(value) in seen:
        raise ValueError("it contains one part twice")
    seen.add(id(value))
    if isinstance(value, dict):
        if not all(isinstance(key, str | int) for key in value):
            raise ValueError("a key is neither text nor a whole number")
        return {key: _own(part, bytes_left, seen, mapped=mapped) for key, part in value.items()}
    return type(value)(_own(part, bytes_left, seen, mapped=mapped) for part in value)
