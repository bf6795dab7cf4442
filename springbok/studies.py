"""Studies: searches of settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from springbok import process
from springbok.runs import commanded


class Study:
    """The folder of a search, such as `Study("results/tune_CartPole-v1_ppo")`. Raises Refused if there is none.

    path: the folder, as an absolute path. page: its report.html. preset: the preset with the best settings.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not (self.path / "study.json").is_file():
            raise process.Refused(
                f"path: wanted the folder of a study, such as results/tune_CartPole-v1_ppo, got {str(path)!r}"
            )
        self.page, self.preset = self.path / "report.html", self.path / "best.json"

    def __repr__(self) -> str:
        return f"Study({str(self.path)!r})"

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The trials that have begun: number, settings, state, score, reason and curve of each."""
        path = self.path / "trials.json"
        found: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
        return found

    @property
    def best(self) -> dict[str, Any] | None:
        """The complete trial with the highest score; None before one is complete."""
        complete = [trial for trial in self.trials if trial["state"] == "complete"]
        return max(complete, key=lambda trial: float(trial["score"]), default=None)


def tune(
    env: str | None = None,
    agent: str | None = None,
    environment_max_steps: int | None = None,
    *,
    search: Sequence[str] = (),
    **settings: Any,
) -> Study:
    """Search settings in processes of their own, and return the study. The same call continues a search that was interrupted.

    Args:
        env: id of an environment.
        agent: name of an agent, or `FILE.py:CLASS`.
        environment_max_steps: steps of each run.
        search: settings to search, such as `["lr=1e-5..1e-2", "gamma=0.9:0.99"]`; empty for the usual ones of the agent.
        settings: all other flags of the program by name, such as `trials=20` or `preset="quick"`.

    `study.preset` is a value for `preset=`. Raises Refused or Failed.
    """
    named = {"env": env, "agent": agent, "environment_max_steps": environment_max_steps, "tune": ",".join(search) or None}
    given = {**{name: value for name, value in named.items() if value is not None}, **settings}
    return Study(commanded("tune", given, r"Study: (.+)"))
