"""Presets: named settings, a file each in presets/. What the command line says comes before what a preset says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "presets"
NO_PRESET = "none"
PRESETS = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def apply_preset(settings: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All settings, and those that were given, with what the preset says that `given` names: it counts as given too."""
    given = load_preset(given.get("preset", NO_PRESET)) | given
    return {**settings, **given}, given


def load_preset(name: str) -> dict[str, Any]:
    """The settings of a preset, one of `PRESETS` or "none", as the command line would give them."""
    if name == NO_PRESET:
        return {}
    settings = json.loads((FOLDER / f"{name}.json").read_text())["settings"]
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in settings.items()}
