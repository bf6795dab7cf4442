"""Plain storage with its frames on a device: host memory holds no copy, and replaying them needs no transfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay.ring.pages import DevicePagePool
from replay.ring.storage import PlainStorage
from replay.trajectory import TrajectoryContract


class DeviceStorage(PlainStorage):
    """Storage with its frames on the device, in pages that are claimed at once, and all other fields in host memory.

    Host memory also keeps the last frames of each environment's newest trajectory, which the next one repeats. The next one is
    compared with them, and reading them from the device would make the host wait at every insert.
    """

    pool: DevicePagePool

    def __init__(self, contract: TrajectoryContract, capacity: int, memory: int | None, device: torch.device) -> None:
        self._device = device
        super().__init__(contract, capacity, memory)
        self._dtype = torch.from_numpy(np.empty(0, contract.fields["frames"].dtype)).dtype
        self._kept: dict[int, np.ndarray] = {}  # slot of a newest trajectory -> uint8 `[shared_frames, page_bytes]`

    def write(self, trajectory: Mapping[str, np.ndarray], packed: np.ndarray, follows: int | None) -> int:
        slot = super().write(trajectory, packed, follows)
        # The write compares the new frames with the kept ones, so these are dropped only after it.
        if follows is not None:
            self._kept.pop(follows, None)
        # `packed` may be a view of the worker's slot, which is reused after the insert.
        self._kept[slot] = packed[-self.shared_frames :].copy()
        return slot

    def evict(self, slot: int) -> None:
        super().evict(slot)
        self._kept.pop(slot, None)

    def close_holes(self) -> dict[int, int]:
        moved = super().close_holes()
        self._kept = {moved.get(slot, slot): frames for slot, frames in self._kept.items()}
        return moved

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._kept.clear()

    def _make_pool(self, page_count: int) -> DevicePagePool:
        return DevicePagePool(page_count, self.page_bytes, self._device)

    def _newest_frames(self, slot: int) -> np.ndarray:
        if slot in self._kept:
            return self._kept[slot]
        # Only for trajectories from a saved state.
        return self.pool.gather(self._pages[slot][-self.shared_frames :]).cpu().numpy()

    def _gather(self, pages: np.ndarray, out: np.ndarray) -> Tensor:
        frames = self.pool.gather(pages.reshape(-1))
        return frames.view(self._dtype).reshape(out.shape)
