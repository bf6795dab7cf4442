"""Where a ring keeps its trajectories, by slot: frames in a pool of pages, every other field in an array.

Plain storage holds a frame once, however many trajectories show it. Consecutive trajectories of one environment overlap in
S frames: those are compared byte by byte and shared. Where an episode ended in between, the later one shows black frames
instead; black is one page for all. Compressed storage holds each trajectory's frames as one LZ4 block, cut into pages.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import lz4.block
import numpy as np
import torch
from torch import Tensor

from replay.base import ReplayConfig
from replay.ring.growing import GrowingArray
from replay.ring.pages import PagePool
from replay.trajectory import TrajectoryContract, hidden_frames

SLOT_OVERHEAD = 352
"""Bytes a trajectory takes beside its fields: the ring's counters, the list of its pages, the retention's record. That of a
reservoir is the largest; a ring of the newest takes 100 less."""

PAGE_OVERHEAD = 24
"""Bytes a page takes beside its content: its number, how often it is used, and its place among the unused."""

COMPRESSED_PAGE_BYTES = 512
SIZE_BYTES = 4  # before the compressed frames stands how long they are


class Storage(ABC):
    """Slots for trajectories. Memory is claimed as slots and pages are first written, and `bytes_claimed` says how much.

    What is left of each array's last page is not counted: up to 2 MB each where NumPy asks for huge pages. Memory of slots
    that hold nothing is claimed until `close_holes`.

    capacity: slots. memory: bytes that are never exceeded; there are then more slots than that holds trajectories, and `fits`
    says when it is full. columns: `[capacity, *shape]` of each field but the frames. own_pages: pages of no trajectory.
    """

    own_pages = 0

    def __init__(self, contract: TrajectoryContract, capacity: int, memory: int | None) -> None:
        self.page_bytes, _ = self.layout(contract)
        self.frames_stacked = contract.frames_stacked
        self.slot_bytes = _slot_bytes(contract)
        self.memory = math.inf if memory is None else memory
        self.capacity = capacity if memory is None else memory // self.slot_bytes
        self.pool = self._make_pool(self.pool_bytes(contract, capacity, memory) // self.page_bytes)
        self._growing = {
            name: GrowingArray((self.capacity, *shape), dtype)
            for name, (shape, dtype) in contract.fields.items()
            if name != "frames"
        }
        self.columns = {name: growing.array for name, growing in self._growing.items()}
        self._pages: list[np.ndarray] = []  # of each slot ever written
        self._free: list[int] = []  # of those, the slots that hold nothing now

    @staticmethod
    @abstractmethod
    def layout(contract: TrajectoryContract) -> tuple[int, int]:
        """Bytes of a page, and the most pages that one trajectory takes."""

    @abstractmethod
    def pack(self, frames: np.ndarray) -> np.ndarray:
        """Frames `[T+S, *frame_shape]` as pages, uint8 `[n, page_bytes]`."""

    @abstractmethod
    def _put(self, packed: np.ndarray, follows: int | None) -> np.ndarray:
        """Write pages into the pool, except for what slot `follows` has already. Returns their numbers."""

    @abstractmethod
    def _read_frames(self, slots: np.ndarray, starts: np.ndarray, hidden: np.ndarray, out: np.ndarray) -> Tensor | None:
        """Write consecutive frames of the trajectories in these slots into `out`.

        Frames that lie on a device are returned instead, in the shape of `out`, which is left as it is.

        Args:
            slots: int64 `[n]`.
            starts: Index of the first frame for each slot, int64 `[n]`.
            hidden: Which of the first S frames read are black instead, bool `[n, S]`.
            out: `[n, frames, *frame_shape]`.
        """

    @classmethod
    def pool_bytes(cls, contract: TrajectoryContract, capacity: int, memory: int | None) -> int:
        """The most that pages ever take. With `memory` each of them comes with its part of a slot at least."""
        page_bytes, most_pages = cls.layout(contract)
        pages = capacity * most_pages
        if memory is not None:
            without, one = (cls.most_bytes(contract, count) for count in (0, 1))
            pages = (memory - without) * most_pages // (one - without)
        return (pages + cls.own_pages) * page_bytes

    @classmethod
    def most_bytes(cls, contract: TrajectoryContract, count: int) -> int:
        """The most that `count` trajectories take."""
        page_bytes, most_pages = cls.layout(contract)
        pages = count * most_pages + cls.own_pages
        return count * _slot_bytes(contract) + pages * (page_bytes + PAGE_OVERHEAD)

    @property
    def bytes_claimed(self) -> int:
        return self._bytes_with(0, 0)

    @property
    def holes(self) -> int:
        """Slots that hold nothing and have memory all the same."""
        return len(self._free)

    def fits(self, packed: np.ndarray) -> bool:
        """Whether a trajectory of these pages can be written now, with no more than `memory` bytes claimed afterwards."""
        new_slots = 0 if self._free else 1
        new_pages = max(0, len(packed) - self.pool.free)
        return len(self._pages) + new_slots <= self.capacity and self._bytes_with(new_slots, new_pages) <= self.memory

    def write(self, trajectory: Mapping[str, np.ndarray], packed: np.ndarray, follows: int | None) -> int:
        """Copy one trajectory in; packed: its frames. follows: the slot it may share frames with. Returns its slot."""
        pages = self._put(packed, follows)
        if self._free:
            slot = self._free.pop()
            self._pages[slot] = pages
        else:
            slot = len(self._pages)
            self._pages.append(pages)
        for name, column in self.columns.items():
            column[slot] = trajectory[name]
        return slot

    def evict(self, slot: int) -> None:
        self.pool.release(self._pages[slot])
        self._pages[slot] = np.empty(0, np.int64)
        self._free.append(slot)

    def close_holes(self) -> dict[int, int]:
        """Move the highest slots into those that hold nothing, and give the memory behind back. Returns old slot -> new."""
        count = len(self._pages) - len(self._free)
        into = sorted(slot for slot in self._free if slot < count)
        moved = dict(zip(sorted(set(range(count, len(self._pages))).difference(self._free)), into, strict=True))
        for old, new in moved.items():
            self._pages[new] = self._pages[old]
        del self._pages[count:]
        self._free.clear()
        for growing in self._growing.values():
            growing.array[into] = growing.array[list(moved)]
            growing.give_back(count)
        return moved

    def read(self, slots: np.ndarray, out: Mapping[str, np.ndarray]) -> Tensor | None:
        """Copy the trajectories in these slots into `out`, contiguous `[n, *shape]` each field.

        Frames that lie on a device are returned instead, and those of `out` are left as they are.
        """
        for name, column in self.columns.items():
            np.take(column, slots, axis=0, out=out[name], mode="clip")
        whole = np.zeros(len(slots), np.int64)
        return self._read_frames(slots, whole, np.zeros((len(slots), self.frames_stacked), bool), out["frames"])

    def read_window(self, slots: np.ndarray, starts: np.ndarray, out: Mapping[str, np.ndarray]) -> Tensor | None:
        """Copy consecutive rows of the trajectories in these slots into `out`, as trajectories of that length.

        Frames that lie on a device are returned instead, and those of `out` are left as they are.

        Args:
            slots: int64 `[n]`.
            starts: First row for each slot, int64 `[n]`.
            out: `[n, *shape]` each field, allocated for trajectories of the window's length.
        """
        steps = starts[:, None] + np.arange(out["actions"].shape[1])
        for name, column in self.columns.items():
            # A field whose shape does not depend on the length has no rows: it belongs to the whole trajectory.
            has_rows = out[name].shape[1:] != column.shape[1:]
            out[name][...] = column[slots[:, None], steps] if has_rows else column[slots]
        return self._read_frames(slots, starts, self._before_episode(slots, starts), out["frames"])

    def _before_episode(self, slots: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Which of the S frames shown by the observation at row `start` are from before its episode, bool `[n, S]`.

        A stored trajectory has black frames there only at its own start. Inside it `stack_frames` blackens them by `reset`,
        but a window that starts after the reset does not contain that row.
        """
        steps = starts[:, None] + np.arange(1 - self.frames_stacked, 1)
        reset = self.columns["reset"][slots[:, None], np.maximum(steps, 0)] & (steps >= 0)
        return hidden_frames(reset, self.frames_stacked)

    def state_dict(self) -> dict[str, Any]:
        """The written part, as tensors that look at the storage's own memory where they can."""
        written = len(self._pages)
        return {
            "columns": {name: torch.from_numpy(column[:written]) for name, column in self.columns.items()},
            "pool": self.pool.state_dict(),
            "blocks": torch.from_numpy(np.concatenate([np.empty(0, np.int64), *self._pages])),
            "block_counts": [len(pages) for pages in self._pages],
            "free": list(self._free),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        counts = state["block_counts"]
        for name, column in self.columns.items():
            column[: len(counts)] = state["columns"][name].numpy()
        self.pool.load_state_dict(state["pool"])
        self._pages = [pages.numpy().copy() for pages in state["blocks"].split(counts)] if counts else []
        self._free = list(state["free"])

    def _make_pool(self, page_count: int) -> PagePool:
        return PagePool(page_count, self.page_bytes)

    def _bytes_with(self, new_slots: int, new_pages: int) -> int:
        slots, pages = len(self._pages) + new_slots, self.pool.claimed + new_pages
        return slots * self.slot_bytes + pages * (self.page_bytes + PAGE_OVERHEAD)


class PlainStorage(Storage):
    """A page is a frame."""

    own_pages = 1  # black

    def __init__(self, contract: TrajectoryContract, capacity: int, memory: int | None) -> None:
        super().__init__(contract, capacity, memory)
        self._black = self.pool.put(np.zeros((1, self.page_bytes), np.uint8))  # never released

    @staticmethod
    def layout(contract: TrajectoryContract) -> tuple[int, int]:
        (rows, *shape), dtype = contract.fields["frames"]
        return math.prod(shape) * np.dtype(dtype).itemsize, rows

    def pack(self, frames: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(frames).reshape(len(frames), -1).view(np.uint8)

    def _put(self, packed: np.ndarray, follows: int | None) -> np.ndarray:
        shared = self._shared(packed[: self.frames_stacked], follows)
        self.pool.share(shared[shared >= 0])
        pages = np.concatenate([shared, np.full(len(packed) - len(shared), -1)])
        pages[pages < 0] = self.pool.put(packed[pages < 0])
        return pages

    def _shared(self, head: np.ndarray, follows: int | None) -> np.ndarray:
        """Pages that hold a trajectory's first S frames already, int64 `[S]`, -1 where none does."""
        shared = np.full(len(head), -1)
        if follows is not None:
            tail = self._pages[follows][-len(head) :]
            shared = np.where((self._newest_frames(follows) == head).all(axis=1), tail, -1)
        missing = np.flatnonzero(shared < 0)
        shared[missing[~head[missing].any(axis=1)]] = self._black
        return shared

    def _newest_frames(self, slot: int) -> np.ndarray:
        """The last S frames in this slot, uint8 `[S, page_bytes]`."""
        return self.pool.bytes[self._pages[slot][-self.frames_stacked :]]

    def _read_frames(self, slots: np.ndarray, starts: np.ndarray, hidden: np.ndarray, out: np.ndarray) -> Tensor | None:
        length = out.shape[1]
        spans = zip(slots.tolist(), starts.tolist(), strict=True)
        pages = np.concatenate([self._pages[slot][start : start + length] for slot, start in spans]).reshape(-1, length)
        pages[:, : self.frames_stacked][hidden] = self._black
        return self._gather(pages, out)

    def _gather(self, pages: np.ndarray, out: np.ndarray) -> Tensor | None:
        """Write the frames in these pages, int64 `[n, frames]`, into `out`."""
        np.take(self.pool.bytes, pages.reshape(-1), axis=0, out=_as_bytes(out).reshape(-1, self.page_bytes), mode="clip")
        return None


class CompressedStorage(Storage):
    """A page is a page. LZ4 sees a repeated frame by itself: taking differences first did not make it smaller on Pong."""

    def __init__(self, contract: TrajectoryContract, capacity: int, memory: int | None) -> None:
        super().__init__(contract, capacity, memory)
        self._frames_bytes = _frames_bytes(contract)

    @staticmethod
    def layout(contract: TrajectoryContract) -> tuple[int, int]:
        size = _frames_bytes(contract)
        return COMPRESSED_PAGE_BYTES, math.ceil((SIZE_BYTES + size + size // 255 + 16) / COMPRESSED_PAGE_BYTES)  # LZ4's bound

    def pack(self, frames: np.ndarray) -> np.ndarray:
        compressed = lz4.block.compress(np.ascontiguousarray(frames), store_size=False)
        packed = np.zeros((math.ceil((SIZE_BYTES + len(compressed)) / COMPRESSED_PAGE_BYTES), COMPRESSED_PAGE_BYTES), np.uint8)
        content = packed.reshape(-1)
        content[:SIZE_BYTES].view(np.uint32)[0] = len(compressed)
        content[SIZE_BYTES : SIZE_BYTES + len(compressed)] = np.frombuffer(compressed, np.uint8)
        return packed

    def _put(self, packed: np.ndarray, follows: int | None) -> np.ndarray:
        return self.pool.put(packed)

    def _read_frames(self, slots: np.ndarray, starts: np.ndarray, hidden: np.ndarray, out: np.ndarray) -> None:
        frame_bytes = out[:1, :1].nbytes
        for frames, slot, start in zip(_as_bytes(out), slots.tolist(), starts.tolist(), strict=True):
            first = start * frame_bytes
            frames[:] = self._unpack(self._pages[slot])[first : first + len(frames)]
        out[:, : self.frames_stacked][hidden] = 0

    def _unpack(self, pages: np.ndarray) -> np.ndarray:
        """All frames of the trajectory in these pages, uint8 `[bytes]`; LZ4 can only start with the first."""
        content = np.take(self.pool.bytes, pages, axis=0).reshape(-1)
        end = SIZE_BYTES + int(content[:SIZE_BYTES].view(np.uint32)[0])
        plain = lz4.block.decompress(content[SIZE_BYTES:end], uncompressed_size=self._frames_bytes)
        return np.frombuffer(plain, np.uint8)


def storage_class(config: ReplayConfig) -> type[Storage]:
    return CompressedStorage if config.compress else PlainStorage


def _as_bytes(frames: np.ndarray) -> np.ndarray:
    """Frames of n trajectories, looked at as uint8 `[n, bytes]`."""
    return frames.reshape(len(frames), -1).view(np.uint8)


def _frames_bytes(contract: TrajectoryContract) -> int:
    shape, dtype = contract.fields["frames"]
    return math.prod(shape) * np.dtype(dtype).itemsize


def _slot_bytes(contract: TrajectoryContract) -> int:
    return contract.bytes_per_trajectory - _frames_bytes(contract) + SLOT_OVERHEAD
