"""Tensors on the simulated GPU: the CPU computes them, but keeps them apart from those on the host as CUDA does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.gpu.simulated_gpu import Memory, SimulatedGpu
from tests.gpu.simulated_graphs import Operation, mapped, tensors_of

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
NO_NUMPY = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
aten = torch.ops.aten

TOLD_TO_THE_HOST = {aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.equal.default}
"""Operations whose result, or its size, the host must know."""

JOINS = {aten.cat.default, aten.stack.default}
"""Operations that take no number from the host, not even one without a dimension."""


class GpuTensor(Tensor):
    """inside: its content, a tensor on the host. memory: shared with its views.

    PyTorch's engine takes it for a tensor on the CPU, since it has no other device here; the program sees the GPU.
    """

    gpu: SimulatedGpu
    inside: Tensor
    memory: Memory

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[GpuTensor], gpu: SimulatedGpu, inside: Tensor, memory: Memory) -> GpuTensor:
        layout = {"strides": inside.stride(), "storage_offset": inside.storage_offset(), "dtype": inside.dtype}
        with torch.inference_mode(mode=False):  # PyTorch cannot detach what was wrapped within it
            return torch.Tensor._make_wrapper_subclass(cls, inside.size(), **layout, device=CPU)

    def __init__(self, gpu: SimulatedGpu, inside: Tensor, memory: Memory) -> None:
        self.gpu, self.inside, self.memory = gpu, inside, memory

    @property
    def device(self) -> torch.device:
        return CUDA

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def is_cpu(self) -> bool:
        return False

    def to(self, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type == "cpu":
            assert not self.requires_grad
            assert memory_format is None
            on_host = copy_down(self, None, non_blocking=non_blocking)
            return on_host.to(dtype) if dtype else on_host
        if dtype in (None, self.dtype) and memory_format is None and not copy:
            return self
        changes = {"dtype": dtype, "memory_format": memory_format}
        return aten._to_copy.default(self, **{name: value for name, value in changes.items() if value is not None})

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(NO_NUMPY)

    __array__ = numpy

    def data_ptr(self) -> int:
        raise RuntimeError("memory of the simulated GPU has no addresses")

    def record_stream(self, stream: Any) -> None:
        self.memory.recorded.add(stream.number)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = self.detach().clone()
            parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if parameter else copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.detach().cpu().__reduce_ex__(protocol)  # saved as what is loaded again: a tensor on the host

    def __repr__(self, **_: Any) -> str:
        return f"GpuTensor({list(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(tensors_of((args, kwargs), GpuTensor)[0].gpu, func, args, kwargs or {})


def compute(gpu: SimulatedGpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation of PyTorch, wherever its tensors lie."""
    there = tensors_of((args, kwargs), GpuTensor)
    device = torch.device(kwargs.get("device") or (CUDA if there else CPU))
    if not there and device.type != "cuda":
        pinned = kwargs.get("pin_memory")
        made = func(*args, **{**kwargs, "pin_memory": False} if pinned else kwargs)
        return gpu.pin(made) if pinned else made
    if func is aten.copy_.default:
        return _copy(gpu, *args, **kwargs)
    if func is aten._local_scalar_dense.default:
        gpu.wait_unasked("item")
        return func(args[0].inside)
    if func is aten._to_copy.default:
        return _to_copy(gpu, args[0], **kwargs)
    if device.type == "cpu":
        return func(*_inside(args), **_inside(kwargs))  # something of the same shape, on the host
    return _on_device(gpu, func, args, {**kwargs, "device": CPU} if "device" in kwargs else kwargs)


def copy_up(gpu: SimulatedGpu, host: Tensor, *, non_blocking: bool) -> GpuTensor:
    gpu.refuse_recording("copy up")
    memory = gpu.allocate()
    use = gpu.launch("copy up", [], [memory])
    if not non_blocking:
        gpu.wait_unasked("copy up")
    elif gpu.is_pinned(host):
        gpu.copy_up(host.detach(), use)
    return GpuTensor(gpu, host.detach().clone(), memory)


