"""The newest weights on the learner's device, for readers in other threads of its process; no trip through host memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from agents.streams import Fence
from workers.weights import Weights


class DeviceWeights(Weights):
    """A copy of one network's weights. The lock is held while copies are queued; streams wait for each other on the device."""

    def __init__(self, network: nn.Module) -> None:
        self._weights = [tensor.detach().clone() for tensor in network.state_dict().values()]
        self._device = self._weights[0].device
        self._version = 0
        self._lock = threading.Lock()
        self._written = Fence(self._device)
        self._read: list[Fence] = []  # since the last publication

    @property
    def published_version(self) -> int:
        return self._version

    @torch.no_grad()
    def publish(self, network: nn.Module, version: int) -> None:
        with self._lock:
            for read in self._read:
                read.hold_back()
            self._read.clear()
            _copy(network.state_dict().values(), self._weights)
            self._written.record()
            self._version = version

    @torch.no_grad()
    def read(self, network: nn.Module) -> int:
        with self._lock:
            self._written.hold_back()
            _copy(self._weights, network.state_dict().values())
            read = Fence(self._device)
            read.record()
            self._read.append(read)
            return self._version


def _copy(source: Iterable[Tensor], target: Iterable[Tensor]) -> None:
    for there, here in zip(source, target, strict=True):
        here.copy_(there, non_blocking=True)
