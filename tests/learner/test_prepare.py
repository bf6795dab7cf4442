"""The stages of a command stand in one table, nothing is computed twice, and nothing is started or written."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from learner import launch, prepare
from learner.machine.costs import Costs
from tests.support import REPOSITORY, children_named

ROOMS = ("agents", "replay", "workers", "learner", "wrappers")
FAMILIES = REPOSITORY / "wrappers"
"""A family of environments makes the specs of its own."""


def calls(name: str) -> list[str]:
    """The places of the product that call a function, as paths."""
    files = [*REPOSITORY.glob("*.py"), *(path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py"))]
    found = []
    for path in files:
        if name not in (text := path.read_text()):
            continue  # parsing takes far longer
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
                found.append(path.relative_to(REPOSITORY).as_posix())
    return sorted(found)


def test_what_follows_from_the_settings_is_made_in_few_places() -> None:
    """Once `make_spec` was called from 34."""
    outside = [place for place in calls("make_spec") if not place.startswith("wrappers/")]
    assert outside == ["learner/plan.py", "learner/prepare.py", "learner/settings/config.py"]
    assert calls("NetworkConfig") == calls("TrajectoryContract") == calls("evaluation_protocol") == ["learner/plan.py"]
    assert calls("make_plan") == ["learner/machine/measuring.py", "learner/prepare.py"]  # with short trajectories; of the run
    assert calls("make_config") == ["learner/launch.py", "learner/prepare.py", "learner/prepare.py"]


def test_the_table_names_the_stages_in_their_order() -> None:
    named = re.findall(r"^\| `(\w+)` ", prepare.__doc__ or "", re.MULTILINE)
    defined = [
        name for name, value in vars(prepare).items() if inspect.isfunction(value) and value.__module__ == prepare.__name__
    ]
    assert named == [name for name in defined if name in named] == ["parse", "load", "fill_in", "fit", "check"]
    called = {node.id for node in ast.walk(ast.parse(inspect.getsource(prepare.prepare))) if isinstance(node, ast.Name)}
    assert set(named) <= called


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    """A list that grows with each call of a module's function."""
    made: list[str] = []
    function = getattr(module, name)

    def count(*arguments: Any, **options: Any) -> Any:
        made.append(name)
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, count)
    return made


def test_settings_are_fitted_once_before_the_measurement_and_once_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = counted(monkeypatch, prepare, "fit_to_machine"), counted(monkeypatch, launch, "fit_to_machine")
    specs, plans = counted(monkeypatch, prepare, "make_spec"), counted(monkeypatch, prepare, "make_plan")
    given = {"env": "Catch-v0", "agent": "dqn", "environment_max_steps": 1000, "results_dir": str(tmp_path)}
    job = launch.prepare("train", given, [])
    assert [note for note in job.notes if note.startswith("learning_starts=")]  # it changes after the settings were fitted
    assert (len(before), len(after), len(specs), len(plans)) == (1, 0, 1, 1)
    monkeypatch.setattr(launch, "wants_preflight", lambda *_: True)
    monkeypatch.setattr(launch, "measure_costs", lambda *_, **__: Costs(1e-4, 1e-4, 1e-4, 1e-4, frames_per_step=1))
    again = launch.measured(job)
    assert (len(before), len(after), len(specs), len(plans)) == (1, 1, 1, 1)
    assert again.plan.spec is job.plan.spec
    assert again.plan.contract is job.plan.contract


def test_nothing_is_started_or_written(tmp_path: Path) -> None:
    launch.prepare("train", {"env": "Catch-v0", "worker_kind": "cpu", "results_dir": str(tmp_path / "results")}, [])
    assert list(tmp_path.iterdir()) == []
    assert children_named("worker-0") == children_named("random play") == []
