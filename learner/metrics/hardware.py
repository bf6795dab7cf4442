"""What the run uses of its machine: processor time and memory of all its processes, and the GPU.

Read from /proc once a row of metrics, which takes a millisecond; elsewhere than on Linux only the GPU is known.
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
SMALL = 1 << 29  # bytes
LOOK_SECONDS = 60.0  # between two looks at what a process has in common with others


class HardwareMeter:
    """cores: that the run may use; 100 per cent are all of them. device: the learner's."""

    def __init__(self, cores: int, device: torch.device) -> None:
        self._cores = cores
        self._gpu = GpuMeter(device) if device.type == "cuda" else None
        self._ticks = _ticks_by_process()
        self._memory = MemoryMeter()

    def read(self, passed: float) -> Record:
        """Use over the `passed` seconds since the last reading, and memory as it is now."""
        ticks = _ticks_by_process()
        row: Record = {}
        if ticks:
            used = sum(max(0, now - self._ticks.get(process, 0)) for process, now in ticks.items())
            row["hardware/cpu_percent"] = 100.0 * used / TICKS_PER_SECOND / (passed * self._cores)
            row["hardware/memory_gb"] = self._memory.read(list(ticks)) / GIGABYTE
            row["hardware/processes"] = len(ticks)
        self._ticks = ticks
        return row | (self._gpu.read() if self._gpu else {})


class MemoryMeter:
    """Memory of this process and others that share its arena: what each has alone, and what is shared once.

    Of an arena and of files, shared pages are those of the process that maps most of them. Forked processes also have in common
    what they were forked with. The exact sum (PSS) walks a page table: only small ones, and rarely.
    """

    def __init__(self) -> None:
        self._in_common: dict[int, tuple[float, int]] = {}  # process -> when it was looked at, bytes

    def read(self, processes: list[int]) -> int:
        """Bytes."""
        self._in_common = {process: known for process, known in self._in_common.items() if process in processes}
        sizes = {process: _sizes(process, "status") for process in processes}
        alone = sum(_anonymous(size) - self._shared_by(process, size) for process, size in sizes.items())
        shared = sum(max((size.get(kind, 0) for size in sizes.values()), default=0) for kind in ("RssShmem", "RssFile"))
        return alone + shared

    def _shared_by(self, process: int, size: dict[str, int]) -> int:
        """Bytes of its anonymous memory that others account for."""
        anonymous, now = _anonymous(size), monotonic()
        when, in_common = self._in_common.get(process, (-math.inf, 0))
        if anonymous <= SMALL and now - when >= LOOK_SECONDS:
            in_common = anonymous - _sizes(process, "smaps_rollup").get("Pss_Anon", anonymous)
            self._in_common[process] = now, in_common
        return in_common


class GpuMeter:
    """The GPU's own figures, all programs on it together; a name is absent where the driver does not tell."""

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
        row = {
            "hardware/gpu_memory_gb": (total - free) / GIGABYTE,
            "hardware/gpu_memory_of_learner_gb": torch.cuda.memory_reserved(self._device) / GIGABYTE,
        }
        rates = (ctypes.c_uint * 2)()  # of the GPU, of its memory
        if self._library and not self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)):
            row["hardware/gpu_percent"] = float(rates[0])
        return row


def _ticks_by_process() -> dict[int, int]:
    """Processor time of this process and its children; empty where there is no /proc."""
    found = {}
    for process in family_of(os.getpid()):
        with contextlib.suppress(OSError, ValueError):
            fields = (PROC / str(process) / "stat").read_text().rpartition(") ")[2].split()
            found[process] = int(fields[11]) + int(fields[12])  # utime, stime
    return found


def family_of(process: int) -> list[int]:
    """A process, its children and theirs; without /proc only itself."""
    family = [process]
    for listing in PROC.glob(f"{process}/task/*/children"):
        with contextlib.suppress(OSError):  # that thread has ended meanwhile
            for child in map(int, listing.read_text().split()):
                family += family_of(child)
    return family


def _anonymous(size: dict[str, int]) -> int:
    """Its anonymous memory; all that it has where a sandbox (gVisor) does not tell kinds apart."""
    return size.get("RssAnon", size.get("VmRSS", 0))


def _sizes(process: int, name: str) -> dict[str, int]:
    """The sizes in a process's file of this name, in bytes; empty where it has ended."""
    sizes = {}
    with contextlib.suppress(OSError):
        for line in (PROC / str(process) / name).read_text().splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                sizes[name] = int(value.split()[0]) * KILOBYTE
    return sizes
