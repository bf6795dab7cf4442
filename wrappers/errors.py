"""Puts errors of the user's code into one line: the type, the message, and the place in the user's code."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType

ROOT = Path(__file__).resolve().parents[1]
USED_AS_USERS = frozenset({"tests", "benchmarks"})
"""Packages of the program whose environments stand for those of users."""
LIBRARIES = frozenset({"gymnasium", "numpy", "torch"})
"""Installed packages that the program calls too, so that a place in them says nothing about the user's code."""
_PACKAGES = ("site-packages", "dist-packages")

REQUIREMENTS = "requirements-envs.txt"
IN_REQUIREMENTS = ("Box2D", "envpool", "imageio", "minigrid", "mujoco", "pygame")
"""Packages that `REQUIREMENTS` installs."""
BY_THEMSELVES = {"minatar": "minatar", "shimmy": "'shimmy[dm-control,gym-v26]'"}
"""Other packages -> their names for pip."""


def in_words(error: BaseException) -> str:
    """Type, message and place of an error, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' * bool(text)}{text}{details_of(error)}"


def import_failed(wanted: str, error: BaseException) -> str:
    """One line on an import that failed. It says how to install the package, if that is known."""
    missing = str(getattr(error, "name", "") or "").partition(".")[0]
    text = str(error)
    in_file = missing in IN_REQUIREMENTS or re.search(r"gymnasium\[", text)
    package = f"-r {REQUIREMENTS}" if in_file else BY_THEMSELVES.get(missing, "")
    hint = f"; pip install {package}" if package else ""
    return f"env: wanted {wanted}, got {in_words(error)}{hint}"


def details_of(error: BaseException) -> str:
    """The end of a line about an error: its place in the user's code, and whether a package of the program hides the user's."""
    return f"{place_of(error)}{clash_of(error)}"


def place_of(error: BaseException) -> str:
    """` (FILE:LINE)` of the innermost frame of the user's code, or else of an installed package; nothing without either."""
    for each in _chain(error):
        if place := _place(reversed(list(traceback.walk_tb(each.__traceback__)))):
            return place
    return ""


def place_in_thread(thread: int) -> str:
    """The same for the present call of a thread."""
    return _place(traceback.walk_stack(sys._current_frames().get(thread)))


def _place(stack: Iterable[tuple[FrameType, int]]) -> str:
    """stack: the innermost frame first."""
    frames = [(frame.f_code.co_filename, line) for frame, line in stack]
    for is_wanted in (_is_users, _is_installed):
        if found := next(((path, line) for path, line in frames if is_wanted(path)), None):
            return f" ({_shown(found[0])}:{found[1]})"
    return ""


def clash_of(error: BaseException) -> str:
    """A hint for an import that failed in a package of the program, which may hide one of the user's; else nothing."""
    for each in _chain(error):
        name = each.name or "" if isinstance(each, ImportError) else ""
        if isinstance(each, AttributeError) and isinstance(each.obj, ModuleType):
            name = each.obj.__name__
        top = name.partition(".")[0]
        if top in own_names():
            if hidden := next(_others(top), ""):
                return f"; {top} is a package of this program and hides {hidden}: give yours another name"
            wanted = re.search(r"cannot import name '(\w+)'", str(each))
            near = [known for known in dir(sys.modules.get(name)) if wanted and known.lower() == wanted[1].lower()]
            return f"; {top} is a package of this program{f', and has {near[0]}' if near else ''}"
    return ""


@cache
def own_names() -> frozenset[str]:
    """The names of the program's own packages and modules."""
    return frozenset(path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file())


def _others(name: str) -> Iterator[str]:
    """The packages and modules of this name outside the program that Python would find."""
    for folder in (Path(entry or os.curdir) for entry in sys.path):
        with suppress(OSError):
            if folder.resolve() != ROOT:
                yield from (str(path) for path in (folder / name, folder / f"{name}.py") if path.exists())


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its cause, the cause of that, and so on."""
    seen: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in seen:
        yield each
        seen.append(each)
        each = each.__cause__


def _is_users(path: str) -> bool:
    """Whether a file belongs neither to the program nor to an installed package nor to Python."""
    return not (path.startswith("<") or _is_ours(path) or _package_of(path) or _is_pythons(path))


def _is_installed(path: str) -> bool:
    """Whether a file belongs to an installed package that may make environments."""
    return not path.startswith("<") and _package_of(path) not in {"", *LIBRARIES} and not _is_ours(path)


def _is_ours(path: str) -> bool:
    inside = path.removeprefix(f"{ROOT}{os.sep}")
    return inside != path and Path(inside).parts[0].removesuffix(".py") in own_names() - USED_AS_USERS


def _is_pythons(path: str) -> bool:
    return path.startswith(sysconfig.get_paths()["stdlib"] + os.sep)


def _package_of(path: str) -> str:
    """The installed package that a file belongs to; empty for any other file."""
    parts = Path(path).parts
    return next((parts[index + 1] for index, part in enumerate(parts[:-1]) if part in _PACKAGES), "")


def _shown(path: str) -> str:
    """A path from the current folder if it lies there, else in full."""
    with suppress(OSError, ValueError):
        if not (short := os.path.relpath(path)).startswith(os.pardir):
            return short
    return path
