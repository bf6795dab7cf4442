"""Limits the time that code of others may take in this process: environments and modules of users.

`awaited` marks a call. Within `limited` a thread adds up how long each call lasts. A call that lasts too long is interrupted by
an exception. If the call does not end then, the thread ends the program. The thread counts its own checks, not the clock, so
the time in which a program is suspended does not count. Native code that keeps Python from running stops this thread too.
Parents watch the calls of their child processes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import numpy as np

from wrappers.errors import place_in_thread
from wrappers.spec import NoAnswerError, Step, VectorEnv

CHECK_SECONDS = 0.25
START_SECONDS = 300.0
"""For an import, a constructor, and everything up to the end of the first step."""
STEP_SECONDS = 60.0
"""For other calls, at least. Whole runs depend on them, so the limit is not as short as that of a worker may be."""
GRACE_SECONDS = 5.0
"""For a call that was interrupted, and for each call after one was."""
INTERRUPT = signal.SIGUSR1


@dataclass(eq=False)
class _Call:
    """A call that has not returned. lasted: seconds so far. line: says that it was interrupted; empty if it was not."""

    name: str
    seconds: float
    lasted: float = 0.0
    line: str = ""


_calls: dict[int, _Call] = {}
"""Thread -> its innermost call."""


class _Watcher:
    """The thread, which the first call starts. Arguments: see `limited`."""

    def __init__(self, end: Callable[[str], None], seconds: float, *, interrupts: bool) -> None:
        self._end = end
        self._interrupts = interrupts
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.seconds = seconds
        self.failed = False  # whether a call was interrupted

    def run(self) -> None:
        """Let the thread run."""
        if not self._thread:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._watch, name="limits of calls", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """End the thread. The next call starts another one."""
        if self._thread:
            self._stopping.set()
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        while not self._stopping.wait(CHECK_SECONDS):
            for thread, call in list(_calls.items()):
                call.lasted += CHECK_SECONDS
                if call.lasted <= call.seconds:
                    continue
                if call.line or not self._interrupts or thread != threading.main_thread().ident:
                    self._end(call.line or _line(call, thread))
                    return
                self.failed, call.line = True, _line(call, thread)
                call.seconds = call.lasted + GRACE_SECONDS
                signal.pthread_kill(thread, INTERRUPT)


_watcher: _Watcher | None = None


def _forget() -> None:
    """The thread is the parent's."""
    global _watcher
    _watcher = None
    _calls.clear()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def limited(end: Callable[[str], None], seconds: float | None = None, *, interrupts: bool = True) -> Iterator[None]:
    """A context in which `awaited` has limits. The main thread enters it.

    Args:
        end: called in another thread with one line about a call that could not be interrupted; it ends the program.
        seconds: that each call may last; `STEP_SECONDS` if it is None.
        interrupts: whether an exception interrupts a call before that.
    """
    global _watcher
    before = signal.signal(INTERRUPT, _interrupt)
    _watcher = _Watcher(end, STEP_SECONDS if seconds is None else seconds, interrupts=interrupts)
    try:
        yield
    finally:
        _watcher.rest()
        _watcher = None
        signal.signal(INTERRUPT, before)


def is_limited() -> bool:
    """Whether this process has limits."""
    return _watcher is not None


def rest() -> None:
    """End the thread until the next call, because a process that is forked would inherit the locks that it holds."""
    if _watcher:
        _watcher.rest()


def allow(seconds: float) -> None:
    """Let calls last as long, if that is more than `STEP_SECONDS`."""
    if _watcher:
        _watcher.seconds = max(STEP_SECONDS, seconds)


@contextmanager
def awaited(name: str, seconds: float = 0.0) -> Iterator[None]:
    """A context in which the code of others must answer. Contexts may lie within each other; then the inner one counts.

    name: the call, for the user. seconds: that it may last, if that is more than is allowed in general.

    Raises NoAnswerError.
    """
    if not _watcher:
        yield
        return
    thread, watcher = threading.get_ident(), _watcher
    outer = _calls.get(thread)
    limit = GRACE_SECONDS if watcher.failed else max(seconds, watcher.seconds)
    _calls[thread] = _Call(name, limit)
    watcher.run()
    try:
        yield
    finally:
        if outer:
            _calls[thread] = outer
        else:
            del _calls[thread]


def watched(make: Callable[[], VectorEnv], name: str, start_seconds: float, step_seconds: float) -> VectorEnv:
    """Make environments whose calls are awaited.

    Args:
        make: makes them.
        name: of the environment.
        start_seconds: that it is known to need until the end of its first step.
        step_seconds: the same for a later step.
    """
    if not _watcher:
        return make()
    start_seconds = max(START_SECONDS, start_seconds)
    with awaited(f"the constructor of {name}", start_seconds):
        env = make()
    return WatchedEnv(env, name, start_seconds, step_seconds)


class WatchedEnv(VectorEnv):
    """Environments whose calls are awaited. Arguments: see `watched`."""

    def __init__(self, env: VectorEnv, name: str, start_seconds: float, step_seconds: float) -> None:
        self.env, self.spec, self.num_envs, self.needs_close = env, env.spec, env.num_envs, env.needs_close
        self._name, self._seconds, self._later_seconds = name, start_seconds, step_seconds

    def reset(self, seed: int) -> np.ndarray:
        with awaited(f"the reset of {self._name}", self._seconds):
            return self.env.reset(seed)

    def step(self, actions: np.ndarray) -> Step:
        with awaited(f"the step of {self._name}", self._seconds):
            step = self.env.step(actions)
        self._seconds = self._later_seconds
        return step

    def render(self) -> np.ndarray:
        with awaited(f"the rendering of {self._name}", self._seconds):
            return self.env.render()

    def goal_function(self, name: str) -> Callable[..., object] | None:
        return self.env.goal_function(name)

    def close(self) -> None:
        with awaited(f"the closing of {self._name}"):
            self.env.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    call = _calls.get(threading.get_ident())
    if call and call.line:
        raise NoAnswerError(call.line)


def _line(call: _Call, thread: int) -> str:
    place = place_in_thread(thread)
    return f"{call.name} has not answered for {call.seconds:g} s{place}; a larger --worker_timeout waits longer"
