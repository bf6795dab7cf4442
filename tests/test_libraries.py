"""The program without its libraries: they are not installed, or have no memory."""

from __future__ import annotations

import subprocess
import sys

from tests.support import REPOSITORY


def test_libraries_that_do_not_fit_are_one_line() -> None:
    limited = ["sh", "-c", 'ulimit -v 300000 && exec "$@"', "sh", sys.executable, "main.py", "--op_mode=train"]
    done = subprocess.run(limited, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error: wanted memory for the program's libraries")
    assert "ulimit -v" in done.stderr


def test_libraries_that_are_not_installed_are_one_line() -> None:
    # -S: Python without the folder of installed packages
    done = subprocess.run(
        [sys.executable, "-S", "main.py"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: No module named 'absl': wanted the packages of requirements.txt (python -m pip install -r requirements.txt)\n"
    )
