"""The run directory results/<env>_<unix_timestamp>/ and what `--load` may name."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import time
from importlib import metadata
from itertools import count
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
    "pillow",
)
LATEST = "latest"
CHECKPOINT_FOLDER = "checkpoints"
CHECKPOINT_PATTERN = re.compile(r"^update_(\d+)\.pt$")
REPLAY_PATTERN = re.compile(r"^replay_(\d+)\.pt$")
BEST = "best"
LEFT_BEHIND = "left_behind"


class RunDirectory:
    """Names every file of one run in one place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINT_FOLDER
        self.best = self.checkpoints / f"{BEST}.pt"
        self.config = path / "config.json"
        self.log = path / "log.txt"
        self.metrics = path / "metrics.csv"
        self.evaluations = path / "evaluations.jsonl"
        self.animation = path / "evaluation.gif"
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

    def replay_path(self, update: int) -> Path:
        """The replay saved with the checkpoint of this update."""
        return self.checkpoints / f"replay_{update:09d}.pt"

    def trace_path(self, update: int) -> Path:
        """The profile that ends with this update."""
        return self.path / f"trace_update_{update:09d}.json.gz"

    def checkpoint_paths(self) -> list[Path]:
        """This run's checkpoints, oldest first; the best is one of them or one that was kept beside them."""
        return self._numbered(CHECKPOINT_PATTERN)

    def replay_paths(self) -> list[Path]:
        """The replays saved with checkpoints, oldest first."""
        return self._numbered(REPLAY_PATTERN)

    def _numbered(self, pattern: re.Pattern[str]) -> list[Path]:
        found = {path: pattern.search(path.name) for path in self.checkpoints.glob("*.pt")}
        return sorted((path for path, match in found.items() if match), key=lambda path: update_of(path))

    def put_aside_after(self, update: int) -> list[Path]:
        """Rename checkpoints of updates after `update`: a run that goes on from there has left them behind. Their new names.

        Replays saved with them are removed: they are large, and of use to no other checkpoint.
        """
        for path in self.replay_paths():
            if update_of(path) > update:
                path.unlink(missing_ok=True)
        newer = [path for path in self.checkpoint_paths() if update_of(path) > update]
        return [path.replace(path.with_name(f"{LEFT_BEHIND}_{path.name}")) for path in newer]

    def write_config(self, settings: dict[str, Any], command: list[str], notes: list[str], parent: str | None = None) -> None:
        """config.json: settings, what was chosen for this machine and why, package versions, git commit.

        parent: the checkpoint of another run that this one goes on from. A config.json that is there already, of the command
        before, becomes config_1.json or the next number that is free.
        """
        text = json.dumps(
            {
                "settings": settings,
                "chosen_for_this_machine": notes,
                "command": command,
                "parent": parent,
                "versions": package_versions(),
                "git_commit": git_commit(),
                "host": {"system": platform.platform(), "cores": os.cpu_count()},
            },
            indent=2,
        )
        beside = self.config.with_name(f".{self.config.name}_{os.getpid()}")
        beside.write_text(text + "\n")
        if self.config.exists():
            earlier = next(path for number in count(1) if not (path := self.path / f"config_{number}.json").exists())
            self.config.rename(earlier)
        beside.rename(self.config)


def check_results_folder(results: Path) -> None:
    """Refuse a folder that run directories cannot be made in. Raises ValueError."""
    existing = results
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        reason = "cannot be written to" if existing.is_dir() else "is no folder"
        good = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    except (OSError, ValueError) as error:  # a name that is too long
        good, reason = False, f"is refused: {getattr(error, 'strerror', None) or error}"
    if not good:
        wanted, got = "wanted a folder that can be written to", str(results)[:200]
        raise ValueError(f"results_dir: {wanted}, got {got!r} ({str(existing)[:200]} {reason})")


def check_run_folder(run: RunDirectory) -> None:
    """Refuse to go on in a run directory that cannot be written to. Raises ValueError."""
    for folder in (run.path, run.checkpoints):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(
                f"load: wanted a run directory that can be written to, got {str(folder)!r}; "
                "--resume_in=new goes on in a new one"
            )


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


def update_of(path: Path) -> int:
    """The number in the name of a checkpoint or replay file."""
    return int(path.stem.rsplit("_", 1)[1])


def find_checkpoints(url: str, results: Path) -> list[Path]:
    """What a checkpoint file, a run directory, its `best` or `latest` name: a run's newest first, its best one last.

    Raises ValueError with one line.
    """
    path = results / url if url in (LATEST, f"{LATEST}/{BEST}") else Path(url)
    try:
        if path.name == BEST and path.parent.is_dir() and not path.exists():
            path = RunDirectory(path.parent).best
        if path.is_file():
            return [path.resolve()]
        is_folder = path.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long or holds a null byte, a folder that may not be entered
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"load: wanted something readable, got {url[:200]!r} ({reason})") from None
    if not is_folder:
        wanted = "a run directory, its best, a checkpoint file or latest"
        there = f"no run under {results}/ yet" if url == LATEST else "no such file or directory"
        if path.name != Path(url).name == BEST and (run := run_of_checkpoint(path)):
            there = _why_no_best(run)
        raise ValueError(f"load: wanted {wanted}, got {url!r} ({there})")
    run = RunDirectory(path.resolve())
    found = [*reversed(run.checkpoint_paths()), *([run.best] if run.best.is_file() else [])]
    if not found:
        raise ValueError(f"load: wanted a run directory with checkpoints, got {url!r} (it has none)")
    return found


def _why_no_best(run: RunDirectory) -> str:
    try:
        evaluated = json.loads(run.config.read_text())["settings"].get("eval_period", 0) > 0
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        return "this run has none yet"
    return "no evaluation has ended yet" if evaluated else "no window of episodes was full at a checkpoint yet"


def run_of_checkpoint(checkpoint: Path) -> RunDirectory | None:
    """The run directory a checkpoint lies in, None where it lies elsewhere."""
    parent = checkpoint.resolve().parent
    if parent.name == CHECKPOINT_FOLDER and (parent.parent / "config.json").is_file():
        return RunDirectory(parent.parent)
    return None
