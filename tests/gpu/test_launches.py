"""How much a GPU is told to do: each work costs the thread that asks for it some five microseconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from agents.networks import make_network, on_device
from agents.vtrace_agent import VTraceAgent, VTraceConfig
from tests.gpu.simulated_gpu import SimulatedGpu
from workers.device_weights import DeviceWeights

CUDA = torch.device("cuda")


def launches(gpu: SimulatedGpu, work: Callable[[], object]) -> int:
    before = gpu.launched
    work()
    return gpu.launched - before


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_weights_are_guarded_and_published_all_at_once(optimizer: str, gpu: SimulatedGpu) -> None:
    """However many they are; the optimiser's own part is not counted."""
    counts = []
    for name in ("mlp", "impala_deep"):
        network = on_device(make_network(name, (2, 12, 12), 3), CUDA)
        agent = VTraceAgent(VTraceConfig(optimizer=optimizer), network)
        for parameter in network.parameters():
            parameter.grad = torch.ones_like(parameter)
        weights = DeviceWeights(network)
        guarded_step = partial(agent.guard.step, {"gradient": torch.ones((), device=CUDA)}, agent.optimizer.step)
        guarded_step()  # makes the moments
        beside_the_step = launches(gpu, guarded_step) - launches(gpu, agent.optimizer.step)
        counts.append((beside_the_step, launches(gpu, partial(weights.publish, network, 1))))
    assert counts[0] == counts[1]
    assert max(counts[0]) < 12
    assert gpu.reports == []
