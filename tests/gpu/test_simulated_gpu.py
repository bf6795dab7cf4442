"""The simulated GPU sees each fault that it is there to see, and nothing where the program waits as it should."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from agents.engine.streams import Fence, side_stream
from agents.networks.base import on_device
from tests.builders import network_of
from tests.gpu.simulated_gpu import SimulatedGpu

CUDA = torch.device("cuda")


def on_gpu() -> Tensor:
    return torch.ones(4, device=CUDA)


@pytest.mark.parametrize("waits", ["no", "stream", "thread", "query"])
def test_a_stream_that_reads_what_another_one_writes_must_wait(gpu: SimulatedGpu, waits: str) -> None:
    tensor, fence = on_gpu(), Fence(CUDA)
    torch.cuda.synchronize()
    with torch.cuda.stream(side_stream(CUDA)):
        tensor.add_(1)
        fence.record()
    if waits == "stream":
        fence.hold_back()
    elif waits == "thread":
        fence.wait()
    elif waits == "query":
        while not fence.passed:
            pass
    doubled = 2 * tensor
    assert doubled.cpu().tolist() == [4] * 4
    assert bool(gpu.reports) == (waits == "no")


@pytest.mark.parametrize("waits", [False, True])
def test_a_stream_that_writes_what_another_one_reads_must_wait(gpu: SimulatedGpu, *, waits: bool) -> None:
    tensor, fence = on_gpu(), Fence(CUDA)
    torch.cuda.synchronize()
    with torch.cuda.stream(side_stream(CUDA)):
        doubled = 2 * tensor
        fence.record()
    if waits:
        fence.hold_back()
    tensor[1:3].zero_()  # a view's memory is that of the whole
    assert bool(gpu.reports) != waits
    fence.wait()
    assert doubled.cpu().tolist() == [2] * 4


def test_an_event_knows_only_what_came_before_it(gpu: SimulatedGpu) -> None:
    tensor, fence = on_gpu(), Fence(CUDA)
    torch.cuda.synchronize()
    with torch.cuda.stream(side_stream(CUDA)):
        fence.record()
        tensor.add_(1)
    fence.wait()
    tensor.add_(1)
    assert len(gpu.reports) == 1
    assert "add_" in gpu.reports[0]
    assert "tests/gpu/test_simulated_gpu.py" in gpu.reports[0]


@pytest.mark.parametrize("recorded", [False, True])
def test_memory_must_not_be_dropped_while_another_stream_reads_it(gpu: SimulatedGpu, *, recorded: bool) -> None:
    side = side_stream(CUDA)
    with torch.cuda.stream(side):
        tensor = on_gpu()
    side.synchronize()
    doubled = 2 * tensor
    if recorded:
        tensor.record_stream(torch.cuda.current_stream(CUDA))
    del tensor
    gc.collect()
    assert bool(gpu.reports) != recorded
    assert doubled.cpu().tolist() == [2] * 4


@pytest.mark.parametrize("waits", [False, True])
def test_page_locked_memory_is_read_at_some_later_time(gpu: SimulatedGpu, *, waits: bool) -> None:
    host, copied = torch.zeros(4).pin_memory(), Fence(CUDA)
    array = host.numpy()
    there = torch.from_numpy(array[:2]).to(CUDA, non_blocking=True)
    copied.record()
    if waits:
        copied.wait()
    array[1] = 5
    torch.cuda.synchronize()
    assert bool(gpu.reports) != waits
    assert there.cpu().tolist() == [0, 0]


def test_ordinary_memory_is_read_at_once(gpu: SimulatedGpu) -> None:
    host = torch.zeros(4)
    host.to(CUDA, non_blocking=True)
    host[1] = 5
    torch.cuda.synchronize()
    assert not gpu.reports
    assert not gpu.waits


@pytest.mark.parametrize("own_target", [False, True])
def test_what_comes_down_is_not_there_before_somebody_has_waited(gpu: SimulatedGpu, *, own_target: bool) -> None:
    tensor, target, copied = on_gpu(), torch.empty(4, pin_memory=True), Fence(CUDA)
    host = target.copy_(tensor, non_blocking=True) if own_target else tensor.to("cpu", non_blocking=True)
    sound = tensor.isfinite().to("cpu", non_blocking=True)
    copied.record()
    assert host.isnan().all()
    assert not sound.any()
    copied.wait()
    assert host.tolist() == [1] * 4
    assert sound.all()
    assert not gpu.waits


def test_threads_that_wait_without_having_asked_to_are_counted(gpu: SimulatedGpu) -> None:
    tensor = on_gpu()
    host = torch.zeros(4)
    mask = tensor > 0
    for wait in (
        lambda: tensor.sum().item(),
        lambda: float(tensor[0]),
        lambda: bool((tensor > 0).all()),
        tensor.tolist,
        tensor.cpu,
        lambda: host.to(CUDA),
        lambda: tensor.copy_(host),
        lambda: host.copy_(tensor),
        lambda: tensor[mask],
        lambda: tensor.nonzero(),
        lambda: tensor.masked_select(mask),
    ):
        before = len(gpu.waits)
        wait()
        assert len(gpu.waits) == before + 1, wait
    assert not gpu.reports


def test_devices_do_not_mix(gpu: SimulatedGpu) -> None:
    tensor = on_gpu()
    assert tensor.device == torch.device("cuda", 0)
    assert (tensor * torch.tensor(2.0)).is_cuda
    with pytest.raises(RuntimeError, match="same device"):
        tensor + torch.ones(4)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(4).add_(tensor)
    with pytest.raises(RuntimeError, match="same device"):
        torch.stack([tensor[0], torch.tensor(2.0)])
    with pytest.raises(TypeError, match="numpy"):
        tensor.numpy()


@pytest.mark.parametrize(("name", "channels"), [("nature", {4, 32, 64}), ("impala_deep", {8, 16, 32})])
def test_networks_compute_what_they_compute_on_the_host(
    name: str, channels: set[int], gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, with gradients, and with the kernels of a GPU's layout. channels: those that are convolved on the GPU."""
    convolved = set()
    convolve = functional.conv2d

    def seen(inputs: Tensor, *rest: Any) -> Tensor:
        if inputs.is_cuda:
            convolved.add(inputs.shape[1])
            assert inputs.is_contiguous(memory_format=torch.channels_last)
        return convolve(inputs, *rest)

    monkeypatch.setattr(functional, "conv2d", seen)
    network = network_of(name, (4, 84, 84), 6, precision="bfloat16", generator=torch.Generator().manual_seed(1))
    observations = torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8)
    results = []
    for device in ("cpu", "cuda"):
        network = on_device(network, torch.device(device))
        output = network(observations.to(device))
        loss = output.policy.square().sum() + output.values.sum()
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        assert all(gradient.device.type == device for gradient in gradients)
        results.append([tensor.detach().cpu() for tensor in (output.policy, output.values, *gradients)])
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(there, here, rtol=2e-2, atol=2e-2 * float(here.abs().max()))
    assert convolved == channels
    assert not gpu.reports
