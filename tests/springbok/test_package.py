"""A wheel has the one package `springbok`, and the program runs from below it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from serve.app import FILES
from setting import MODES
from tests.pages import copy_program
from tests.support import REPOSITORY

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked wheel, like site-packages."""
    clone = copy_program(tmp_path_factory.mktemp("clone"), "springbok", "tools", "clients")
    folder = tmp_path_factory.mktemp("site")
    for path in (
        *REPOSITORY.glob("requirements*.txt"),
        *map(REPOSITORY.joinpath, ("pyproject.toml", "setup.py", "LICENSE", "README.md")),
    ):
        shutil.copy(path, clone)
    subprocess.run([sys.executable, "-c", BUILD, folder], cwd=clone, capture_output=True, check=True, timeout=200)
    (wheel,) = folder.glob("springbok-0.1.0-*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_a_wheel_adds_one_name_to_site_packages(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.is_dir()} == {"springbok", "springbok-0.1.0.dist-info"}
    metadata = (installed / "springbok-0.1.0.dist-info" / "METADATA").read_text()
    for line in (REPOSITORY / "requirements.txt").read_text().splitlines():
        name = line.partition("=")[0].partition(">")[0]
        assert line.startswith("#") or f"Requires-Dist: {name}" in metadata
    for extra in ("envs", "export", "ray", "store", "serve", "dev"):
        assert f"Provides-Extra: {extra}\n" in metadata


def test_the_installed_server_has_all_files_of_its_page(installed: Path) -> None:
    program = installed / "springbok" / "program"
    files = [file.relative_to(REPOSITORY) for file, _ in FILES.values()]
    assert len(files) == 5
    assert [file for file in files if not (program / file).is_file()] == []
    assert not (program / "clients" / "python").exists()


def test_the_installed_program_has_its_presets_and_is_the_console_command(installed: Path, tmp_path: Path) -> None:
    command = "import sys; from springbok.process import main; sys.argv = ['springbok', *sys.argv[1:]]; main()"

    def refused(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", command, *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        return done.stderr

    assert "ppo_cartpole" in refused("train", "--preset=unknown")
    line = refused("unknown")
    assert "got 'unknown'" in line
    assert all(mode in line for mode in MODES)
