"""A real kernel of a notebook: docs/notebook.ipynb runs, a run is interrupted and continued, and no process is left."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from learner.metrics.hardware import family_of
from tests.support import REPOSITORY

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
SMALL = "agent='ppo', worker_kind='cpu', worker_count=1, network='mlp', preflight=False"
TRAIN = f"""
import springbok
try:
    springbok.train(env='CartPole-v1', environment_max_steps=10**9, log_period=0.5, progress_period=0, {SMALL})
except KeyboardInterrupt:
    run = springbok.Run('results/latest')
    print('INTERRUPTED')
"""
CONTINUE = """
before = run.metrics['steps'][-1]
run = run.resume(more_steps=2000)
print('CONTINUED', run.summary['steps'] >= before + 2000)
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    manager, client = start_new_kernel(cwd=str(tmp_path), env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def printed(client: Any, request: str, until: Callable[[str], bool] = lambda text: False) -> str:
    """The output of a cell until it has ended, or until a text appears in it."""
    text = ""
    while not until(text):
        message = client.get_iopub_msg(timeout=120)
        content = message["content"]
        if message["parent_header"].get("msg_id") == request:
            text += content.get("text", "") + content.get("data", {}).get("text/plain", "")
            text += "".join(content.get("traceback", ()))
            if content.get("execution_state") == "idle":
                return text
    return text


def cells() -> list[str]:
    """The code of docs/notebook.ipynb."""
    found = json.loads((REPOSITORY / "docs" / "notebook.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def test_the_notebook_has_the_code_of_the_page() -> None:
    page = (REPOSITORY / "docs" / "python.md").read_text()
    assert [block.rstrip() for block in BLOCK.findall(page) if block.rstrip() not in cells()] == []


def test_the_notebook_runs_and_its_own_environment_is_learned(kernel: tuple[Any, Any], tmp_path: Path) -> None:
    _, client = kernel
    shorter = [code.replace("10_000", "1_000").replace("2_000", "500") for code in cells()]
    shown = [printed(client, client.execute(code)) for code in shorter]
    assert not [text for text in shown if "Traceback" in text]
    assert sum(text.count("Finished after") for text in shown) == 3
    assert shown[-1].splitlines()[-1] == "2", "the class of the notebook is learned"
    (own,) = (tmp_path / "results").glob("springbok_env_*-Guess-v0_*")
    assert list(own.glob("springbok_env_*.py"))


def test_a_run_is_interrupted_and_continued_and_no_process_is_left(kernel: tuple[Any, Any]) -> None:
    manager, client = kernel
    own = set(family_of(manager.provisioner.pid))
    cell = client.execute(TRAIN)
    assert "steps" in printed(client, cell, lambda text: "| steps" in text)  # a line of progress
    assert len(set(family_of(manager.provisioner.pid)) - own) > 1
    manager.interrupt_kernel()
    assert "INTERRUPTED" in printed(client, cell)
    assert printed(client, client.execute(CONTINUE)).rstrip().endswith("CONTINUED True")
    deadline = time.monotonic() + 10
    while left := set(family_of(manager.provisioner.pid)) - own:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
