"""Checkpoints: what a run needs to go on, written and read as one file of tensors and plain data.

Format 1 had no checksum; it is still read.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learner.runs.checkpoint_file import read_file, write_file
from learner.settings.config import Settings
from learner.settings.renames import rename_settings

FORMAT = 2
FIRST_FORMAT = 1
LARGEST_COUNT = 2**62


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

    returns: those of the last `return_window` episodes. replay: checksum of the replay file saved with it, None without one.
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
        settings=rename_settings(settings),
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
