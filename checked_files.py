"""Files that may be damaged, that several processes may write, or whose names come from elsewhere.

Every package may import this module, and it imports nothing of the program.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".lock"
LONGEST_HOLDER = 200  # characters of the holder's description that a message shows
LARGEST_JSON = 2**26  # bytes; a longer file is another one
LONGEST_NAME = 120  # characters
KINDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a finite number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    NoneType: "null",
}
Keys = Mapping[str, type | tuple[type, ...]]
"""Name -> the kinds of `KINDS` that its value may have."""


class LockedError(ValueError):
    """Another process holds a folder's lock; the message names it."""


@contextmanager
def locked(folder: Path, refusal: Callable[[str], str] | None = None) -> Iterator[None]:
    """Hold the lock of a folder. The file `.lock` stays behind; only the lock on it counts.

    The kernel releases it when the process ends, however it ends. On a file system without locks nothing is held.

    refusal: the message of LockedError for the description of another holder; None waits until the lock is free.

    Raises LockedError, or OSError if the file cannot be opened.
    """
    if fcntl is None:
        yield
        return
    # No other process may keep this descriptor: it would hold the lock of a learner that was killed. Programs do not inherit it
    # (Python opens files close-on-exec), and the fork server closes all descriptors before it forks.
    with (folder / LOCK_NAME).open("a+", errors="backslashreplace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if refusal else 0))
        except BlockingIOError:
            assert refusal is not None
            raise LockedError(refusal(_holder(file.fileno()))) from None
        except OSError:  # a file system without locks, such as some on networks
            pass
        else:
            with contextlib.suppress(OSError):  # on a full disk the lock holds without a description of its holder
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
                file.flush()
        yield


def _holder(descriptor: int) -> str:
    """The description that the holder of the lock has written into it."""
    try:
        text = os.pread(descriptor, LONGEST_HOLDER, 0).decode(errors="replace")
    except OSError:
        text = ""
    return " ".join(text.split()) or "another process"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the context a hidden path to write to. It takes the name `path` if the context ends without an error.

    A kill or a full disk leaves the old file. Processes that write at once do not share the hidden path. Raises OSError.
    """
    partial = path.with_name(f".{path.stem}_{os.getpid()}{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def read_json(path: Path, wanted: str, keys: Keys | None = None) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: of the file.
        wanted: its content in words, for the error.
        keys: the names that it must have; see `checked`.

    Raises ValueError in one line that names the file, also if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_JSON + 1)
        if len(data) > LARGEST_JSON:
            raise ValueError(f"more than {LARGEST_JSON:,} bytes")
        content = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: wanted {wanted} in JSON, got {reason}") from None
    return checked(content, f"{path}: wanted {wanted}", keys or {})


def checked(content: object, wanted: str, keys: Keys) -> dict[str, Any]:
    """The content, which must be an object in which each of these names has a value of its kinds.

    wanted: beginning of the error, such as `FILE: wanted a suite`. Raises ValueError in one line.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{wanted}, an object, got {_shown(content)}")
    for name, kinds in keys.items():
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        if name not in content:
            raise ValueError(f"{wanted} with {name!r}, got none")
        if not any(_is(content[name], kind) for kind in kinds):
            allowed = " or ".join(KINDS[kind] for kind in kinds)
            raise ValueError(f"{wanted} with {allowed} as {name!r}, got {_shown(content[name])}")
    return content


def _is(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float) and abs(value) < math.inf
    return isinstance(value, kind)


def _shown(value: object) -> str:
    return ascii(value)[:80]


def is_plain_name(name: str) -> bool:
    """Whether a text names something directly within a folder, that is not hidden."""
    return bool(name) and not name.startswith(".") and not re.search(r"[/\\:\0]", name)


def plain_name(text: str) -> str:
    """A file's name made of a text, such as an environment's id: with `-` for every character that a name may not have."""
    name = re.sub(r"[^\w.-]", "-", text)[:LONGEST_NAME]
    return f"_{name}" if not is_plain_name(name) else name
