"""The command line: a flag for every setting that is declared.

`define_flags` registers them; nothing happens at import. Only this file and main.py see flags. A flag holds text until
`read_settings` turns it into the setting's type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from absl import flags

from agents import AGENTS
from learner.runs.directory import find_checkpoints, run_of_checkpoint
from learner.settings.check import check_given
from learner.settings.declarations import DEFAULT_AGENT
from learner.settings.help import describe
from learner.settings.other_names import FOREIGN, RENAMED, RESUME, rename_replays, rename_settings, translate
from learner.settings.presets import apply_preset
from learner.settings.schema import APP_FLAGS, DEFAULTS, SHARED, Settings, agent_of, every_setting
from learner.settings.tuning import TUNING, TuningConfig
from setting import MODES, TOOL_MODES, TUNE, listed

OP_MODE = "op_mode"
FLAGFILE = ("--flagfile", "-flagfile")
NAMING_AGENTS = ("agent", "preset", "load", "results_dir")
"""Settings that say, with the mode, which agent a command is about."""
FLAG = re.compile(r"(--?)([^=-][^=]*)(=.*)?", re.DOTALL)


def named_agent(command: Sequence[str]) -> str:
    """The agent that the command, its preset or the run that it loads names. Its settings are flags of the command.

    command: as `with_files` returns it.

    A checkpoint outside a run directory, or in a store, is not read. Raises flags.Error or ValueError with one line.
    """
    values = flags.FlagValues()
    for name in (OP_MODE, *NAMING_AGENTS, *(other for other, name in RENAMED.items() if name in NAMING_AGENTS)):
        _define(values, name, "", switch=False)
    values.set_gnu_getopt(True)  # the values of other flags may be arguments of their own
    values(_spelt(values, command), known_only=True)
    given = apply_preset(rename_settings({name: values[name].value for name in values if values[name].present}))
    if "agent" in given or op_mode(values) in (MODES[0], TUNE, *TOOL_MODES):
        return agent_of(given)
    load, results = (str(given.get(name, DEFAULTS[name])) for name in ("load", "results_dir"))
    try:
        run = run_of_checkpoint(find_checkpoints(load, Path(results))[0])
        SHARED["agent"].check(agent := agent_of(run.settings if run else {}))
    except ValueError:
        return DEFAULT_AGENT  # loading the checkpoint says what is wrong
    return agent


def define_flags(values: flags.FlagValues, agent: str = DEFAULT_AGENT) -> None:
    """Register every flag in `values`, under the names that settings have and those that they have elsewhere.

    agent: the command's, whose settings are flags too if it is a class of the user's.
    """
    _define(values, OP_MODE, "What to do: train, train_w_load (resume), test, export, tune, list or new.", switch=False)
    for name, text in APP_FLAGS.items():
        _define(values, name, text, switch=False)
    for name, field in TUNING.items():
        _define(values, name, describe(field), switch=field.type is bool)
    table = every_setting(agent)
    for name, field in table.items():
        _define(values, name, describe(field), switch=field.type is bool)
    for other, name in RENAMED.items():
        _define(values, other, f"Other name of --{name}.", switch=table[name].type is bool)
    for name, field in FOREIGN.items():
        _define(values, name, field.setting.help, switch=field.type is bool)


def _define(values: flags.FlagValues, name: str, text: str, *, switch: bool) -> None:
    flag: flags.Flag[Any] = flags.Flag(flags.ArgumentParser(), None, name, None, text, boolean=switch)
    flags.DEFINE_flag(flag, values)


def parse(values: flags.FlagValues, command: Sequence[str]) -> None:
    """Parse the command, as `with_files` returns it, into `values`. Raises flags.Error or ValueError with one line."""
    if rest := values(_spelt(values, command))[1:]:
        raise ValueError(f"wanted flags such as --op_mode=train, got {rest[0]!r}")


def with_files(command: Sequence[str]) -> list[str]:
    """The command with the flags of files in place of `--flagfile`. Raises ValueError with one line.

    A file may be a pipe, so each is read once.
    """
    files = flag_files(command)
    if devices := list(filter(is_device, files)):
        raise ValueError(f"flagfile: wanted a file of flags, got the device {devices[0]!r}")
    try:
        return [command[0], *flags.FlagValues().read_flags_from_files(command[1:], force_gnu=True)]
    except UnicodeDecodeError as error:
        raise ValueError(f"flagfile: wanted a file of flags in UTF-8, got {' and '.join(files)} ({error.reason})") from None
    except flags.CantOpenFlagFileError as error:
        cause = error.__context__
        assert isinstance(cause, OSError)
        raise ValueError(f"flagfile: wanted a file of flags, got {cause.filename!r} ({cause.strerror})") from None


def _spelt(values: flags.FlagValues, command: Sequence[str]) -> list[str]:
    """The command as `values` reads it.

    As in argparse, dashes in a flag's name are underscores, and the value of a switch may be an argument of its own.
    """
    rest, spelt = list(command[1:]), [command[0]]
    switches = {name: values[name].boolean for name in values}
    while rest:
        argument, *rest = rest
        match = FLAG.fullmatch(argument)
        name = match[2].replace("-", "_") if match else ""
        if not match or not {name, name.removeprefix("no")} & switches.keys():
            spelt.append(argument)
            continue
        value = match[3] or ""
        if not value and rest and name in switches and not (switches[name] and rest[0].startswith("-")):
            value, rest = f"={rest[0]}", rest[1:]
        spelt.append(f"--{name}{value}")
    return spelt


def flag_files(command: Sequence[str]) -> list[str]:
    """The files of flags that a command names."""
    named = [following for flag, following in pairwise(command) if flag in FLAGFILE]
    return named + [part.split("=", 1)[1] for part in command if part.startswith(tuple(f"{flag}=" for flag in FLAGFILE))]


def is_device(name: str) -> bool:
    """Whether a file is a device. Some have no end."""
    try:
        return Path(name).is_char_device()
    except OSError:
        return False


def op_mode(values: flags.FlagValues) -> str:
    """The mode of the command, one of `MODES`, `TUNE` or `TOOL_MODES`. Raises ValueError for any other."""
    mode, resumes = values[OP_MODE].value, values[RESUME].present
    if mode is None:
        mode = "train_w_load" if resumes else MODES[0]
    if mode not in (known := (*MODES, TUNE, *TOOL_MODES)):
        raise ValueError(f"{OP_MODE}: wanted {listed(known)}, got {mode!r}")
    if resumes and mode != "train_w_load":
        raise ValueError(f"{OP_MODE}: wanted train_w_load with --{RESUME}, got {mode}")
    return mode


def app_flags(values: flags.FlagValues) -> dict[str, str]:
    """The flags of `--op_mode=list` or `new` that the command gives. Raises ValueError for any other flag."""
    mode = op_mode(values)
    given = {name: str(values[name].value) for name in values if values[name].present and name != OP_MODE}
    for name in given:
        if mode != "new" or name not in (*APP_FLAGS, "agent"):
            raise ValueError(f"{name}: not a flag of --op_mode={mode}, got {given[name]!r}")
    return given


def tuning_flags(values: flags.FlagValues) -> TuningConfig:
    """The settings of `--op_mode=tune`. Raises ValueError."""
    read = {name: field.parse(str(values[name].value)) for name, field in TUNING.items() if values[name].present}
    return TuningConfig(**{name: field.default for name, field in TUNING.items()} | read)


def read_settings(values: flags.FlagValues, agent: str = DEFAULT_AGENT) -> tuple[Settings, list[str]]:
    """The settings that the command line gives, under the names they have here, and a line for each part without effect.

    agent: the command's. If it is a class of the user's, the settings name it, so that they are known to be its own. Raises
    ValueError.
    """
    if app := [name for name in APP_FLAGS if values[name].present]:
        raise ValueError(f"{app[0]}: wanted --op_mode=new with it, got {op_mode(values)}")
    if op_mode(values) != TUNE and (tuning := [name for name in TUNING if values[name].present]):
        raise ValueError(f"{tuning[0]}: wanted --op_mode={TUNE} with it, got {op_mode(values)}")
    table = every_setting(agent)
    fields = {**table, **{other: table[name] for other, name in RENAMED.items()}, **FOREIGN}
    read = {name: field.parse(str(values[name].value)) for name, field in fields.items() if values[name].present}
    foreign = {name: value for name, value in read.items() if name in FOREIGN}
    replays = rename_replays(str(read.get("replay_parameters", "")))[1]
    given, notes = translate(foreign, rename_settings({name: read[name] for name in read if name not in foreign}))
    given |= {"agent": agent} if agent not in AGENTS else {}
    check_given(given)
    return given, notes + replays
