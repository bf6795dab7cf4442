"""Storage of a ring's trajectories by slot: frames in a pool of pages, every other field in an array.

Plain storage holds a frame once, however many trajectories contain it. A trajectory begins with the frames with which the one
before it, of the same environment, ended: S and one for each row of burn-in. Storage compares them byte by byte and shares
those that are equal. They differ after an episode's end: the later trajectory has black frames there, and one page is black
for all trajectories.

Compressed storage holds each trajectory's frames as one LZ4 block, cut into pages. It shares nothing.
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
from replay.batch import hidden_frames
from replay.earlier_files import with_present_names
from replay.ring.growing import GrowingArray
from replay.ring.page_lists import PageLists, PageTable, VariedPages
from replay.ring.pages import PagePool
from replay.ring.starts import START_BYTES
from replay.trajectory import WITHOUT_ROWS, TrajectoryContract

SLOT_OVERHEAD = 352
"""Bytes that a trajectory takes in addition to its fields: the ring's counters, the array of its pages' numbers, the
retention's record. The value is that of a reservoir, which has the largest record. Fifo retention takes 100 bytes less."""

PAGE_OVERHEAD = 24
"""Bytes that a page takes in addition to its content: its number, its count of users, its place in the stack of free pages."""

COMPRESSED_PAGE_BYTES = 512
SIZE_BYTES = 4  # the length of the compressed frames, written before them


