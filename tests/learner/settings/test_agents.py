"""An agent's settings come from its dataclass alone, also those of an agent that is registered at run time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from absl import flags

import main
from agents import AGENTS, VTraceAgent, VTraceConfig
from learner import launch
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from learner.settings.check import find_setting
from learner.settings.help import help_text
from learner.settings.schema import default_settings, every_setting
from option_flags import define_flags, read_settings
from setting import Setting, listed
from tests.support import CATCH


@dataclass(frozen=True)
class WiderConfig(VTraceConfig):
    gamma: Annotated[float, Setting("Discount per step.", "a discount in [0, 2]", 0, 2)] = 1.5
    bonus_weight: Annotated[float, Setting("Weight of a bonus.", "a weight in [0, 9]", 0, 9)] = 0.25


class Wider(VTraceAgent):
    config_class = WiderConfig


@dataclass(frozen=True)
class BareConfig:
    lr: Annotated[float, Setting("Learning rate.")] = 0.5


class Bare(VTraceAgent):
    config_class = BareConfig


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AGENTS, "wider", Wider)
        patch.setitem(AGENTS, "bare", Bare)
        yield


def parsed(*arguments: str) -> dict[str, Any]:
    values = flags.FlagValues()
    define_flags(values)
    values(["main.py", *arguments])
    return read_settings(values)[0]


def prepared(folder: Path, mode: str = "train", **given: Any) -> launch.Job:
    return launch.prepare(mode, {"results_dir": str(folder), **(CATCH if mode == "train" else {}), **given}, [])


def test_one_field_is_a_flag_with_help_bounds_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("--agent=wider", "--bonus_weight=3") == {"agent": "wider", "bonus_weight": 3.0}
    assert default_settings("wider")["bonus_weight"] == 0.25
    assert "bonus_weight" not in default_settings("vtrace")
    with pytest.raises(ValueError, match=r"^bonus_weight: wanted a weight in \[0, 9\], got 10.0$"):
        find_setting("bonus_weight").check(10.0)
    assert main.main(["main.py", "--help", "--agent=wider"]) == 0
    assert "  --bonus_weight=0.25  Weight of a bonus. Wanted: a weight in [0, 9]." in capsys.readouterr().out
    assert "bonus_weight" not in help_text("vtrace")
    with pytest.raises(ValueError, match=f"^agent: wanted {listed((*sorted(AGENTS), 'FILE.py:CLASS'))}, got 'x'$"):
        help_text("x")


def test_a_name_that_agents_share_has_the_chosen_agent_s_default_and_bounds(tmp_path: Path) -> None:
    assert (default_settings("vtrace")["gamma"], default_settings("wider")["gamma"]) == (0.99, 1.5)
    assert prepared(tmp_path, agent="wider", gamma=1.75).config.agent_settings.gamma == 1.75
    assert prepared(tmp_path).config.agent_settings.gamma == 0.99
    with pytest.raises(ValueError, match=r"^gamma: wanted a discount in \[0, 1\], got 1.75$"):
        prepared(tmp_path, gamma=1.75)


@pytest.mark.parametrize("name", AGENTS)
def test_messages_name_an_agent_as_the_command_line_does(name: str) -> None:
    assert AGENTS[name].name() == name


def test_a_setting_that_the_agent_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^rho_bar: not a setting of agent bare; vtrace and wider take it$"):
        prepared(tmp_path, agent="bare", rho_bar=1.0)
    with pytest.raises(ValueError, match="^bonus_weight: not a setting of agent vtrace; wider takes it$"):
        prepared(tmp_path, bonus_weight=1.0)
    with pytest.raises(ValueError, match="^unknown setting 'bonus'$"):
        prepared(tmp_path, bonus=1.0)


def test_a_setting_that_the_environment_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^sticky_actions: not a setting of Catch-v0; atari environments take it$"):
        prepared(tmp_path, sticky_actions=0.25)


def test_a_name_that_every_run_has_is_refused() -> None:
    @dataclass(frozen=True)
    class Taken:
        seed: Annotated[int, Setting("Another seed.")] = 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bare, "config_class", Taken)
        with pytest.raises(ValueError, match="^seed: wanted another name for a setting of agent bare"):
            every_setting()


def test_its_settings_are_in_config_json_and_in_checkpoints_and_come_back(tmp_path: Path) -> None:
    job = prepared(tmp_path, agent="wider", bonus_weight=2.0, gamma=0.5, environment_max_steps=400)
    assert launch.run(job) == 0
    run = RunDirectory((tmp_path / "latest").resolve())
    assert json.loads(run.config.read_text())["settings"]["bonus_weight"] == 2.0
    assert load_checkpoint(run.checkpoint_paths()[-1]).settings["agent"] == "wider"
    resumed = prepared(tmp_path, "train_w_load", load=str(run.path), environment_max_steps=800)
    assert resumed.config.agent_settings == WiderConfig(bonus_weight=2.0, gamma=0.5)
    assert resumed.config.settings == {**job.config.settings, "environment_max_steps": 800, "load": str(run.path)}
