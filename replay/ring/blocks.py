"""A pool of equal blocks of bytes that several trajectories may share, in host memory or on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class BlockPool:
    """Blocks are put, shared and released; one that nobody uses any more is the next to be written.

    bytes: uint8 `[count, block_bytes]`. claimed: blocks ever written, the lowest ones; memory is claimed as they are. free:
    those of them that nobody uses now.
    """

    bytes: Any  # an array; on a device a tensor

    def __init__(self, count: int, block_bytes: int) -> None:
        self._allocate(count, block_bytes)
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
        self._write(blocks, content)
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
        """The claimed part, as tensors in host memory that look at the pool's own where they can."""
        return {
            "bytes": self._claimed_bytes(),
            "uses": torch.from_numpy(self._uses[: self.claimed]),
            "unused": torch.from_numpy(self._unused[: self.free]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.claimed, self.free = len(state["bytes"]), len(state["unused"])
        self._restore(state["bytes"])
        self._uses[: self.claimed] = state["uses"].numpy()
        self._unused[: self.free] = state["unused"].numpy()

    def _allocate(self, count: int, block_bytes: int) -> None:
        self.bytes = np.empty((count, block_bytes), np.uint8)

    def _write(self, blocks: np.ndarray, content: np.ndarray) -> None:
        self.bytes[blocks] = content

    def _claimed_bytes(self) -> Tensor:
        return torch.from_numpy(self.bytes[: self.claimed])

    def _restore(self, content: Tensor) -> None:
        """Write what `_claimed_bytes` gave into the lowest blocks."""
        self.bytes[: len(content)] = content.numpy()


class DeviceBlockPool(BlockPool):
    """The same in a device's memory: `bytes` is a tensor there, whose memory is claimed at once.

    On a GPU all that is done to it is queued in one stream, so nothing is read before it is written, nor overwritten before it
    is read. That stream is not the learner's: whoever draws does not wait for updates. What was `put` may be overwritten as
    soon as that returns. A `gather` waits for its own end, so any stream may read what it gives.
    """

    def __init__(self, count: int, block_bytes: int, device: torch.device) -> None:
        self._device = device
        # Before the learner's where both wait: a thread waits for this one.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        # blocking: a thread that waits sleeps, and leaves its core to the environments.
        self._drawn = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        super().__init__(count, block_bytes)

    def gather(self, blocks: np.ndarray) -> Tensor:
        """A copy of these blocks on the device, uint8 `[n, block_bytes]`.

        Its memory goes back to the pool's own stream: another one that may still read it when it is dropped must have said so
        (`Tensor.record_stream`).
        """
        with torch.cuda.stream(self._stream):
            content = self.bytes.index_select(0, self._up(blocks))
            if self._drawn:
                self._drawn.record()
                self._drawn.synchronize()
        return content

    def _allocate(self, count: int, block_bytes: int) -> None:
        with torch.cuda.stream(self._stream):
            self.bytes = torch.empty((count, block_bytes), dtype=torch.uint8, device=self._device)

    def _write(self, blocks: np.ndarray, content: np.ndarray) -> None:
        with torch.cuda.stream(self._stream):
            self.bytes.index_copy_(0, self._up(blocks), self._up(content))

    def _claimed_bytes(self) -> Tensor:
        with torch.cuda.stream(self._stream):
            return self.bytes[: self.claimed].to("cpu", copy=True)

    def _restore(self, content: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            self.bytes[: len(content)].copy_(content)

    def _up(self, array: np.ndarray) -> Tensor:
        """Nobody waits for it: PyTorch keeps the page-locked copy until it has gone up."""
        host = torch.from_numpy(array)
        return host.pin_memory().to(self._device, non_blocking=True) if self._stream else host.to(self._device)
