"""The group of several learners: how their gradients, moments and messages meet, by PyTorch's collective operations.

Gradients meet on the learners' device: with NCCL on GPUs, with gloo on CPUs. Decisions of the host meet with gloo on the host,
so that no learner waits for its GPU. Every address is that of this machine, and nothing listens on its network.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from agents.engine.collectives import Collectives, Part, Used, counted
from agents.engine.guard import largest
from agents.losses import Term
from learner.ranks.base import RankError

LOCALHOST = "127.0.0.1"
ANSWER_SECONDS = 1800.0
"""How long a learner waits for another one that is alive. The end of a process is noticed at once, because its connections
close. An update, a compilation or saving a replay takes minutes at most."""
SIGNAL_SECONDS = 0.5
"""Seconds after which a waiting learner looks for signals: PyTorch's wait does not return for them."""
MEETING_SECONDS = 60.0
"""For the learners to connect, after all of them are ready to."""


def open_store(count: int) -> tuple[dist.Store, int]:
    """The store through which the learners find each other, and its port on this machine. Rank 0 keeps it."""
    with socket.socket() as listener:
        listener.bind((LOCALHOST, 0))
        port = listener.getsockname()[1]
        # The store takes over the bound socket. So no other program can take the port, and only this machine reaches it.
        return _store(port, count, master_listen_fd=listener.detach()), port


def _store(port: int, count: int, master_listen_fd: int | None = None) -> dist.Store:
    is_master = master_listen_fd is not None
    seconds = timedelta(seconds=MEETING_SECONDS)
    return dist.TCPStore(LOCALHOST, port, count, is_master, seconds, wait_for_workers=False, master_listen_fd=master_listen_fd)


