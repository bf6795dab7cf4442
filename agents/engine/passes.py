"""The network's forward and backward pass over a batch, divided among threads, or in one thread for a small batch.

Each thread takes a part of the observations through the whole network and back, or with a core a part of the columns, since
memory links a column's rows. The threads synchronise twice an update. Only one of them at a time may hold Python's interpreter
lock, which each operation needs for some microseconds. So small batches take longer in several threads.

PyTorch's own threads (`torch.set_num_threads`) synchronise at every operation. While workers keep all cores busy, each
synchronisation waits for a thread that has lost its core. That was slower than a single thread, many times so in bfloat16.
They share the operations of small passes only in runs whose workers wait for the learner, see `agents/engine/sharing.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from agents import compute
from agents.engine.guard import give_gradients
from agents.engine.sharing import SharedOperations
from agents.losses import Losses

WORTH_DIVIDING = 100_000_000
"""Multiplications of the smallest pass that is divided.

On two cores, an update in two threads took 1.45 times as long as in one for passes of 18 million (PPO, a minibatch of 128 for
two layers of 256 units), 1.05 times for 54 million (SAC, a batch of 256), 0.85 times for 210 million (DQN, a batch of 32
screens) and 0.72 times for 420 million (PPO, a minibatch of 64 screens).
"""

PLACES = 64
"""Places of an image at which a convolution uses each weight, as a rough mean."""

ROWS_AT_ONCE = 1024
"""Observations of one pass without gradient in each thread."""

Given = TypeVar("Given")
Made = TypeVar("Made")


class NetworkPasses:
    """Forward and backward of one network, whose outputs are a NamedTuple of tensors `[N, ...]`, with a core `[T+1, B, ...]`.

    The gradients of all threads are added in a fixed order, so that equal batches give equal bits.

    Args:
        network: a `FeatureNetwork`, or another module that maps observations `[N, ...]` to outputs.
        threads: how many divide the work.
        compiled: whether the pass goes through torch.compile, for the first batch size; once another comes, for any.
        idle_cores: whether the workers wait while the learner computes, so that the threads may share the operations of a
            small pass.
        further: parameters outside the network that losses read directly, such as learned multipliers.
    """

    def __init__(
        self,
        network: nn.Module,
        threads: int = 1,
        *,
        compiled: bool = False,
        idle_cores: bool = False,
        further: Sequence[Tensor] = (),
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads: wanted 1 or more, got {threads}")
        self.network = network
        self.threads = threads
        self.operations = SharedOperations(threads if idle_cores else 1)
        # Threads that divide a pass must not share their operations with further ones.
        self._pool = ThreadPoolExecutor(threads, "learner", torch.set_num_threads, (1,)) if threads > 1 else None
        self._forward: Callable[..., Any] = network
        if compiled:
            self._forward = compute.compiled(self._forward)
        self._parameters = list(network.parameters())
        self._further = list(further)
        self._multiplications = multiplications(self._parameters)
        self._multiplications_of_all = multiplications([*self._parameters, *self._further])
        self._parts: Sequence[Any] = ()
        self._axis = 0  # along which the parts were divided
        self._multiplied = 0  # by the last pass

    def forward(
        self,
        observations: Tensor,
        state: Tensor | None = None,
        reset: Tensor | None = None,
        burn_in: int = 0,
    ) -> Any:
        """The network's outputs for N observations `[N, *observation_shape]`. Call `self.backward` with a loss of them.

        Outputs that several threads computed are detached leaf tensors. So the loss sees the whole batch, though each thread
        has a graph of its own. A small batch is not divided, and its outputs keep their graph, which is faster.

        A network with a core takes rows of columns and the other arguments of `FeatureNetwork.unroll`.
        """
        self._parts = ()
        if self.threads == 1:
            return self._forward(observations) if state is None else self._forward(observations, state, reset, burn_in)
        self._axis = 0 if state is None else 1  # rows [N, ...] are divided, with a core columns [R, B, ...]
        threads = self._threads(observations, state)
        arguments = _divide(threads, observations, state, reset, burn_in)
        if threads == 1:
            self._multiplied = self._multiplications * _rows(observations, state)
            with self.operations.sharing(self._multiplied):
                return self._forward(*arguments[0])
        self._parts = self.each(lambda each: self._forward(*each), arguments)
        # The cut between the two stages of `backward`: the loss ends at these leaves, and each thread's graph at its part.
        leaves = [_joined(tensors, self._axis).detach().requires_grad_() for tensors in zip(*self._parts, strict=True)]
        return type(self._parts[0])(*leaves)

    def without_gradient(
        self,
        observations: Tensor,
        state: Tensor | None = None,
        reset: Tensor | None = None,
        *,
        network: nn.Module | None = None,
        **rows: Tensor,
    ) -> Any:
        """The network's outputs without gradient, or those of another one of its kind. Few rows at a time bound the memory.

        rows: further arguments of the network by name, `[N, ...]` each, if it has no core. Others as for `forward`.
        """
        passed = network or self.network
        if self.threads == 1 and state is None and len(observations) <= ROWS_AT_ONCE:
            with torch.no_grad():
                return passed(observations, **rows)
        threads = self._threads(observations, state)
        # As many parts for each thread, of at most ROWS_AT_ONCE rows.
        parts = threads * -(-len(observations) // (threads * ROWS_AT_ONCE)) if state is None else threads

        @torch.no_grad()
        def of_part(each: tuple[Any, tuple[Tensor, ...]]) -> Any:
            return passed(*each[0], **dict(zip(rows, each[1], strict=True)))

        divided = _divide(parts, observations, state, reset, 0)
        of_parts = zip(*(tensor.tensor_split(parts) for tensor in rows.values()), strict=True) if rows else repeat(())
        found = self.each(of_part, list(zip(divided, of_parts, strict=False)))  # parts behind the last row are empty
        axis = 0 if state is None else 1
        return type(found[0])(*(_joined(tensors, axis) for tensors in zip(*found, strict=True)))

    def backward(self, losses: Sequence[Tensor], outputs: Any, weights: Sequence[float | Tensor] | None = None) -> None:
        """Set every parameter's `grad` to the gradient of the weighted sum of losses of the last forward's outputs.

        A parameter that no loss reads gets a gradient of zeros.

        Divided passes have two stages: from the losses to the outputs, which are leaves, then in each thread from its part of
        the outputs to the weights.

        Args:
            losses: scalars `[]`.
            outputs: what the last `forward` returned.
            weights: a number or a scalar for each loss, 1 by default.
        """
        # Each weight is a factor. Given to autograd as gradients, the weights would make PyTorch import SymPy before the first
        # update, which takes a second.
        if weights is not None:
            losses = [loss * weight for loss, weight in zip(losses, weights, strict=True)]
        parameters, further = self._parameters, self._further
        if not self._parts:
            learned = [*parameters, *further]
            if self.threads == 1:
                give_gradients(learned, torch.autograd.grad(losses, learned, materialize_grads=True))
                return
            with self.operations.sharing(self._multiplied):
                gradients = torch.autograd.grad(losses, learned, materialize_grads=True)
            self.operations.end_pass(self._multiplied)
            give_gradients(learned, gradients)
            return
        # Stage 1: one graph from the losses of the whole batch to the leaves, which are the outputs of all threads.
        # dL / doutputs, of the shapes of the outputs
        of_leaves = torch.autograd.grad(losses, [*outputs, *further], materialize_grads=True)
        give_gradients(further, of_leaves[len(outputs) :])  # these are not behind the leaves, so stage 1 is all
        sizes = [part[0].shape[self._axis] for part in self._parts]  # rows or columns of each part
        # One tuple of gradients for each part.
        of_outputs = zip(*(gradient.split(sizes, self._axis) for gradient in of_leaves[: len(outputs)]), strict=True)

        def of_part(pair: tuple[Any, tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
            return torch.autograd.grad(pair[0], parameters, pair[1])  # (doutputs / dweights)' dL / doutputs

        # Stage 2: each thread goes on through its own graph, from its part of the outputs to the weights.
        of_parts = self.each(of_part, list(zip(self._parts, of_outputs, strict=True)))
        self._parts = ()
        total, *others = of_parts
        for gradients in others:  # in the order of the parts, so that the rounding is always the same
            torch._foreach_add_(total, gradients)
        give_gradients(parameters, total)

    def backward_of_rows(
        self,
        losses: Callable[..., Losses],
        rows: Any,
        constants: Sequence[Tensor],
        parameters: Sequence[Tensor],
        *,
        most_threads: int | None = None,
    ) -> Losses:
        """Set the `grad` of the parameters of each term to the gradient of its mean over N rows, which the threads divide.

        Args:
            losses: is called with some of the rows and of the constants.
            rows: a NamedTuple of tensors `[N, ...]`.
            constants: further tensors `[N, ...]`.
            parameters: of a term that names none.
            most_threads: that may divide the rows; None for all.

        Returns the losses of all rows, without gradient.
        """

        def of_part(each: tuple[Any, tuple[Tensor, ...]]) -> tuple[Losses, list[Tensor]]:
            found = losses(each[0], *each[1])
            # Only the named weights get a gradient: the actor's loss passes through the critics and leaves them as they are.
            gradients = [torch.autograd.grad(term.value, term.parameters or parameters) for term in found.terms.values()]
            return found, [gradient for of_term in gradients for gradient in of_term]

        if self.threads == 1:
            found, gradients = of_part((rows, tuple(constants)))
            together = _mean_of_parts([found], [gradients], [len(rows[0])])
        else:
            count = len(rows[0])
            multiplied = count * self._multiplications_of_all
            threads = threads_for(multiplied, min(most_threads or self.threads, count))
            whole = multiplied if threads == 1 else 0  # threads that divide the rows leave no core to share operations with
            parts = _rows_divided(rows, constants, threads)
            with self.operations.sharing(whole):
                of_parts = self.each(of_part, parts)
            self.operations.end_pass(whole)
            found, gradients = of_parts[0]
            together = _mean_of_parts(
                [each for each, _ in of_parts], [each for _, each in of_parts], [len(part[0]) for part, _ in parts]
            )
        give_gradients([each for term in found.terms.values() for each in term.parameters or parameters], gradients)
        return together

    def _threads(self, observations: Tensor, state: Tensor | None) -> int:
        return threads_for(_rows(observations, state) * self._multiplications, self.threads)

    def each(self, function: Callable[[Given], Made], arguments: Sequence[Given]) -> list[Made]:
        """The results of a function for each argument, in order. The threads share the calls."""
        if self._pool and len(arguments) > 1:
            return list(self._pool.map(function, arguments))
        return [function(each) for each in arguments]


def multiplications(parameters: Iterable[Tensor]) -> int:
    """Roughly the multiplications of one observation's pass through layers with these weights."""
    return sum(PLACES ** (weights.dim() == 4) * weights.numel() for weights in parameters)


