"""The newest weights on the learner's device, for readers in other threads of its process; no trip through host memory.

Two copies: while the device still computes the one, readers take the other, so that acting never waits for an update. The
learner runs at most one update ahead of its device.

An on-policy agent needs actions of the newest weights alone. Its readers' streams then wait for them on the device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from agents.engine.streams import Fence
from workers.weights import Weights


class DeviceWeights(Weights):
    """One network's weights. The lock is held while copies are queued; streams wait for each other on the device.

    newest_only: whether readers wait for the newest weights instead of taking the copy before it.
    """

    def __init__(self, network: nn.Module, *, newest_only: bool = False) -> None:
        self._newest_only = newest_only
        self._copies = [[tensor.detach().clone() for tensor in network.state_dict().values()] for _ in range(2)]
        self._device = self._copies[0][0].device
        self._versions = [-1, -1]
        self._written = [Fence(self._device) for _ in range(2)]
        self._read: list[list[Fence]] = [[], []]  # by readers, since it was written
        self._newest = 0
        self._lock = threading.Lock()

    @property
    def published_version(self) -> int:
        return self._versions[self._readable()]

    @torch.no_grad()
    def publish(self, network: nn.Module, version: int) -> None:
        # The wait is outside the lock, so that readers can act while the device computes the update.
        self._written[self._newest].wait()  # from now on no reader starts on the other copy
        with self._lock:
            target = 1 - self._newest
            for read in self._read[target]:
                read.hold_back()
            self._read[target].clear()
            _copy(network.state_dict().values(), self._copies[target])
            self._written[target].record()
            if self._versions[self._newest] < 0:
                self._written[target].wait()  # there is nothing older to act with
            self._versions[target], self._newest = version, target

    @torch.no_grad()
    def read(self, network: nn.Module) -> int:
        with self._lock:
            source = self._readable()
            # Other readers need no wait, because `_readable` gives them a copy that the device has finished.
            if self._newest_only:
                self._written[source].hold_back()
            _copy(self._copies[source], network.state_dict().values())
            read = Fence(self._device)
            read.record()
            self._read[source].append(read)
            return self._versions[source]

    def _readable(self) -> int:
        """The newest copy that the device has finished, or that readers wait for."""
        return self._newest if self._newest_only or self._written[self._newest].passed else 1 - self._newest


def _copy(source: Iterable[Tensor], target: Iterable[Tensor]) -> None:
    """All of one precision at once: a GPU copies such lists in one go."""
    lists: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for here, there in zip(target, source, strict=True):
        targets, sources = lists.setdefault(here.dtype, ([], []))
        targets.append(here)
        sources.append(there)
    for targets, sources in lists.values():
        torch._foreach_copy_(targets, sources, non_blocking=True)
