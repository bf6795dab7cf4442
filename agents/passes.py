"""The network's forward and backward pass over a batch, divided among threads.

Each thread takes a run of the observations through the whole network and back. They meet twice an update; the threads of one
operation (`torch.set_num_threads`) would meet at every operation, and where workers keep all cores busy each meeting waits for
whoever has lost its core: seen to be slower than a single thread, many times so in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from agents import compute
from agents.networks.actor_critic import ActorCritic, PolicyOutput

Given = TypeVar("Given")
Made = TypeVar("Made")


class NetworkPasses:
    """Forward and backward of one network; the gradients of all threads are added in a fixed order.

    compiled: through torch.compile, for the batch size that comes first.
    """

    def __init__(self, network: ActorCritic, threads: int = 1, *, compiled: bool = False) -> None:
        if threads < 1:
            raise ValueError(f"threads: wanted 1 or more, got {threads}")
        self.network = network
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="learner") if threads > 1 else None
        self._forward: Callable[[Tensor], PolicyOutput] = network
        if compiled:
            self._forward = compute.compiled(self._forward, dynamic=False)
        self._parts: Sequence[PolicyOutput] = ()

    def forward(self, observations: Tensor) -> PolicyOutput:
        """Outputs of N observations `[N, *observation_shape]`: leaves, whose gradients `backward` takes up."""
        parts = [part for part in observations.tensor_split(self.threads) if len(part)]
        self._parts = self._each(self._forward, parts)
        together = [torch.cat(tensors).detach().requires_grad_() for tensors in zip(*self._parts, strict=True)]
        return PolicyOutput(*together)

    def backward(self, outputs: PolicyOutput) -> None:
        """Give every parameter the gradient that follows from those of the last forward's outputs."""
        parameters = list(self.network.parameters())
        sizes = [len(part.values) for part in self._parts]
        gradients = zip(*(_gradient(output).split(sizes) for output in outputs), strict=True)

        def of_part(pair: tuple[PolicyOutput, tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
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
