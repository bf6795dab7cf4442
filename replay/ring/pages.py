"""A pool of equal pages of bytes that several trajectories may share, in host memory or on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class PagePool:
    """Pages are put, shared and released; one that nobody uses any more is the next to be written.

    bytes: uint8 `[count, page_bytes]`. claimed: pages ever written, the lowest ones; memory is claimed as they are. free:
    those of them that nobody uses now.
    """

    bytes: Any  # an array; on a device a tensor

    def __init__(self, count: int, page_bytes: int) -> None:
        self._allocate(count, page_bytes)
        self.claimed = 0
        self.free = 0
        self._uses = np.zeros(count, np.int64)
        self._unused = np.empty(count, np.int64)  # a stack, `free` high

    def put(self, content: np.ndarray) -> np.ndarray:
        """Write content (uint8 `[n, page_bytes]`) into n pages, each used once. Returns their numbers, int64 `[n]`."""
        reused = min(self.free, len(content))
        self.free -= reused
        fresh = np.arange(self.claimed, self.claimed + len(content) - reused)
        self.claimed += len(fresh)
        pages = np.concatenate([self._unused[self.free : self.free + reused], fresh])
        self._write(pages, content)
        self._uses[pages] = 1
        return pages

    def share(self, pages: np.ndarray) -> None:
        """Use these once more; a number may stand there several times."""
        np.add.at(self._uses, pages, 1)

    def release(self, pages: np.ndarray) -> None:
        """Use these once less each."""
        np.subtract.at(self._uses, pages, 1)
        unused = pages[self._uses[pages] == 0]
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

    def _allocate(self, count: int, page_bytes: int) -> None:
        self.bytes = np.empty((count, page_bytes), np.uint8)

    def _write(self, pages: np.ndarray, content: np.ndarray) -> None:
        self.bytes[pages] = content

    def _claimed_bytes(self) -> Tensor:
        return torch.from_numpy(self.bytes[: self.claimed])

    def _restore(self, content: Tensor) -> None:
        """Write what `_claimed_bytes` gave into the lowest pages."""
        self.bytes[: len(content)] = content.numpy()


class DevicePagePool(PagePool):
    """The same in a device's memory: `bytes` is a tensor there, whose memory is claimed at once.

    On a GPU all that is done to it is queued in one stream, so nothing is read before it is written, nor overwritten before it
    is read. That stream is not the learner's: whoever draws does not wait for updates. What was `put` may be overwritten as
    soon as that returns. A `gather` waits for its own end, so any stream may read what it gives.
    """

    def __init__(self, count: int, page_bytes: int, device: torch.device) -> None:
        self._device = device
        # Before the learner's where both wait: a thread waits for this one.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        # blocking: a thread that waits sleeps, and leaves its core to the environments.
        self._drawn = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        super().__init__(count, page_bytes)

    def gather(self, pages: np.ndarray) -> Tensor:
        """A copy of these pages on the device, uint8 `[n, page_bytes]`.

        Its memory goes back to the pool's own stream: another one that may still read it when it is dropped must have said so
        (`Tensor.record_stream`).
        """
        with torch.cuda.stream(self._stream):
            content = self.bytes.index_select(0, self._up(pages))
            if self._drawn:
                self._drawn.record()
                self._drawn.synchronize()
        return content

    def _allocate(self, count: int, page_bytes: int) -> None:
        with torch.cuda.stream(self._stream):
            self.bytes = torch.empty((count, page_bytes), dtype=torch.uint8, device=self._device)

    def _write(self, pages: np.ndarray, content: np.ndarray) -> None:
        with torch.cuda.stream(self._stream):
            self.bytes.index_copy_(0, self._up(pages), self._up(content))

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
