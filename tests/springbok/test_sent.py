"""A sent environment's module is kept by the run, which needs no other copy of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import springbok
from springbok.sent import send
from tests.support import run_main


def made() -> gymnasium.Env[np.ndarray, int]:
    """CartPole with actions that count from 5."""
    env = gymnasium.make("CartPole-v1")
    return gymnasium.wrappers.TransformAction(env, lambda action: action - 5, spaces.Discrete(2, start=5))


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """The id and the module of a sent environment. Afterwards nothing of it is left in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder := tmp_path / "sent").mkdir()
    name, variables = send(made, folder)
    monkeypatch.setenv("PYTHONPATH", variables["PYTHONPATH"])
    sys.path.append(str(folder))
    module = name.partition(":")[0]
    yield name, folder / f"{module}.py"
    sys.modules.pop(module, None)
    gymnasium.registry.pop("made-v0", None)


def test_a_run_of_a_sent_environment_is_resumed_tested_and_loaded_after_a_move(
    sent: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, module = sent
    small = ("--worker_kind=serial", "--envs_per_worker=2", "--learner_threads=1", f"--results_dir={tmp_path / 'r'}")
    trained = run_main("--op_mode=train", "--agent=ppo", f"--env={name}", "--environment_max_steps=400", *small)
    assert trained.returncode == 0, trained.stderr
    run = (tmp_path / "r" / "latest").resolve().rename(tmp_path / "moved")
    assert (run / module.name).read_text() == module.read_text()
    module.unlink()
    sys.modules.pop(module.stem)
    monkeypatch.delenv("PYTHONPATH")
    sys.path.remove(str(module.parent))
    resumed = run_main(f"--resume={run}", "--more_steps=200", *small[-2:])
    assert resumed.returncode == 0, resumed.stderr
    action, _ = springbok.load(run).act(np.zeros(4, np.float32))
    assert action in (5, 6)


def test_what_cannot_be_sent_is_refused_in_one_line(tmp_path: Path) -> None:
    generator = (number for number in range(3))
    with pytest.raises(springbok.Refused, match=r"^env: wanted a class or function that cloudpickle can send, got .*generator"):
        send(lambda: next(generator), tmp_path)
    assert not list(tmp_path.iterdir())
