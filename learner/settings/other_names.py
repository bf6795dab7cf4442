"""Settings that got a clearer name. The old names stay: on the command line, in presets, suites and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED = {
    "r_f_steps": "unroll_length",
    "load_model_url": "load",
    "load_optimizer_save": "load_optimizer",
    "avg_buff_size": "return_window",
    "training_fill_in_factor": "replay_fill_fraction",
    "save_model_period": "checkpoint_period",
    "use_replay_compression": "compress_replay",
}
"""Old name -> the name it has now."""


def rename_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings under the names they have now. Raises ValueError if an old name and its new one differ in value."""
    renamed = {name: value for name, value in settings.items() if name not in RENAMED}
    for old, name in RENAMED.items():
        if old in settings and renamed.setdefault(name, settings[old]) != settings[old]:
            raise ValueError(
                f"{name}: wanted one value, got {renamed[name]!r} and, under the old name {old}, {settings[old]!r}"
            )
    return renamed
