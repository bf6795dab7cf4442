"""Hooks follow a training without being a part of its updates: metrics, evaluations and the profiler.

`learner/train.py` has the list of all hooks, and calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from agents import UpdateReport
from replay.batch import HostBatch


class Hook:
    """The base of all hooks. Each method is called by the training loop, and does nothing unless a hook overrides it."""

    def on_start(self) -> None:
        """The workers have started. No update has been made."""

    def on_wait(self) -> None:
        """The learner waits for a batch. Called several times a second."""

    def stage(self, name: str) -> AbstractContextManager[object]:
        """A context of one stage of the loop: wait, batch, update or publish."""
        return nullcontext()

    def on_batch(self, batch: HostBatch, report: UpdateReport) -> None:
        """The agent has learned from a batch, whose memory may be reused after this call. The update is not counted yet.

        report: of the agent. A GPU may still compute it.
        """

    def on_update(self) -> None:
        """An update is counted, and its weights are published."""

    def on_checkpoint(self) -> None:
        """The run is saved next, or it ends here because too many updates were skipped."""

    def on_end(self, saved: Path | None, *, interrupted: bool, asked: Callable[[], bool]) -> None:
        """The last checkpoint is written and the workers have stopped. The hook that is last in the list comes first.

        Args:
            saved: the checkpoint, None if it could not be written.
            interrupted: whether the training has ended before its budget was used: by a signal or at `stop_at_steps`.
            asked: returns whether a signal has asked to stop, during the training or since.
        """

    def close(self) -> None:
        """The training ends, perhaps by a failure. The hook that is last in the list comes first."""


@contextmanager
def stage(hooks: Sequence[Hook], name: str) -> Iterator[None]:
    """A stage of the loop within the contexts of all hooks."""
    with ExitStack() as contexts:
        for hook in hooks:
            contexts.enter_context(hook.stage(name))
        yield
