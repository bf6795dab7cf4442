"""The command line says what the declared settings say: names, types, defaults, and one line for what is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from absl import flags

import main
from agents import AGENTS
from learner import launch
from learner.settings.other_names import RENAMED
from learner.settings.schema import APP_FLAGS, DEFAULTS, SHARED, every_setting, table_of
from learner.settings.tuning import TUNING
from option_flags import define_flags, op_mode, read_settings
from setting import AUTO, MODES, TOOL_MODES, TUNE, listed
from tests.support import REPOSITORY, run_main

TABLE = table_of("vtrace")
SWITCHES = sorted(name for name, field in TABLE.items() if field.type is bool)
CHOICES = sorted(name for name, field in TABLE.items() if field.choices())


def parse(*arguments: str) -> flags.FlagValues:
    values = flags.FlagValues()
    define_flags(values)
    assert values(["main.py", *arguments]) == ["main.py"]
    return values


def given(*arguments: str) -> dict[str, Any]:
    return read_settings(parse(*arguments))[0]


def refused(*arguments: str) -> str:
    """The line with which these arguments are refused."""
    with pytest.raises((flags.Error, ValueError)) as caught:
        given(*arguments)
    line = str(caught.value)
    assert line.splitlines() == [line]
    return line


def test_nothing_is_given_without_arguments() -> None:
    values = parse()
    assert read_settings(values)[0] == {}
    assert op_mode(values) == "train"


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_are_written_in_four_ways(name: str) -> None:
    for text, value in ((f"--{name}", True), (f"--{name}=True", True), (f"--{name}=false", False), (f"--no{name}", False)):
        settings = given(text)
        assert settings == {name: value}
        assert isinstance(settings[name], bool)


def test_a_switch_takes_no_other_word() -> None:
    assert refused("--render=yes") == "render: wanted true or false, got 'yes'"


@pytest.mark.parametrize(
    ("argument", "name", "value"),
    [
        ("--environment_max_steps=1000", "environment_max_steps", 1000),
        ("--lr=1", "lr", 1.0),
        ("--lr=3e-4", "lr", 3e-4),
        ("--worker_count=3", "worker_count", 3),
        ("--worker_count=auto", "worker_count", AUTO),
        ("--batch_size=128", "batch_size", 128),
        ("--device=cpu", "device", "cpu"),
        ("--env=ALE/Breakout-v5", "env", "ALE/Breakout-v5"),
        ("--frame_scale_resolution=42,42", "frame_scale_resolution", "42,42"),
        ("-seed=5", "seed", 5),
    ],
)
def test_a_given_value_has_its_setting_s_type(argument: str, name: str, value: Any) -> None:
    settings = given(argument)
    assert settings == {name: value}
    assert type(settings[name]) is type(value)


def test_value_may_follow_its_flag() -> None:
    assert given("--unroll_length", "7", "--render", "--seed", "3") == {"unroll_length": 7, "render": True, "seed": 3}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_that_is_given_counts_as_given(name: str) -> None:
    assert given(f"--{name}={DEFAULTS[name]}") == {name: DEFAULTS[name]}


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_sets_the_setting_that_it_names_now(old: str) -> None:
    field = every_setting()[RENAMED[old]]
    value = (
        field.choices()[0] if field.choices() else field.parse({bool: "false", int: "7", float: "0.5", str: "x"}[field.type])
    )
    assert given(f"--{old}={value}") == {field.name: value}
    if field.type is bool:
        assert given(f"--no{old}") == {field.name: False}


def test_an_old_name_may_stand_beside_the_new_one_with_the_same_value() -> None:
    assert given("--r_f_steps=7", "--unroll_length=07") == {"unroll_length": 7}
    line = refused("--r_f_steps=7", "--unroll_length=8")
    assert line == "unroll_length: wanted one value, got 8 and, under the name r_f_steps, 7"


def test_a_bad_value_under_an_old_name_is_refused_under_the_new_one() -> None:
    assert refused("--r_f_steps=0").startswith("unroll_length: wanted a whole number of steps >= 1, got 0")


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_accepted(name: str) -> None:
    for choice in TABLE[name].choices():
        assert given(f"--{name}={choice}") == {name: choice}


@pytest.mark.parametrize("name", sorted(set(CHOICES) & set(SHARED)))
def test_words_that_are_no_choice_are_refused(name: str) -> None:
    assert refused(f"--{name}=other").startswith(f"{name}: wanted {TABLE[name].wanted()}, got 'other'")


@pytest.mark.parametrize("mode", [*MODES, TUNE, *TOOL_MODES])
def test_the_modes_are_known(mode: str) -> None:
    assert op_mode(parse(f"--op_mode={mode}")) == mode
    assert (*MODES, TUNE, *TOOL_MODES) == ("train", "train_w_load", "test", "export", "serve", "tune", "list", "new")
    with pytest.raises(ValueError, match="^op_mode: wanted .*, serve, tune, list or new, got 'play'$"):
        op_mode(parse("--op_mode=play"))


@pytest.mark.parametrize(
    "argument",
    [
        "--unroll_length=2.5",
        "--unroll_length=",
        "--worker_count=1.5",
        "--worker_count=-3",
        "--worker_count=--3",
        "--worker_count=²",
        "--worker_count=all",
        f"--worker_count={'9' * 5000}",
        "--env=",
        "--results_dir=",
        "--frame_scale_resolution=84",
        "--replay_parameters=[]",
        "--replay_parameters=" + "[" * 50_000,
        '--replay_parameters=[{"type": "queue", "capacity": 0, "sample_ratio": 1}]',
        "--c_constant=1.0",
        "--seed",
    ],
)
def test_bad_input_is_one_line(argument: str) -> None:
    assert refused(argument)


def test_flags_can_be_defined_anew_and_stay_apart() -> None:
    first, second = given("--seed=3"), given("--seed=4")
    assert (first["seed"], second["seed"], given()) == (3, 4, {})
    assert "seed" not in flags.FLAGS


def test_importing_and_parsing_touch_nothing(tmp_path: Path) -> None:
    """No file, no flag in absl's global table, no thread setting."""
    program = (
        "import torch; threads = torch.get_num_threads(); state = torch.get_rng_state()\n"
        "from absl import flags; before = set(flags.FLAGS)\n"
        "import option_flags; values = flags.FlagValues(); option_flags.define_flags(values)\n"
        "values(['main.py', '--env=Pong-v0', '--reproducible', '--learner_threads=3'])\n"
        "option_flags.read_settings(values)[0]\n"
        "assert set(flags.FLAGS) == before\n"
        "assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)\n"
        "assert not torch.are_deterministic_algorithms_enabled()\n"
    )
    command = [sys.executable, "-B", "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_help_shows_every_flag_once() -> None:
    done = run_main("--help")
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.findall(r"^  --(?:\[no\])?(\w+)=", done.stdout, re.MULTILINE)
    assert sorted(shown) == sorted([*DEFAULTS, *APP_FLAGS, *TUNING, "op_mode"])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--trials=3",), "trials: wanted --op_mode=tune with it, got train"),
        (("--app=a",), "app: wanted --op_mode=new with it, got train"),
        (("--op_mode=test", "--template=agent"), "template: wanted --op_mode=new with it, got test"),
        (("--op_mode=list", "--lr=1"), "lr: not a flag of --op_mode=list, got '1'"),
        (("--op_mode=list", "--app=a"), "app: not a flag of --op_mode=list, got 'a'"),
        (("--op_mode=new", "--app=a", "--template=agent", "--render"), "render: not a flag of --op_mode=new, got 'true'"),
    ],
)
def test_flags_of_another_mode_are_refused(arguments: tuple[str, ...], line: str) -> None:
    done = run_main(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {line}\n")


def test_help_of_an_agent_that_is_not_there_is_refused() -> None:
    done = run_main("--help", "--agent=other")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: agent: wanted {listed((*sorted(AGENTS), 'FILE.py:CLASS'))}, got 'other'\n"


def test_a_pipe_of_flags_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"--seed=3\n--agent=dqn\n")
    os.close(writer)
    monkeypatch.setattr(launch, "prepare", lambda mode, given, *_: given)
    assert main.prepare(["main.py", f"--flagfile=/dev/fd/{reader}"]) == {"seed": 3, "agent": "dqn"}
    os.close(reader)
