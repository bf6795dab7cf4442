"""A pool of equal blocks of bytes that several trajectories may share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class BlockPool:
    """Blocks are put, shared and released; one that nobody uses any more is the next to be written.

    bytes: uint8 `[count, block_bytes]`. claimed: blocks ever written, the lowest ones; memory is claimed as they are. free:
    those of them that nobody uses now.
    """

    def __init__(self, count: int, block_bytes: int) -> None:
        self.bytes = np.empty((count, block_bytes), np.uint8)
        self.claimed = 0
        self.free = 0
        self._uses = np.zeros(count, np.int64)
        self._unused = np.empty(count, np.int64)  # a stack, `free` high

    def put(self, content: np.ndarray) -> np.ndarray:
        """Write content (uint8 `[n, block_bytes]`) into n blocks, each used once. Returns their numbers, int64 `[n]`."""
        reused = min(self.free, len(content))
        self.free -= reused
        fresh = np.arange(self.claimed, self.claimed + len(content) - reused)
        self.claimed += len(fresh)
        blocks = np.concatenate([self._unused[self.free : self.free + reused], fresh])
        self.bytes[blocks] = content
        self._uses[blocks] = 1
        return blocks

    def share(self, blocks: np.ndarray) -> None:
        """Use these once more; a number may stand there several times."""
        np.add.at(self._uses, blocks, 1)

    def release(self, blocks: np.ndarray) -> None:
        """Use these once less each."""
        np.subtract.at(self._uses, blocks, 1)
        unused = blocks[self._uses[blocks] == 0]
        self._unused[self.free : self.free + len(unused)] = unused
        self.free += len(unused)

    def state_dict(self) -> dict[str, Any]:
        """The claimed part, as tensors that look at the pool's own memory."""
        return {
            "bytes": torch.from_numpy(self.bytes[: self.claimed]),
            "uses": torch.from_numpy(self._uses[: self.claimed]),
            "unused": torch.from_numpy(self._unused[: self.free]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.claimed, self.free = len(state["bytes"]), len(state["unused"])
        self.bytes[: self.claimed] = state["bytes"].numpy()
        self._uses[: self.claimed] = state["uses"].numpy()
        self._unused[: self.free] = state["unused"].numpy()