def threads_for(multiplied: int, threads: int) -> int:
    """Return how many of the threads should share a pass of so many multiplications."""
    return threads if multiplied >= WORTH_DIVIDING else 1


def _rows(observations: Tensor, state: Tensor | None) -> int:
    """Observations of a pass: the first dimension, or with a core the first two."""
    return (observations.shape[:1] if state is None else observations.shape[:2]).numel()


def _divide(parts: int, observations: Tensor, state: Tensor | None, reset: Tensor | None, burn_in: int) -> list[Any]:
    """The arguments of each part's pass: rows, or with a core columns. None is empty."""
    if state is None or reset is None:
        return [(part,) for part in observations.tensor_split(parts) if len(part)]
    whole = ((observations, 1), (state, 0), (reset, 1))
    split = zip(*(tensor.tensor_split(parts, axis) for tensor, axis in whole), strict=True)
    return [(*part, burn_in) for part in split if len(part[1])]


def _joined(parts: tuple[Tensor, ...], axis: int) -> Tensor:
    return torch.cat(parts, axis) if len(parts) > 1 else parts[0]


def _rows_divided(rows: Any, constants: Sequence[Tensor], threads: int) -> list[tuple[Any, tuple[Tensor, ...]]]:
    """The rows of a NamedTuple and of constants, divided among the threads."""
    if threads == 1:
        return [(rows, tuple(constants))]
    fields = zip(*(tensor.tensor_split(threads) for tensor in rows), strict=True)
    of_parts = list(zip(*(tensor.tensor_split(threads) for tensor in constants), strict=True)) or [()] * threads
    return [(type(rows)(*part), own) for part, own in zip(fields, of_parts, strict=True)]


