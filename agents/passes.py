"""The network's forward and backward pass over a batch, divided among threads.

Each thread takes a part of the observations through the whole network and back, or with a core a part of the columns, since
memory links a column's rows. The threads synchronise twice an update.
PyTorch's own threads (`torch.set_num_threads`) synchronise at every operation. While workers keep all cores busy, each
synchronisation waits for a thread that has lost its core. That was slower than a single thread, many times so in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from agents import compute

Given = TypeVar("Given")
Made = TypeVar("Made")


class NetworkPasses:
    """Forward and backward of one network, whose outputs are a NamedTuple of tensors `[N, ...]`, with a core `[T+1, B, ...]`.

    The gradients of all threads are added in a fixed order, so that equal batches give equal bits.

    Args:
        network: a `FeatureNetwork`, or another module that maps observations `[N, ...]` to outputs.
        threads: how many divide the work.
        compiled: whether the pass goes through torch.compile, for the batch size that comes first.
    """

    def __init__(self, network: nn.Module, threads: int = 1, *, compiled: bool = False) -> None:
        if threads < 1:
            raise ValueError(f"threads: wanted 1 or more, got {threads}")
        self.network = network
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="learner") if threads > 1 else None
        self._forward: Callable[..., Any] = network
        if compiled:
            self._forward = compute.compiled(self._forward, dynamic=False)
        self._parts: Sequence[Any] = ()
        self._axis = 0  # along which the parts were divided

    def forward(self, observations: Tensor, state: Tensor | None = None, reset: Tensor | None = None, burn_in: int = 0) -> Any:
        """The network's outputs for N observations `[N, *observation_shape]`, as detached leaf tensors.

        Call `loss.backward()` on a loss of them, then `self.backward(outputs)`. So the loss sees the whole batch, though each
        thread has a graph of its own.

        A network with a core takes rows of columns and the other arguments of `FeatureNetwork.unroll`.
        """
        if state is None or reset is None:
            self._axis = 0
            arguments = [(part,) for part in observations.tensor_split(self.threads) if len(part)]
        else:
            self._axis = 1
            divided = ((observations, 1), (state, 0), (reset, 1))
            split = zip(*(tensor.tensor_split(self.threads, axis) for tensor, axis in divided), strict=True)
            arguments = [(*part, burn_in) for part in split if len(part[1])]
        self._parts = self._each(lambda each: self._forward(*each), arguments)
        together = [torch.cat(tensors, self._axis).detach().requires_grad_() for tensors in zip(*self._parts, strict=True)]
        return type(self._parts[0])(*together)

    def backward(self, outputs: Any) -> None:
        """Carry the gradients of the last forward's outputs on to every parameter's `grad`."""
        parameters = list(self.network.parameters())
        sizes = [part[0].shape[self._axis] for part in self._parts]
        gradients = zip(*(_gradient(output).split(sizes, self._axis) for output in outputs), strict=True)

        def of_part(pair: tuple[Any, tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
            return torch.autograd.grad(pair[0], parameters, pair[1])

        of_parts = self._each(of_part, list(zip(self._parts, gradients, strict=True)))
        self._parts = ()
        for parameter, first, *others in zip(parameters, *of_parts, strict=True):
            for share in others:
                first.add_(share)
            parameter.grad = first

    def _each(self, function: Callable[[Given], Made], arguments: Sequence[Given]) -> list[Made]:
        return list(self._pool.map(function, arguments) if self._pool else map(function, arguments))


def _gradient(output: Tensor) -> Tensor:
    return torch.zeros_like(output) if output.grad is None else output.grad
