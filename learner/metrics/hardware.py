"""Measures what the run uses of its machine: processor time and memory of all its processes, and the GPU.

Processes are read from /proc once per record of metrics, which takes a millisecond. Without /proc only the GPU is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from pathlib import Path
from time import monotonic

import torch

from learner.metrics.statistics import Record

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
GIGABYTE = 1e9
KILOBYTE = 1024
SMALL = 1 << 29  # bytes of a process whose exact memory is quick to read
EXACT_PERIOD = 60.0  # seconds between two exact readings of one process


class HardwareMeter:
    """cores: that the run may use, 100 per cent in all. device: the learner's."""

    def __init__(self, cores: int, device: torch.device) -> None:
        self._cores = cores
        self._gpu = GpuMeter(device) if device.type == "cuda" else None
        self._ticks = _ticks_by_process()
        self._memory = MemoryMeter()

    def read(self, passed: float) -> Record:
        """Use over the `passed` seconds since the last reading, and memory in use now."""
        ticks = _ticks_by_process()
        record: Record = {}
        if ticks:
            # The id of a process that has ended may belong to a new one, whose time is smaller.
            used = sum(max(0, now - self._ticks.get(process, 0)) for process, now in ticks.items())
            record["hardware/cpu_percent"] = 100.0 * used / TICKS_PER_SECOND / (passed * self._cores)
            record["hardware/memory_gb"] = self._memory.read(list(ticks)) / GIGABYTE
            record["hardware/processes"] = len(ticks)
        self._ticks = ticks
        return record | (self._gpu.read() if self._gpu else {})


class MemoryMeter:
    """Memory of several processes: the private memory of each, and shared memory once.

    The size of the arena and of mapped files is taken from the process that maps most of them. Forked processes also share
    pages with the process that they were forked from. Only the kernel's proportional size (PSS) counts those once.
    Reading it walks a page table, so it is read rarely, and of small processes only.
    """

    def __init__(self) -> None:
        self._forked: dict[int, tuple[float, int]] = {}  # process -> time of the exact reading, bytes shared with others

    def read(self, processes: list[int]) -> int:
        """Bytes that these processes use together."""
        self._forked = {process: known for process, known in self._forked.items() if process in processes}
        sizes = {process: _sizes(process, "status") for process in processes}
        alone = sum(_anonymous(size) - self._shared_by(process, size) for process, size in sizes.items())
        shared = sum(max((size.get(kind, 0) for size in sizes.values()), default=0) for kind in ("RssShmem", "RssFile"))
        return alone + shared

    def _shared_by(self, process: int, size: dict[str, int]) -> int:
        """Bytes of a process's anonymous memory that are counted for other processes."""
        anonymous, now = _anonymous(size), monotonic()
        when, shared = self._forked.get(process, (-math.inf, 0))
        if anonymous <= SMALL and now - when >= EXACT_PERIOD:
            shared = anonymous - _sizes(process, "smaps_rollup").get("Pss_Anon", anonymous)
            self._forked[process] = now, shared
        return shared


class GpuMeter:
    """Use of the GPU by all programs together. A name is absent if the driver does not report it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._library: ctypes.CDLL | None = None
        self._handle = ctypes.c_void_p()
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
            if not library.nvmlInit_v2() and not library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self._handle)):
                self._library = library

    def read(self) -> Record:
        free, total = torch.cuda.mem_get_info(self._device)
        record = {
            "hardware/gpu_memory_gb": (total - free) / GIGABYTE,
            "hardware/gpu_memory_of_learner_gb": torch.cuda.memory_reserved(self._device) / GIGABYTE,
        }
        rates = (ctypes.c_uint * 2)()  # per cent of time in which the GPU computed, and in which its memory was accessed
        if self._library and not self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)):
            record["hardware/gpu_percent"] = float(rates[0])
        return record


def _ticks_by_process() -> dict[int, int]:
    """Processor time of this process and its descendants, in clock ticks; empty without /proc."""
    found = {}
    for process in family_of(os.getpid()):
        with contextlib.suppress(OSError, ValueError):
            # The process's name may hold blanks and brackets, so the fields are counted from its closing bracket.
            fields = (PROC / str(process) / "stat").read_text().rpartition(") ")[2].split()
            found[process] = int(fields[11]) + int(fields[12])  # utime, stime
    return found


def family_of(process: int) -> list[int]:
    """A process and its descendants; without /proc only the process."""
    family = [process]
    for listing in PROC.glob(f"{process}/task/*/children"):
        with contextlib.suppress(OSError):  # that thread has just ended
            for child in map(int, listing.read_text().split()):
                family += family_of(child)
    return family


def _anonymous(size: dict[str, int]) -> int:
    """Bytes of anonymous memory; of all memory in a sandbox (gVisor) that does not report kinds."""
    return size.get("RssAnon", size.get("VmRSS", 0))


def _sizes(process: int, name: str) -> dict[str, int]:
    """The sizes in a process's file of this name, in bytes; empty if the process has ended."""
    sizes = {}
    with contextlib.suppress(OSError):
        for line in (PROC / str(process) / name).read_text().splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                sizes[name] = int(value.split()[0]) * KILOBYTE
    return sizes
