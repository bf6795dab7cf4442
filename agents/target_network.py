"""Target networks: lagged copies of the network that learns. They act nowhere, so they are never published.

The agent that owns one saves it with its checkpoints. A `TargetNetwork` moves inside the guarded optimiser steps, a
`TargetPolicy` once an update, after the steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from agents.networks.actor_critic import PolicyOutput
from agents.networks.base import FeatureNetwork
from agents.optimizers import check_weights
from agents.passes import NetworkPasses
from replay.batch import Batch


class TargetNetwork:
    """A copy of a network that moves towards it every `period` optimiser steps: target = (1 - rate) target + rate learned.

    A rate of 1 copies the weights. Buffers, such as the scale of the inputs, are copied in any case. `move` belongs inside the
    guarded step, which restores `tensors` if the step is refused.

    Attributes:
        network: The copy, without gradient.
        age: Steps since the last move, float32 `[]` on the device.

    Args:
        network: Learns.
        period: Steps between two moves.
        rate: In (0, 1].
    """

    def __init__(self, network: nn.Module, period: int = 1, rate: float = 1.0) -> None:
        self.network: Any = deepcopy(network).requires_grad_(False)
        self._period = period
        self._rate = rate
        device = next(network.parameters()).device
        self._on_device = device.type == "cuda"
        self.age = torch.zeros((), device=device)
        named, learned = dict(self.network.named_parameters()), dict(network.named_parameters())
        self._weights: list[Tensor] = list(named.values())
        self._learned: list[Tensor] = [learned[name] for name in named]
        self._buffers, self._learned_buffers = (
            [tensor for name, tensor in each.state_dict().items() if name not in named] for each in (self.network, network)
        )

    @property
    def tensors(self) -> list[Tensor]:
        """All that a move changes."""
        return [*self._weights, *self._buffers, self.age]

    @torch.no_grad()
    def move(self) -> None:
        """Count a step, and move if it is time. On a GPU the device decides that, so that the host does not wait."""
        self.age += 1
        due = self.age >= self._period
        if self._on_device and self._period > 1:
            _replace_where(due, self._weights, self._learned, self._rate)
            if self._buffers:
                _replace_where(due, self._buffers, self._learned_buffers, 1.0)
            self.age.masked_fill_(due, 0.0)
        elif self._period == 1 or due:
            # target + rate (learned - target), in place for all weights at once.
            torch._foreach_lerp_(self._weights, self._learned, self._rate)
            self._copy_buffers()
            self.age.zero_()

    @torch.no_grad()
    def reset(self) -> None:
        """Become equal to the network, as at the start of a run."""
        torch._foreach_copy_(self._weights, self._learned)
        self._copy_buffers()
        self.age.zero_()

    def _copy_buffers(self) -> None:
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._learned_buffers)


class TargetPolicy:
    """A copy of a network's policy, which takes the network's weights every `period` updates that were applied.

    The copy has no gradient, and its values are never used. A torso that only values read is left out. Its inputs are scaled as
    the network's were at the time of the copy.

    Attributes:
        network: The copy.
        age: Number of updates that were applied since the last copy, int64 `[]` on the device.

    Args:
        network: Learns.
        period: Updates between two copies, 1 or more.
        threads: How many share the forward pass on a CPU.
    """

    def __init__(self, network: FeatureNetwork, period: int, threads: int = 1) -> None:
        if period < 1:
            raise ValueError(f"target_update_period: wanted 1 or more updates, got {period}")
        self.network = deepcopy(network).requires_grad_(False)
        if self.network.core is None:  # a core reads both torsos
            self.network.value_torso = None
        self._period = period
        self._passes = NetworkPasses(self.network, threads)
        device = next(network.parameters()).device
        self._on_device = device.type == "cuda"
        self.age = torch.zeros((), dtype=torch.int64, device=device)
        kept, learned = self.network.state_dict(), network.state_dict()
        self._pairs = [(kept[name], learned[name]) for name in kept]

    def policy(self, batch: Batch) -> Tensor:
        """The parameters of its policy `[T, B, P]` for rows 0 to T-1 of a batch, without its rows of burn-in."""
        observations, state = batch.observations[:-1], batch.recurrent_state
        if state is None:
            flat: PolicyOutput = self._passes.without_gradient(observations.flatten(0, 1))
            return flat.policy.unflatten(0, observations.shape[:2])[batch.overlap :]
        output: PolicyOutput = self._passes.without_gradient(observations, state, batch.reset[:-1])
        return output.policy[batch.overlap :]

    @torch.no_grad()
    def end_update(self, sound: Tensor) -> Tensor:
        """Count an update, and copy the weights if it is time. Returns whether they were, bool `[]` on the device.

        Nothing happens if `sound`, bool `[]` on the device, is false. The host knows on a CPU whether an update was sound. On a
        GPU it does not wait for that, so the choice is made there.
        """
        self.age += sound
        due = self.age >= self._period
        if self._on_device or due:
            self._copy_where(due)
            self.age.masked_fill_(due, 0)
        return due

    def _copy_where(self, due: Tensor) -> None:
        """Copy all weights where `due` is true."""
        old, new = ([pair[index] for pair in self._pairs] for index in (0, 1))
        _replace_where(due, old, new, 1.0)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights of the copy. They are live."""
        return self.network.state_dict()

    def own_numbers(self) -> dict[str, Tensor]:
        """The count of updates since the last copy. It is live."""
        return {"age": self.age}

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Raise ValueError if `load` could not load these."""
        check_weights(self.network.state_dict(), weights)

    def load(self, weights: Mapping[str, Any], numbers: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` and `own_numbers` returned, by copying."""
        self.network.load_state_dict(weights)
        self.age.copy_(numbers["age"])

    @torch.no_grad()
    def reset(self) -> None:
        """Become equal to the network, as at the start of a run."""
        self._copy_where(torch.ones_like(self.age, dtype=torch.bool))
        self.age.zero_()


def _replace_where(due: Tensor, old: list[Tensor], new: list[Tensor], rate: float) -> None:
    """Move old tensors a part of the way to new ones, all together, since each operation costs host time.

    Args:
        due: bool `[]` on the device; where it is false the old tensors stay.
        old: are changed in place.
        new: of the same shapes.
        rate: the part of the way; 1 copies to the bit.
    """
    after, before = (torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (new, old))
    flat = torch.where(due, torch.lerp(before, after, rate) if rate < 1 else after, before)
    parts = torch.split(flat, [tensor.numel() for tensor in old])
    torch._foreach_copy_(old, [part.view(tensor.shape) for part, tensor in zip(parts, old, strict=True)])
