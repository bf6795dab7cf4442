"""Programs for users have moved to tools/; their old names say so for one release."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support import REPOSITORY


@pytest.mark.parametrize("name", ["report", "suite", "watch", "curves"])
def test_an_old_name_says_the_new_one(name: str) -> None:
    assert find_spec(f"tools.{name}")
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "x"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"python -m tools.{name}" in done.stderr
