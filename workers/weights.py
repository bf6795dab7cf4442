"""The newest weights, published by the learner for every acting policy.

In shared memory they lie in two flat buffers with a version, so that a reader never keeps a half-written copy. The learner
writes version v into buffer v mod 2: it marks v as begun, copies, and marks v as published. A reader copies the buffer of the
published version v. The copy is whole unless the learner has begun version v + 2, which goes into the same buffer; then the
reader repeats it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from replay.slot_store import SharedArrays
from replay.trajectory import Field

BEGUN, PUBLISHED = 0, 1


def weights_layout(network: nn.Module) -> dict[str, Field]:
    """The part of the arena that holds this network's parameters and buffers. Raises ValueError unless all are float32."""
    for name, tensor in network.state_dict().items():
        if tensor.dtype != torch.float32:  # it would be rounded in the shared buffer without a word
            raise ValueError(f"weights: wanted float32 parameters and buffers, got {name} as {tensor.dtype}")
    count = sum(tensor.numel() for tensor in network.state_dict().values())
    return {"weights": Field((2, count), "float32"), "weights_version": Field((2,), "int64")}


class Weights(ABC):
    """One network's weights. The learner publishes them; acting policies and the encoder read them."""

    @property
    @abstractmethod
    def published_version(self) -> int:
        """The update count of the newest weights that can be read."""

    @abstractmethod
    def publish(self, network: nn.Module, version: int) -> None:
        """Copy the network in as `version`, which must be newer than the version before."""

    @abstractmethod
    def read(self, network: nn.Module) -> int:
        """Copy the newest weights into `network`; returns their version."""


class SharedWeights(Weights):
    """Weights in shared memory, for other processes. `publish` waits until the device has computed them."""

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
        return self._read(lambda flat: _copy(network, flat, to_flat=False))

    def read_flat(self) -> tuple[np.ndarray, int]:
        """A copy of the newest weights, float32 `[count]`, and their version."""
        copied = np.empty(self._buffers.shape[1], np.float32)
        version = self._read(torch.from_numpy(copied).copy_)
        return copied, version

    def publish_flat(self, flat: np.ndarray, version: int) -> None:
        """Publish weights that `read_flat` returned, perhaps on another machine. flat: float32 `[count]`."""
        self._version[BEGUN] = version
        self._buffers[version % 2].numpy()[:] = flat
        self._version[PUBLISHED] = version

    def _read(self, copy: Callable[[Tensor], object]) -> int:
        """Call `copy` with the newest weights `[count]` until it has seen a whole version. Returns the version."""
        while True:
            version = self.published_version
            copy(self._buffers[version % 2])
            if int(self._version[BEGUN]) <= version + 1:
                return version


def _copy(network: nn.Module, flat: Tensor, *, to_flat: bool) -> None:
    tensors = list(network.state_dict().values())
    if to_flat and tensors[0].is_cuda:
        flat.copy_(torch.cat([tensor.flatten() for tensor in tensors]))  # one transfer to the host
        return
    first = 0
    for tensor in tensors:
        part = flat[first : first + tensor.numel()].view(tensor.shape)
        if to_flat:
            part.copy_(tensor)
        else:
            tensor.copy_(part)
        first += tensor.numel()
