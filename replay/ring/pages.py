"""A pool of pages (equal pieces of bytes) that several trajectories may share, in host memory or on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class PagePool:
    """Pages with a count of their users. A page without users is free and is written again before a new one is claimed.

    Attributes:
        bytes: uint8 `[count, page_bytes]`, an array, or a tensor if the pool is on a device.
        claimed: Number of pages ever written. They are the lowest ones; the system gives memory as they are written.
        free: Number of claimed pages without users.
    """

    bytes: Any

    def __init__(self, count: int, page_bytes: int) -> None:
        self._allocate(count, page_bytes)
        self.claimed = 0
        self.free = 0
        self._uses = np.zeros(count, np.int64)
        self._unused = np.empty(count, np.int64)  # a stack of free pages; its height is `free`

    def put(self, content: np.ndarray) -> np.ndarray:
        """Write content (uint8 `[n, page_bytes]`) into n pages with one user each. Returns their numbers, int64 `[n]`."""
        reused = min(self.free, len(content))  # free pages first: their memory is claimed already
        self.free -= reused
        fresh = np.arange(self.claimed, self.claimed + len(content) - reused)
        self.claimed += len(fresh)
        pages = np.concatenate([self._unused[self.free : self.free + reused], fresh])
        self._write(pages, content)
        self._uses[pages] = 1
        return pages

    def share(self, pages: np.ndarray) -> None:
        """Add one user for each number in `pages`. A number may occur several times."""
        np.add.at(self._uses, pages, 1)  # unlike `+=`, which counts a repeated number once

    def release(self, pages: np.ndarray) -> None:
        """Remove one user for each number in `pages`."""
        np.subtract.at(self._uses, pages, 1)
        # A number that occurs twice must not be freed twice: a trajectory shares only the black page with itself, and the
        # storage's own use of that page never ends.
        unused = pages[self._uses[pages] == 0]
        self._unused[self.free : self.free + len(unused)] = unused
        self.free += len(unused)

    def state_dict(self) -> dict[str, Any]:
        """Returns the claimed part as tensors in host memory, which share the pool's own memory if that is there too."""
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
        """Write the result of `_claimed_bytes` into the lowest pages."""
        self.bytes[: len(content)] = content.numpy()


class DevicePagePool(PagePool):
    """A pool in a device's memory. `bytes` is a tensor there, and its memory is claimed at once.

    On a GPU one stream runs all work on the pool, so a page is read after it was written and before it is overwritten. The
    stream is not the learner's: drawing does not wait for updates. `put` copies its content before it returns. `gather`
    returns when its copy is complete, so any stream may read the result.
    """

    def __init__(self, count: int, page_bytes: int, device: torch.device) -> None:
        self._device = device
        # A thread waits for this stream, so its work goes before the learner's if both are queued.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        # blocking: the waiting thread sleeps and leaves its core to the environments.
        self._gathered = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        super().__init__(count, page_bytes)

    def gather(self, pages: np.ndarray) -> Tensor:
        """Returns a copy of these pages on the device, uint8 `[n, page_bytes]`.

        Its memory returns to the pool's stream when the tensor is dropped. A reader in another stream must announce itself
        with `Tensor.record_stream`.
        """
        with torch.cuda.stream(self._stream):
            content: Tensor = self.bytes.index_select(0, self._to_device(pages))  # [n, page_bytes]
            if self._gathered:
                self._gathered.record()
                self._gathered.synchronize()  # the thread waits here, so any stream may read the result
        return content

    def _allocate(self, count: int, page_bytes: int) -> None:
        with torch.cuda.stream(self._stream):
            self.bytes = torch.empty((count, page_bytes), dtype=torch.uint8, device=self._device)

    def _write(self, pages: np.ndarray, content: np.ndarray) -> None:
        with torch.cuda.stream(self._stream):
            self.bytes.index_copy_(0, self._to_device(pages), self._to_device(content))

    def _claimed_bytes(self) -> Tensor:
        with torch.cuda.stream(self._stream):
            content: Tensor = self.bytes[: self.claimed].to("cpu", copy=True)
            return content

    def _restore(self, content: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            self.bytes[: len(content)].copy_(content)

    def _to_device(self, array: np.ndarray) -> Tensor:
        """Returns a copy on the device. The host does not wait: PyTorch keeps the page-locked copy until it is transferred."""
        host = torch.from_numpy(array)
        return host.pin_memory().to(self._device, non_blocking=True) if self._stream else host.to(self._device)
