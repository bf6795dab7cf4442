"""The few calls that concern CUDA streams. On a CPU, where everything is done in order, they do nothing."""

from __future__ import annotations

import torch


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A second stream with a higher priority than the learner's, for `torch.cuda.stream`. None on a CPU."""
    return torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None


class Fence:
    """A point in a stream's work that other streams, or a thread, wait for.

    Before the first `record` there is nothing to wait for.
    """

    def __init__(self, device: torch.device) -> None:
        # blocking: a thread that waits sleeps, and leaves its core to the environments.
        self._event = torch.cuda.Event(blocking=True) if device.type == "cuda" else None

    def record(self) -> None:
        """Set the point after all work that the current stream has so far."""
        if self._event:
            self._event.record()

    def hold_back(self) -> None:
        """Later work of the current stream waits for the point; the calling thread does not."""
        if self._event:
            self._event.wait()

    @property
    def passed(self) -> bool:
        """Whether the point is reached, so that waiting would take no time."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Block the calling thread until the point is reached."""
        if self._event:
            self._event.synchronize()
