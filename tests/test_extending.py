"""Every example of docs/extending.md is applied to one copy of the program, and their commands run (tests/pages.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pages import BLOCK, ROOMS, apply_diff, copy_program, run
from tests.support import REPOSITORY, run_main

SECTIONS = re.split(r"^## ", (REPOSITORY / "docs" / "extending.md").read_text(), flags=re.M)[1:]
EXAMPLES = {section.splitlines()[0]: section for section in SECTIONS}


CORE = (
    "python main.py --op_mode=train --agent=reinforce.py:ReinforceAgent --env=Recall-v0 --network=mlp --core=lstm "
    "--core_size=32 --frames_stacked=1 --environment_max_steps=4000"
)
"""A core is the network's: the agent has no line for it."""


class Done(NamedTuple):
    """An example that was done in a copy of the program.

    files: those that it edited or made in the program's rooms. printed: by each of its commands.
    """

    program: Path
    files: set[str]
    printed: list[str]

    def run(self, command: int = 0) -> Path:
        """The directory of the run that a command trained."""
        (found,) = re.findall(r"^Checkpoint: (.*)/checkpoints/", self.printed[command], re.M)
        return (self.program / found).resolve()

    def summary(self, command: int = 0) -> dict[str, float]:
        return dict(json.loads((self.run(command) / "summary.json").read_text()))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_program(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def examples(program: Path) -> dict[str, Done]:
    """All examples, applied one after another before their commands run."""
    commands: dict[str, list[str]] = {}
    changed: dict[str, set[str]] = {}
    for name, section in EXAMPLES.items():
        before = {path: (program / path).read_text() for path in changed_files(program)}
        commands[name] = apply_example(program, section)
        changed[name] = {path for path in changed_files(program) if (program / path).read_text() != before.get(path)}
    commands["An agent"].append(CORE)
    printed = iter(run(program, *(command for each in commands.values() for command in each)))
    return {name: Done(program, changed[name], [next(printed) for _ in each]) for name, each in commands.items()}


def apply_example(program: Path, section: str) -> list[str]:
    """Write the files and changes of an example. Returns its commands."""
    commands = []
    for block in BLOCK.finditer(section):
        if block["kind"] == "python":
            assert not (program / block["path"]).exists()
            (program / block["path"]).write_text(block["text"])
        elif block["kind"] == "diff":
            apply_diff(program, block["text"])
        else:
            commands += block["text"].splitlines()
    return commands


def changed_files(program: Path) -> set[str]:
    """Files that differ from the program's own, or are new."""
    found = set()
    for room in ROOMS:
        for path in (program / room).rglob("*.py"):
            own = REPOSITORY / path.relative_to(program)
            if not own.is_file() or own.read_text() != path.read_text():
                found.add(str(path.relative_to(program)))
    return found


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
def test_an_example_runs_and_edits_no_more_files_than_it_says(examples: dict[str, Done], name: str, files: set[str]) -> None:
    done = examples[name]
    assert done.files == files
    assert done.summary()["steps"] >= 4000
    metrics = (done.run() / "metrics.csv").read_text().splitlines()[0]
    assert ("losses/logit_penalty" in metrics) == (name == "A loss term")


def test_the_environment_is_learned(examples: dict[str, Done]) -> None:
    done = examples["An environment"]
    assert done.files == {"wrappers/corridor.py", "wrappers/__init__.py"}
    assert done.summary()["mean_return"] > 0.85, done.printed[0]
    assert "Corridor-v0" in done.printed[1]


def test_the_agent_learns_resumes_is_tested_and_exported(examples: dict[str, Done], program: Path) -> None:
    done = examples["An agent"]
    assert done.files == set()
    lines = (program / "reinforce.py").read_text().splitlines()
    assert len(lines) < 65
    assert "--baseline_weight=0.5" in done.printed[0]
    assert done.run(1) == done.run(2)
    assert done.summary(2)["steps"] >= 60_000
    (result,) = done.run(2).glob("evaluation_*.json")
    assert json.loads(result.read_text())["summary"]["mean_return"] > 0.9
    assert list(done.run(2).glob("exported_*/policy.pt2"))
    assert done.summary(-1)["steps"] >= 4000


def test_an_on_policy_agent_refuses_replayed_trajectories(program: Path, examples: dict[str, Done]) -> None:
    agent = f"{program / 'reinforce.py'}:ReinforceAgent"
    refused = run_main("--op_mode=train", f"--agent={agent}", "--preset=pong_fast", f"--results_dir={program / 'refused'}")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: replay_parameters: wanted only a queue with agent {agent}")
