"""Checkpoints: complete or absent, tensors and plain data only, loaded with `weights_only=True`."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learner.config import DEFAULTS, Settings
from learner.run_directory import RunDirectory

FORMAT = 1
KEPT = 3


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
    """What a run needs to go on, and what a reader needs to know about it."""

    settings: Settings
    spec: dict[str, Any]
    protocol: dict[str, Any]
    counters: Counters
    agent: dict[str, Any]
    learning_rate: float
    generators: dict[str, Any] = field(default_factory=dict)
    returns: list[float] = field(default_factory=list)


def save_checkpoint(run: RunDirectory, checkpoint: Checkpoint) -> Path:
    """Write beside, sync, rename; then forget all but the newest `KEPT`. Returns the new file."""
    path = run.checkpoint_path(checkpoint.counters.updates)
    beside = path.with_name(f".{path.name}_{os.getpid()}")
    content = {
        "format": FORMAT,
        "settings": json.dumps(checkpoint.settings),
        "spec": json.dumps(checkpoint.spec),
        "protocol": json.dumps(checkpoint.protocol),
        "counters": asdict(checkpoint.counters),
        "agent": checkpoint.agent,
        "learning_rate": checkpoint.learning_rate,
        "generators": checkpoint.generators,
        "returns": checkpoint.returns,
    }
    try:
        with beside.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    for old in run.checkpoint_paths()[:-KEPT]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raises ValueError with one line where it is none of ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a foreign file makes the unpickler wonder about its pickle protocol
            content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}")
        if content["format"] != FORMAT:
            raise ValueError(f"wanted format {FORMAT}, got {content['format']!r}")
        settings = json.loads(content["settings"])
        return Checkpoint(
            settings={name: value for name, value in settings.items() if name in DEFAULTS},
            spec=json.loads(content["spec"]),
            protocol=json.loads(content["protocol"]),
            counters=Counters(**content["counters"]),
            agent=content["agent"],
            learning_rate=float(content["learning_rate"]),
            generators=content["generators"],
            returns=[float(value) for value in content["returns"]],
        )
    except Exception as error:  # a damaged or foreign file makes the unpickler raise nearly anything
        reason = str(error).split("\n", 1)[0][:120] or type(error).__name__
        raise ValueError(f"{path}: wanted a checkpoint of this program, got something else ({reason})") from None


def generator_states(sampling: np.random.Generator) -> dict[str, Any]:
    """Random states of the learner's process as tensors and text."""
    return {"torch": torch.get_rng_state(), "numpy": json.dumps(sampling.bit_generator.state)}


def restore_generators(states: dict[str, Any], sampling: np.random.Generator) -> None:
    torch.set_rng_state(states["torch"])
    sampling.bit_generator.state = json.loads(states["numpy"])
