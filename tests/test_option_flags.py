"""The command line says what the table of settings says: the same names, defaults, bounds and one line for what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from absl import flags

from learner.settings.config import AUTO, BOUNDS, CHOICES, DEFAULTS
from option_flags import ALIASES, HELP, OP_MODES, all_settings, define_flags, given_settings
from tests.support import REPOSITORY, run_program

SWITCHES = sorted(name for name, default in DEFAULTS.items() if isinstance(default, bool))


def parse(*arguments: str) -> flags.FlagValues:
    values = flags.FlagValues()
    define_flags(values)
    assert values(["main.py", *arguments]) == ["main.py"]
    return values


def refused(*arguments: str) -> str:
    """The line with which these arguments are refused."""
    with pytest.raises(flags.Error) as caught:
        parse(*arguments)
    line = str(caught.value)
    assert line.splitlines() == [line]
    return line


def test_defaults_are_those_of_the_settings() -> None:
    values = parse()
    assert all_settings(values) == DEFAULTS
    assert given_settings(values) == {}
    assert values.op_mode == "train"


def test_every_setting_has_help_and_nothing_else_has() -> None:
    assert list(HELP) == list(DEFAULTS)
    values = parse()
    for name in [*DEFAULTS, "op_mode"]:
        text = values[name].help.split(">: ")[-1]  # absl puts the choices in front
        assert len(text.split()) >= 2, name
        assert text[0].isupper(), name
        assert text.rstrip(")").endswith("."), name


@pytest.mark.parametrize("name", BOUNDS)
def test_help_says_what_is_wanted(name: str) -> None:
    assert f"Wanted: {BOUNDS[name][0]}." in parse()[name].help


@pytest.mark.parametrize("name", CHOICES)
def test_help_says_what_there_is_to_choose_from(name: str) -> None:
    assert f"<{'|'.join(CHOICES[name])}>" in parse()[name].help


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_are_written_in_four_ways(name: str) -> None:
    for text, value in ((f"--{name}", True), (f"--{name}=True", True), (f"--{name}=false", False), (f"--no{name}", False)):
        settings = given_settings(parse(text))
        assert settings == {name: value}
        assert isinstance(settings[name], bool)


def test_a_switch_takes_no_other_word() -> None:
    assert refused("--render=yes") == "flag --render=yes: render: wanted true or false, got 'yes'"


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [("--unroll_length=x", "a whole number of steps >= 1"), ("--r_f_steps=x", "a whole number of steps >= 1")]
    + [("--unroll_length=1.5", "a whole number of steps >= 1"), ("--lr=x", "a learning rate in [0, 10]")],
)
def test_what_is_no_number_is_told_what_was_wanted(argument: str, wanted: str) -> None:
    assert refused(argument).endswith(f": wanted {wanted}, got {argument.split('=')[1]!r}")


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
    values = parse(argument)
    settings = given_settings(values)
    assert settings == {name: value}
    assert type(settings[name]) is type(value)
    assert all_settings(values) == {**DEFAULTS, name: value}


def test_value_may_follow_its_flag() -> None:
    assert given_settings(parse("--unroll_length", "7", "--render", "--seed", "3")) == {
        "unroll_length": 7,
        "render": True,
        "seed": 3,
    }


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_that_is_given_counts_as_given(name: str) -> None:
    assert given_settings(parse(f"--{name}={DEFAULTS[name]}")) == {name: DEFAULTS[name]}


def test_the_alias_is_the_unroll_length() -> None:
    assert ALIASES == {"r_f_steps": "unroll_length"}
    values = parse("--r_f_steps=7")
    assert given_settings(values) == {"unroll_length": 7}
    assert all_settings(values)["unroll_length"] == values.r_f_steps == values.unroll_length == 7
    assert parse("--unroll_length=9").r_f_steps == 9
    assert "unroll_length: wanted a whole number of steps >= 1, got 0" in refused("--r_f_steps=0")


@pytest.mark.parametrize("name", BOUNDS)
def test_values_outside_their_bounds_are_refused(name: str) -> None:
    wanted, low, high = BOUNDS[name]
    whole = not isinstance(DEFAULTS[name], float)
    for value in (int(low) - 1, int(high) + 1) if whole else (low - 1, 2 * high):
        assert f"{name}: wanted {wanted}" in refused(f"--{name}={value}")


@pytest.mark.parametrize("name", CHOICES)
def test_words_that_are_no_choice_are_refused(name: str) -> None:
    for choice in CHOICES[name]:
        assert all_settings(parse(f"--{name}={choice}"))[name] == choice
    assert all(choice in refused(f"--{name}=other") for choice in CHOICES[name])


@pytest.mark.parametrize("mode", OP_MODES)
def test_modes_are_four(mode: str) -> None:
    assert parse(f"--op_mode={mode}").op_mode == mode
    assert OP_MODES == ("train", "train_w_load", "test", "export")
    assert "train|train_w_load|test|export" in refused("--op_mode=play")


@pytest.mark.parametrize(
    "argument",
    [
        "--lr=nan",
        "--lr=inf",
        "--lr=fast",
        "--unroll_length=2.5",
        "--unroll_length=",
        "--worker_count=1.5",
        "--worker_count=-3",
        "--worker_count=--3",
        "--worker_count=²",
        "--worker_count=all",
        "--env=",
        "--results_dir=",
        "--frame_scale_resolution=84",
        "--replay_parameters=[]",
        "--replay_parameters=" + "[" * 50_000,
        '--replay_parameters=[{"type": "queue", "capacity": 0, "sample_ratio": 1}]',
        "--c_const=1.0",
        "--seed",
    ],
)
def test_bad_input_is_one_line(argument: str) -> None:
    assert refused(argument)


def test_a_number_that_is_none_is_told_what_was_wanted() -> None:
    for text in ("²", "--3", "1.5", "9" * 5000):
        assert "worker_count: wanted auto or a whole number of processes >= 1, got" in refused(f"--worker_count={text}")


def test_flags_can_be_defined_anew_and_stay_apart() -> None:
    first, second = parse("--seed=3"), parse("--seed=4")
    assert (first.seed, second.seed, parse().seed) == (3, 4, 1)
    assert "seed" not in flags.FLAGS


def test_importing_and_parsing_touch_nothing(tmp_path: Path) -> None:
    """No file, no flag in absl's global table, no thread setting."""
    program = (
        "import torch; threads = torch.get_num_threads(); state = torch.get_rng_state()\n"
        "from absl import flags; before = set(flags.FLAGS)\n"
        "import option_flags; values = flags.FlagValues(); option_flags.define_flags(values)\n"
        "values(['main.py', '--env=Pong-v0', '--reproducible', '--learner_threads=3'])\n"
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


def test_help_shows_every_flag() -> None:
    done = run_program("--help")
    assert done.returncode in (0, 1)
    for name in [*DEFAULTS, *ALIASES, "op_mode"]:
        assert f"--{name}:" in done.stdout or f"--[no]{name}:" in done.stdout, name
    assert "Traceback" not in done.stdout + done.stderr
