"""A checkpoint holds all that a run needs to resume, as one file of tensors and plain data.

`torch.save` writes the file, and one line with the SHA-256 of all bytes before it follows; `torch.load` reads such files too. A
file is complete or absent. Format 1 had no checksum and is still read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from learner.runs.untrusted import load_plain
from learner.settings.config import Settings
from learner.settings.other_names import rename_settings
from wrappers.spaces import Discrete, action_space
from wrappers.spec import BY_COLOURS, tasks_of

FORMAT = 3
FIRST_FORMAT, UNNAMED_MODULES = 1, 2
ACTING_MODULE = "network"
"""The module of an agent that is published, evaluated and exported."""
LARGEST_COUNT = 2**62
GPU_STATE_BYTES = 16  # of a GPU's generator: a seed and how many numbers it has drawn
TRAILER = re.compile(rb"\nsha256:([0-9a-f]{64})\n")
TRAILER_BYTES = 73
SCALE_OF_INPUT = re.compile(r"(^|\.)inputs\.\d+\.scale$")  # of `agents.networks.inputs.InputScale` in a module
PARTIAL = re.compile(r"^\..+\.pt_\d+$")  # a file that is being written, or that a killed process left half-written
CHUNK_BYTES = 2**20
CANNOT_SYNC_FOLDERS = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EPERM, errno.EBADF}
"""Errors of file systems (FUSE, SMB, 9p) that sync files but not folders. The file itself is complete and synced by then."""


@dataclass
class Counters:
    """Progress of a run.

    Args:
        steps: fresh agent steps, each a row of a trajectory: also those of autoresets, and those that fill up the end of a
            recording.
        frames: emulator frames.
        updates: iterations of the training loop. One may learn from several batches and take several optimiser steps.
        episodes: episodes that have ended.
        trajectories: fresh trajectories.
        seconds: wall time spent training.
    """

    steps: int = 0
    frames: int = 0
    updates: int = 0
    episodes: int = 0
    trajectories: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run, and a description of it for readers.

    Args:
        settings: the run's settings; those that were fitted to the machine are as the command gave them.
        spec: the environment's observation and action space.
        protocol: the evaluation protocol.
        counters: progress of the run.
        agent: state of the agent (`Agent.state_dict`).
        learning_rate: that of the newest update.
        generators: random states of the learner's process.
        returns: of the last `return_window` episodes.
        infos: numbers in the infos of the last steps of these episodes.
        task_returns: the same as `returns` of each task, if there are several.
        replay: checksum of the replay file saved with it, or None.
        rank_replays: the checksums of the replay files of ranks 1 and up, None for one that has none.
    """

    settings: Settings
    spec: dict[str, Any]
    protocol: dict[str, Any]
    counters: Counters
    agent: dict[str, Any]
    learning_rate: float
    generators: dict[str, Any] = field(default_factory=dict)
    returns: list[float] = field(default_factory=list)
    infos: list[Mapping[str, float]] = field(default_factory=list)
    task_returns: list[list[float]] = field(default_factory=list)
    replay: str | None = None
    rank_replays: tuple[str | None, ...] = ()

    def of_rank(self, rank: int) -> Checkpoint:
        """The checkpoint as the learner of rank 1 or up reads it, with the replay of that rank."""
        return replace(self, replay=dict(enumerate(self.rank_replays, 1)).get(rank))


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint. Raises OSError; the file is then absent, or as it was before."""
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
            "infos": checkpoint.infos,
            **({"task_returns": checkpoint.task_returns} if checkpoint.task_returns else {}),
            "replay": checkpoint.replay,
            "rank_replays": list(checkpoint.rank_replays),
        },
    )


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises ValueError with one line if it is damaged or not a checkpoint of this program."""
    try:
        content, checksum = read_file(path)
        version = content.get("format")
        if type(version) is not int or version not in (FIRST_FORMAT, UNNAMED_MODULES, FORMAT):
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
    """Write the replay file of the checkpoint of this update. Returns its checksum, which that checkpoint stores.

    Raises OSError.
    """
    return write_file(path, {"format": FORMAT, "update": update, "replay": state})


