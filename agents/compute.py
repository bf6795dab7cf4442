"""How this process does its tensor work: threads, memory, and the precision of the torso."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch.nn import functional

Made = TypeVar("Made")

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""The precisions in which a torso may compute. Weights, heads and losses are always float32."""

MMAP_THRESHOLD, TRIM_THRESHOLD, ARENA_MAX = -3, -1, -8  # mallopt's numbers, from malloc.h
LARGEST_FROM_HEAP = (1 << 30, 1 << 25)  # bytes; older C libraries refuse more than the second
NEVER_TRIM = 2**31 - 1
MATRIX_UNITS, VECTOR_UNITS = "amx_bf16", "avx512_bf16"  # flags of /proc/cpuinfo
WORTH_ROUNDING = 0.9
"""A CPU computes in bfloat16 if that takes at most this part of the time in float32."""
CONVOLVED = (8, 64, 20, 20)
"""Inputs of the convolution on which both precisions are compared: about a millisecond."""


def prepare_torch(threads: int) -> None:
    """Settings of a whole process: how many threads share one operation, and that freed memory is kept."""
    torch.set_num_threads(threads)
    keep_freed_memory()


def set_tf32(*, allowed: bool) -> None:
    """Let a GPU multiply float32 matrices and convolve in TF32 (10 bits of mantissa), or forbid it."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def compiled(function: Callable[..., Made], *, dynamic: bool | None = None) -> Callable[..., Made]:
    """`function` through torch.compile.

    dynamic: whether for any number of rows from the start. None: for the first number, and once another comes, for any.

    Learner and central policy compile in separate threads. If one is called while the other compiles, PyTorch 2.11 mistakes
    the call for a nested trace. The option below lets such a call run uncompiled; by default PyTorch raises an error.
    """
    torch._dynamo.config.error_on_nested_fx_trace = False
    return torch.compile(function, dynamic=dynamic)


def compiler_missing(device: str) -> str | None:
    """Return the compilers that torch.compile looks for on `device` ("cpu" or "cuda") if this machine has none of them."""
    variable, *names = ("CC", "gcc", "clang") if device == "cuda" else ("CXX", "g++")
    names = [given] if (given := os.environ.get(variable)) else names
    return None if any(shutil.which(name.split()[0]) for name in names) else " or ".join(names)


def keep_freed_memory() -> None:
    """Ask the C library to reuse what large tensors leave behind instead of giving it back to the system.

    Otherwise every activation of every update is mapped, zeroed page by page and unmapped again, which cost a fifth of an
    update on two cores. All threads share one heap, as only the first one can be kept. Does nothing where the C library has no
    `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    any(mallopt(MMAP_THRESHOLD, size) for size in LARGEST_FROM_HEAP)
    mallopt(TRIM_THRESHOLD, NEVER_TRIM)
    mallopt(ARENA_MAX, 1)


def prefers_bfloat16(device: str) -> bool:
    """Whether `device` ("cpu" or "cuda") computes in bfloat16 sooner than in float32.

    Hardware without bfloat16 does not, and a CPU with matrix units does. A CPU that has only vector instructions for bfloat16
    is measured once, in about 30 ms: they made an AMD EPYC faster, but an Intel Xeon took 1.35 times as long for an update.
    """
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    flags = set(_cpu_flags())
    return MATRIX_UNITS in flags or (VECTOR_UNITS in flags and _convolves_sooner_in_bfloat16())


@functools.cache
def _convolves_sooner_in_bfloat16() -> bool:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain, rounded = (_fastest_convolution(dtype) for dtype in (torch.float32, torch.bfloat16))
    finally:
        torch.set_num_threads(before)
    return rounded < WORTH_ROUNDING * plain


def _fastest_convolution(dtype: torch.dtype, turns: int = 7) -> float:
    """Seconds of one convolution, the least of several turns, which other programs disturbed least."""
    inputs = torch.ones(CONVOLVED, dtype=dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.ones((CONVOLVED[1], CONVOLVED[1], 3, 3), dtype=dtype).contiguous(memory_format=torch.channels_last)

    def seconds() -> float:
        started = time.perf_counter()
        functional.conv2d(inputs, weight)
        return time.perf_counter() - started

    return min(seconds() for _ in range(turns))


def _cpu_flags() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
