"""The few calls that concern CUDA streams. On a CPU, where everything is done in order, they do nothing."""

from __future__ import annotations

import torch


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream beside the learner's, and before it where both wait; for `torch.cuda.stream`, which takes None too."""
    return torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None


class Fence:
    """A point in a stream's work that other streams, or a thread, wait for. Before the first `record` nobody waits."""

    def __init__(self, device: torch.device) -> None:
        # blocking: a thread that waits sleeps, and leaves its core to the environments.
        self._event = torch.cuda.Event(blocking=True) if device.type == "cuda" else None

    def record(self) -> None:
        """Behind all that the current stream has to do so far."""
        if self._event:
            self._event.record()

    def hold_back(self) -> None:
        """What the current stream is given from now on waits for it; the calling thread does not."""
        if self._event:
            self._event.wait()

    @property
    def passed(self) -> bool:
        """Whether nobody would have to wait."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """The calling thread waits for it."""
        if self._event:
            self._event.synchronize()
