"""N environments of Gymnasium behind the interface of all environments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.wrappers.environments import HERE, Closing
from wrappers import EnvConfig, make_vector_env


def test_environments_are_closed_if_one_of_them_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closing, "made", 0)
    arguments = json.dumps({"path": str(tmp_path / "closed"), "fails": "make"})
    with pytest.raises(ValueError, match="no licence for a third one"):
        make_vector_env(EnvConfig(env=f"{HERE}:TestClosing-v1", env_args=arguments, frames_stacked=1), 4)
    assert len((tmp_path / "closed").read_text().splitlines()) == 2
