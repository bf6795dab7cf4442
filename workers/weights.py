"""The newest weights, published by the learner for all who act.

In shared memory they lie in two flat buffers with a version, so that a reader never takes a half-written one. The learner
writes version v into buffer v mod 2: first it marks v as begun, then copies, then marks v as published. A reader copies the
buffer of the published version and keeps the copy if the learner had by then not begun to write that buffer again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from replay.slot_store import SharedArrays
from replay.trajectory import Field

BEGUN, PUBLISHED = 0, 1


def weights_layout(network: nn.Module) -> dict[str, Field]:
    """What the arena must hold for this network's parameters and buffers (all float32)."""
    count = sum(tensor.numel() for tensor in network.state_dict().values())
    return {"weights": Field((2, count), "float32"), "weights_version": Field((2,), "int64")}


class Weights(ABC):
    """Publish (learner) and read (all who act or encode) one network's weights."""

    @property
    @abstractmethod
    def published_version(self) -> int: ...

    @abstractmethod
    def publish(self, network: nn.Module, version: int) -> None:
        """Copy the network in as `version`, which must be newer than the one before."""

    @abstractmethod
    def read(self, network: nn.Module) -> int:
        """Copy the newest weights into `network`; returns their version."""


class SharedWeights(Weights):
    """Weights in shared memory, for other processes. Publishing waits until they are computed."""

    def __init__(self, shared: SharedArrays) -> None:
        self._buffers = torch.from_numpy(shared.arrays["weights"])
        self._version: np.ndarray = shared.arrays["weights_version"]

    @property
    def published_version(self) -> int:
        return int(self._version[PUBLISHED])

    @torch.no_grad()
    def publish(self, network: nn.Module, version: int) -> None:
        self._version[BEGUN] = version
        _copy(network, self._buffers[version % 2], to_flat=True)
        self._version[PUBLISHED] = version

    @torch.no_grad()
    def read(self, network: nn.Module) -> int:
        while True:
            version = self.published_version
            _copy(network, self._buffers[version % 2], to_flat=False)
            if int(self._version[BEGUN]) <= version + 1:
                return version


def _copy(network: nn.Module, flat: Tensor, *, to_flat: bool) -> None:
    tensors = list(network.state_dict().values())
    if to_flat and tensors[0].is_cuda:
        flat.copy_(torch.cat([tensor.flatten() for tensor in tensors]))  # one trip to the host
        return
    first = 0
    for tensor in tensors:
        part = flat[first : first + tensor.numel()].view(tensor.shape)
        if to_flat:
            part.copy_(tensor)
        else:
            tensor.copy_(part)
        first += tensor.numel()
