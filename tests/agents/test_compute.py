"""How a process does its tensor work: kept memory, and which devices prefer bfloat16."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
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

from agents.engine.passes import NetworkPasses
from tests.builders import network_of
prepare_torch(threads=1)
passes = NetworkPasses(network_of("nature", (4, 84, 84), 6), threads=2)
observations = torch.zeros(336, 4, 84, 84, dtype=torch.uint8)
def faults_of_update():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    outputs = passes.forward(observations)
    passes.backward([outputs.values.sum()], outputs)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(statistics.median([faults_of_update() for _ in range(12)][5:]))
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


def prefers_bfloat16(monkeypatch: pytest.MonkeyPatch, cpuinfo: Path, *, seconds: float = 1.0) -> bool:
    """With such a /proc/cpuinfo, where a convolution takes a second in float32. seconds: of one in bfloat16."""
    monkeypatch.setattr(compute, "Path", lambda _: cpuinfo)
    monkeypatch.setattr(compute, "_fastest_convolution", lambda dtype: 1.0 if dtype == torch.float32 else seconds)
    compute._convolves_sooner_in_bfloat16.cache_clear()
    try:
        return compute.prefers_bfloat16("cpu")
    finally:
        compute._convolves_sooner_in_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("flags", "seconds", "preferred"),
    [
        ("fpu amx_bf16", 2.0, True),
        ("fpu avx512_bf16 sse", 0.6, True),
        ("fpu avx512_bf16 sse", 0.95, False),
        ("fpu avx512_bf16 sse", 1.4, False),
        ("fpu avx512f bf16x", 0.6, False),
        ("", 0.6, False),
    ],
)
def test_a_cpu_prefers_bfloat16_if_it_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, seconds: float, preferred: bool
) -> None:
    """One without instructions for it is not asked, and neither is one with matrix units."""
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: avx512_bf16\n")
    assert prefers_bfloat16(monkeypatch, info, seconds=seconds) is preferred


def test_a_system_without_cpuinfo_prefers_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prefers_bfloat16(monkeypatch, tmp_path / "missing", seconds=0.6) is False


def test_comparing_precisions_is_quick_and_leaves_the_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    compute._convolves_sooner_in_bfloat16.cache_clear()
    started = time.perf_counter()
    compute._convolves_sooner_in_bfloat16()
    assert time.perf_counter() - started < 5.0  # 30 ms on an idle machine with the instructions
    assert torch.get_num_threads() == before


def test_tf32_is_allowed_or_forbidden_for_products_and_convolutions() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        for tf32, precision in ((False, "highest"), (True, "high")):
            compute.set_tf32(allowed=tf32)
            assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == (precision, tf32)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_threads_are_set() -> None:
    compute.prepare_torch(threads=2)
    assert torch.get_num_threads() == 2
