"""Processor time and memory of the processes of a run, read from a fake /proc."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from learner.metrics import hardware
from learner.metrics.hardware import GpuMeter, HardwareMeter

CPU = torch.device("cpu")


class Processes:
    """A /proc with this process and its children."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.set_children()

    def set_children(self, *children: int) -> None:
        self.set_children_of(os.getpid(), *children)

    def set_children_of(self, process: int, *children: int) -> None:
        listing = self.root / str(process) / "task" / "1" / "children"
        listing.parent.mkdir(parents=True, exist_ok=True)
        listing.write_text("".join(f"{child} " for child in children))

    def set(self, process: int, *, user: int, system: int, kilobytes: tuple[int, int, int]) -> None:
        """user, system: ticks; kilobytes: anonymous, file and shared pages."""
        folder = self.root / str(process)
        folder.mkdir(parents=True, exist_ok=True)
        before = f"{process} (a ) strange) name) S " + "0 " * 10
        (folder / "stat").write_text(f"{before}{user} {system} 0 0\n")
        sizes = "".join(
            f"{name}:\t{size} kB\n" for name, size in zip(("RssAnon", "RssFile", "RssShmem"), kilobytes, strict=True)
        )
        (folder / "status").write_text(f"Name:\tpython\n{sizes}Threads:\t3\n")


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(hardware, "PROC", tmp_path)
    monkeypatch.setattr(hardware, "TICKS_PER_SECOND", 100)
    return Processes(tmp_path)


def test_processor_time_of_all_processes_since_the_last_reading(processes: Processes) -> None:
    me = os.getpid()
    processes.set(me, user=1000, system=500, kilobytes=(0, 0, 0))
    meter = HardwareMeter(4, CPU)
    processes.set(me, user=1100, system=550, kilobytes=(0, 0, 0))  # 1.5 s
    processes.set(7, user=40, system=10, kilobytes=(0, 0, 0))  # 0.5 s, started since the last reading
    processes.set_children(7)
    record = meter.read(2.0)
    assert record["hardware/cpu_percent"] == pytest.approx(100 * 2.0 / (2.0 * 4))
    assert record["hardware/processes"] == 2
    processes.set_children()
    assert meter.read(2.0)["hardware/cpu_percent"] == 0.0, "a process that ended takes nothing back"


def test_shared_memory_counts_once(processes: Processes) -> None:
    processes.set(os.getpid(), user=0, system=0, kilobytes=(5_000_000, 200_000, 800_000))
    processes.set(7, user=0, system=0, kilobytes=(300_000, 250_000, 100_000))
    processes.set(8, user=0, system=0, kilobytes=(400_000, 100_000, 900_000))
    processes.set_children(7, 8, 9)  # 9 has ended
    wanted = (5_000_000 + 300_000 + 400_000 + 250_000 + 900_000) * 1024 / 1e9
    assert HardwareMeter(2, CPU).read(1.0)["hardware/memory_gb"] == pytest.approx(wanted)


def test_pages_shared_by_forked_processes_count_once(processes: Processes) -> None:
    processes.set(os.getpid(), user=0, system=0, kilobytes=(5_000_000, 0, 0))
    processes.set(7, user=0, system=0, kilobytes=(100_000, 0, 0))
    processes.set(8, user=0, system=0, kilobytes=(100_000, 0, 0))
    processes.set_children(7)
    processes.set_children_of(7, 8)
    for process in (7, 8):
        (processes.root / str(process) / "smaps_rollup").write_text("00-ff ---p [rollup]\nPss:  80 kB\nPss_Anon:  60000 kB\n")
    record = HardwareMeter(2, CPU).read(1.0)
    assert record["hardware/memory_gb"] == pytest.approx((5_000_000 + 60_000 + 60_000) * 1024 / 1e9)
    assert record["hardware/processes"] == 3, "a child's child is one of the run's processes too"


def test_shared_pages_are_read_rarely(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(hardware, "monotonic", lambda: now)
    processes.set(os.getpid(), user=0, system=0, kilobytes=(0, 0, 0))
    meter = HardwareMeter(2, CPU)
    readings = []
    for seconds, anonymous, alone in ((0, 100_000, 60_000), (5, 110_000, 1), (59, 120_000, 1), (61, 130_000, 90_000)):
        now = 1000.0 + seconds
        processes.set(os.getpid(), user=0, system=0, kilobytes=(anonymous, 0, 0))
        (processes.root / str(os.getpid()) / "smaps_rollup").write_text(f"Pss_Anon:  {alone} kB\n")
        readings.append(meter.read(1.0)["hardware/memory_gb"] * 1e9 / 1024)
    assert readings == pytest.approx([60_000, 70_000, 80_000, 90_000])


def test_all_memory_counts_if_kinds_are_not_reported(processes: Processes) -> None:
    processes.set(os.getpid(), user=0, system=0, kilobytes=(0, 0, 0))
    (processes.root / str(os.getpid()) / "status").write_text("Name:\tpython\nVmSize:\t900000 kB\nVmRSS:\t500000 kB\n")
    assert HardwareMeter(2, CPU).read(1.0)["hardware/memory_gb"] == pytest.approx(500_000 * 1024 / 1e9)


def test_without_proc_nothing_is_reported(processes: Processes) -> None:
    assert HardwareMeter(2, CPU).read(1.0) == {}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_work_of_this_process_is_measured() -> None:
    meter = HardwareMeter(1, CPU)
    started = time.process_time()
    while time.process_time() - started < 0.4:
        pass
    record = meter.read(0.4)
    assert 80 < record["hardware/cpu_percent"] < 200  # 100, within the resolution of clock ticks
    assert 0.01 < record["hardware/memory_gb"] < 50


@pytest.mark.parametrize(("answers", "wanted"), [(0, 37.0), (3, None)])
def test_the_gpu_s_use_is_reported_if_the_driver_answers(
    monkeypatch: pytest.MonkeyPatch, answers: int, wanted: float | None
) -> None:
    asked: list[bytes] = []

    def handle_by_uuid(uuid: bytes, handle: Any) -> int:
        asked.append(uuid)
        return 0

    def rates(handle: Any, values: Any) -> int:
        values._obj[0] = 37
        return answers

    library = SimpleNamespace(
        nvmlInit_v2=lambda: 0, nvmlDeviceGetHandleByUUID=handle_by_uuid, nvmlDeviceGetUtilizationRates=rates
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 * 10**9, 80 * 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 20 * 10**9)
    record = GpuMeter(torch.device("cuda")).read()
    assert asked == [b"GPU-12-34"]
    assert record.get("hardware/gpu_percent") == wanted
    assert (record["hardware/gpu_memory_gb"], record["hardware/gpu_memory_of_learner_gb"]) == (50.0, 20.0)