class LearnerGroup(Collectives):
    """This learner's end of the connections to all others. Every function is called on each learner, in the same order.

    Args:
        rank: of this learner.
        count: of all learners.
        store: through which they meet; None connects to the one at `port`.
        port: of rank 0's store.
        device: on which gradients lie.

    Attributes:
        exchanges: number of exchanges of gradients so far.
        seconds: that they took on the host, with the wait for the slowest learner's backward pass.

    Raises RankError if another learner is gone.
    """

    def __init__(self, rank: int, count: int, store: dist.Store | None, port: int, device: torch.device) -> None:
        self.rank = rank
        self.count = count
        self.exchanges = 0
        self.seconds = 0.0
        self._buckets: dict[tuple[int, ...], _Bucket] = {}
        with _rank_errors():
            store = store or _store(port, count)
            self._host = _gloo(dist.PrefixStore("host", store), rank, count)
            self._device = self._host if device.type == "cpu" else _nccl(dist.PrefixStore("device", store), rank, count)

    def weights(self, terms: Mapping[str, Term]) -> list[float | Tensor]:
        """The weight of each term. Means are averaged with equal weight if other terms are sums."""
        share = 1 / self.count if any(term.reduction == "sum" for term in terms.values()) else 1.0
        return [term.weight * (share if term.reduction == "mean" else 1.0) for term in terms.values()]

    def add_gradients(
        self,
        parameters: Sequence[Tensor],
        numbers: Mapping[str, Tensor],
        used: Used = None,
        *,
        sums: bool = False,
        present: bool = True,
    ) -> dict[str, Tensor]:
        started = perf_counter()
        parameters = [parameter for parameter in parameters if parameter.grad is not None]
        # One bucket serves all exchanges of a set of parameters, because their gradients become views of its memory.
        key = tuple(map(id, parameters))
        if key not in self._buckets:
            self._buckets[key] = _Bucket(parameters, self.count)
        bucket = self._buckets[key]
        weight = None if sums else counted(used, bucket.flat)
        bucket.fill(parameters, self.rank, numbers, weight, present=present)
        self._wait(self._device, lambda group: group.allreduce([bucket.flat]))
        bucket.give(parameters, is_mean=not sums)
        self.exchanges += 1
        self.seconds += perf_counter() - started
        return {f"numbers of rank {rank}": bucket.finite[rank] for rank in range(self.count) if rank != self.rank}

    def turns(self, minibatches: Iterable[Part], most: int) -> Iterator[Part | None]:
        taken = 0
        for minibatch in minibatches:
            taken += 1
            yield minibatch
        for _ in range(most - taken):
            yield None

    def mean(self, mean: Tensor, used: Used) -> Tensor:
        weight = counted(used, mean)
        # An empty mean of no steps may be anything, so it is left out and not multiplied by 0.
        sums = torch.cat([torch.where(weight > 0, mean * weight, 0.0).flatten(), weight[None]])
        self._wait(self._device, lambda group: group.allreduce([sums]))
        return (sums[:-1] / sums[-1]).view_as(mean)

    def gather(self, values: Tensor) -> Tensor:
        return self._gather(self._device, values)

    def gather_on_host(self, values: Tensor) -> Tensor:
        """As `gather`, for tensors on the CPU. It does not wait for the device."""
        return self._gather(self._host, values)

    def _gather(self, group: Any, values: Tensor) -> Tensor:
        rows = values.new_empty(self.count, *values.shape)
        self._wait(group, lambda group: group.allgather([list(rows)], [values.contiguous()]))
        return rows

    def from_first(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state of rank 0, tensors and plain data, on the CPU. state: this learner's, which only rank 0 sends."""
        file = io.BytesIO()
        if self.rank == 0:
            torch.save(state, file)
        size = torch.tensor([file.tell()])
        self._broadcast(size)
        data = torch.frombuffer(bytearray(file.getvalue() or bytes(int(size))), dtype=torch.uint8)
        self._broadcast(data)
        sent: dict[str, Any] = torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)
        return sent

    def _broadcast(self, tensor: Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._wait(self._host, lambda group: group.broadcast([tensor], options))

    def _wait(self, group: Any, begin: Callable[[Any], Any]) -> None:
        """Begin an operation and wait for its end; on a GPU only the device waits. Raises RankError."""
        with _rank_errors():
            work = begin(group)
            while group is self._host and not work.is_completed():
                with suppress(RuntimeError):  # this wait is over, or the operation has failed
                    work.wait(timedelta(seconds=SIGNAL_SECONDS))
            work.wait()  # raises the error of an operation that has failed


class _Bucket:
    """One flat tensor for the gradients of some parameters, so that they take one operation, and for what goes with them.

    After the gradients come one number for each learner, which is finite if all numbers of its step are, the number of used
    steps, and the number of learners that have a part in the step.

    Args:
        parameters: float32 on one device.
        count: of learners.
    """

    def __init__(self, parameters: Sequence[Tensor], count: int) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = parameters[0].new_zeros(sum(sizes) + count + 2)
        *parts, self.finite, self._used, self._present = self.flat.split([*sizes, count, 1, 1])
        self._gradients = self.flat[: sum(sizes)]
        # In the memory layout of the parameters: the optimiser would otherwise loop over them one by one.
        self._views = [
            part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())
            for part, parameter in zip(parts, parameters, strict=True)
        ]

    @torch.no_grad()
    def fill(
        self, parameters: Sequence[Tensor], rank: int, numbers: Mapping[str, Tensor], used: Tensor | None, *, present: bool
    ) -> None:
        """Take up this learner's gradients and numbers. used: by which the gradients are multiplied; None for sums."""
        torch._foreach_copy_(self._views, [parameter.grad for parameter in parameters if parameter.grad is not None])
        if used is not None:
            self._gradients.mul_(used)
            self._used.copy_(used)
        self.finite.zero_()
        # Each number times 0 is 0, or NaN if it is not finite.
        self.finite[rank] = (torch.stack([largest(number.detach()) for number in numbers.values()]) * 0.0).sum()
        self._present.fill_(float(present))

    @torch.no_grad()
    def give(self, parameters: Sequence[Tensor], *, is_mean: bool) -> None:
        """Give each parameter its part of the added gradients as `grad`: of their weighted mean, or of their sum."""
        if is_mean:
            # 0 / 0 if no learner has a part in the step: the finite check then refuses it.
            self._gradients.mul_(self._present / self._present / self._used.clamp(min=1.0))
        for parameter, view in zip(parameters, self._views, strict=True):
            parameter.grad = view


@contextmanager
def _rank_errors() -> Iterator[None]:
    """Turn PyTorch's errors about a connection into a RankError."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(f"another learner is gone: {' '.join(str(error).split())[:200]}") from error


def _gloo(store: dist.Store, rank: int, count: int) -> Any:
    """A gloo group on this machine alone: by itself gloo would look for the interface of the machine's host name."""
    kind: Any = dist.ProcessGroupGloo  # PyTorch's annotations lack its options
    options = kind._Options()
    options._devices = [kind.create_device(hostname=LOCALHOST)]
    options._timeout = timedelta(seconds=ANSWER_SECONDS)
    return kind(store, rank, count, options)


def _nccl(store: dist.Store, rank: int, count: int) -> Any:
    kind: Any = dist.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = timedelta(seconds=ANSWER_SECONDS)
    return kind(store, rank, count, options)
