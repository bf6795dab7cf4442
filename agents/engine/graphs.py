"""CUDA graphs: the kernels of an update are recorded once, and later updates launch all of them in one call.

An update of a small network has hundreds of kernels. Each takes a few microseconds, and launching it takes the host longer.

A graph reads and writes the same memory each time, so every batch is copied to the place of the recorded one. A graph also
repeats all decisions and numbers of the host from the time of the recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agents.engine.guard import Checks, Guard

WARM_UP = 3
"""Updates before the recording: they make the optimiser's moments, and load libraries and kernels."""
MOST_GRAPHS = 8
"""Graphs of one agent, each with memory of its own. Updates of further kinds are launched kernel by kernel."""


TakeSteps = Callable[[Any], Any]


class GraphError(RuntimeError):
    """Steps cannot be recorded. The message says why, and what to do."""


class _Graph(NamedTuple):
    """Recorded steps.

    given, outcome: argument and result of the steps, in the memory that the graph reads and writes. checks: the finite checks.
    """

    graph: torch.cuda.CUDAGraph
    given: Any
    outcome: Any
    checks: Checks


class UpdateGraphs:
    """Takes steps, from the fourth call with equal shapes on as a graph.

    Args:
        take_steps: the steps of an update, or of a part of it. It gets and returns tensors in mappings, tuples and dataclasses.
        guard: takes these steps.
    """

    def __init__(self, take_steps: TakeSteps, guard: Guard) -> None:
        self._take_steps = take_steps
        self._guard = guard
        self._seen: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, _Graph] = {}

    def __call__(self, given: Any, variant: Hashable = None) -> Any:
        """Take the steps. Returns their results, whose tensors are valid until the next call. Raises GraphError.

        variant: a key for the decisions of the host in these steps.
        """
        kind = (variant, *(tensor.shape for tensor in _tensors(given)))
        if kind not in self._graphs:
            self._seen[kind] += 1
            if self._seen[kind] <= WARM_UP or len(self._graphs) == MOST_GRAPHS:
                return self._take_steps(given)
            self._graphs[kind] = self._record(given)
        return self._replay(self._graphs[kind], given)

    def forget(self) -> None:
        """Drop all graphs. It is needed when the optimiser gets other tensors."""
        self._seen.clear()
        self._graphs.clear()

    def _record(self, given: Any) -> _Graph:
        """Record the steps without taking them."""
        before, static, graph = self._guard.take_checks(), copied(given), torch.cuda.CUDAGraph()
        try:
            # The policy may act in another thread at the same time. In this mode its calls are neither recorded nor an error.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outcome = self._take_steps(static)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # PyTorch's state after it is not known, so the run does not go on
            reason = f"updates cannot be a CUDA graph: {str(error).splitlines()[0]}"
            raise GraphError(f"{reason}; --nocuda_graphs launches them kernel by kernel") from error
        checks = self._guard.take_checks()
        self._guard.add_checks(before)
        return _Graph(graph, static, outcome, checks)

    def _replay(self, recorded: _Graph, given: Any) -> Any:
        torch._foreach_copy_(list(_tensors(recorded.given)), list(_tensors(given)))
        recorded.graph.replay()
        self._guard.add_checks(recorded.checks)
        return recorded.outcome


def copied(given: Any) -> Any:
    """The same with copies of all tensors, which lie in memory as these do."""
    if isinstance(given, Tensor):
        return given.clone()
    if isinstance(given, Mapping):
        return {name: copied(value) for name, value in given.items()}
    if isinstance(given, tuple):
        values = map(copied, given)
        return type(given)(*values) if hasattr(given, "_fields") else tuple(values)
    if is_dataclass(given) and not isinstance(given, type):
        return replace(given, **{field.name: copied(getattr(given, field.name)) for field in fields(given)})
    return given


def _tensors(given: Any) -> Iterator[Tensor]:
    """All tensors, in an order that is always the same."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, Mapping):
        yield from chain.from_iterable(map(_tensors, given.values()))
    elif isinstance(given, tuple):
        yield from chain.from_iterable(map(_tensors, given))
    elif is_dataclass(given):
        yield from chain.from_iterable(_tensors(getattr(given, field.name)) for field in fields(given))
