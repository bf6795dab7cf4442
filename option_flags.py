"""The command line: a flag for every setting that is declared.

`define_flags` registers them; nothing happens at import. Only this file and main.py see flags. A flag holds text until
`given_settings` turns it into the setting's type.
"""

from __future__ import annotations

from typing import Any

from absl import flags

from learner.settings.check import check_given
from learner.settings.help import describe
from learner.settings.other_names import RENAMED, rename_settings
from learner.settings.schema import Settings, every_setting
from setting import MODES, SettingField, listed

OP_MODE = "op_mode"


def define_flags(values: flags.FlagValues) -> None:
    """Register every flag in `values`, under the names that settings have and those that they had."""
    _define(values, OP_MODE, "What to do: train, train_w_load (resume), test or export.", switch=False)
    table = every_setting()
    for name, field in table.items():
        _define(values, name, describe(field), switch=field.type is bool)
    for old, name in RENAMED.items():
        _define(values, old, f"Old name of --{name}.", switch=table[name].type is bool)


def _define(values: flags.FlagValues, name: str, text: str, *, switch: bool) -> None:
    flag: flags.Flag[Any] = flags.Flag(flags.ArgumentParser(), None, name, None, text, boolean=switch)
    flags.DEFINE_flag(flag, values)


def op_mode(values: flags.FlagValues) -> str:
    """The mode of the command, one of `MODES`. Raises ValueError for any other."""
    mode = MODES[0] if values[OP_MODE].value is None else values[OP_MODE].value
    if mode not in MODES:
        raise ValueError(f"{OP_MODE}: wanted {listed(MODES)}, got {mode!r}")
    return mode


def given_settings(values: flags.FlagValues) -> Settings:
    """The settings that the command line gives, under the names they have now. Raises ValueError."""
    table = every_setting()
    texts = {name: str(values[name].value) for name in (*table, *RENAMED) if values[name].present}
    given = rename_settings({name: _field(table, name).parse(text) for name, text in texts.items()})
    check_given(given)
    return given


def _field(table: dict[str, SettingField], name: str) -> SettingField:
    return table[RENAMED.get(name, name)]
