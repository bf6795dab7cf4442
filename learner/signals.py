"""Ctrl-C, SIGTERM, a terminal that closes: the first asks the loop to stop and save, another one ends the program at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType, TracebackType

TRAINING_STOPS = "Stopping: finishing this update and saving. Once more to stop at once without saving."
SAME_REQUEST = 0.5
"""Seconds: `timeout` signals the program and then its whole group; a terminal and a wrapper both pass on one Ctrl-C."""


class StopSignals:
    """Context manager; `requested` turns true at the first signal, and `first` is said. `at_once` runs before the program
    dies of a later one. SIGHUP that is ignored (`nohup`) stays so."""

    def __init__(self, at_once: Callable[[], None], first: str = TRAINING_STOPS) -> None:
        self._requested_at: float | None = None
        self._at_once = at_once
        self._first = f"\n{first}\n".encode()
        self._is_silent = False
        self._before: dict[int, object] = {}

    @property
    def requested(self) -> bool:
        return self._requested_at is not None

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Within it the first signal prints nothing: the program itself says what it stops."""
        self._is_silent = True
        try:
            yield
        finally:
            self._is_silent = False

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = monotonic()
        if self._requested_at is None:
            self._requested_at = now
            if not self._is_silent:
                with contextlib.suppress(OSError):  # the terminal is gone
                    os.write(2, self._first)
        elif now - self._requested_at > SAME_REQUEST:
            self._at_once()
            os._exit(128 + number)
