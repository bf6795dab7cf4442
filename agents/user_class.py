"""Classes in files of the user's own: `FILE.py:CLASS`, as `--network` and `--agent` take them.

A file is imported under a name that spells its path. A process that reads the name in a pickle thus finds the file.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

from wrappers.answering import START_SECONDS, awaited
from wrappers.errors import in_words
from wrappers.spec import FAILURES

USER_CLASS = r"[^:]+\.py:[A-Za-z_]\w*"
_PREFIX = "springbok_user_file_"

Base = TypeVar("Base")


def user_class(setting: str, named: str, base: type[Base]) -> type[Base]:
    """The subclass of `base` that a setting names as `FILE.py:CLASS`. Raises ValueError with one line."""
    text, _, name = named.rpartition(":")
    path = Path(text).resolve()
    module_name = _PREFIX + re.sub(rb"[^A-Za-z0-9]", lambda match: b"_%02x" % ord(match[0]), os.fsencode(path)).decode()
    if module_name not in sys.modules and not path.is_file():
        raise ValueError(f"{setting} {named}: wanted a file that exists, got {path}")
    try:
        with awaited(f"the import of {path}", START_SECONDS):
            found = getattr(importlib.import_module(module_name), name, None)
    except FAILURES as error:  # the file is the user's
        raise ValueError(f"{setting} {named}: wanted a file that can be imported, got {in_words(error)}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        got = "no such name" if found is None else f"a {type(found).__name__}"
        raise ValueError(f"{setting} {named}: wanted a subclass of {base.__module__}.{base.__name__}, got {got}")
    return found


def user_file(module_name: str) -> str | None:
    """The path of the user's file that a module was imported from; None for any other module."""
    if not module_name.startswith(_PREFIX):
        return None
    spelt = module_name.removeprefix(_PREFIX).encode()
    return os.fsdecode(re.sub(rb"_([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), spelt))


class _Finder:
    """Finds users' files by the names of their modules, in the program and in processes that unpickle their classes."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        file = user_file(name)
        if file is None:
            return None
        if (folder := str(Path(file).parent)) not in sys.path:
            sys.path.append(folder)  # at the end: a file in it must not hide a package of the program
        return spec_from_file_location(name, file)


sys.meta_path.append(_Finder)
