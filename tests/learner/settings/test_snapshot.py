"""Every setting that users know keeps its default, its bounds, its choices and its refusals.

snapshot.json was written from the hand-written tables that settings had before they stood beside the code. New settings need no
entry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from learner.settings.config import BOUNDS, CHOICES, DEFAULTS, check_setting

SNAPSHOT: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "snapshot.json").read_text())


@pytest.mark.parametrize("name", SNAPSHOT)
def test_a_known_setting_is_what_it_was(name: str) -> None:
    before = SNAPSHOT[name]
    assert DEFAULTS[name] == before["default"]
    assert BOUNDS.get(name, (None, None, None)) == (before.get("wanted"), before.get("low"), before.get("high"))
    assert list(CHOICES.get(name, ())) == before.get("choices", [])


@pytest.mark.parametrize("name", SNAPSHOT)
def test_bad_values_are_refused_as_they_were(name: str) -> None:
    for value, message in SNAPSHOT[name]["refusals"]:
        with pytest.raises(ValueError, match=f"^{name}: ") as caught:
            check_setting(name, value)
        assert str(caught.value) == message
