"""Ids of packages that register in different ways are found, and a line about another id names those that are registered."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gymnasium
import pytest

from tests.wrappers.environments import Counting
from wrappers import EnvConfig, make_spec
from wrappers.gymnasium_env import find, versions_of

REGISTERS = "import gymnasium, warnings\nwarnings.warn('noise')\ngymnasium.register('{}', '{}')\n"


def write_module(path: Path, env_id: str, entry: str = "gymnasium.envs.classic_control:CartPoleEnv") -> None:
    """Write a module that warns and registers an id."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(REGISTERS.format(env_id, entry))


def test_a_package_may_register_its_ids_in_envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path / "outer_registry" / "envs.py", "outer/Inner-v0")
    (tmp_path / "outer_registry" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert make_spec(EnvConfig("outer_registry:outer/Inner-v0", frames_stacked=1)).frame_shape == (4,)


@pytest.mark.parametrize("env", ["dm_control/cartpole-balance-v0", "GymV26Environment-v0"])
def test_ids_of_shimmy_need_no_module(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of this name stands for the package, whether that is installed or not."""
    write_module(tmp_path / "shimmy.py", env)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert make_spec(EnvConfig(env, frames_stacked=1)).frame_shape == (4,)


def test_an_unknown_id_is_answered_with_those_that_were_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path / "own_registry.py", "Known-v0", "gymnasium:Absent")
    (tmp_path / "no_registry.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for module, known in (("own_registry", "Known-v0"), ("no_registry", "no id of gymnasium")):
        with pytest.raises(ValueError, match=f"{module} registers, got 'Knwon-v0'; .* {known}$"):
            make_spec(EnvConfig(f"{module}:Knwon-v0"))
    for env in ("own_registry:Known", "own_registry:Known-v1"):
        with pytest.raises(ValueError, match=f"got '{env}'; its current id is own_registry:Known-v0$"):
            make_spec(EnvConfig(env))
    with pytest.raises(ValueError, match="^env: wanted a registered id, such as CartPole-v1, got 'CartPole-v1 '$"):
        make_spec(EnvConfig("CartPole-v1 "))


@pytest.mark.filterwarnings("error")
def test_an_import_warns_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path / "warning_registry.py", "Warning-v0")
    monkeypatch.syspath_prepend(tmp_path)
    assert find("warning_registry:Warning-v0").id == "Warning-v0"
    del gymnasium.registry["Warning-v0"]


def test_the_version_is_that_of_the_package_behind_a_partial_entry_point() -> None:
    gymnasium.register("Partial-v0", partial(Counting, length=2))
    assert find("Partial-v0").id == "Partial-v0"
    assert versions_of(gymnasium.registry.pop("Partial-v0")) == "tests"


def test_a_file_in_place_of_a_module_is_refused_with_the_form_that_is_wanted() -> None:
    with pytest.raises(ValueError, match=r"^env: wanted a module without .py .* my_env:MyEnv-v0, got 'own.py:Own-v3'$"):
        make_spec(EnvConfig(env="own.py:Own-v3"))
