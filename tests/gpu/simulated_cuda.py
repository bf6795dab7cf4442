"""Puts the simulated GPU in the place of `cuda`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gpu.simulated_gpu import SimulatedEvent, SimulatedGpu, StreamContext
from tests.gpu.simulated_graphs import Recording, SimulatedGraph, mapped
from tests.gpu.simulated_tensors import CUDA, compute


class SimulationMode(TorchDispatchMode):
    """Sees what is made on the device out of nothing, or of tensors on the host."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(self._gpu, func, args, kwargs or {})


class _Autocast(torch.autocast):
    def __init__(self, kind: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu", *args, **kwargs)


class _Generator(torch.Generator):
    def __new__(cls, device: object = None) -> _Generator:
        return super().__new__(cls)


def _with_device_number(function: Callable[..., Any]) -> Callable[..., Any]:
    """Say `cuda:0` where `cuda` is said: PyTorch would ask the driver which one is meant."""

    def call(*given: Any, **settings: Any) -> Any:
        given, settings = mapped((torch.device, str), lambda one: CUDA if str(one) == "cuda" else one, (given, settings))
        return function(*given, **settings)

    return call


def _group(lists: Any, *_: Any) -> Any:
    """All of one device and dtype: PyTorch would say the device that its engine knows."""
    return {(lists[0][0].device, lists[0][0].dtype): (lists, list(range(len(lists[0]))))}


@contextmanager
def simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGpu]:
    """While it lasts, `cuda` is the simulated GPU, in this thread and in those that are started meanwhile."""
    gpu = SimulatedGpu()
    of_cuda: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "get_rng_state": lambda: torch.zeros(16, dtype=torch.uint8),  # numbers for the GPU are drawn with those of the host
        "set_rng_state": lambda _: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: "Simulated GPU",
        "get_device_properties": lambda *_: SimpleNamespace(uuid="simulated"),
        "is_bf16_supported": lambda **_: True,
        "mem_get_info": lambda *_: (10**10, 10**10),
        "memory_reserved": lambda *_: 0,
        "Stream": gpu.make_stream,
        "Event": lambda **_: SimulatedEvent(gpu),
        "CUDAGraph": lambda: SimulatedGraph(gpu),
        "graph": partial(Recording, gpu),
        "stream": lambda stream: StreamContext(gpu, stream),
        "current_stream": gpu.current,
        "synchronize": gpu.wait_for_all,
    }
    for name, value in of_cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for owner, name in ((Tensor, "to"), (torch, "as_tensor")):
        monkeypatch.setattr(owner, name, _with_device_number(getattr(owner, name)))
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: gpu.pin(tensor.clone()))
    monkeypatch.setattr(torch, "autocast", _Autocast)
    monkeypatch.setattr(torch, "Generator", _Generator)
    monkeypatch.setattr(torch.nn.utils.clip_grad, "_group_tensors_by_device_and_dtype", _group)
    monkeypatch.setattr(torch.optim.Optimizer, "_group_tensors_by_device_and_dtype", staticmethod(_group))
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):  # they would ask the driver
        monkeypatch.setattr(torch.optim.Optimizer, name, lambda _: None, raising=False)
    run = threading.Thread.run

    def run_simulated(thread: threading.Thread) -> None:
        with SimulationMode(gpu):
            run(thread)

    monkeypatch.setattr(threading.Thread, "run", run_simulated)
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with SimulationMode(gpu):
            yield gpu
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
