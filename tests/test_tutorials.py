"""The tutorials are done as a reader does them: files are written, changes made, commands run. Runs are shorter."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from tests.pages import BLOCK, apply_diff, copy_program, run
from tests.support import REPOSITORY

TUTORIALS = REPOSITORY / "docs" / "tutorials"
SHORTER = {"first_run": 2000, "own_environment": 8000, "own_agent": 2000}
"""Page -> steps of its runs here."""


class Done:
    """A tutorial that was done in a copy of the program."""

    def __init__(self, page: str, folder: Path) -> None:
        self.folder = folder
        self.printed: list[str] = []
        self.summaries: list[dict] = []
        waiting: list[str] = []
        shown: list[str] = []
        for block in BLOCK.finditer((TUTORIALS / f"{page}.md").read_text()):
            if block["kind"] == "sh":
                waiting += [shorter(command, SHORTER[page]) for command in block["text"].splitlines()]
            elif block["kind"] == "text":
                shown += block["text"].splitlines()
            else:
                self._run(waiting, shown)
                if block["kind"] == "python":
                    (folder / block["path"]).write_text(block["text"])
                else:
                    apply_diff(folder, block["text"])
        self._run(waiting, shown)

    def _run(self, commands: list[str], shown: list[str]) -> None:
        """Run the commands that wait, and compare their output with the lines that the page shows for them."""
        if commands:
            self.printed += run(self.folder, *commands)
            self.summaries.append(json.loads((self.folder / "results" / "latest" / "summary.json").read_text()))
        lines = [same(line) for text in self.printed for line in text.splitlines()]
        for line in shown:
            assert any(printed.startswith(beginning(line)) for printed in lines), f"no line like {line!r}"
        commands.clear()
        shown.clear()

    def columns(self) -> list[str]:
        with (self.folder / "results" / "latest" / "metrics.csv").open(newline="") as file:
            return next(csv.reader(file))


def shorter(command: str, steps: int) -> str:
    if "--op_mode=train " in command:
        return f"{command} --environment_max_steps={steps}"
    return re.sub(r"--more_steps=\d+", "--more_steps=1000", command)


def same(line: str) -> str:
    """Return a line without what differs between folders."""
    return re.sub(r"\S*results/", "results/", " ".join(line.split()))


def beginning(line: str) -> str:
    """Return a line up to its first number, curve or reason of the machine."""
    return re.split(r"[\d▁-█]|(?<=Limited by)", same(line))[0]


@pytest.fixture(scope="module", params=sorted(SHORTER))
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Done]:
    return request.param, Done(request.param, copy_program(tmp_path_factory.mktemp(request.param), "tools"))


def test_every_tutorial_is_done() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == set(SHORTER)


def test_a_tutorial_can_be_done_and_shows_what_it_says(done: tuple[str, Done]) -> None:
    page, result = done
    text = (TUTORIALS / f"{page}.md").read_text()
    named = set(re.findall(r"`((?:charts|losses)/\w+)`", text))
    assert named
    assert named <= set(result.columns())
    {"first_run": first_run, "own_environment": own_environment, "own_agent": own_agent}[page](result)


def first_run(done: Done) -> None:
    latest = (done.folder / "results" / "latest").resolve()
    assert {"metrics.csv", "summary.json", "config.json", "log.txt", "checkpoints", "learning_curve.png"} <= {
        path.name for path in latest.iterdir()
    }
    assert done.summaries[-1]["steps"] >= SHORTER["first_run"] + 1000, "it was resumed"
    assert list(latest.glob("video_*.mp4"))


def own_environment(done: Done) -> None:
    wrong, right = done.summaries
    assert wrong["mean_return"] > 1.8, "more than a perfect walk"
    assert wrong["success_rate"] < 0.5
    assert right["mean_return"] < wrong["mean_return"]
    assert right["success_rate"] > 0.9


def own_agent(done: Done) -> None:
    assert "--entropy_floor" in done.printed[1]
    assert "--floor_weight" in done.printed[1]