def copy_down(tensor: GpuTensor, target: Tensor | None, *, non_blocking: bool) -> Tensor:
    """target: None for new memory, which PyTorch page-locks where no one waits for it."""
    gpu, pinned = tensor.gpu, target is None or tensor.gpu.is_pinned(target)
    gpu.refuse_recording("copy down")
    host = torch.empty_like(tensor.inside) if target is None else target
    use = gpu.launch("copy down", [tensor.memory], [])
    if non_blocking and pinned:
        gpu.copy_down(host, tensor.inside, use)
    else:
        gpu.wait_unasked("copy down")
        host.copy_(tensor.inside)
    return host


def _copy(gpu: SimulatedGpu, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if not isinstance(target, GpuTensor):
        assert isinstance(source, GpuTensor)
        return copy_down(source, target, non_blocking=non_blocking)
    on_device = source if isinstance(source, GpuTensor) else copy_up(gpu, source, non_blocking=non_blocking)
    return _on_device(gpu, aten.copy_.default, (target, on_device), {})


def _to_copy(gpu: SimulatedGpu, source: Tensor, *, device: Any = None, non_blocking: bool = False, **changes: Any) -> Tensor:
    """device: for a tensor on the GPU what PyTorch's engine takes for its device; `GpuTensor.to` is what leaves it."""
    on_device = source if isinstance(source, GpuTensor) else copy_up(gpu, source, non_blocking=non_blocking)
    if on_device is not source and not changes:
        return on_device
    return _on_device(gpu, aten._to_copy.default, (on_device,), changes)


def _on_device(gpu: SimulatedGpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation whose tensors are all there. Numbers without a dimension may come from the host, except to be joined."""
    everything = tensors_of((args, kwargs), Tensor)
    there = [tensor for tensor in everything if isinstance(tensor, GpuTensor)]
    on_host = [tensor for tensor in everything if not isinstance(tensor, GpuTensor)]
    by_autograd = (
        torch._C._current_graph_task_id() >= 0
    )  # zeros for what got no gradient, where the engine takes the device to be
    if there and not by_autograd and any(tensor.dim() or func in JOINS for tensor in on_host):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two, cuda:0 and cpu! ({func})")
    if func in TOLD_TO_THE_HOST or _has_mask(func, args):
        gpu.wait_unasked(str(func))
    written = _written(func, args, kwargs)
    if gpu.recording:
        gpu.recording.keep([tensor.inside for tensor in written])
    result = func(*_inside(args), **_inside(kwargs))
    same = {id(tensor.inside): tensor for tensor in there}
    memories = {tensor.inside.untyped_storage()._cdata: tensor.memory for tensor in there}
    memories_written = [tensor.memory for tensor in written]

    def wrap(inside: Tensor) -> GpuTensor:
        if id(inside) in same:
            return same[id(inside)]
        storage = inside.untyped_storage()._cdata
        if storage not in memories:
            memories[storage] = gpu.allocate()
            memories_written.append(memories[storage])
        return GpuTensor(gpu, inside, memories[storage])

    wrapped = mapped(Tensor, wrap, result)
    if memories_written or not func.is_view:
        read, changed = _each_once([tensor.memory for tensor in there]), _each_once(memories_written)
        if gpu.recording:
            gpu.recording.add(Operation(func, _fixed(args), _fixed(kwargs), result), read, changed)
        else:
            gpu.launch(str(func), read, changed)
    return wrapped


def _fixed(given: Any) -> Any:
    """Contents of tensors on the device, and numbers of the host as they are now."""
    return mapped(Tensor, lambda one: one.inside if isinstance(one, GpuTensor) else one.clone(), given)


def _has_mask(func: Any, args: Any) -> bool:
    """Whether rows are chosen by a mask: how many they are is known when it is."""
    indexing = func in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)
    return indexing and any(index is not None and index.dtype == torch.bool for index in args[1])


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[GpuTensor]:
    """The arguments that an operation changes, by its schema."""
    changed = [args[position] if position < len(args) else kwargs.get(name) for position, name in _changed_arguments(func)]
    return tensors_of(changed, GpuTensor)


@cache
def _changed_arguments(func: Any) -> list[tuple[int, str]]:
    arguments = enumerate(func._schema.arguments)
    return [(position, one.name) for position, one in arguments if one.alias_info and one.alias_info.is_write]


def _each_once(memories: Sequence[Memory]) -> list[Memory]:
    return list({id(memory): memory for memory in memories}.values())


def _inside(given: Any) -> Any:
    return mapped(GpuTensor, lambda tensor: tensor.inside, given)
