"""No function and no file is longer than CONTRIBUTING.md allows, and no two types of the product share a name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.support import REPOSITORY
from tests.test_imports import PACKAGES

MOST_OF_A_FUNCTION = 55
MOST_OF_A_FILE = 420
TYPE = re.compile(r"^(?:(class) |(?=\w+ = ))([A-Z][A-Za-z0-9]*[a-z0-9])\b(.*)$", re.MULTILINE)
"""The first line of a public class or of an alias."""


def test_functions_and_files_keep_their_limits() -> None:
    files = [path for pattern in ("*.py", "[!.]*/**/*.py") for path in REPOSITORY.glob(pattern)]
    assert len(files) > 300
    too_long: dict[str, int] = {}
    for path in files:
        text, name = path.read_text(), str(path.relative_to(REPOSITORY))
        if len(text.splitlines()) > MOST_OF_A_FILE:
            too_long[name] = len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                if length > MOST_OF_A_FUNCTION:
                    too_long[f"{name}: {node.name}"] = length
    assert too_long == {}


def test_each_name_of_a_type_has_one_meaning() -> None:
    """An alias may be repeated in another module if its whole definition is the same line."""
    meanings: dict[str, set[str]] = defaultdict(set)
    for path in (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")):
        if "templates" in path.parts:  # starting points of users' own projects
            continue
        for is_class, name, definition in TYPE.findall(path.read_text()):
            meanings[name].add(str(path) if is_class or definition.endswith(("(", "[", "{")) else definition)
    assert len(meanings) > 500
    assert {name: several for name, several in meanings.items() if len(several) > 1} == {}