def load_replay(path: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """The replay state saved with this checkpoint. Its tensors stay in the file. Raises ValueError if it cannot be used."""
    try:
        content, checksum = read_file(path, mapped=True)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if checksum is None or checksum != checkpoint.replay:
        raise ValueError(f"{path}: it belongs to another checkpoint")
    replay: dict[str, Any] = content["replay"]
    return replay


def _parse(content: dict[str, Any]) -> Checkpoint:
    """The checkpoint in a file's content. Raises KeyError, ValueError or TypeError if a part is not as it was written."""
    settings, spec, protocol = (json.loads(_of_type(str, content, name)) for name in ("settings", "spec", "protocol"))
    for name, part in (("settings", settings), ("spec", spec), ("protocol", protocol)):
        if not isinstance(part, dict):
            raise ValueError(f"{name} is not a dictionary")
    spec = _upgraded_spec(spec)
    # Called for its errors: a damaged description of the actions is refused here and not when it is used.
    action_space(spec["action"])
    _of_type(str, spec, "env")
    _of_type(list, spec, "frame_shape")
    agent = _upgraded_agent(_parse_agent(_of_type(dict, content, "agent")), len(tasks_of(spec["env"])))
    generators = _of_type(dict, content, "generators")
    _check_generators(generators)
    replay = content.get("replay")
    rank_replays = _of_type(list, {"rank_replays": [], **content}, "rank_replays")  # earlier files have none
    if not all(isinstance(checksum, str | None) for checksum in (replay, *rank_replays)):
        raise ValueError("replay is not a checksum")
    return Checkpoint(
        # Settings that this version no longer has are left out.
        settings=_upgraded_settings(rename_settings(settings), spec),
        spec=spec,
        protocol=protocol,
        counters=_parse_counters(_of_type(dict, content, "counters")),
        agent=agent,
        learning_rate=_finite(content["learning_rate"]),
        generators=generators,
        returns=[_finite(value) for value in _of_type(list, content, "returns")],
        infos=_parse_infos(_of_type(list, {"infos": [], **content}, "infos")),  # earlier files have none
        task_returns=[[_finite(value) for value in own] for own in content.get("task_returns", ())],
        replay=replay,
        rank_replays=tuple(rank_replays),
    )


def _upgraded_agent(agent: dict[str, Any], tasks: int) -> dict[str, Any]:
    """An agent's state as it is saved now. Until each of several tasks had statistics of its images, they shared them."""
    if tasks > 1:
        for weights in agent["modules"].values():
            for scale in filter(SCALE_OF_INPUT.search, list(weights)):
                mean = f"{scale.removesuffix('scale')}mean"
                if (weights[scale].dim(), weights[mean].dim()) == (0, 3):  # one scale, and a mean [C, H, W] of images
                    weights.update({name: torch.stack([weights[name]] * tasks) for name in (mean, scale)})
    return agent


def _upgraded_settings(settings: Settings, spec: dict[str, Any]) -> Settings:
    """Settings as they are saved now. Earlier ones do not say where images have their channels, which was guessed otherwise."""
    shapes = [spec["frame_shape"], *(leaf["shape"] for leaf in spec.get("leaves", ()))]
    return {**({"observation_layout": BY_COLOURS} if any(len(shape) == 3 for shape in shapes) else {}), **settings}


def _upgraded_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec as it is saved now. Until there were other spaces it held the number of actions and their names."""
    if "action" in spec:
        return {**spec, "action": _of_type(dict, spec, "action")}
    meanings = list(spec.get("action_meanings", ()))
    action = {"kind": Discrete.kind, "count": _of_type(int, spec, "action_count"), "meanings": meanings}
    return {**{name: value for name, value in spec.items() if not name.startswith("action_")}, "action": action, "leaves": []}


def _parse_agent(agent: dict[str, Any]) -> dict[str, Any]:
    """The agent's state. Formats 1 and 2 had one network and one optimiser and did not name them."""
    if "network" in agent:
        network, optimizer = _of_type(dict, agent, "network"), _of_type(dict, agent, "optimizer")
        agent = {"modules": {ACTING_MODULE: network}, "optimizers": {ACTING_MODULE: optimizer}}
    for name in _of_type(dict, agent, "modules"):
        if not all(isinstance(value, Tensor) for value in _of_type(dict, agent["modules"], name).values()):
            raise ValueError(f"{name} holds more than tensors")
    if ACTING_MODULE not in agent["modules"]:
        raise ValueError(f"it has no {ACTING_MODULE}")
    for name in _of_type(dict, agent, "optimizers"):
        _of_type(dict, agent["optimizers"], name)
    return agent


def _of_type(wanted: type, content: dict[str, Any], name: str) -> Any:
    value = content[name]
    # Not isinstance, for which a bool is an int.
    if type(value) is not wanted:
        raise ValueError(f"{name} is a {type(value).__name__}")
    return value


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("it holds a number that is not finite")
    return float(value)


def _parse_infos(ends: list[Any]) -> list[Mapping[str, float]]:
    if not all(type(each) is dict and all(type(name) is str for name in each) for each in ends):
        raise ValueError("infos are not numbers by name")
    return [{name: _finite(value) for name, value in each.items()} for each in ends]


def _parse_counters(values: dict[str, Any]) -> Counters:
    counters = Counters(**values)
    for name, value in asdict(counters).items():
        whole = name != "seconds"
        if (whole and type(value) is not int) or not 0 <= _finite(value) <= LARGEST_COUNT:
            raise ValueError(f"counters: {name} is {str(value)[:20]}")
    return counters


def _check_generators(states: dict[str, Any]) -> None:
    """Load the random states into generators made for this check. Raises ValueError if they do not fit."""
    try:
        torch.Generator().set_state(states["torch"])
        np.random.default_rng().bit_generator.state = json.loads(states["numpy"])
        of_gpu = states.get("cuda", torch.zeros(GPU_STATE_BYTES, dtype=torch.uint8))
        if of_gpu.dtype != torch.uint8 or of_gpu.shape != (GPU_STATE_BYTES,):
            wanted = f"wanted the state of a GPU's generator as uint8 [{GPU_STATE_BYTES}]"
            raise ValueError(f"{wanted}, got {str(of_gpu.dtype).removeprefix('torch.')} {list(of_gpu.shape)}")
    except (RuntimeError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"generators: {error}") from None


def generator_states(sampling: np.random.Generator) -> dict[str, Any]:
    """Random states of the learner's process as plain data. sampling: the generator that the replays draw from."""
    of_gpu = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {}
    return {"torch": torch.get_rng_state(), "numpy": json.dumps(sampling.bit_generator.state), **of_gpu}


def restore_generators(states: dict[str, Any], sampling: np.random.Generator) -> None:
    """Set the random states that `generator_states` returned."""
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(states["cuda"])
    sampling.bit_generator.state = json.loads(states["numpy"])


class _HashingFile:
    """A file for `torch.save`. It hashes what is written, and keeps the OSError that PyTorch would replace by its own error."""

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
    """Write a file that is complete or absent. Returns its checksum; raises OSError.

    Tensors are written one by one from where they lie, so a large replay needs no second copy in memory.
    """
    partial = path.with_name(f".{path.name}_{os.getpid()}")
    try:
        with partial.open("wb") as file:
            hashing = _HashingFile(file)
            try:
                torch.save(content, cast(IO[bytes], hashing))
            except RuntimeError:
                if hashing.error:
                    raise hashing.error from None
                raise
            # The checksum covers every byte that PyTorch wrote, and comes last, so a file that was cut has none.
            checksum = hashing.hash.hexdigest()
            file.write(f"\nsha256:{checksum}\n".encode())
            file.flush()
            # The content must be on the disk before the name is: after a power cut the name would show an empty file.
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    sync_folder(path.parent)
    return checksum


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as its files, if the file system can. Raises OSError if the disk fails."""
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
    """Remove files that killed processes left half-written. Raises OSError."""
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
    """The checksum at the file's end, or None if it has none. Raises ValueError if the bytes before it differ."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise ValueError("it does not begin like a ZIP file")  # a huge file of another kind is not read to its end
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
