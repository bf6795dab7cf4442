"""The run directory results/<env>_<unix_timestamp>/ and what `--load_model_url` may name."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "ale-py",
    "opencv-python-headless",
    "absl-py",
    "tensorboard",
    "matplotlib",
    "imageio-ffmpeg",
)
LATEST = "latest"
CHECKPOINT_FOLDER = "checkpoints"
CHECKPOINT_PATTERN = re.compile(r"^update_(\d+)\.pt$")


class RunDirectory:
    """Names every file of one run in one place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINT_FOLDER
        self.config = path / "config.json"
        self.log = path / "log.txt"
        self.metrics = path / "metrics.csv"
        self.tensorboard = path / "tensorboard"
        self.curve = path / "learning_curve.png"
        self.summary = path / "summary.json"

    @classmethod
    def create(cls, results: Path, env: str) -> RunDirectory:
        """Make results/<env>_<unix_timestamp>/, a later second where that one is taken, and the `latest` link beside it."""
        results.mkdir(parents=True, exist_ok=True)
        stamp = int(time.time())
        while True:
            path = results / f"{env.replace('/', '-')}_{stamp}"
            try:
                path.mkdir()
                break
            except FileExistsError:
                stamp += 1
        run = cls(path)
        run.checkpoints.mkdir()
        run.point_latest_here()
        return run

    def point_latest_here(self) -> None:
        """Let `latest` name this run; replaced in one step. A system without links goes without."""
        link = self.path.parent / LATEST
        beside = link.with_name(f".{LATEST}_{os.getpid()}")
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
            beside.symlink_to(self.path.name)
            try:
                beside.replace(link)
            finally:
                beside.unlink(missing_ok=True)

    def checkpoint_path(self, update: int) -> Path:
        return self.checkpoints / f"update_{update:09d}.pt"

    def checkpoint_paths(self) -> list[Path]:
        """This run's checkpoints, oldest first."""
        return sorted(path for path in self.checkpoints.glob("update_*.pt") if CHECKPOINT_PATTERN.search(path.name))

    def put_aside_after(self, update: int) -> list[Path]:
        """Rename checkpoints of updates after `update`: a run that goes on from there has left them behind. Their new names."""
        aside = []
        for path in self.checkpoint_paths():
            match = CHECKPOINT_PATTERN.search(path.name)
            if match and int(match.group(1)) > update:
                aside.append(path.replace(path.with_name(f"left_behind_{path.name}")))
        return aside

    def write_config(self, settings: dict[str, Any], command: list[str], notes: list[str]) -> None:
        """config.json: settings, what was chosen for this machine and why, package versions, git commit."""
        text = json.dumps(
            {
                "settings": settings,
                "chosen_for_this_machine": notes,
                "command": command,
                "versions": package_versions(),
                "git_commit": git_commit(),
                "host": {"system": platform.platform(), "cores": os.cpu_count()},
            },
            indent=2,
        )
        self.config.write_text(text + "\n")


def check_results_folder(results: Path) -> None:
    """Refuse a folder that run directories cannot be made in. Raises ValueError."""
    existing = results
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = "cannot be written to" if existing.is_dir() else "is no folder"
        raise ValueError(f"results_dir: wanted a folder that can be written to, got {str(results)!r} ({existing} {reason})")


def package_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def git_commit() -> str | None:
    """The commit this program runs from, `-dirty` added where files were changed; None outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def find_checkpoint(url: str, results: Path) -> Path:
    """The checkpoint that a run directory, a checkpoint file or `latest` names. Raises ValueError with one line."""
    path = results / LATEST if url == LATEST else Path(url)
    try:
        if path.is_file():
            return path.resolve()
        is_folder = path.is_dir()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise ValueError(f"load_model_url: wanted something readable, got {url!r} ({error.strerror})") from None
    if not is_folder:
        wanted = "a run directory, a checkpoint file or latest"
        there = f"no run under {results}/ yet" if url == LATEST else "no such file or directory"
        raise ValueError(f"load_model_url: wanted {wanted}, got {url!r} ({there})")
    found = RunDirectory(path.resolve()).checkpoint_paths()
    if not found:
        raise ValueError(f"load_model_url: wanted a run directory with checkpoints, got {url!r} (it has none)")
    return found[-1]


def run_of_checkpoint(checkpoint: Path) -> RunDirectory | None:
    """The run directory a checkpoint lies in, None where it lies elsewhere."""
    parent = checkpoint.resolve().parent
    if parent.name == CHECKPOINT_FOLDER and (parent.parent / "config.json").is_file():
        return RunDirectory(parent.parent)
    return None
