"""A folder in any filesystem that fsspec reaches, such as s3://, gs:// or file://. No other file imports fsspec.

Credentials come from the ordinary chain of the filesystem's package: environment variables, files in the home directory, or the
role of the machine. A URL may hold a user and a password too, so every text that is shown or saved is redacted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

REQUIREMENTS = "requirements-store.txt"
NO_STORE = "none"
URL = r"[a-zA-Z][\w+.-]*://.+"
"""Regular expression of a store's address."""

CREDENTIALS = re.compile(r"(?<=://)[^/\s'\"]*@")
"""The user and the password of a URL, up to the last `@` before the path."""

OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss"}
"""Protocols of stores in which a file appears at once when its upload is complete. They have no folders to make."""


class StoreError(OSError):
    """A store cannot be reached or refuses; the message is one line without credentials."""


def redacted(text: str) -> str:
    """The text with `***` in place of the user and password of each URL in it."""
    return CREDENTIALS.sub("***@", text)


def is_url(text: str) -> bool:
    """Whether a text is a store's address and not a path."""
    return re.fullmatch(URL, text) is not None


class Store:
    """One folder of a store. Names of files are relative to it, with `/` between folders.

    Nothing is contacted and no thread is started before the first transfer. Every method that transfers raises StoreError.

    Args:
        url: the folder's address. Raises ValueError if its protocol is unknown or its package is not installed.
    """

    def __init__(self, url: str) -> None:
        self.address = redacted(url).rstrip("/")
        protocol = url.split("://", 1)[0].lower()
        self._at_once = protocol in OBJECT_STORES
        try:
            from fsspec import get_filesystem_class

            # Only the class is looked up: making a filesystem starts threads, and the fork server must start before any.
            get_filesystem_class(protocol)
        except ImportError as error:
            raise ValueError(
                f"wanted the package of {protocol}:// stores, got an installation without it ({_line(error)}); for s3:// run "
                f"pip install -r {REQUIREMENTS}"
            ) from None
        except ValueError as error:
            raise ValueError(f"wanted the address of a store, got {self.address!r} ({_line(error)})") from None
        self._url = url.rstrip("/")

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The filesystem, and the folder's path in it. Filesystems start threads of their own when they are made."""
        from fsspec.core import url_to_fs

        filesystem, root = url_to_fs(self._url)
        return filesystem, root.rstrip("/")

    def send(self, name: str, local: Path) -> None:
        """Upload a file. The store shows it when it is complete, in place of an earlier one."""
        with self._reaching(), self._appearing_at_once(name) as target:
            self._opened[0].put_file(str(local), target)

    def send_bytes(self, name: str, content: bytes) -> None:
        """Upload the content of a file, as `send` does."""
        with self._reaching(), self._appearing_at_once(name) as target:
            self._opened[0].pipe_file(target, content)

    def fetch(self, name: str, local: Path) -> None:
        """Download a file. Its folder must exist."""
        with self._reaching():
            self._opened[0].get_file(self._path(name), str(local))

    def names(self, folder: str = "") -> list[str]:
        """The complete files in a folder and the folders within it, sorted; none if the folder does not exist."""
        with self._reaching():
            # Other machines write here too, so a cached listing may be out of date.
            self._opened[0].invalidate_cache()
            try:
                found = self._opened[0].find(self._path(folder))
            except FileNotFoundError:
                return []
        names = (path.removeprefix(f"{self._path('')}/") for path in found)
        return sorted(name for name in names if _is_plain(name))

    def move(self, name: str, new_name: str) -> None:
        """Rename a file."""
        with self._reaching():
            self._opened[0].mv(self._path(name), self._path(new_name))

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._reaching():
            self._opened[0].rm_file(self._path(name))

    def _path(self, name: str) -> str:
        root = self._opened[1]
        return f"{root}/{name}" if name else root

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn the errors of all filesystems, which share no base class, into StoreError."""
        try:
            yield
        except Exception as error:
            raise StoreError(_line(error)) from None

    @contextmanager
    def _appearing_at_once(self, name: str) -> Iterator[str]:
        """The path to write to. A store that shows files while they are written gets a hidden name first, then the real one."""
        path = self._path(name)
        if self._at_once:
            yield path
            return
        folder, _, last = path.rpartition("/")
        self._opened[0].makedirs(folder, exist_ok=True)
        partial = f"{folder}/.{last}.part"
        yield partial
        self._opened[0].mv(partial, path)


def _is_plain(name: str) -> bool:
    """Whether a name stays below the folder and is not hidden. Any writer of a store chooses its names."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and "\\" not in name and not any(part.startswith(".") for part in parts)


def _line(error: BaseException) -> str:
    """An error of any package as one line without credentials."""
    text = " ".join(str(error).split())[:300]
    return redacted(f"{type(error).__name__}: {text}" if text else type(error).__name__)
