"""The line about an error of the user's code names its place, and a package of the program that hides the user's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wrappers.errors import clash_of, in_words, own_names, place_of


def raised_by(path: Path, text: str) -> BaseException:
    """The error that a file of a user raises."""
    path.write_text(text)
    try:
        exec(compile(text, str(path), "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def test_an_error_without_words_has_its_type_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "own_env.py"
    assert in_words(raised_by(path, "def f():\n    assert False\nf()\n")) == f"AssertionError ({path}:2)"


def test_the_place_is_the_innermost_one_in_the_users_code(tmp_path: Path) -> None:
    path = tmp_path / "own_env.py"
    assert place_of(raised_by(path, "import json\n\njson.loads('{')\n")) == f" ({path}:3)"
    caused = raised_by(path, "x = 1\ntry:\n    x / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(1) from e\n")
    assert place_of(caused) == f" ({path}:5)"
    assert place_of(ValueError("never raised")) == ""


@pytest.mark.parametrize("line", ["from wrappers.scale import x", "from setting import scale", "import replay\nreplay.scale"])
def test_a_package_that_hides_the_users_is_named(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    name = next(name for name in own_names() if f" {name}" in line.splitlines()[0])
    error = raised_by(tmp_path / "own_env.py", line)
    assert clash_of(error).startswith(f"; {name} is a package of this program")
    (tmp_path / name).mkdir()
    assert str(tmp_path / name) in clash_of(error)
    assert clash_of(raised_by(tmp_path / "own_env.py", "import no_such_module")) == ""


def test_a_name_of_the_program_in_other_letters_is_suggested(tmp_path: Path) -> None:
    error = raised_by(tmp_path / "own_agent.py", "from agents import PpoAgent")
    assert clash_of(error) == "; agents is a package of this program, and has PPOAgent"
