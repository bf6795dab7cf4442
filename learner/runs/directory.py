"""The run directory results/<env>_<unix_timestamp>/, and the checkpoints that `--load` may name."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from importlib import metadata
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

from checked_files import plain_name, read_json
from learner.runs.lock import locked

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
PROGRAM = Path(__file__).resolve().parents[2]
"""The folder that the program lies in."""
LATEST = "latest"
CHECKPOINT_FOLDER = "checkpoints"
CHECKPOINT_PATTERN = re.compile(r"^update_(\d+)\.pt$")
REPLAY_PATTERN = re.compile(r"^(?:rank_\d+_)?replay_(\d+)\.pt$")
BEST = "best"
LEFT_BEHIND = "left_behind"


class RunDirectory:
    """Names of all files of one run."""

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
        self._latest_before = ""  # name of the run that the link `latest` named before this one

    @classmethod
    def create(cls, results: Path, env: str) -> RunDirectory:
        """Make results/<env>_<unix_timestamp>/ and the link `latest` to it. A later second is named if this one is taken.

        Raises OSError.
        """
        results.mkdir(parents=True, exist_ok=True)
        stamp = int(time.time())
        while True:
            path = results / f"{plain_name(env)}_{stamp}"
            try:
                # Making the folder also reserves its name, in case two runs start in the same second.
                path.mkdir()
                break
            except FileExistsError:
                stamp += 1
        run = cls(path)
        run.checkpoints.mkdir()
        run.point_latest_here()
        return run

    @property
    def settings(self) -> dict[str, Any]:
        """The settings in config.json, those of the run's newest command; empty if there is none that can be read."""
        try:
            return dict(read_json(self.config, "the config.json of a run", {"settings": dict})["settings"])
        except ValueError:
            return {}

    def point_latest_here(self) -> None:
        """Let the link `latest` name this run. It is replaced in one step; a system without links has none."""
        link = self.path.parent / LATEST
        with contextlib.suppress(OSError):
            before = os.readlink(link)
            self._latest_before = before if before != self.path.name else self._latest_before
        _replace_link(link, self.path.name)

    def give_latest_back(self) -> None:
        """Let the link `latest` name the run that it named before this one, if there was one and it still names this one."""
        link = self.path.parent / LATEST
        with contextlib.suppress(OSError):
            if os.readlink(link) == self.path.name and self._latest_before:
                _replace_link(link, self._latest_before)

    def checkpoint_path(self, update: int) -> Path:
        """The checkpoint of this update."""
        return self.checkpoints / f"update_{update:09d}.pt"

    def replay_path(self, update: int, rank: int = 0) -> Path:
        """The replay saved with the checkpoint of this update, of the learner of this rank."""
        return self.checkpoints / f"{f'rank_{rank}_' if rank else ''}replay_{update:09d}.pt"

    def trace_path(self, update: int) -> Path:
        """The profile that ends with this update."""
        return self.path / f"trace_update_{update:09d}.json.gz"

    def checkpoint_paths(self) -> list[Path]:
        """This run's checkpoints, oldest first, without best.pt."""
        return self._numbered(CHECKPOINT_PATTERN)

    def replay_paths(self) -> list[Path]:
        """The replays saved with checkpoints, oldest first; those of all learners."""
        return self._numbered(REPLAY_PATTERN)

    def _numbered(self, pattern: re.Pattern[str]) -> list[Path]:
        found = {path: pattern.search(path.name) for path in self.checkpoints.glob("*.pt")}
        return sorted((path for path, match in found.items() if match), key=lambda path: update_of(path))

    def put_aside_after(self, update: int) -> list[Path]:
        """Rename checkpoints of updates after `update`, which a run that resumes there leaves behind. Returns their new paths.

        Their replay files are removed, because they are large and belong to no other checkpoint. Raises OSError.
        """
        for path in self.replay_paths():
            if update_of(path) > update:
                path.unlink(missing_ok=True)
        return [put_aside(path) for path in self.checkpoint_paths() if update_of(path) > update]

    def config_paths(self) -> list[Path]:
        """The config.json of each command of the run, oldest first."""
        return [*takewhile(Path.exists, self._earlier_configs()), self.config]

    def _earlier_configs(self) -> Iterator[Path]:
        """The names of the files of earlier commands, which exist up to the newest of them."""
        return (self.path / f"config_{number}.json" for number in count(1))

    def write_config(self, settings: dict[str, Any], command: list[str], notes: list[str], parent: str | None = None) -> None:
        """Write config.json. An earlier command's config.json becomes config_1.json, or the next number that is free.

        Args:
            settings: all settings, fitted to this machine.
            command: the command line.
            notes: lines on settings that were loaded or chosen, and why.
            parent: the checkpoint of another run that this one resumes from.

        Raises OSError.
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
        partial = self.config.with_name(f".{self.config.name}_{os.getpid()}")
        try:
            # The new file is complete before it takes the name, so a full disk leaves config.json as it is.
            partial.write_text(text + "\n")
            if self.config.exists():
                earlier = next(path for path in self._earlier_configs() if not path.exists())
                second_name(self.config, earlier)  # and no rename: a kill would leave a folder that is no longer a run
            partial.replace(self.config)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def shell_name_of_program() -> str:
    """The path of main.py in a command of a shell, relative to the current folder, or absolute if that is shorter."""
    path = str(PROGRAM / "main.py")
    with contextlib.suppress(OSError):  # the current folder may have been removed
        path = min(os.path.relpath(path), path, key=len)
    return shlex.quote(path)


def second_name(path: Path, name: Path) -> None:
    """Give a finished file another name in one step, so that a kill leaves an earlier file of it or this one. Raises OSError.

    A hard link takes no room, and outlives the removal of the first name. A file system without hard links copies.
    """
    partial = name.with_name(f".{name.name}_{os.getpid()}")
    try:
        try:
            os.link(path, partial)
        except OSError:
            shutil.copyfile(path, partial)
        partial.replace(name)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def put_aside(checkpoint: Path) -> Path:
    """Rename a checkpoint to left_behind_<name>, or add the next free number if that name is taken.

    Returns the new path; raises OSError.
    """
    names = chain([checkpoint.stem], (f"{checkpoint.stem}_{number}" for number in count(2)))
    paths = (checkpoint.with_name(f"{LEFT_BEHIND}_{name}{checkpoint.suffix}") for name in names)
    return checkpoint.rename(next(path for path in paths if not path.exists()))


def check_writable(folder: Path, setting: str) -> None:
    """Raise ValueError with one line if nothing can be made in the folder that a setting names. It may not exist yet."""
    existing = folder
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        reason = "cannot be written to" if existing.is_dir() else "is not a folder"
        good = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    except (OSError, ValueError) as error:  # a name that is too long
        good, reason = False, f"is refused: {getattr(error, 'strerror', None) or error}"
    if not good:
        wanted, got = "wanted a folder that can be written to", str(folder)[:200]
        raise ValueError(f"{setting}: {wanted}, got {got!r} ({str(existing)[:200]} {reason})")


def check_run_folder(run: RunDirectory) -> None:
    """Raise ValueError with one line if a run directory cannot be written to, or if another process trains in it."""
    for folder in (run.path, run.checkpoints):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(
                f"load: wanted a run directory that can be written to, got {str(folder)!r}; "
                "--resume_in=new resumes in a new one"
            )
    # The lock is only tried: training takes it later, but a run directory in use is refused before anything starts.
    with contextlib.suppress(OSError), locked(run.path):  # the training itself reports what cannot be written
        pass


def package_versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that a result may depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def git_commit() -> str | None:
    """The commit this program runs from, with `-dirty` if files were changed; None if its folder is not a git checkout."""
    of_another = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # a hook of another checkout sets these
    environment = {name: value for name, value in os.environ.items() if name not in of_another}
    # Git must not search the folders above: a program that was unpacked inside another project's checkout is not part of that.
    environment["GIT_CEILING_DIRECTORIES"] = str(PROGRAM.parent)
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=PROGRAM,
            env=environment,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _replace_link(link: Path, target: str) -> None:
    """Let a link name another target, in one step. A system without links has none."""
    partial = link.with_name(f".{link.name}_{os.getpid()}")
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)
        partial.symlink_to(target)
        try:
            partial.replace(link)
        finally:
            partial.unlink(missing_ok=True)


def update_of(path: Path) -> int:
    """The update in the name of a checkpoint or replay file."""
    return int(path.stem.rsplit("_", 1)[1])


def find_checkpoints(url: str, results: Path) -> list[Path]:
    """The checkpoints that `url` names: a run's newest comes first and its best last.

    Args:
        url: a checkpoint file, a run directory, RUN/best, `latest` or `latest/best`.
        results: the folder in which `latest` is looked up.

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
    """Why a run has no best checkpoint yet, which depends on whether evaluations or training returns decide."""
    if not (settings := run.settings):
        return "this run has none yet"
    evaluated = settings.get("eval_period") or settings.get("eval_seconds")
    return "no evaluation has ended yet" if evaluated else "too few episodes had ended at each checkpoint so far"


def run_of_checkpoint(checkpoint: Path) -> RunDirectory | None:
    """The run directory that a checkpoint lies in, or None if it lies elsewhere."""
    parent = checkpoint.resolve().parent
    if parent.name == CHECKPOINT_FOLDER and (parent.parent / "config.json").is_file():
        return RunDirectory(parent.parent)
    return None
