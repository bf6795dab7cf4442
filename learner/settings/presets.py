"""Presets: settings by name, a file each in presets/, or a file of the user's. The command line overrides them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checked_files import read_json
from learner.settings.other_names import rename_settings
from setting import listed

FOLDER = Path(__file__).resolve().parents[2] / "presets"
NO_PRESET = "none"
PRESET_FILE = r".+\.json"
PRESETS = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def apply_preset(given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings and those of the preset that they name, which count as given too. Raises ValueError."""
    return load_preset(given.get("preset", NO_PRESET)) | dict(given)


def load_preset(name: str) -> dict[str, Any]:
    """The settings of a preset, as the command line would give them. Raises ValueError."""
    if name == NO_PRESET:
        return {}
    settings = _read(name)["settings"]
    if "preset" in settings:
        raise ValueError(f"preset: wanted no preset among the settings of {name}, got {str(settings['preset'])[:80]!r}")
    texts = {key: json.dumps(value) for key, value in settings.items() if isinstance(value, list | dict)}
    return rename_settings(settings | texts)  # last, because the other names of a replay's keys are found in its text


def shown_origin(name: str, given: Mapping[str, Any]) -> str:
    """The preset that gives one of the given settings, for a line about it; empty if the command gives it."""
    settings = load_preset(preset := given.get("preset", NO_PRESET))
    return f" (of the preset {preset})" if name in settings and settings[name] == given[name] else ""


def describe_presets() -> dict[str, str]:
    """Each preset's name and the sentence about it."""
    return {name: _read(name)["about"] for name in PRESETS}


def _read(name: str) -> dict[str, Any]:
    if name in PRESETS:
        return read_json(FOLDER / f"{name}.json", "a preset", {"about": str, "settings": dict})
    if not re.fullmatch(PRESET_FILE, name):
        raise ValueError(f"preset: wanted {listed((NO_PRESET, *PRESETS, 'FILE.json'))}, got {name!r}")
    return read_json(Path(name), "a preset", {"settings": dict})
