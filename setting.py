"""A setting of the program is a field of the frozen dataclass beside the code that it configures:

    gamma: Annotated[float, Setting("Discount per step.", "a discount in [0, 1]", 0, 1)] = 0.99

Flags, help, checks, presets, config.json and checkpoints are computed from such fields; `learner.settings.schema` lists the
dataclasses. This module imports nothing of the program, so that every package may declare settings. A field without a `Setting`
is an ordinary field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

AUTO = "auto"
TUNE = "tune"
"""The value of `--op_mode` that searches settings. Its runs train, so it takes the settings of training."""
TRAINING_MODES = ("train", "train_w_load")
SERVING_MODES = (*TRAINING_MODES, "serve")
MODES = (*TRAINING_MODES, "test", "export", "serve")
"""The values of `--op_mode` that use settings. `train_w_load` resumes a run."""
TOOL_MODES = ("list", "new")
"""The values of `--op_mode` that use none."""

NUMBER = re.compile(r"\d+(?:\.\d+)?")
SWITCH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

Kind = Literal["run", "machine", "output", "command"]


def listed(names: Iterable[str], last: str = "or") -> str:
    """The names in one phrase, such as "a, b or c". last: the word before the last name."""
    *others, final = names
    return f"{', '.join(others)} {last} {final}" if others else final


@dataclass(frozen=True)
class Log:
    """A range of numbers >= low and <= high, in which a search draws the logarithm uniformly. low: above 0."""

    low: float
    high: float


@dataclass(frozen=True)
class Linear:
    """A range of numbers >= low and <= high, from which a search draws uniformly."""

    low: float
    high: float


@dataclass(frozen=True)
class OneOf:
    """The values among which a search chooses, in their order if they are numbers."""

    values: tuple[Any, ...]


Search = Log | Linear | OneOf


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting, besides its type and its default.

    Args:
        help: sentences for `--help`, with the unit.
        wanted: the accepted values in words, with the unit.
        low: smallest accepted number.
        high: largest accepted number.
        choices: the accepted names, or a registry (a mapping) whose names they are, or a function that returns them. They are
            read when they are needed, so a registry may grow. A field whose type is a `Literal` needs none.
        pattern: regular expression of the texts that are accepted beside `choices`; `wanted` says what they are.
        check: raises ValueError for a text that cannot be read.
        auto: whether the default is `auto`, which is fitted to the machine before the dataclass is built.
        kind: `run` settings decide what is learned or what a score means. `machine` settings are fitted to the machine, so
            `auto` stays in checkpoints. `output` settings decide what is written or measured, or where workers run. `command`
            settings belong to one command: the command that loads a checkpoint does not use the checkpoint's value.
        stored: whether stored trajectories and their stores depend on it. A saved replay is used only if it has not changed.
        measured: whether the measurement before a run may decide it.
        modes: the values of `--op_mode` that use it.
        families: the environment families that use it; empty for all.
        search: the values among which `--op_mode=tune` searches, unless the command says others; None for no search.
    """

    help: str
    wanted: str = ""
    low: float = -math.inf
    high: float = math.inf
    choices: Iterable[str] | Callable[[], Iterable[str]] = ()
    pattern: str = ""
    check: Callable[[str], object] | None = None
    auto: bool = False
    kind: Kind = "run"
    stored: bool = False
    measured: bool = False
    modes: tuple[str, ...] = MODES
    families: tuple[str, ...] = ()
    search: Search | None = None


@dataclass(frozen=True)
class SettingField:
    """A field that is a setting. type: bool, int, float or str. default: as the command line and checkpoints write it."""

    name: str
    type: type
    default: Any
    setting: Setting

    def choices(self) -> tuple[str, ...]:
        """The accepted names; empty if the setting is not a choice between names."""
        names = self.setting.choices() if callable(self.setting.choices) else self.setting.choices
        ordered = tuple(sorted(names)) if isinstance(names, Mapping) else tuple(names)
        return (AUTO, *ordered) if ordered and self.setting.auto else ordered

    def wanted(self) -> str:
        """The accepted values in words."""
        if choices := self.choices():
            return listed((*choices, self.setting.wanted) if self.setting.pattern else choices)
        defaults = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        return self.setting.wanted or defaults[self.type]

    def parse(self, text: str) -> Any:
        """The value that the command line writes as `text`. A text that cannot be read is returned unchanged."""
        if self.type is bool:
            return SWITCH.get(text.lower(), text)
        if self.type is str:
            return text
        try:
            return self.type(text)
        except ValueError:
            return text

    def check(self, value: Any) -> None:
        """Raise ValueError with one line if the setting does not take this value."""
        if self.setting.auto and value == AUTO:
            return
        if self.choices():
            good = value in self.choices() or self._matches(value)
        elif self.type in (int, float):
            return self._check_number(value)
        else:
            good = isinstance(value, self.type) and value != ""
        if not good:
            raise ValueError(f"{self.name}: wanted {self.wanted()}, got {value!r}")
        if self.setting.check:
            self.setting.check(value)

    def _matches(self, value: Any) -> bool:
        pattern = self.setting.pattern
        return bool(pattern) and isinstance(value, str) and re.fullmatch(pattern, value) is not None

    def _check_number(self, value: Any) -> None:
        low, high = self.setting.low, self.setting.high
        number = isinstance(value, int if self.type is int else int | float) and not isinstance(value, bool)
        if number and low <= value <= high:
            return
        named = high in map(float, NUMBER.findall(self.wanted()))
        most = f", at most {high:g}" if number and value > high and not named else ""
        raise ValueError(f"{self.name}: wanted {self.wanted()}{most}, got {value!r}")


@cache
def settings_of(config_class: type) -> dict[str, SettingField]:
    """The settings among the fields of a dataclass, in order; those of base classes come first."""
    hints = get_type_hints(config_class, include_extras=True)
    found = {}
    for field in fields(config_class):
        kind, *notes = get_args(hints[field.name]) if get_origin(hints[field.name]) is Annotated else [None]
        for setting in notes:
            if isinstance(setting, Setting):
                found[field.name] = _make_field(field.name, kind, field.default, setting)
    return found


def _make_field(name: str, kind: Any, default: Any, setting: Setting) -> SettingField:
    if get_origin(kind) is Literal:
        kind, setting = str, replace(setting, choices=get_args(kind))
    if kind not in (bool, int, float, str):
        raise TypeError(f"{name}: wanted a setting of type bool, int, float or str, got {kind}")
    if default is MISSING and not setting.auto:
        raise TypeError(f"{name}: wanted a setting with a default, got none")
    return SettingField(name, kind, AUTO if setting.auto else default, setting)


def check_fields(config: object) -> None:
    """Check every setting of a dataclass instance. Raises ValueError with one line."""
    config_class: type = type(config)
    for name, field in settings_of(config_class).items():
        field.check(getattr(config, name))
