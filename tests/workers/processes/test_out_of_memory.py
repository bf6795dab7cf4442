"""Errors of Python, NumPy, PyTorch and the system that mean that host memory is used up, and no others."""

from __future__ import annotations

import errno
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch

from workers.processes import worker
from workers.processes.launcher import start_process
from workers.processes.out_of_memory import describe, failure_text, is_out_of_memory

TOO_MANY = 1 << 45  # bytes; no machine has them


def error_of(call: Any, *arguments: Any) -> Exception:
    with pytest.raises((MemoryError, OSError, RuntimeError)) as caught:
        call(*arguments)
    return caught.value


@pytest.mark.parametrize("call", [bytearray, torch.empty, lambda size: np.ones(size, np.uint8)])
def test_allocations_that_fail_are_recognised(call: Any) -> None:
    error = error_of(call, TOO_MANY)
    assert is_out_of_memory(error)
    assert describe(error).startswith(type(error).__name__)
    assert "\n" not in describe(error)


@pytest.mark.parametrize("text", ["the simulator failed", "the simulator failed\nafter 1501 steps", ""])
def test_the_last_line_of_a_failure_names_the_error(text: str) -> None:
    report = failure_text(RuntimeError(text))
    assert report.startswith("RuntimeError")  # no traceback without a raise
    assert report.splitlines()[-1] == ("RuntimeError: the simulator failed" if text else "RuntimeError")


def test_the_error_number_tells_system_errors_apart() -> None:
    assert is_out_of_memory(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
    assert not is_out_of_memory(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
    assert not is_out_of_memory(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))


def test_other_errors_are_not_recognised() -> None:
    assert not is_out_of_memory(ValueError("wanted 3 rows, got 4"))
    assert not is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))


def run_out_of_memory(errors: Connection) -> None:
    """In a process of its own: a worker that finds no memory."""

    def collect_blocks(*_: Any) -> None:
        raise MemoryError("Unable to allocate 3.00 GiB")

    worker._work = collect_blocks
    worker.run_worker(None, None, None, errors)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the process imports PyTorch first")
def test_a_worker_without_memory_reports_one_line() -> None:
    errors, errors_writer = multiprocessing.Pipe(duplex=False)
    process = start_process(run_out_of_memory, errors_writer, name="worker")
    errors_writer.close()
    process.join(60)
    assert process.exitcode == 1
    assert os.read(errors.fileno(), 1000).startswith(b"out of memory (MemoryError: Unable to allocate 3.00 GiB")
    process.close()
    errors.close()
