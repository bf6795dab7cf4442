"""Settings that a mode of the program does not use: the line about them, and their values there."""

from __future__ import annotations

from collections.abc import Iterable

from learner.settings.schema import SHARED, Settings, agent_of, default_settings
from setting import TRAINING_MODES, SettingField

STARTS_ANEW = "which starts a new run; --op_mode=train_w_load resumes one from a checkpoint"
NO_TEST = "which plays no test games; --op_mode=test does"
NO_TRAINING = "which trains nothing"


def unused_notes(op_mode: str, given: Iterable[str]) -> list[str]:
    """A line for each given setting that this mode does not use.

    Nothing is said of settings of training that are fitted to the machine: they are harmless elsewhere.
    """
    fields = [SHARED[name] for name in given if name in SHARED]
    return [
        f"{field.name} is not used by --op_mode={op_mode}, {_reason(op_mode, field)}"
        for field in fields
        if op_mode not in field.setting.modes and not _is_of_training(field)
    ]


def without_unused(op_mode: str, settings: Settings) -> Settings:
    """The settings, with the defaults of those that this mode does not use, unless they decide what is learned.

    A run trained on a cluster can then be tested on a machine without one. Training keeps all values for later commands.
    """
    if op_mode in TRAINING_MODES:
        return settings
    defaults = default_settings(agent_of(settings))
    fields = [field for field in SHARED.values() if field.setting.kind in ("machine", "output")]
    return {**settings, **{field.name: defaults[field.name] for field in fields if op_mode not in field.setting.modes}}


def _is_of_training(field: SettingField) -> bool:
    return field.setting.kind == "machine" and "train" in field.setting.modes


def _reason(op_mode: str, field: SettingField) -> str:
    if field.setting.modes == ("test",):
        return NO_TEST
    return STARTS_ANEW if op_mode == "train" else NO_TRAINING


def shown_choices(op_mode: str, chosen: list[str]) -> list[str]:
    """The lines on settings that the machine decided that a user of this mode is shown; none for export."""
    if op_mode in TRAINING_MODES:
        return chosen
    return [line for line in chosen if op_mode == "test" and op_mode in SHARED[line.split("=")[0]].setting.modes]
