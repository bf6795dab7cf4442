"""Checkpoints: what a run needs to go on, written and read as one file of tensors and plain data.

Format 1 had no checksum; it is still read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from learner.runs.untrusted import load_plain
from learner.settings.config import DEFAULTS, Settings

FORMAT = 2
FIRST_FORMAT = 1
LARGEST_COUNT = 2**62
TRAILER = re.compile(rb"\nsha256:([0-9a-f]{64})\n")
TRAILER_BYTES = 73
PARTIAL = re.compile(r"^\..+\.pt_\d+$")  # a file that is being written, or was when its process was killed
CHUNK_BYTES = 2**20
CANNOT_SYNC_FOLDERS = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EPERM, errno.EBADF}
"""Answers of file systems (FUSE, SMB, 9p) that sync files but no folders. The file itself is complete and synced by then."""


@dataclass
class Counters:
    """How far a run has come. steps: fresh agent steps; frames: emulator frames; seconds: wall time spent training."""

    steps: int = 0
    frames: int = 0
    updates: int = 0
    episodes: int = 0
    trajectories: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on, and what a reader needs to know about it.

    returns: those of the last `avg_buff_size` episodes. replay: checksum of the replay file saved with it, None without one.
    """

    settings: Settings
    spec: dict[str, Any]
    protocol: dict[str, Any]
    counters: Counters
    agent: dict[str, Any]
    learning_rate: float
    generators: dict[str, Any] = field(default_factory=dict)
    returns: list[float] = field(default_factory=list)
    replay: str | None = None


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; complete or absent. Raises OSError."""
    write_file(
        path,
        {
            "format": FORMAT,
            "settings": json.dumps(checkpoint.settings),
            "spec": json.dumps(checkpoint.spec),
            "protocol": json.dumps(checkpoint.protocol),
            "counters": asdict(checkpoint.counters),
            "agent": checkpoint.agent,
            "learning_rate": checkpoint.learning_rate,
            "generators": checkpoint.generators,
            "returns": checkpoint.returns,
            "replay": checkpoint.replay,
        },
    )


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raises ValueError with one line where it is damaged or none of ours."""
    try:
        content, checksum = read_file(path)
        version = content.get("format")
        if type(version) is not int or version not in (FIRST_FORMAT, FORMAT):
            raise ValueError(f"wanted format {FORMAT}, got {str(version)[:20]}")
        if version != FIRST_FORMAT and checksum is None:
            raise ValueError("damaged: its checksum is missing")
        return _parse(content)
    except KeyError as error:
        reason = f"it has no {error}"
    except (ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
    except OSError as error:
        reason = error.strerror or str(error)
    raise ValueError(f"{path}: wanted a checkpoint of this program, got something else ({reason})")


def save_replay(path: Path, update: int, state: dict[str, Any]) -> str:
    """Write the replay that belongs to the checkpoint of this update. Returns its checksum; raises OSError."""
    return write_file(path, {"format": FORMAT, "update": update, "replay": state})


def load_replay(path: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """The state saved with this checkpoint; its tensors stay in the file. Raises ValueError with the reason it is lost for."""
    try:
        content, checksum = read_file(path, mapped=True)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if checksum is None or checksum != checkpoint.replay:
        raise ValueError(f"{path}: it belongs to another checkpoint")
    return content["replay"]


def _parse(content: dict[str, Any]) -> Checkpoint:
    """The checkpoint in a file's content. Raises KeyError, ValueError or TypeError where it is not as it was written."""
    settings, spec, protocol = (json.loads(_of_type(str, content, name)) for name in ("settings", "spec", "protocol"))
    for name, part in (("settings", settings), ("spec", spec), ("protocol", protocol)):
        if not isinstance(part, dict):
            raise ValueError(f"{name} is no table")
    _of_type(int, spec, "action_count")
    _of_type(str, spec, "env")
    _of_type(list, spec, "frame_shape")
    agent = _of_type(dict, content, "agent")
    if not all(isinstance(value, Tensor) for value in _of_type(dict, agent, "network").values()):
        raise ValueError("network holds more than tensors")
    _of_type(dict, agent, "optimizer")
    generators = _of_type(dict, content, "generators")
    _check_generators(generators)
    replay = content.get("replay")
    if not isinstance(replay, str | None):
        raise ValueError("replay is no checksum")
    return Checkpoint(
        settings={name: value for name, value in settings.items() if name in DEFAULTS},
        spec=spec,
        protocol=protocol,
        counters=_parse_counters(_of_type(dict, content, "counters")),
        agent=agent,
        learning_rate=_finite(content["learning_rate"]),
        generators=generators,
        returns=[_finite(value) for value in _of_type(list, content, "returns")],
        replay=replay,
    )


def _of_type(wanted: type, content: dict[str, Any], name: str) -> Any:
    value = content[name]
    if type(value) is not wanted:
        raise ValueError(f"{name} is a {type(value).__name__}")
    return value


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("it holds a number that is not finite")
    return float(value)


def _parse_counters(values: dict[str, Any]) -> Counters:
    counters = Counters(**values)
    for name, value in asdict(counters).items():
        whole = name != "seconds"
        if whole and type(value) is not int or not 0 <= _finite(value) <= LARGEST_COUNT:
            raise ValueError(f"counters: {name} is {str(value)[:20]}")
    return counters


def _check_generators(states: dict[str, Any]) -> None:
    """Try the random states on generators that nobody uses."""
    try:
        torch.Generator().set_state(states["torch"])
        np.random.default_rng().bit_generator.state = json.loads(states["numpy"])
    except (RuntimeError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"generators: {error}") from None


def generator_states(sampling: np.random.Generator) -> dict[str, Any]:
    """Random states of the learner's process as tensors and text."""
    return {"torch": torch.get_rng_state(), "numpy": json.dumps(sampling.bit_generator.state)}


def restore_generators(states: dict[str, Any], sampling: np.random.Generator) -> None:
    torch.set_rng_state(states["torch"])
    sampling.bit_generator.state = json.loads(states["numpy"])


class _HashingFile:
    """What `torch.save` writes to: hashes as it goes, and keeps the error that the writer would hide behind its own."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self.file.flush()


def write_file(path: Path, content: dict[str, Any]) -> str:
    """Write beside, sync, rename, sync the folder; tensors go out one by one. Returns the checksum; raises OSError."""
    beside = path.with_name(f".{path.name}_{os.getpid()}")
    try:
        with beside.open("wb") as file:
            hashing = _HashingFile(file)
            try:
                torch.save(content, cast(IO[bytes], hashing))
            except RuntimeError:
                if hashing.error:
                    raise hashing.error from None
                raise
            checksum = hashing.hash.hexdigest()
            file.write(f"\nsha256:{checksum}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    sync_folder(path.parent)
    return checksum


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as its files, where the file system can. Raises OSError if the disk fails."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC_FOLDERS:
            raise


def remove_partial_files(folder: Path) -> None:
    """Remove what processes that were killed had begun to write."""
    for path in folder.iterdir():
        if PARTIAL.match(path.name):
            path.unlink(missing_ok=True)


def read_file(path: Path, *, mapped: bool = False) -> tuple[dict[str, Any], str | None]:
    """The content that `write_file` wrote, and its checksum: None for a file without one, as in format 1.

    mapped: leave the tensors in the file, for contents too large to be in memory twice. Raises ValueError with a reason, or
    OSError.
    """
    checksum = _verified_checksum(path)
    return load_plain(path, mapped=mapped), checksum


def _verified_checksum(path: Path) -> str | None:
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise ValueError("it does not begin like one")
        end = file.seek(0, os.SEEK_END) - TRAILER_BYTES
        file.seek(max(0, end))
        trailer = TRAILER.fullmatch(file.read())
        if not trailer:
            return None
        file.seek(0)
        hashed = hashlib.sha256()
        while end > 0:
            data = file.read(min(end, CHUNK_BYTES))
            if not data:
                break
            hashed.update(data)
            end -= len(data)
    if hashed.hexdigest() != trailer[1].decode():
        raise ValueError("damaged: its checksum does not match")
    return hashed.hexdigest()
