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
    copy: dict[str, Any] = _Copier(path.stat().st_size, mapped=mapped).copy(content)
    return copy


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


class _Copier:
    """Copies plain data and tensors. Together they take at most the file's size.

    Args:
        size: of the file in bytes.
        mapped: return the tensors as they are in the file, without a copy.
    """

    def __init__(self, size: int, *, mapped: bool) -> None:
        self._bytes_left = size  # for the tensors still to come; a tensor may be a view that repeats its data
        self._mapped = mapped
        self._tensors: dict[tuple[Any, ...], Tensor] = {}
        self._containers: set[int] = set()  # ids; a list that contains another twice could double its size at every level

    def copy(self, value: Any) -> Any:
        """A copy of plain data and tensors. Raises ValueError for anything else, and for tensors that take more bytes."""
        if isinstance(value, Tensor):
            return self._copy_tensor(value)
        if isinstance(value, bool | int | float | str | None):
            return value
        if not isinstance(value, dict | list | tuple):
            raise ValueError(f"it holds a {type(value).__name__}")
        # Python has only one empty tuple, so an empty container may occur twice.
        if value and id(value) in self._containers:
            raise ValueError("it contains one part twice")
        self._containers.add(id(value))
        if isinstance(value, dict):
            if not all(isinstance(key, str | int) for key in value):
                raise ValueError("a key is neither text nor a whole number")
            return {key: self.copy(part) for key, part in value.items()}
        return type(value)(self.copy(part) for part in value)

    def _copy_tensor(self, value: Tensor) -> Tensor:
        """The copy of a tensor. One that occurs under several names, as shared weights do, is counted and copied once."""
        if value.layout != torch.strided:
            raise ValueError(f"it holds a tensor of layout {value.layout}")
        key = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in self._tensors:
            self._bytes_left -= value.numel() * value.element_size()
            if self._bytes_left < 0:
                raise ValueError("its tensors are larger than the file")
            self._tensors[key] = value if self._mapped else value.clone()
        return self._tensors[key]
