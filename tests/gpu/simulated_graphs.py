"""CUDA graphs on the simulated GPU: operations that are recorded without being done, and done again on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.gpu.simulated_gpu import Memory, SimulatedGpu


class Operation(NamedTuple):
    """An operation on tensors of the host, the contents of the simulated GPU's tensors, and its result."""

    func: Any
    args: Any
    kwargs: Any
    result: Any


class SimulatedGraph:
    """The part of `torch.cuda.CUDAGraph` that the program uses."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self._operations: list[Operation] = []
        self._read: dict[int, Memory] = {}
        self._written: dict[int, Memory] = {}
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._generator = torch.Generator()

    def begin(self) -> None:
        self._generator.set_state(torch.get_rng_state())

    def add(self, operation: Operation, read: list[Memory], written: list[Memory]) -> None:
        self._operations.append(operation)
        self._read |= {id(memory): memory for memory in read}
        self._written |= {id(memory): memory for memory in written}

    def keep(self, tensors: list[Tensor]) -> None:
        """Keep what tensors contain that are about to be written: recording changes nothing."""
        for tensor in tensors:
            whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            self._before.setdefault(tensor.untyped_storage()._cdata, (whole, whole.clone()))

    def end(self) -> None:
        for whole, before in self._before.values():
            whole.copy_(before)
        torch.set_rng_state(self._generator.get_state())

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, result in self._operations:
            _overwrite(result, func(*args, **kwargs))
        read = [memory for key, memory in self._read.items() if key not in self._written]
        self._gpu.launch("a graph", read, list(self._written.values()))


class Recording:
    """`torch.cuda.graph`."""

    def __init__(self, gpu: SimulatedGpu, graph: SimulatedGraph, capture_error_mode: str = "global") -> None:
        assert capture_error_mode == "thread_local", "other threads use the GPU meanwhile"
        self._gpu, self._graph = gpu, graph

    def __enter__(self) -> None:
        self._gpu.wait_for_all()
        self._graph.begin()
        self._gpu.recording = self._graph

    def __exit__(self, *_: object) -> None:
        self._gpu.recording = None
        self._graph.end()


def _overwrite(old: Any, new: Any) -> None:
    """Let results lie where those of the recording do."""
    for one, other in zip(tensors_of(old, Tensor), tensors_of(new, Tensor), strict=True):
        if one.untyped_storage()._cdata != other.untyped_storage()._cdata:
            one.copy_(other)


def mapped(kind: type | tuple[type, ...], function: Callable[[Any], Any], given: Any) -> Any:
    """Arguments or results of an operation with `function` of each tensor of a kind; PyTorch's `tree_map` takes far longer."""
    if isinstance(given, kind):
        return function(given)
    if isinstance(given, tuple | list):
        values = [mapped(kind, function, one) for one in given]
        return values if isinstance(given, list) else tuple(values)
    if isinstance(given, dict):
        return {name: mapped(kind, function, one) for name, one in given.items()}
    return given


def tensors_of(given: Any, kind: type) -> list[Any]:
    """The tensors of a kind in arguments or results of an operation, in order."""
    if isinstance(given, kind):
        return [given]
    if isinstance(given, dict):
        given = given.values()
    elif not isinstance(given, tuple | list):
        return []
    return [tensor for one in given for tensor in tensors_of(one, kind)]
