"""Runs of the program: training, resuming, metrics and evaluations."""

from __future__ import annotations

import csv
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from springbok import process
from springbok.sent import send

Environment = str | Callable[..., Any]
"""An id, or a class or function that makes an environment of Gymnasium."""
PROGRESS_PERIOD = 5
"""Seconds between two lines of progress, because a notebook and a Python prompt have no line that changes."""


class Metrics(Mapping[str, np.ndarray]):
    """The metrics of a run: name -> float64 `[rows]`, NaN where a row has no such number.

    `learner/metrics/writer.py` explains the names.
    """

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Metrics({', '.join(self)})"

    @property
    def last(self) -> dict[str, float]:
        """The numbers of the last row; empty if there is no row."""
        cells = {name: float(column[-1]) for name, column in self.items() if len(column)}
        return {name: cell for name, cell in cells.items() if not np.isnan(cell)}

    def to_pandas(self) -> Any:
        """A DataFrame with a column for each name. Raises ImportError without the package pandas."""
        import pandas

        return pandas.DataFrame(dict(self))


@dataclass(frozen=True)
class Evaluation:
    """The result of whole episodes under a protocol.

    Args:
        mean_return: mean raw return.
        returns: float64 `[episodes]`, the raw return of each.
        protocol: how the episodes were played.
        content: everything in the file of the result.
        path: that file.
    """

    mean_return: float
    returns: np.ndarray
    protocol: dict[str, Any]
    content: dict[str, Any]
    path: Path

    def __repr__(self) -> str:
        return f"Evaluation(mean_return={self.mean_return:.2f}, episodes={len(self.returns)}, path={str(self.path)!r})"


class Run:
    """A run directory, such as `Run("results/latest")`. Raises Refused if there is none.

    path: the directory, as an absolute path.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not (self.path / "config.json").is_file():
            raise process.Refused(f"path: wanted a run directory, such as results/latest, got {str(path)!r}")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of the run's newest command."""
        return dict(_read(self.path / "config.json")["settings"])

    @property
    def summary(self) -> dict[str, Any]:
        """The summary that the run wrote at its end; empty before it."""
        path = self.path / "summary.json"
        return _read(path) if path.is_file() else {}

    @property
    def metrics(self) -> Metrics:
        """The rows of metrics so far; they are read anew at each use."""
        path = self.path / "metrics.csv"
        if not path.is_file():
            return Metrics({})
        with path.open(newline="") as file:
            names = next(csv.reader(file), [])
            whole = [line for line in file if line.endswith("\n")]  # the program may be writing the last one
        table = np.genfromtxt(whole, delimiter=",", ndmin=2) if whole else np.empty((0, len(names)))
        return Metrics(dict(zip(names, table.T, strict=True)))

    def resume(self, more_steps: int = 0, **settings: Any) -> Run:
        """Resume the run where it was saved, and return it; a new one with `resume_in="new"`.

        Args:
            more_steps: steps to train beyond the newest checkpoint; 0: to the end that the run had.
            settings: flags of the program by name.

        Raises Refused or Failed.
        """
        more = {"more_steps": more_steps} if more_steps else {}
        return _trained("train_w_load", {"load": self.path, **more, **settings})

    def evaluate(self, episodes: int = 100, **settings: Any) -> Evaluation:
        """Play whole episodes with the newest checkpoint, and return their result.

        settings: flags of the program by name, such as `greedy=True`. Raises Refused or Failed.
        """
        if "estimate_from" in settings:
            raise process.Refused(
                "estimate_from: wanted episodes that are played, got an estimate, which the command line gives"
            )
        given = {"load": self.path, "test_episode_count": episodes, **settings}
        path = Path(commanded("test", given, r"Results: (.+)"))
        content = _read(path)
        returns = np.array([episode["return"] for episode in content["episodes"]])
        return Evaluation(float(returns.mean()), returns, content["protocol"], content, path)


def train(
    env: Environment | None = None, agent: str | None = None, environment_max_steps: int | None = None, **settings: Any
) -> Run:
    """Train in a process of its own until the run has ended, and return it. The program's lines are printed.

    A KeyboardInterrupt, such as the interrupt of a notebook's kernel, is Ctrl-C for the run: it finishes the update and saves,
    and then the exception is raised here.

    Args:
        env: an id, or a class or function without arguments that makes an environment of Gymnasium. Such a class or function
            may be defined in a notebook. The run directory keeps it, so the run can be resumed.
        agent: name of an agent, or `FILE.py:CLASS`.
        environment_max_steps: steps of the run.
        settings: all other flags of the program by name, such as `preset="quick"`, `lr=3e-4` or `reproducible=True`.

    A setting that is not given has the program's default, or that of the preset. Raises Refused with the program's line for bad
    settings, and Failed if the run fails.
    """
    named = {"env": env, "agent": agent, "environment_max_steps": environment_max_steps}
    given = {**{name: value for name, value in named.items() if value is not None}, **settings}
    if env is None or isinstance(env, str):
        return _trained("train", given)
    with tempfile.TemporaryDirectory(prefix="springbok_") as folder:
        given["env"], variables = send(env, Path(folder))
        return _trained("train", given, variables)


def _trained(mode: str, settings: Mapping[str, Any], variables: Mapping[str, str] | None = None) -> Run:
    given = {"progress_period": PROGRESS_PERIOD, **settings}
    return Run(commanded(mode, given, r".*?Run directory: (.+)", variables))


def commanded(mode: str, settings: Mapping[str, Any], wanted: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a command of the program. Returns the part of a line of its output that the pattern `wanted` names.

    With a verbosity of 0 nothing is shown. Raises Refused or Failed.
    """
    found: list[str] = []
    settings = dict(settings)
    silent = not settings.get("verbosity", settings.pop("basic_verbose", True))

    def show(line: str) -> None:
        found.extend(re.findall(f"^{wanted}$", line))
        if not silent:
            print(line, flush=True)

    # A preset may be silent too, and the line that is wanted has to be printed.
    process.run(mode, {**settings, "verbosity": settings.get("verbosity") or 1}, show, variables)
    return str(Path(found[-1]).resolve())


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content
