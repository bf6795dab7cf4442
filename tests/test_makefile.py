"""`make train` passes the preset and the flags of ARGS to the program. The other targets run the checks that they promise."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from unittest import mock

import pytest

import main
from learner.launch import Job
from tests.conftest import SLOW, pytest_collection_modifyitems
from tests.support import REPOSITORY


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def commands(target: str, *arguments: str) -> list[list[str]]:
    """Return the commands of `make TARGET ARGUMENTS`, each as a list of words. Nothing is run."""
    alone = {name: value for name, value in os.environ.items() if name not in ("ARGS", "PRESET", "MAKEFLAGS", "MAKELEVEL")}
    made = subprocess.run(
        ["make", "--dry-run", target, *arguments], cwd=REPOSITORY, env=alone, capture_output=True, text=True, check=True
    )
    return [shlex.split(line) for line in made.stdout.splitlines()]


def train_command(*arguments: str) -> list[str]:
    """Return the arguments that `make train ARGUMENTS` would give to main.py."""
    return commands("train", *arguments)[-1][2:]


def prepare(results: Path, *arguments: str) -> Job:
    return main.prepare(["main.py", *train_command(*arguments), "--nopreflight", f"--results_dir={results}"])


@pytest.mark.parametrize(
    ("arguments", "preset", "env"),
    [
        ([], "pong_fast", "PongNoFrameskip-v4"),
        (["ARGS=--seed=2"], "pong_fast", "PongNoFrameskip-v4"),
        (["ARGS=--env=PongNoFrameskip-v4 --seed=2"], "pong_fast", "PongNoFrameskip-v4"),
        (["ARGS=--env=Catch-v0"], "quick", "Catch-v0"),
        (["ARGS=--seed=2 --env Catch-v0"], "quick", "Catch-v0"),
        (["ARGS=--env=CartPole-v1"], "cartpole", "CartPole-v1"),
        (["ARGS=--env=LunarLander-v3"], "lunar_lander", "LunarLander-v3"),
        (["ARGS=--env=LunarLanderContinuous-v3"], "lunar_lander_continuous", "LunarLanderContinuous-v3"),
        (["ARGS=--env=MiniGrid-MemoryS9-v0"], "minigrid_memory", "MiniGrid-MemoryS9-v0"),
        (["ARGS=--env=Pendulum-v1"], "pendulum", "Pendulum-v1"),
        (["ARGS=--env=BreakoutNoFrameskip-v4"], "none", "BreakoutNoFrameskip-v4"),
        (["ARGS=--env=BreakoutNoFrameskip-v4 --preset=atari"], "atari", "BreakoutNoFrameskip-v4"),
        (["PRESET=quick"], "quick", "Catch-v0"),
        (["PRESET=atari", "ARGS=--env=BreakoutNoFrameskip-v4"], "atari", "BreakoutNoFrameskip-v4"),
        (["ARGS=--agent=ppo"], "none", "PongNoFrameskip-v4"),
        (["ARGS=--agent=dqn --env=CartPole-v1"], "none", "CartPole-v1"),
        (["ARGS=--env_id=CartPole-v1"], "none", "CartPole-v1"),
        (["ARGS=--preset=ppo_cartpole --resume_if_exists"], "ppo_cartpole", "CartPole-v1"),
        (["ARGS=--resume_if_exists"], "pong_fast", "PongNoFrameskip-v4"),
    ],
)
def test_a_game_gets_its_own_preset_or_none(tmp_path: Path, arguments: list[str], preset: str, env: str) -> None:
    config = prepare(tmp_path, *arguments).config
    assert (config.settings["preset"], config.env.env) == (preset, env)


def test_a_run_that_goes_on_keeps_its_settings(tmp_path: Path) -> None:
    for arguments in ("--op_mode=train_w_load", "--resume=latest", "--resume latest"):
        assert train_command(f"ARGS={arguments}") == arguments.split()
        with pytest.raises(ValueError, match="no run under"):
            prepare(tmp_path, f"ARGS={arguments}")


def test_quick_is_test_without_the_slow_tests() -> None:
    everything, quick = [command for command in commands("test") if command[0] != "make"], commands("quick")
    assert "pytest" in everything[-1]
    assert quick == [*everything[:-1], [*everything[-1], "-m", "not slow"]]


def test_arguments_reach_pytest() -> None:
    assert commands("fast", "ARGS=tests/agents -x")[-1][-2:] == ["tests/agents", "-x"]


def test_coverage_is_measured_in_the_packages_of_the_library() -> None:
    measured = {word.removeprefix("--cov=") for word in commands("coverage")[-1] if word.startswith("--cov=")}
    assert measured == {"wrappers", "replay", "agents", "serve", "workers", "learner", "springbok"}


def test_hooks_run_the_targets_lint_and_types() -> None:
    hooks = (REPOSITORY / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"entry: (.*)", hooks) == ["make lint", "make types"]
    assert re.findall(r"repo: (.*)", hooks) == ["local"]


@pytest.mark.parametrize("beginning", SLOW)
def test_every_entry_of_slow_names_tests(beginning: str) -> None:
    file, _, name = beginning.partition("::")
    found = [path for path in (REPOSITORY / "tests").rglob("test_*.py") if name_of(path).startswith(file)]
    assert any(f"def {name or 'test_'}" in path.read_text() for path in found)


@pytest.mark.parametrize(("name", "marks"), [(f"{SLOW[0]}::test_it", ["slow"]), ("tests/agents/test_losses.py::test_it", [])])
def test_a_test_is_marked_slow_by_its_name(name: str, marks: list[str]) -> None:
    item = mock.Mock(nodeid=name)
    pytest_collection_modifyitems([item])
    assert [call.args[0].name for call in item.add_marker.call_args_list] == marks


def test_github_runs_these_targets_and_nothing_else() -> None:
    workflow = (REPOSITORY / ".github" / "workflows" / "test.yml").read_text()
    assert re.findall(r"\brun: *(.*)", workflow) == ["make quick", "make test", "make coverage"]