def _mean_of_parts(found: Sequence[Losses], gradients: Sequence[list[Tensor]], sizes: Sequence[int]) -> Losses:
    """The losses of parts of these sizes together, without gradient. The first part's gradients become those of all."""
    first = found[0]
    detached = [{name: term.value.detach() for name, term in part.terms.items()} | dict(part.metrics) for part in found]
    errors = [part.priorities for part in found if part.priorities is not None]
    if len(found) > 1:  # means over parts of different sizes
        fractions = [size / sum(sizes) for size in sizes]  # the mean over N is the weighted mean of the parts' means
        for of_part, fraction in zip(gradients, fractions, strict=True):
            torch._foreach_mul_(of_part, fraction)  # in place: the parts' gradients are used nowhere else
        for others in gradients[1:]:
            torch._foreach_add_(gradients[0], others)
        weighted = zip(detached, fractions, strict=True)
        detached = [{name: fraction * value for name, value in each.items()} for each, fraction in weighted]
    values = {name: sum((each[name] for each in detached[1:]), detached[0][name]) for name in detached[0]}
    terms = {name: term._replace(value=values[name]) for name, term in first.terms.items()}
    # The priorities [N] are in the order of the rows.
    return Losses(terms, {name: values[name] for name in first.metrics}, torch.cat(errors) if errors else None)