class Storage(ABC):
    """Slots for trajectories.

    Memory is claimed when slots and pages are first written. `bytes_claimed` counts it, without the unused end of each
    array's last system page (up to 2 MB each if NumPy asks for huge pages). The memory of empty slots stays claimed until
    `close_holes`.

    Attributes:
        capacity: Number of slots. With `memory` it is larger than the number of trajectories that fit; ask `fits`.
        memory: Bytes that are never exceeded; infinite if the size was given in trajectories.
        columns: `[capacity, *shape]` for each field except the frames.
        own_pages: Number of pages that belong to no trajectory.
    """

    own_pages = 0

    def __init__(self, contract: TrajectoryContract, capacity: int, memory: int | None) -> None:
        self.page_bytes, _ = self.layout(contract)
        self.frames_stacked = contract.frames_stacked
        self.shared_frames = contract.shared_frames
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
        self._pages = self._make_page_lists(contract)  # of each slot ever written
        self._free: list[int] = []  # slots among those that are empty now

    @staticmethod
    @abstractmethod
    def layout(contract: TrajectoryContract) -> tuple[int, int]:
        """Returns the bytes of a page, and the largest number of pages that one trajectory takes."""

    @abstractmethod
    def pack(self, frames: np.ndarray) -> np.ndarray:
        """Returns frames `[T+S, *frame_shape]` as the content of pages, uint8 `[n, page_bytes]`."""

    @abstractmethod
    def _put(self, packed: np.ndarray, follows: int | None) -> np.ndarray:
        """Write packed frames into the pool, except those shared with slot `follows`. Returns their page numbers."""

    @abstractmethod
    def _read_frames(self, slots: np.ndarray, starts: np.ndarray, hidden: np.ndarray, out: np.ndarray) -> Tensor | None:
        """Write consecutive frames of the trajectories in these slots into `out`.

        Returns the frames if they are on a device, in the shape of `out`, which is then not written.

        Args:
            slots: int64 `[n]`.
            starts: Index of the first frame for each slot, int64 `[n]`.
            hidden: Which of the first S frames read are black instead, bool `[n, S]`.
            out: `[n, frames, *frame_shape]`.
        """

    @classmethod
    def pool_bytes(cls, contract: TrajectoryContract, capacity: int, memory: int | None) -> int:
        """Returns the most bytes that pages ever take.

        With `memory`, every trajectory claims a slot as well. That bounds the number of pages that fit into the rest.
        """
        page_bytes, most_pages = cls.layout(contract)
        pages = capacity * most_pages
        if memory is not None:
            without, one = (cls.most_bytes(contract, count) for count in (0, 1))
            pages = (memory - without) * most_pages // (one - without)  # most pages of the most trajectories that fit
        return (pages + cls.own_pages) * page_bytes

    @classmethod
    def most_bytes(cls, contract: TrajectoryContract, count: int) -> int:
        """Returns the most bytes that `count` trajectories take."""
        page_bytes, most_pages = cls.layout(contract)
        pages = count * most_pages + cls.own_pages
        return count * _slot_bytes(contract) + pages * (page_bytes + PAGE_OVERHEAD)

    @property
    def bytes_claimed(self) -> int:
        return self._bytes_with(0, 0)

    @property
    def holes(self) -> int:
        """Number of empty slots whose memory is still claimed."""
        return len(self._free)

    def fits(self, packed: np.ndarray) -> bool:
        """Returns whether packed frames can be written now with at most `memory` bytes claimed afterwards."""
        new_slots = 0 if self._free else 1
        # Frames that turn out to be shared need no page, so this is an upper bound and `memory` is never exceeded.
        new_pages = max(0, len(packed) - self.pool.free)
        return len(self._pages) + new_slots <= self.capacity and self._bytes_with(new_slots, new_pages) <= self.memory

    def write(self, trajectory: Mapping[str, np.ndarray], packed: np.ndarray, follows: int | None) -> int:
        """Copy one trajectory into a slot. Ask `fits` first. Returns the slot.

        Args:
            trajectory: `[*shape]` each field.
            packed: Its frames, from `pack`.
            follows: Slot of the same environment's newest trajectory, whose frames may be shared. None if not stored.
        """
        pages = self._put(packed, follows)
        # An empty slot is filled before a new one, because its memory is claimed already.
        slot = self._free.pop() if self._free else len(self._pages)
        self._pages.put(slot, pages)
        for name, column in self.columns.items():
            column[slot] = trajectory[name]
        return slot

    def evict(self, slot: int) -> None:
        """Empty a slot. Pages that no other trajectory shares become free."""
        self.pool.release(self._pages[slot])  # shared pages stay, with one user less
        self._pages.put(slot, np.empty(0, np.int64))
        self._free.append(slot)

    def close_holes(self) -> dict[int, int]:
        """Compact: move the highest trajectories into empty slots, and return the memory of the slots above to the system.

        Returns old slot -> new slot for each trajectory that moved.
        """
        # `count` trajectories shall lie in slots 0 to count - 1. Those above move into the holes below, of which there are
        # as many. Only numbers of pages move with them: the frames stay where they are.
        count = len(self._pages) - len(self._free)
        into = sorted(slot for slot in self._free if slot < count)
        moved = dict(zip(sorted(set(range(count, len(self._pages))).difference(self._free)), into, strict=True))
        for old, new in moved.items():
            self._pages.put(new, self._pages[old])
        self._pages.truncate(count)
        self._free.clear()
        for growing in self._growing.values():
            growing.array[into] = growing.array[list(moved)]
            growing.give_back(count)
        return moved

    def read(self, slots: np.ndarray, out: Mapping[str, np.ndarray]) -> Tensor | None:
        """Copy the trajectories in these slots into `out`, contiguous `[n, *shape]` each field.

        Returns the frames if they are on a device; those of `out` are then not written.
        """
        for name, column in self.columns.items():
            # NumPy's default mode would fill a buffer first and then copy it into `out`; mode="clip" writes directly.
            np.take(column, slots, axis=0, out=out[name], mode="clip")
        whole = np.zeros(len(slots), np.int64)
        # Nothing is hidden, because row 0 has the frames that acting saw: those from before an episode are black already.
        return self._read_frames(slots, whole, np.zeros((len(slots), self.frames_stacked), bool), out["frames"])

    def read_window(self, slots: np.ndarray, starts: np.ndarray, out: Mapping[str, np.ndarray]) -> Tensor | None:
        """Copy consecutive rows of the trajectories in these slots into `out`, as trajectories of that length.

        Returns the frames if they are on a device; those of `out` are then not written. A window may reach beyond its
        trajectory: such rows have `action_used` false and no reward, and their frames repeat the last one.

        Args:
            slots: int64 `[n]`.
            starts: First row for each slot, int64 `[n]`.
            out: `[n, *shape]` each wanted field, allocated for trajectories of the window's length.
        """
        steps = starts[:, None] + np.arange(out["actions"].shape[1])  # rows of each window, [n, length]
        beyond = steps >= self.columns["actions"].shape[1]  # bool [n, length]
        steps = np.minimum(steps, self.columns["actions"].shape[1] - 1)
        for name in out.keys() - {"frames"}:
            column = self.columns[name]
            # A field whose shape is the same for every length has no rows: it belongs to the whole trajectory.
            has_rows = name not in WITHOUT_ROWS
            out[name][...] = column[slots[:, None], steps] if has_rows else column[slots]
        if beyond.any():
            out["action_used"][beyond] = False  # so that an n-step return ends before such a row
            out["rewards"][beyond] = 0.0
        return self._read_frames(slots, starts, self._before_episode(slots, starts), out["frames"])

    def _before_episode(self, slots: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Returns which of the S frames of the observation at row `start` are from before its episode, bool `[n, S]`."""
        if self.frames_stacked == 1:  # the row's own frame belongs to its episode
            return np.zeros((len(slots), 1), bool)
        # `stack_frames` blackens the frames before a reset, for which it needs the row of the reset. A window that starts
        # after that row does not contain it, so these frames must be black in the window, as at a trajectory's own start.
        steps = starts[:, None] + np.arange(1 - self.frames_stacked, 1)  # rows start - S + 1 to start, [n, S]
        # A reset before row 0 needs no mask: the trajectory's first frames were black when they were stored.
        reset = self.columns["reset"][slots[:, None], np.maximum(steps, 0)] & (steps >= 0)
        return hidden_frames(reset, self.frames_stacked)

    def state_dict(self) -> dict[str, Any]:
        """Returns the written part, as tensors that share the storage's own memory if it is in host memory."""
        written = len(self._pages)
        return {
            "columns": {name: torch.from_numpy(column[:written]) for name, column in self.columns.items()},
            "pool": self.pool.state_dict(),
            # Files have called pages blocks from the beginning.
            "blocks": torch.from_numpy(self._pages.joined()),
            "block_counts": self._pages.counts(),
            "free": list(self._free),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        counts, columns = state["block_counts"], with_present_names(state["columns"])
        for name, column in self.columns.items():
            column[: len(counts)] = columns[name].numpy()
        self.pool.load_state_dict(state["pool"])
        self._pages.load([pages.numpy() for pages in state["blocks"].split(counts)] if counts else [])
        self._free = list(state["free"])

    def _make_pool(self, page_count: int) -> PagePool:
        return PagePool(page_count, self.page_bytes)

    def _make_page_lists(self, contract: TrajectoryContract) -> PageLists:
        return VariedPages()

    def _bytes_with(self, new_slots: int, new_pages: int) -> int:
        slots, pages = len(self._pages) + new_slots, self.pool.claimed + new_pages
        return slots * self.slot_bytes + pages * (self.page_bytes + PAGE_OVERHEAD)


class PlainStorage(Storage):
    """Storage whose pages are single frames."""

    own_pages = 1  # the black frame
    _pages: PageTable

    def __init__(self, contract: TrajectoryContract, capacity: int, memory: int | None) -> None:
        super().__init__(contract, capacity, memory)
        self._last_place = self.layout(contract)[1] - 1  # of a trajectory's frames
        self._black = self.pool.put(np.zeros((1, self.page_bytes), np.uint8))  # never released

    @staticmethod
    def layout(contract: TrajectoryContract) -> tuple[int, int]:
        (rows, *shape), dtype = contract.fields["frames"]
        return math.prod(shape) * np.dtype(dtype).itemsize, rows

    def pack(self, frames: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(frames).reshape(len(frames), -1).view(np.uint8)

    def _make_page_lists(self, contract: TrajectoryContract) -> PageLists:
        return PageTable(self.capacity, self.layout(contract)[1])

    def _put(self, packed: np.ndarray, follows: int | None) -> np.ndarray:
        # Only the first frames can be in the pool already. Every frame after them is new.
        shared = self._shared(packed[: self.shared_frames], follows)  # [S + burn-in], -1 for a new frame
        self.pool.share(shared[shared >= 0])  # one user more
        pages = np.concatenate([shared, np.full(len(packed) - len(shared), -1)])
        pages[pages < 0] = self.pool.put(packed[pages < 0])
        return pages

    def _shared(self, head: np.ndarray, follows: int | None) -> np.ndarray:
        """Returns the pages that hold a trajectory's first frames already, int64 `[n]`, -1 for a frame in no page.

        head: the first n = `shared_frames` frames, uint8 `[n, page_bytes]`.
        """
        shared = np.full(len(head), -1)
        if follows is not None:
            # Frames are compared, not assumed equal: a trajectory may be missing in between, and after an episode's end the
            # first frames are black.
            tail = self._pages[follows][-len(head) :]
            shared = np.where((self._newest_frames(follows) == head).all(axis=1), tail, -1)
        missing = np.flatnonzero(shared < 0)
        shared[missing[~head[missing].any(axis=1)]] = self._black  # all bytes 0
        return shared

    def follows(self, slot: int, before: int) -> bool:
        """Whether the trajectory in `slot` goes on where that in slot `before` ends: one page holds the frame between them."""
        return bool(self._pages[slot][self.frames_stacked - 1] == self._pages[before][-1])

    def read_bytes(self, slots: np.ndarray, frames: np.ndarray, part: slice) -> np.ndarray:
        """Returns some bytes of one frame of each of n trajectories, uint8 `[n, bytes]`. slots, frames: int64 `[n]`."""
        content: np.ndarray = self.pool.bytes[:, part][self._pages.take(slots, frames[:, None])[:, 0]]
        return content

    def _newest_frames(self, slot: int) -> np.ndarray:
        """Returns the last frames in this slot, which the next trajectory repeats, uint8 `[shared_frames, page_bytes]`."""
        frames: np.ndarray = self.pool.bytes[self._pages[slot][-self.shared_frames :]]
        return frames

    def _read_frames(self, slots: np.ndarray, starts: np.ndarray, hidden: np.ndarray, out: np.ndarray) -> Tensor | None:
        places = np.minimum(starts[:, None] + np.arange(out.shape[1]), self._last_place)  # [n, frames], the last one repeated
        pages = self._pages.take(slots, places)  # [n, frames]
        # `take` returns a copy, so hiding frames in it changes no stored list.
        pages[:, : self.frames_stacked][hidden] = self._black
        return self._gather(pages, out)

    def _gather(self, pages: np.ndarray, out: np.ndarray) -> Tensor | None:
        """Write the frames in these pages, int64 `[n, frames]`, into `out`; returns them if they are on a device."""
        np.take(self.pool.bytes, pages.reshape(-1), axis=0, out=_as_bytes(out).reshape(-1, self.page_bytes), mode="clip")
        return None


class CompressedStorage(Storage):
    """Storage whose pages are pieces of compressed trajectories.

    LZ4 finds repeated frames by itself. Taking differences between frames first did not make Pong smaller.
    """

    def __init__(self, contract: TrajectoryContract, capacity: int, memory: int | None) -> None:
        super().__init__(contract, capacity, memory)
        self._frames_bytes = _frames_bytes(contract)

    @staticmethod
    def layout(contract: TrajectoryContract) -> tuple[int, int]:
        size = _frames_bytes(contract)
        # size + size // 255 + 16 is LZ4's bound for content that does not compress.
        return COMPRESSED_PAGE_BYTES, math.ceil((SIZE_BYTES + size + size // 255 + 16) / COMPRESSED_PAGE_BYTES)

    def pack(self, frames: np.ndarray) -> np.ndarray:
        compressed = lz4.block.compress(np.ascontiguousarray(frames), store_size=False)
        packed = np.zeros((math.ceil((SIZE_BYTES + len(compressed)) / COMPRESSED_PAGE_BYTES), COMPRESSED_PAGE_BYTES), np.uint8)
        content = packed.reshape(-1)
        content[:SIZE_BYTES].view(np.uint32)[0] = len(compressed)  # the last page is filled up, so the length is needed
        content[SIZE_BYTES : SIZE_BYTES + len(compressed)] = np.frombuffer(compressed, np.uint8)
        return packed

    def _put(self, packed: np.ndarray, follows: int | None) -> np.ndarray:
        return self.pool.put(packed)

    def _read_frames(self, slots: np.ndarray, starts: np.ndarray, hidden: np.ndarray, out: np.ndarray) -> None:
        frame_bytes = out[:1, :1].nbytes
        for frames, slot, start in zip(_as_bytes(out), slots.tolist(), starts.tolist(), strict=True):
            first = start * frame_bytes
            found = self._unpack(self._pages[slot])[first : first + len(frames)]
            frames[: len(found)] = found
            if len(found) < len(frames):  # beyond the trajectory its last frame is repeated
                frames[len(found) :].reshape(-1, frame_bytes)[:] = found[-frame_bytes:]
        out[:, : self.frames_stacked][hidden] = 0  # frames from before the episode

    def _unpack(self, pages: np.ndarray) -> np.ndarray:
        """Returns all frames of the trajectory in these pages, uint8 `[bytes]`. LZ4 can only unpack from the start."""
        content = np.take(self.pool.bytes, pages, axis=0).reshape(-1)
        end = SIZE_BYTES + int(content[:SIZE_BYTES].view(np.uint32)[0])
        plain = lz4.block.decompress(content[SIZE_BYTES:end], uncompressed_size=self._frames_bytes)
        return np.frombuffer(plain, np.uint8)


def storage_class(config: ReplayConfig) -> type[Storage]:
    """Returns the storage that a replay has in host memory."""
    return CompressedStorage if config.compress else PlainStorage


def _as_bytes(frames: np.ndarray) -> np.ndarray:
    """Returns a view of n trajectories' frames, uint8 `[n, bytes]`."""
    return frames.reshape(len(frames), -1).view(np.uint8)


def _frames_bytes(contract: TrajectoryContract) -> int:
    shape, dtype = contract.fields["frames"]
    return math.prod(shape) * np.dtype(dtype).itemsize


def _slot_bytes(contract: TrajectoryContract) -> int:
    starts = contract.unroll_length * START_BYTES if contract.window else 0
    return contract.bytes_per_trajectory - _frames_bytes(contract) + SLOT_OVERHEAD + starts
