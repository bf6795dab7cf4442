"""`--ray_runtime_env` is JSON or a file with JSON, and is checked without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.runtime_env import parse_runtime_env


def test_json_and_a_file_with_json_mean_the_same(tmp_path: Path) -> None:
    text = ' {"pip": ["minigrid"], "env_vars": {"A": "b"}}'
    file = tmp_path / "env.json"
    file.write_text(text)
    assert parse_runtime_env(text) == parse_runtime_env(str(file)) == {"pip": ["minigrid"], "env_vars": {"A": "b"}}
    assert parse_runtime_env("{}") == {}


@pytest.mark.parametrize("text", ["{", "nowhere.json", '["pip"]', "[file]", "\0"])
def test_other_texts_are_one_line(text: str, tmp_path: Path) -> None:
    if text == "[file]":
        (tmp_path / "list.json").write_text('["pip"]')
        text = str(tmp_path / "list.json")
    with pytest.raises(
        ValueError, match="^ray_runtime_env: wanted a JSON object or the path of a file with one, got "
    ) as caught:
        parse_runtime_env(text)
    assert "\n" not in str(caught.value)


def test_a_file_without_an_end_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got '/dev/zero' \(it is no file\)"):
        parse_runtime_env("/dev/zero")
    (tmp_path / "long.json").write_text(" " * 2**21)
    with pytest.raises(ValueError, match=r"long.json' \(it is too long\)"):
        parse_runtime_env(str(tmp_path / "long.json"))
