"""Says why a process has ended."""

from __future__ import annotations

import signal


def exit_reason(exit_code: int, said: str) -> str:
    """Return why a process ended, as the end of a sentence about it.

    exit_code: the negative number of the signal if one killed it. said: its last words, or empty.
    """
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL (out of memory?)"
    if exit_code < 0:
        return f"was killed by {_signal_name(-exit_code)}"
    return f"failed: {said}" if said else f"exited with code {exit_code} and no message"


def _signal_name(number: int) -> str:
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")
