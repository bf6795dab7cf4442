"""Every example of docs/extending.md is applied to a copy of the program, and its commands run (tests/pages.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import BLOCK, ROOMS, apply_diff, copy_program, run
from tests.support import REPOSITORY

SECTIONS = re.split(r"^## ", (REPOSITORY / "docs" / "extending.md").read_text(), flags=re.M)[1:]
EXAMPLES = {section.splitlines()[0]: section for section in SECTIONS}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return copy_program(tmp_path)


def run_example(program: Path, name: str) -> list[str]:
    """Apply an example and run its commands. Returns what each printed."""
    printed = []
    for block in BLOCK.finditer(EXAMPLES[name]):
        if block["kind"] == "python":
            assert not (program / block["path"]).exists()
            (program / block["path"]).write_text(block["text"])
        elif block["kind"] == "diff":
            apply_diff(program, block["text"])
        else:
            printed += run(program, *block["text"].splitlines())
    return printed


def changed_files(program: Path) -> set[str]:
    """Files that differ from the program's own, or are new."""
    found = set()
    for room in ROOMS:
        for path in (program / room).rglob("*.py"):
            own = REPOSITORY / path.relative_to(program)
            if not own.is_file() or own.read_text() != path.read_text():
                found.add(str(path.relative_to(program)))
    return found


def summary(program: Path) -> dict[str, float]:
    return json.loads((program / "results" / "latest" / "summary.json").read_text())


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("A loss term", set()),
        ("A network", {"agents/networks/torsos.py"}),
        ("A network in a file of your own", set()),
        ("A reward transform", {"agents/rewards.py"}),
        ("A replay kind", {"replay/kinds/recent.py", "replay/registry.py"}),
    ],
)
def test_an_example_runs_and_edits_no_more_files_than_it_says(program: Path, name: str, files: set[str]) -> None:
    run_example(program, name)
    assert changed_files(program) == files
    assert summary(program)["steps"] >= 4000
    metrics = (program / "results" / "latest" / "metrics.csv").read_text().splitlines()[0]
    assert ("losses/logit_penalty" in metrics) == (name == "A loss term")


def test_the_environment_is_learned(program: Path) -> None:
    printed = run_example(program, "An environment")
    assert changed_files(program) == {"wrappers/corridor.py", "wrappers/__init__.py"}
    assert summary(program)["mean_return"] > 0.85, printed[0]
    assert "Corridor-v0" in printed[1]


def test_the_agent_learns_resumes_is_tested_and_exported(program: Path) -> None:
    printed = run_example(program, "An agent")
    assert changed_files(program) == set()
    lines = (program / "reinforce.py").read_text().splitlines()
    assert len(lines) < 65
    assert "--baseline_weight=0.5" in printed[0]
    assert summary(program)["steps"] >= 60_000
    (result,) = (program / "results" / "latest").resolve().glob("evaluation_*.json")
    assert json.loads(result.read_text())["summary"]["mean_return"] > 0.9
    assert list((program / "results" / "latest").resolve().glob("exported_*/policy.pt2"))
    # A core is the network's: the agent has no line for it.
    given = "--env=Recall-v0 --network=mlp --core=lstm --core_size=32 --frames_stacked=1 --environment_max_steps=4000"
    run(program, f"python main.py --op_mode=train --agent=reinforce.py:ReinforceAgent {given}")
    assert summary(program)["steps"] >= 4000


def test_an_on_policy_agent_refuses_replayed_trajectories(program: Path) -> None:
    for block in BLOCK.finditer(EXAMPLES["An agent"]):
        if block["kind"] == "python":
            (program / block["path"]).write_text(block["text"])
    done = subprocess.run(
        [sys.executable, "main.py", "--op_mode=train", "--agent=reinforce.py:ReinforceAgent", "--preset=pong_fast"],
        cwd=program,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: replay_parameters: wanted only a queue with agent reinforce.py:ReinforceAgent")
