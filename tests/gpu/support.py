"""One run on a CPU and the same run on the simulated GPU, compared to the bit, with the waits of the second one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.engine.guard import Guard
from agents.networks.base import on_device
from learner.metrics.statistics import UpdateMetrics
from learner.parts import build
from learner.runs.checkpoint import write_file
from learner.runs.directory import RunDirectory
from replay.ring.pages import DevicePagePool
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.gpu.test_program import lines_of
from tests.learner.runs.reproducible import assert_same_end, play

OF_EVERY_RUN = (Guard.step, UpdateMetrics.read, on_device, build, write_file, DevicePagePool._claimed_bytes)
"""Where a run may wait: the start, the first finite check, rows of metrics, and what is saved."""


def assert_a_gpu_learns_the_same(
    gpu: SimulatedGpu,
    folder: Path,
    replay: Callable[[str], str],
    settings: dict[str, Any],
    made: tuple[Callable[..., object], ...] = (),
) -> RunDirectory:
    """The run on the GPU ends with the bits of the run on the CPU, and agents and replays wait for the device nowhere else.

    Without CUDA graphs, for which an optimiser keeps its numbers on the device and rounds otherwise; see test_graphs.py.

    Args:
        gpu: is unused so far.
        folder: gets both runs.
        replay: the setting `replay_parameters` with frames on a device.
        settings: of both runs.
        made: further functions that may wait, because a run calls them once.

    Returns:
        The run on the GPU.
    """
    on_cpu, on_gpu = (RunDirectory.create(folder, name) for name in ("cpu", "gpu"))
    play(on_cpu, **{**settings, "replay_parameters": replay("cpu")})
    assert not gpu.launched
    play(on_gpu, **{**settings, "device": "cuda", "cuda_graphs": False, "replay_parameters": replay("cuda")})
    assert_same_end(on_cpu, on_gpu, interrupted=True)
    assert gpu.launched > 1000
    assert not gpu.reports, gpu.reports
    expected = lines_of(*OF_EVERY_RUN, *made)
    places = [wait.partition(" at ")[2] for wait in gpu.waits]
    unexpected = [place for place in places if place.startswith(("agents/", "replay/")) and place not in expected]
    assert not unexpected, unexpected
    return on_gpu
