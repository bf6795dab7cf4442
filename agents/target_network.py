"""A target network: a lagged copy of the network that learns. It acts nowhere, so it is never published.

The agent that owns it moves it once an update, behind the guarded steps, and saves it with its checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from agents.learned import check_weights
from agents.networks.actor_critic import PolicyOutput
from agents.networks.base import FeatureNetwork
from agents.passes import NetworkPasses
from replay.batch import Batch


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
        """Copy all weights together, since each operation costs host time; those of before stay where `due` is false."""
        old, new = ([pair[index] for pair in self._pairs] for index in (0, 1))
        after, before = (torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (new, old))
        flat: Tensor = torch.where(due, after, before)
        parts = torch.split(flat, [tensor.numel() for tensor in old])
        torch._foreach_copy_(old, [part.view(tensor.shape) for part, tensor in zip(parts, old, strict=True)])

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
