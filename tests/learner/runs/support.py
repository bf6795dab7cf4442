"""Checkpoints and file contents that several tests of a run's files share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from learner.runs.checkpoint import Checkpoint, Counters, generator_states

CONTENT: dict[str, Any] = {
    "name": "text",
    "numbers": [1, 2.5, True, None],
    "nested": {"weights": torch.arange(12.0).reshape(3, 4).t(), "empty": torch.zeros(0), "flags": torch.tensor([True, False])},
    "bytes": torch.arange(300, dtype=torch.uint8),
    3: ("a", 1),
}


def write_without_checksum(path: Path, content: object) -> None:
    """Write a file of format 1, which has no line with a checksum."""
    torch.save(content, path)


def is_mapped(path: Path) -> bool:
    """Whether this process holds a file in its memory, even if the file was removed (Linux)."""
    return str(path) in Path("/proc/self/maps").read_text()


def make_checkpoint(updates: int = 5, seed: int = 0) -> Checkpoint:
    """Weights and RMSProp moments of a tiny network after one step."""
    torch.manual_seed(seed)
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.RMSprop(network.parameters(), lr=0.1)
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return Checkpoint(
        settings={"env": "Catch-v0", "seed": 7, "lr": 1e-3, "render": False},
        spec={"env": "Catch-v0", "frame_shape": [10, 5], "action": {"kind": "discrete", "count": 3, "meanings": []}},
        protocol={"sticky_actions": 0.25},
        counters=Counters(steps=2**40, frames=2**42, updates=updates, episodes=11, trajectories=12, seconds=13.5),
        agent={"modules": {"network": network.state_dict()}, "optimizers": {"network": optimizer.state_dict()}},
        learning_rate=2.5e-4,
        generators=generator_states(np.random.default_rng(3)),
        returns=[1.0, -21.0, 0.5],
    )
