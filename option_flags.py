"""The command line: a flag for every setting that is declared.

`define_flags` registers them; nothing happens at import. Only this file and main.py see flags. A flag holds text until
`given_settings` turns it into the setting's type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from learner.settings.check import check_given
from learner.settings.help import describe
from learner.settings.other_names import FOREIGN, RENAMED, RESUME, rename_replays, rename_settings, translate
from learner.settings.schema import Settings, every_setting
from setting import MODES, listed

OP_MODE = "op_mode"
FLAGFILE = ("--flagfile", "-flagfile")
FLAG = re.compile(r"(--?)([^=-][^=]*)(=.*)?", re.DOTALL)


def define_flags(values: flags.FlagValues) -> None:
    """Register every flag in `values`, under the names that settings have and those that they have elsewhere."""
    _define(values, OP_MODE, "What to do: train, train_w_load (resume), test or export.", switch=False)
    table = every_setting()
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
    """Parse the command into `values`. Raises flags.Error or ValueError with one line.

    As in argparse, dashes in a flag's name are underscores, and the value of a switch may be an argument of its own.
    """
    files = flag_files(command)
    if devices := list(filter(is_device, files)):
        raise ValueError(f"flagfile: wanted a file of flags, got the device {devices[0]!r}")
    try:
        rest = values.read_flags_from_files(command[1:], force_gnu=False)
    except UnicodeDecodeError as error:
        raise ValueError(f"flagfile: wanted a file of flags in UTF-8, got {' and '.join(files)} ({error.reason})") from None
    except flags.CantOpenFlagFileError as error:
        cause = error.__context__
        assert isinstance(cause, OSError)
        raise ValueError(f"flagfile: wanted a file of flags, got {cause.filename!r} ({cause.strerror})") from None
    switches, spelt = {name: values[name].boolean for name in values}, []
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
    if rest := values([command[0], *spelt])[1:]:
        raise ValueError(f"wanted flags such as --op_mode=train, got {rest[0]!r}")


def flag_files(command: Sequence[str]) -> list[str]:
    """The files of flags that a command names."""
    named = [following for flag, following in zip(command, command[1:], strict=False) if flag in FLAGFILE]
    return named + [part.split("=", 1)[1] for part in command if part.startswith(tuple(f"{flag}=" for flag in FLAGFILE))]


def is_device(name: str) -> bool:
    """Whether a file is a device. Some have no end."""
    try:
        return Path(name).is_char_device()
    except OSError:
        return False


def op_mode(values: flags.FlagValues) -> str:
    """The mode of the command, one of `MODES`. Raises ValueError for any other."""
    mode, resumes = values[OP_MODE].value, values[RESUME].present
    if mode is None:
        mode = "train_w_load" if resumes else MODES[0]
    if mode not in MODES:
        raise ValueError(f"{OP_MODE}: wanted {listed(MODES)}, got {mode!r}")
    if resumes and mode != "train_w_load":
        raise ValueError(f"{OP_MODE}: wanted train_w_load with --{RESUME}, got {mode}")
    return mode


def given_settings(values: flags.FlagValues) -> Settings:
    """The settings that the command line gives, under the names they have here. Raises ValueError."""
    return read_settings(values)[0]


def read_settings(values: flags.FlagValues) -> tuple[Settings, list[str]]:
    """As `given_settings`, with a line for each part of the command that has no effect. Raises ValueError."""
    table = every_setting()
    fields = {**table, **{other: table[name] for other, name in RENAMED.items()}, **FOREIGN}
    read = {name: field.parse(str(values[name].value)) for name, field in fields.items() if values[name].present}
    foreign = {name: value for name, value in read.items() if name in FOREIGN}
    replays = rename_replays(str(read.get("replay_parameters", "")))[1]
    given, notes = translate(foreign, rename_settings({name: read[name] for name in read if name not in foreign}))
    check_given(given)
    return given, notes + replays
