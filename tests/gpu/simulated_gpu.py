"""A GPU that is not there: its streams, its events and its memory, for tests on machines without one.

The CPU does all work at once, but what a real GPU leaves open stays open. A stream knows of another one's work only what it was
made to wait for, and the host what some thread has waited for (vector clocks; all threads together are one host). What is used
without that knowledge is reported:

- memory that one stream writes while another one may still use it, or reads while another one may still write it;
- memory that is given back while a stream may still use it;
- page-locked host memory that was overwritten before the copy out of it was known to be done. What is copied into such memory
  is not there, but rubbish, until the copy is known to be done.

Counted as well: each time a thread waits for the GPU though it did not ask to, as `item` makes it.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 0.5
"""How often an event that was not waited for says that it has not passed yet, as a part of all times."""

Clock = dict[int, int]
"""How much of each stream's work is known to be done: stream -> number of works."""


def learn(clock: Clock, other: Clock) -> None:
    """Add what the other clock knows."""
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


@dataclass(frozen=True)
class Use:
    """The `count`th work of a stream, which reads or writes something."""

    stream: int
    count: int
    what: str

    def known_to(self, clock: Clock) -> bool:
        return clock.get(self.stream, 0) >= self.count


@dataclass(frozen=True, eq=False)
class Transfer:
    """A copy between the device and page-locked memory. settle: to be called when the host has waited for it."""

    use: Use
    settle: Callable[[], None]


@dataclass(eq=False)
class Memory:
    """The memory of tensors on the device; given back when the last of them is dropped."""

    gpu: SimulatedGpu
    owner: int  # the stream in which it was allocated, and which uses it again
    written: tuple[Use, ...] = ()  # the last time
    read: dict[int, Use] = field(default_factory=dict)  # since then, the last time in each stream
    recorded: set[int] = field(default_factory=set)  # streams that `Tensor.record_stream` named

    def uses(self) -> tuple[Use, ...]:
        return (*self.written, *self.read.values())

    def __del__(self) -> None:
        self.gpu.give_back(self)


class SimulatedGpu:
    """reports: what went wrong. waits: where threads waited without having asked to. launched: how many works there were."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.waits: list[str] = []
        self.launched = 0
        self._lock = threading.RLock()
        self._host: Clock = {}
        self._streams: list[SimulatedStream] = []
        self._transfers: list[Transfer] = []
        self._pinned: list[torch.Tensor] = []
        self._random = random.Random(1)
        self._of_thread = threading.local()
        self._default = self.make_stream()

    def make_stream(self, device: object = None, priority: int = 0) -> SimulatedStream:
        with self._lock:
            self._streams.append(SimulatedStream(self, len(self._streams)))
            return self._streams[-1]

    def current(self, device: object = None) -> SimulatedStream:
        """The calling thread's stream."""
        stream: SimulatedStream = getattr(self._of_thread, "stream", self._default)
        return stream

    def use_stream(self, stream: SimulatedStream) -> None:
        self._of_thread.stream = stream

    def now(self) -> Clock:
        """The work that precedes the current stream's next work."""
        with self._lock:
            clock = self.current().clock
            learn(clock, self._host)
            return dict(clock)

    def hold_back(self, clock: Clock) -> None:
        """The current stream's next work comes after what a clock knows."""
        with self._lock:
            learn(self.current().clock, clock)

    def wait_for(self, clock: Clock) -> None:
        """A thread waits for what a clock knows."""
        with self._lock:
            learn(self._host, clock)
            done = [transfer for transfer in self._transfers if transfer.use.known_to(self._host)]
            self._transfers = [transfer for transfer in self._transfers if transfer not in done]
            for transfer in done:
                transfer.settle()

    def wait_for_all(self, device: object = None) -> None:
        for stream in list(self._streams):
            self.wait_for(stream.clock)

    @property
    def recording(self) -> Any:
        """The graph that the calling thread records, if any."""
        return getattr(self._of_thread, "recording", None)

    @recording.setter
    def recording(self, graph: Any) -> None:
        self._of_thread.recording = graph

    def refuse_recording(self, operation: str) -> None:
        """A graph holds what the device does alone."""
        if self.recording:
            raise RuntimeError(f"operation not permitted when stream is capturing: {operation} at {place()}")

    def wait_unasked(self, operation: str) -> None:
        """A thread waits for the current stream, because an operation hands something to the host."""
        self.refuse_recording(operation)
        self.waits.append(f"{operation} at {place()}")
        self.wait_for(self.now())

    def has_passed(self, clock: Clock) -> bool:
        """Whether what a clock knows is done; chance says that it is not yet, unless the host has waited for it."""
        with self._lock:
            if any(self._host.get(stream, 0) < count for stream, count in clock.items()):
                if self._random.random() < PATIENCE:
                    return False
                self.wait_for(clock)
            return True

    def allocate(self) -> Memory:
        return Memory(self, self.current().number)

    def launch(self, operation: str, read: list[Memory], written: list[Memory]) -> Use:
        """Give the current stream something to do, which reads and writes these."""
        with self._lock:
            self.launched += 1
            stream = self.current()
            learn(stream.clock, self._host)
            stream.clock[stream.number] = stream.clock.get(stream.number, 0) + 1
            use = Use(stream.number, stream.clock[stream.number], f"{operation} at {place()}")
            for memory in read:
                if memory not in written:
                    self._check(memory.written, stream.clock, use)
                    memory.read[stream.number] = use
            for memory in written:
                self._check(memory.uses(), stream.clock, use)
                memory.written, memory.read = (use,), {}
            return use

    def give_back(self, memory: Memory) -> None:
        """It is no longer held: its owner may use it for something else."""
        if sys.is_finalizing():
            return
        with self._lock:
            clock = dict(self._streams[memory.owner].clock)
            learn(clock, self._host)
            for use in memory.uses():
                if use.stream not in memory.recorded and not use.known_to(clock):
                    self.reports.append(f"given back while stream {use.stream} may use it: {use.what}")

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Page-lock a host tensor's memory, for good."""
        self._pinned.append(tensor)
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return any(_holds(pinned, tensor) for pinned in self._pinned)

    def copy_up(self, host: torch.Tensor, use: Use) -> None:
        """The device reads page-locked memory at some time from now on."""
        content = host.clone()

        def settle() -> None:
            if not torch.equal(_bytes(host), _bytes(content)):
                self.reports.append(f"host memory overwritten while it may be read: {use.what}")

        self._start(Transfer(use, settle))

    def copy_down(self, host: torch.Tensor, content: torch.Tensor, use: Use) -> None:
        """The device writes page-locked memory at some time from now on."""
        content = content.clone()
        host.copy_(_rubbish(content))

        def settle() -> None:
            host.copy_(content)

        self._start(Transfer(use, settle))

    def _start(self, transfer: Transfer) -> None:
        with self._lock:
            self._transfers.append(transfer)

    def _check(self, earlier: tuple[Use, ...], clock: Clock, use: Use) -> None:
        for one in earlier:
            if not one.known_to(clock):
                self.reports.append(f"stream {use.stream} did not wait for stream {one.stream}: {use.what}; {one.what}")


