"""Handles Ctrl-C, SIGTERM and a closed terminal: the first signal asks a loop to stop, a later one ends the program at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType, TracebackType

from learner.console import error_descriptor

TRAINING_STOPS = "Stopping: finishing this update and saving. Repeat to stop at once without saving."
SAME_REQUEST = 0.5
"""Seconds in which several signals count as one. `timeout` signals the program and then its whole process group, and a terminal
and a wrapper script may both pass on one Ctrl-C."""


class StopSignals:
    """Context manager that turns signals into requests to stop. An ignored SIGHUP (`nohup`) stays ignored.

    Args:
        at_once: called before a later signal ends the program.
        first: line that is printed at the first signal, or empty.
    """

    def __init__(self, at_once: Callable[[], None], first: str = TRAINING_STOPS) -> None:
        self._requested_at: float | None = None
        self._at_once = at_once
        self._first = f"\n{first}\n".encode() if first else b""
        self._is_silent = False
        self._before: dict[int, object] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self._requested_at is not None

    def asked(self) -> bool:
        """Whether a signal has arrived, as a function."""
        return self.requested

    @contextmanager
    def silent(self) -> Iterator[None]:
        """A context in which the first signal prints nothing, because the caller will log what was stopped."""
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
                    # Not print, which raises if the signal has interrupted a write to the same stream.
                    os.write(error_descriptor(), self._first)
        elif now - self._requested_at > SAME_REQUEST:
            self._at_once()
            # Not an exception: the interrupted code might catch it, and the exit would wait for threads.
            os._exit(128 + number)
