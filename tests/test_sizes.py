"""No function and no file is longer than CONTRIBUTING.md allows."""

from __future__ import annotations

import ast

from tests.support import REPOSITORY

MOST_OF_A_FUNCTION = 55
MOST_OF_A_FILE = 400


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
