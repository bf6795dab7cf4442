"""How much work a GPU is given: each work costs the thread that asks for it some five microseconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from agents.engine.guard import Guard
from agents.networks.base import on_device
from agents.vtrace.agent import VTraceAgent, VTraceConfig
from learner.machine import measuring
from replay.batch import Batch, HostBatch
from replay.slot_store import SharedArrays
from tests.builders import network_of
from tests.gpu.simulated_gpu import SimulatedGpu
from tests.support import small_config, small_plan
from workers.central.device_weights import DeviceWeights
from workers.weights import SharedWeights, weights_layout

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
        network = on_device(network_of(name, (2, 12, 12), 3), CUDA)
        agent = VTraceAgent(VTraceConfig(optimizer=optimizer), network)
        for parameter in network.parameters():
            parameter.grad = torch.ones_like(parameter)
        weights = DeviceWeights(network)
        step = agent.stepper.optimizer.step
        guarded_step = partial(agent.stepper.guard.step, {"gradient": torch.ones((), device=CUDA)}, step)
        guarded_step()  # makes the moments
        beside_the_step = launches(gpu, guarded_step) - launches(gpu, step)
        counts.append((beside_the_step, launches(gpu, partial(weights.publish, network, 1))))
        reader = on_device(network_of(name, (2, 12, 12), 3, precision="bfloat16").only_act(), CUDA)
        torch.cuda.synchronize()
        assert launches(gpu, partial(weights.read, reader)) == 2  # one for each precision
    assert counts[0] == counts[1]
    assert max(counts[0]) < 12
    assert gpu.reports == []


def test_measuring_gives_back_what_updates_hold(gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that are not read keep page-locked memory."""
    guards, end_update = [], Guard.end_update

    def seen_end(guard: Guard) -> None:
        guards.append(guard)
        end_update(guard)

    monkeypatch.setattr(Guard, "end_update", seen_end)
    part = measuring.learning(small_plan(device="cuda"), 4)
    for calls in range(1, 5):
        part.call()
        assert len(guards) == calls * measuring.GPU_UPDATES
        assert len(guards[-1]._pending) <= 1


def test_updates_are_measured_as_a_run_makes_them(gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """From page-locked memory, several queued before anybody waits for all: else the learner would seem slower than it is."""
    said: list[str] = []
    make_batch = measuring.make_batch

    def seen_make_batch(host: HostBatch, *rest: Any) -> Batch:
        said.append("update")
        assert all(gpu.is_pinned(torch.from_numpy(column)) for column in host.columns.values())
        return make_batch(host, *rest)

    part = measuring.learning(small_plan(device="cuda"), 4)
    monkeypatch.setattr(measuring, "make_batch", seen_make_batch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: said.append("wait"))
    part.call()
    assert said == ["update"] * measuring.GPU_UPDATES + ["wait"]
    assert part.steps == measuring.GPU_UPDATES * 4 * small_config().training.unroll_length


def test_workers_get_weights_in_one_trip(gpu: SimulatedGpu) -> None:
    network = on_device(network_of("impala_deep", (2, 12, 12), 3), CUDA)
    weights = SharedWeights(SharedArrays(weights_layout(network)))
    gpu.waits.clear()
    weights.publish(network, 1)
    assert len(gpu.waits) == 1
    reader = network_of("impala_deep", (2, 12, 12), 3)
    weights.read(reader)
    for here, there in zip(reader.state_dict().values(), network.state_dict().values(), strict=True):
        assert torch.equal(here, there.cpu())


def test_moments_lie_in_memory_as_weights_do(gpu: SimulatedGpu) -> None:
    """Also those that were saved where weights lay otherwise."""
    on_cpu, on_gpu = (
        VTraceAgent(VTraceConfig(), on_device(network_of("nature", (2, 36, 36), 3), torch.device(device)))
        for device in ("cpu", "cuda")
    )
    for parameter in on_cpu.network.parameters():
        parameter.grad = torch.ones_like(parameter)
    on_cpu.stepper.guard.step({"gradient": torch.ones(())}, on_cpu.stepper.step_optimizer)
    on_gpu.load_state_dict(on_cpu.state_dict(), load_optimizer=True)
    saved, loaded = (
        [moments["square_avg"] for moments in agent.stepper.optimizer.state.values()] for agent in (on_cpu, on_gpu)
    )
    weights = list(on_gpu.network.parameters())
    assert [weight.stride() for weight in weights] != [moment.stride() for moment in saved]
    assert [weight.stride() for weight in weights] == [moment.stride() for moment in loaded]
    assert all(torch.equal(there.cpu(), here) for there, here in zip(loaded, saved, strict=True))
