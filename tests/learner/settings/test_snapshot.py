"""Every setting that users know keeps its default, its bounds, its choices and its refusals.

snapshot.json was written from the hand-written tables that settings had before they stood beside the code. New settings need no
entry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from learner.settings.check import find_setting
from learner.settings.other_names import RENAMED
from learner.settings.schema import table_of

SNAPSHOT: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "snapshot.json").read_text())


@pytest.mark.parametrize("known_as", SNAPSHOT)
def test_a_known_setting_is_what_it_was(known_as: str) -> None:
    before, field = SNAPSHOT[known_as], table_of("vtrace")[RENAMED.get(known_as, known_as)]
    assert (field.type.__name__, field.default) == (before["type"], before["default"])
    assert list(field.choices()) == before.get("choices", [])
    if "wanted" in before:
        setting = field.setting
        assert (setting.wanted, setting.low, setting.high) == (before["wanted"], before["low"], before["high"])


@pytest.mark.parametrize("known_as", SNAPSHOT)
def test_bad_values_are_refused_as_they_were(known_as: str) -> None:
    name = RENAMED.get(known_as, known_as)
    for value, message in SNAPSHOT[known_as]["refusals"]:
        with pytest.raises(ValueError, match="wanted") as caught:
            find_setting(name).check(value)
        assert str(caught.value) == message.replace(f"{known_as}: ", f"{name}: ", 1)