class SimulatedStream:
    """The part of `torch.cuda.Stream` that the program uses."""

    def __init__(self, gpu: SimulatedGpu, number: int) -> None:
        self.number = number
        self.clock: Clock = {}
        self._gpu = gpu

    def synchronize(self) -> None:
        self._gpu.wait_for(self.clock)


class SimulatedEvent:
    """The part of `torch.cuda.Event` that the program uses."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self._clock: Clock = {}

    def record(self) -> None:
        self._clock = self._gpu.now()

    def wait(self) -> None:
        self._gpu.hold_back(self._clock)

    def query(self) -> bool:
        return self._gpu.has_passed(self._clock)

    def synchronize(self) -> None:
        self._gpu.wait_for(self._clock)


class StreamContext:
    """`torch.cuda.stream`; None changes nothing."""

    def __init__(self, gpu: SimulatedGpu, stream: SimulatedStream | None) -> None:
        self._gpu, self._stream = gpu, stream

    def __enter__(self) -> None:
        self._before = self._gpu.current()
        self._gpu.use_stream(self._stream or self._before)

    def __exit__(self, *_: object) -> None:
        self._gpu.use_stream(self._before)


def place() -> str:
    """The innermost line of the program, or of a test, that is being run."""
    frame = sys._getframe(1)
    while frame.f_back and not _of_the_project(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(f'{REPOSITORY}/')}:{frame.f_lineno}"


@cache
def _of_the_project(filename: str) -> bool:
    path = Path(filename)
    inside = path.is_relative_to(REPOSITORY) and not any(part.startswith((".", "site-packages")) for part in path.parts)
    return inside and not path.name.startswith("simulated_")


def _holds(whole: torch.Tensor, part: torch.Tensor) -> bool:
    start, size = whole.untyped_storage().data_ptr(), whole.untyped_storage().nbytes()
    return start <= part.untyped_storage().data_ptr() < start + size


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _rubbish(content: torch.Tensor) -> torch.Tensor:
    """Something else in every element."""
    if content.dtype == torch.bool:
        return ~content
    return torch.full_like(content, float("nan")) if content.is_floating_point() else content + 77
