"""Damaged files are refused by name, and a file that is replaced is complete."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import checked_files
from checked_files import is_plain_name, locked, plain_name, read_json, replacing

KEYS: checked_files.Keys = {"steps": int, "mean": (float, type(None)), "name": str, "done": bool}
GOOD = '{"steps": 1, "mean": null, "name": "x", "done": true, "more": []}'


def test_an_object_with_the_wanted_keys_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(GOOD)
    assert read_json(path, "a thing", KEYS) == {"steps": 1, "mean": None, "name": "x", "done": True, "more": []}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "got Expecting"),
        ("null", "got None"),
        ("[]", r"got \[\]"),
        (b"\xff\xfe\x00", "got "),
        ("[" * 10**6, "got "),
        ("9" * 5000, "got "),
        (" " * 65, "got more than 64 bytes"),
        ("{}", "'steps', got none"),
        (GOOD.replace("1", "true"), "'steps', got True"),
        (GOOD.replace("1", "1.5"), "a whole number as 'steps', got 1.5"),
        (GOOD.replace("null", "NaN"), "a finite number or null as 'mean', got nan"),
        (GOOD.replace("null", "1e999"), "'mean', got inf"),
        (GOOD.replace('"x"', "{}"), "text as 'name'"),
        (GOOD.replace("true", "1"), "true or false as 'done', got 1"),
    ],
    ids=lambda content: str(content)[:12],
)
def test_anything_else_is_one_line_with_the_files_name(
    tmp_path: Path, content: str | bytes, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    if "more than" in named:
        monkeypatch.setattr(checked_files, "LARGEST_JSON", 64)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=f"^{path}: wanted a thing.*{named}") as refused:
        read_json(path, "a thing", KEYS)
    line = str(refused.value)
    assert len(line.splitlines()) == 1
    assert len(line) < 500


def test_what_cannot_be_opened_is_refused_too(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "none" / "x"):
        with pytest.raises(ValueError, match=f"^{path}: wanted a thing in JSON, got "):
            read_json(path, "a thing")


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path) as partial:
        partial.write_text("half") and (tmp_path / "none" / "x").touch()
    assert path.read_text() == "old"
    with replacing(path) as partial:
        partial.write_text("new")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("x.txt", "new")]


def test_a_lock_without_a_refusal_waits(tmp_path: Path) -> None:
    order: list[Any] = []

    def second() -> None:
        with locked(tmp_path):
            order.append("second")

    with locked(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "a\\b", "C:x", "a\0"])
def test_a_name_that_leaves_its_folder_is_not_plain(name: str) -> None:
    assert not is_plain_name(name)
    assert is_plain_name(plain_name(name))


def test_a_plain_name_stays_as_it_is() -> None:
    assert plain_name("ALE/Pong-v5") == "ALE-Pong-v5"
    for name in ("Catch-v0", "left_1.npy", "Ägypten-v0"):
        assert is_plain_name(name)
        assert plain_name(name) == name
    assert len(plain_name("a" * 500)) < 255
