"""Target networks: lagged copies of a network that learns. They act nowhere, so they are never published."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn


class TargetNetwork:
    """A copy of a network that moves towards it every `period` steps or updates: target = (1 - rate) target + rate learned.

    A rate of 1 copies the weights. Buffers, such as the scale of the inputs, are copied in any case.

    Attributes:
        network: The copy, without gradient.
        age: Steps or updates since the last move, `[]` on the device.
        optional: Whether a checkpoint may lack it. It then begins as a copy of the network.

    Args:
        network: Learns.
        period: Between two moves. Only those count in which weights changed.
        rate: In (0, 1].
        counts: The unit of the period: optimiser steps, or updates, which may have several.
        without: Names of the network's modules that the copy does not need.
    """

    def __init__(
        self,
        network: nn.Module,
        period: int = 1,
        rate: float = 1.0,
        *,
        counts: Literal["steps", "updates"] = "steps",
        without: Sequence[str] = (),
    ) -> None:
        if period < 1:
            raise ValueError(f"target_update_period: wanted 1 or more, got {period}")
        self.network: Any = deepcopy(network).requires_grad_(False)  # no gradient reaches the copy
        for name in without:
            setattr(self.network, name, None)
        self._period, self._rate = period, rate
        self._in_steps = counts == "steps"
        self.optional = not self._in_steps
        device = next(network.parameters()).device
        self._on_device = device.type == "cuda"
        # The guard puts all that a step changes into one tensor, so the age is of the weights' type there.
        self.age = torch.zeros((), dtype=torch.float32 if self._in_steps else torch.int64, device=device)
        named, learned = dict(self.network.named_parameters()), dict(network.named_parameters())
        self._weights: list[Tensor] = list(named.values())
        self._learned: list[Tensor] = [learned[name] for name in named]  # the live weights, in the copy's order
        kept, current = self.network.state_dict(), network.state_dict()
        names = [name for name in kept if name not in named]
        self._buffers, self._learned_buffers = [kept[name] for name in names], [current[name] for name in names]

    @property
    def guarded_tensors(self) -> list[Tensor]:
        """The tensors that `after_step` changes. A step that is refused on a GPU restores them."""
        return [*self._weights, *self._buffers, self.age] if self._in_steps else []

    def after_step(self) -> None:
        """Count a step of the optimiser, inside the guarded step, and move if it is time."""
        if self._in_steps:
            self._count(1)

    def end_update(self, applied: Tensor) -> None:
        """Count an update, and move if it is time. Nothing happens if `applied`, bool `[]` on the device, is false."""
        if not self._in_steps and (self._on_device or applied):
            self._count(applied)

    @property
    def is_due(self) -> Tensor:
        """Whether the target moves at the end of this update, if that is applied: bool `[]` on the device."""
        return self.age + 1 >= self._period  # before `end_update` has counted this update

    @torch.no_grad()
    def _count(self, one: Tensor | int) -> None:
        self.age += one  # `applied` counts as 0 or 1: a refused update ages nothing
        due = self.age >= self._period
        if self._on_device and (self._period > 1 or not self._in_steps):  # the device decides, so that the host does not wait
            _replace_where(due, self._weights, self._learned, self._rate)
            if self._buffers:
                _replace_where(due, self._buffers, self._learned_buffers, 1.0)
            self.age.masked_fill_(due, 0)
        elif self._period == 1 or due:
            # target + rate (learned - target), in place for all weights at once.
            torch._foreach_lerp_(self._weights, self._learned, self._rate)
            if self._buffers:
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


def _replace_where(due: Tensor, old: list[Tensor], new: list[Tensor], rate: float) -> None:
    """Move old tensors a part of the way to new ones, all together, since each operation costs host time.

    Args:
        due: bool `[]` on the device; where it is false the old tensors stay.
        old: are changed in place.
        new: of the same shapes.
        rate: the part of the way; 1 copies to the bit.
    """
    after, before = (torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (new, old))  # [numbers] each
    flat = torch.where(due, torch.lerp(before, after, rate) if rate < 1 else after, before)
    parts = torch.split(flat, [tensor.numel() for tensor in old])
    torch._foreach_copy_(old, [part.view(tensor.shape) for part, tensor in zip(parts, old, strict=True)])
