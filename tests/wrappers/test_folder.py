"""Environments that change the current folder do so for themselves alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.wrappers.environments import HERE
from wrappers import EnvConfig, VectorEnv, make_single_env, make_vector_env
from wrappers.folder import FolderEnv, in_own_folder
from wrappers.toys.catch import Catch


def config_of(folder: Path) -> EnvConfig:
    (folder / "level").touch()
    return EnvConfig(env=f"{HERE}:TestMoving-v1", env_args=json.dumps({"path": str(folder)}), frames_stacked=1)


@pytest.mark.parametrize("make", [make_single_env, lambda config: make_vector_env(config, 2)])
def test_an_environment_stays_in_its_folder_and_the_program_in_its_own(
    make: Callable[[EnvConfig], VectorEnv], tmp_path: Path
) -> None:
    own = os.getcwd()
    env = make(config_of(tmp_path))
    assert os.getcwd() == own
    env.reset(1)
    for _ in range(5):  # more than an episode, whose reset reads a file of that folder
        env.step(np.ones(env.num_envs, np.int64))
        assert os.getcwd() == own
    assert env.needs_close
    env.close()
    assert os.getcwd() == own


def test_the_reward_of_a_goal_is_that_of_the_environment_itself(tmp_path: Path) -> None:
    inner = make_single_env(EnvConfig(env="BitFlip8-v0", frames_stacked=1))
    assert inner.goal_function("compute_reward")
    assert FolderEnv(inner, str(tmp_path)).goal_function("compute_reward") == inner.goal_function("compute_reward")


def test_a_failure_leaves_the_program_in_its_own_folder(tmp_path: Path) -> None:
    own = os.getcwd()

    def fail() -> VectorEnv:
        os.chdir(tmp_path)
        raise ValueError("no licence")

    with pytest.raises(ValueError, match="no licence"):
        in_own_folder(fail)
    assert os.getcwd() == own
    env = make_vector_env(config_of(tmp_path), 1)
    (tmp_path / "level").unlink()
    with pytest.raises(FileNotFoundError):
        env.reset(1)
    assert os.getcwd() == own


def test_other_environments_are_as_they_are_also_in_a_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(make_vector_env(EnvConfig(env="Catch-v0"), 1), FolderEnv)
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert isinstance(make_vector_env(EnvConfig(env="Catch-v0"), 1), Catch)
