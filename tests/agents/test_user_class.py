"""A class in a file of the user's own has one name in all processes, from which each finds the file."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from agents.user_class import user_class, user_file
from tests.support import REPOSITORY


class Base:
    """Stands for `Agent` or `torch.nn.Module`."""


TEXT = """
from tests.agents.test_user_class import Base
from beside import NUMBER

class Thing(Base):
    number = NUMBER
"""


def write(folder: Path, text: str = TEXT) -> str:
    folder.mkdir(parents=True)
    (folder / "beside.py").write_text("NUMBER = 7\n")
    (folder / "my things.py").write_text(text)
    return f"{folder}/my things.py:Thing"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return tmp_path / "a.b_c-é"


def test_the_module_s_name_spells_the_path(folder: Path) -> None:
    found = user_class("agent", write(folder), Base)
    assert found.__module__.isidentifier()
    assert user_file(found.__module__) == str(folder / "my things.py")
    assert user_file("agents.base") is None


def test_a_file_is_imported_once_whatever_its_path_is_called(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = user_class("agent", write(folder), Base)
    monkeypatch.chdir(folder)
    assert user_class("network", "my things.py:Thing", Base) is found


def test_another_process_finds_the_class_in_a_pickle(folder: Path) -> None:
    pickled = pickle.dumps(user_class("agent", write(folder), Base))
    program = f"import agents.user_class, pickle; print(pickle.loads({pickled!r}).number)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "7\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb = (\n", "wanted a file that can be imported, got SyntaxError: '(' was never closed (my things.py, line 2)"),
        ("def f():\n    return 1 / 0\n\n\nf()\n", "got ZeroDivisionError: division by zero (.*/my things.py:2)"),
        ("import sys\nsys.exit('no')\n", "got SystemExit: no (.*/my things.py:2)"),
        ("import nowhere_at_all\n", "got ModuleNotFoundError: No module named 'nowhere_at_all' (.*/my things.py:1)"),
        ("class Thing:\n    pass\n", "wanted a subclass of tests.agents.test_user_class.Base, got a type"),
        ("Thing = 3\n", "wanted a subclass of tests.agents.test_user_class.Base, got a int"),
        ("class Other:\n    pass\n", "wanted a subclass of tests.agents.test_user_class.Base, got no such name"),
    ],
)
def test_bad_files_are_one_line_with_file_and_line(folder: Path, text: str, message: str) -> None:
    named = write(folder, text)
    with pytest.raises(ValueError, match="^agent .*my things.py:Thing: ") as refusal:
        user_class("agent", named, Base)
    found = str(refusal.value).replace(str(folder), ".*")
    assert message in found
    assert "\n" not in found


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^agent .*none.py:A: wanted a file that exists, got .*none.py$"):
        user_class("agent", f"{tmp_path}/none.py:A", Base)
