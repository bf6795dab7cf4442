"""Processor time and memory of a run's processes, from a /proc that is told."""

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
        self.tell_children()

    def tell_children(self, *children: int) -> None:
        self.tell_children_of(os.getpid(), *children)

    def tell_children_of(self, process: int, *children: int) -> None:
        listing = self.root / str(process) / "task" / "1" / "children"
        listing.parent.mkdir(parents=True, exist_ok=True)
        listing.write_text("".join(f"{child} " for child in children))

    def tell(self, process: int, *, user: int, system: int, kilobytes: tuple[int, int, int]) -> None:
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


def test_processor_time_is_that_of_all_processes_since_the_last_reading(processes: Processes) -> None:
    me = os.getpid()
    processes.tell(me, user=1000, system=500, kilobytes=(0, 0, 0))
    meter = HardwareMeter(4, CPU)
    processes.tell(me, user=1100, system=550, kilobytes=(0, 0, 0))  # 1.5 s
    processes.tell(7, user=40, system=10, kilobytes=(0, 0, 0))  # 0.5 s, begun meanwhile
    processes.tell_children(7)
    row = meter.read(2.0)
    assert row["hardware/cpu_percent"] == pytest.approx(100 * 2.0 / (2.0 * 4))
    assert row["hardware/processes"] == 2
    processes.tell_children()
    assert meter.read(2.0)["hardware/cpu_percent"] == 0.0, "a process that ended takes nothing back"


def test_shared_memory_counts_once(processes: Processes) -> None:
    processes.tell(os.getpid(), user=0, system=0, kilobytes=(5_000_000, 200_000, 800_000))
    processes.tell(7, user=0, system=0, kilobytes=(300_000, 250_000, 100_000))
    processes.tell(8, user=0, system=0, kilobytes=(400_000, 100_000, 900_000))
    processes.tell_children(7, 8, 9)  # 9 has ended
    wanted = (5_000_000 + 300_000 + 400_000 + 250_000 + 900_000) * 1024 / 1e9
    assert HardwareMeter(2, CPU).read(1.0)["hardware/memory_gb"] == pytest.approx(wanted)


def test_what_forked_processes_have_in_common_counts_once(processes: Processes) -> None:
    processes.tell(os.getpid(), user=0, system=0, kilobytes=(5_000_000, 0, 0))
    processes.tell(7, user=0, system=0, kilobytes=(100_000, 0, 0))
    processes.tell(8, user=0, system=0, kilobytes=(100_000, 0, 0))
    processes.tell_children(7)
    processes.tell_children_of(7, 8)
    for process in (7, 8):
        (processes.root / str(process) / "smaps_rollup").write_text("00-ff ---p [rollup]\nPss:  80 kB\nPss_Anon:  60000 kB\n")
    row = HardwareMeter(2, CPU).read(1.0)
    assert row["hardware/memory_gb"] == pytest.approx((5_000_000 + 60_000 + 60_000) * 1024 / 1e9)
    assert row["hardware/processes"] == 3, "a child's child is one of the run's processes too"


def test_what_processes_have_in_common_is_looked_at_now_and_then(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(hardware, "monotonic", lambda: now)
    processes.tell(os.getpid(), user=0, system=0, kilobytes=(0, 0, 0))
    meter = HardwareMeter(2, CPU)
    readings = []
    for seconds, anonymous, alone in ((0, 100_000, 60_000), (5, 110_000, 1), (59, 120_000, 1), (61, 130_000, 90_000)):
        now = 1000.0 + seconds
        processes.tell(os.getpid(), user=0, system=0, kilobytes=(anonymous, 0, 0))
        (processes.root / str(os.getpid()) / "smaps_rollup").write_text(f"Pss_Anon:  {alone} kB\n")
        readings.append(meter.read(1.0)["hardware/memory_gb"] * 1e9 / 1024)
    assert readings == pytest.approx([60_000, 70_000, 80_000, 90_000])


def test_where_kinds_of_memory_are_not_told_apart_it_is_all_that_processes_have(processes: Processes) -> None:
    processes.tell(os.getpid(), user=0, system=0, kilobytes=(0, 0, 0))
    (processes.root / str(os.getpid()) / "status").write_text("Name:\tpython\nVmSize:\t900000 kB\nVmRSS:\t500000 kB\n")
    assert HardwareMeter(2, CPU).read(1.0)["hardware/memory_gb"] == pytest.approx(500_000 * 1024 / 1e9)


def test_without_proc_nothing_is_told(processes: Processes) -> None:
    assert HardwareMeter(2, CPU).read(1.0) == {}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_this_process_is_seen_at_work() -> None:
    meter = HardwareMeter(1, CPU)
    started = time.process_time()
    while time.process_time() - started < 0.4:
        pass
    row = meter.read(0.4)
    assert 80 < row["hardware/cpu_percent"] < 200  # 100, and what the system's clock ticks leave open
    assert 0.01 < row["hardware/memory_gb"] < 50


@pytest.mark.parametrize(("answers", "told"), [(0, 37.0), (3, None)])
def test_the_gpu_tells_its_use_where_the_driver_answers(
    monkeypatch: pytest.MonkeyPatch, answers: int, told: float | None
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
    row = GpuMeter(torch.device("cuda")).read()
    assert asked == [b"GPU-12-34"]
    assert row.get("hardware/gpu_percent") == told
    assert (row["hardware/gpu_memory_gb"], row["hardware/gpu_memory_of_learner_gb"]) == (50.0, 20.0)
