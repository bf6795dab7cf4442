"""How a process does its tensor work: kept memory, and which devices multiply bfloat16."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agents import compute
from tests.support import REPOSITORY

FAULTS = """
import resource
import sys
import torch
from agents.compute import prepare_torch
prepare_torch(threads=1) if sys.argv[1] == "kept" else torch.set_num_threads(1)
for _ in range(3):
    torch.ones(12_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(12_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


FAULTS_OF_UPDATES = """
import resource
import statistics
import torch
from agents.compute import prepare_torch

from agents.passes import NetworkPasses
from tests.builders import network_of
prepare_torch(threads=1)
passes = NetworkPasses(network_of("nature", (4, 84, 84), 6), threads=2)
observations = torch.zeros(336, 4, 84, 84, dtype=torch.uint8)
def faults_of_update():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    outputs = passes.forward(observations)
    passes.backward([outputs.values.sum()], outputs)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(statistics.median([faults_of_update() for _ in range(25)][10:]))
"""


def page_faults(code: str, *arguments: str) -> int:
    command = [sys.executable, "-c", code, *arguments]
    return int(subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    pages = 4 * 12_000_000 // resource.getpagesize()
    assert page_faults(FAULTS, "kept") < 2 * pages  # of ten tensors; one may lie elsewhere than those before it
    assert page_faults(FAULTS, "given back") > 0


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_threads_use_each_other_s_freed_memory_again() -> None:
    """In most updates: now and then the heap grows, as threads meet otherwise than before."""
    assert page_faults(FAULTS_OF_UPDATES) < 300


@pytest.mark.parametrize(
    ("flags", "able"),
    [("fpu avx512_bf16 sse", True), ("fpu amx_bf16", True), ("fpu avx512f bf16x", False), ("", False)],
)
def test_a_cpu_says_whether_it_multiplies_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, able: bool
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: avx512_bf16\n")
    monkeypatch.setattr(compute, "Path", lambda _: info)
    assert compute.computes_bfloat16("cpu") is able


def test_a_system_without_cpuinfo_has_no_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "Path", lambda _: tmp_path / "missing")
    assert compute.computes_bfloat16("cpu") is False


def test_threads_are_set() -> None:
    compute.prepare_torch(threads=2)
    assert torch.get_num_threads() == 2
