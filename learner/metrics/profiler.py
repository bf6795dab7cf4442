"""Records a trace of some updates after warm-up, for ui.perfetto.dev."""

from __future__ import annotations

import contextlib
import logging
import os
from contextlib import AbstractContextManager

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from learner.hooks import Hook
from learner.runs.checkpoint import Counters
from learner.runs.directory import RunDirectory

log = logging.getLogger("springbok")

NO_KINETO_LINES = "6"  # above the highest log level of Kineto, PyTorch's profiler; read when the first profile begins
WARM_UP = 10  # updates: the first ones choose algorithms and allocate memory


class UpdateProfiler(Hook):
    """Records updates on all threads of the learner's process and on the GPU.

    Args:
        updates: how many to record after `WARM_UP` others, at least 1.
        run: directory that the trace is written to.
        counters: of the run.
        gpu: whether the learner uses a GPU.
    """

    def __init__(self, updates: int, run: RunDirectory, counters: Counters, *, gpu: bool) -> None:
        self._updates = updates
        self._run = run
        self._counters = counters
        if not gpu:  # with a GPU its lines may say why a trace lacks it
            os.environ.setdefault("KINETO_LOG_LEVEL", NO_KINETO_LINES)
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
        self._seen = 0
        self._running: profile | None = None

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Show a stage of the loop in the trace."""
        return record_function(name) if self._running else contextlib.nullcontext()

    def on_update(self) -> None:
        self._seen += 1
        if self._seen == WARM_UP:
            every_thread = _ExperimentalConfig(profile_all_threads=True)
            self._running = profile(activities=self._activities, experimental_config=every_thread, acc_events=True)
            self._running.start()
        elif self._seen == WARM_UP + self._updates:
            self.close()

    def close(self) -> None:
        """Write what was recorded, once; safe to call again."""
        if self._running is None:
            return
        recorded, self._running = self._running, None
        recorded.stop()
        path = self._run.trace_path(self._counters.updates)
        try:
            recorded.export_chrome_trace(str(path))
        except OSError as error:
            log.warning("The trace could not be written: %s", error.strerror or error)
            return
        log.info("Trace of %d updates: %s (open it in ui.perfetto.dev)", min(self._seen - WARM_UP, self._updates), path)
