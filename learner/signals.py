"""Ctrl-C and SIGTERM: the first asks the loop to stop and save, the second ends the program at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType

TRAINING_STOPS = "Stopping: finishing this update and saving. Once more to stop at once without saving."


class StopSignals:
    """Context manager; `requested` turns true at the first signal, and `first` is said. `at_once` runs before the program
    dies of the second."""

    def __init__(self, at_once: Callable[[], None], first: str = TRAINING_STOPS) -> None:
        self.requested = False
        self._at_once = at_once
        self._first = f"\n{first}\n".encode()
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self._at_once()
            os._exit(128 + number)
        self.requested = True
        os.write(2, self._first)
