"""Recognises errors that mean that the memory of the machine, or the limit of `ulimit -v`, is used up."""

from __future__ import annotations

import errno
import traceback

from wrappers.errors import details_of

MESSAGES = (
    "can't allocate memory",  # PyTorch's allocator
    "cannot allocate memory",  # the C library
    "bad_alloc",  # C++
    "could not create a primitive",  # oneDNN
    "failed to map segment",  # the loader of shared libraries
    "can't start new thread",  # there is no room for its stack
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that host memory could not be allocated."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or any(message in str(error).lower() for message in MESSAGES)


def describe(error: BaseException) -> str:
    """Return one line: the type of the error, the first line of its text, and its place in the user's code."""
    lines = str(error).splitlines()
    return ": ".join([type(error).__name__, *lines[:1]]) + details_of(error)


def failure_text(error: BaseException) -> str:
    """The last report of a worker that fails: its traceback, or one line if memory ran out. Its last line names the error."""
    if is_out_of_memory(error):
        return f"out of memory ({describe(error)})"
    text, reason = "".join(traceback.format_exception(error)), describe(error)
    # A text of several lines, or a note, ends the traceback without the type of the error.
    return text if text.splitlines()[-1].endswith(reason) else f"{text}{reason}\n"
