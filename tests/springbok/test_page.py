"""The code of docs/python.md runs as a reader runs it, in a script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support import REPOSITORY

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def test_the_blocks_of_the_page_run_and_a_class_of_the_script_is_learned(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    blocks = BLOCK.findall((REPOSITORY / "docs" / "python.md").read_text())
    script.write_text("\n".join(blocks).replace("10_000", "1_000").replace("2_000", "500"))
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == "2", "the class of the script is learned"
    assert sum(line.startswith("Finished after") for line in lines) == 3
    (own,) = (tmp_path / "results").glob("springbok_env_*-Guess-v0_*")
    assert list(own.glob("springbok_env_*.py"))
