"""Turns what environments raise in a process of the program itself into an error of one line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from workers.base import WorkerError
from workers.finite import NotFiniteError
from workers.processes.out_of_memory import describe, is_out_of_memory
from wrappers.journal import ReplayStopped
from wrappers.spec import FAILURES, NoAnswerError

log = logging.getLogger("springbok")


@contextmanager
def failures_of(name: str) -> Iterator[None]:
    """Turn every failure of environments in this process into a WorkerError of one line. log.txt has the traceback.

    Nothing can take the place of such environments, so the run ends. Out of memory stays as it is: the program says what to do.
    """
    try:
        yield
    except (ReplayStopped, WorkerError):
        raise
    except NoAnswerError as error:
        raise WorkerError(str(error)) from error
    except NotFiniteError as error:  # it names the environment or the policy, so a traceback would add nothing
        raise WorkerError(f"{name} failed: {error}") from error
    except FAILURES as error:
        if is_out_of_memory(error):
            raise
        log.debug("%s failed", name, exc_info=True)
        raise WorkerError(f"{name} failed: {describe(error)}") from error
