"""Keeps non-finite numbers out of the weights: a step that meets one changes nothing and reports which quantity it was."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agents.streams import Fence


class _Checked(NamedTuple):
    """A step whose finite check is on the device.

    names: the quantities. finite: bool, one for each name. counted: weights for which the optimiser counted the step on the
    host in any case.
    """

    names: tuple[str, ...]
    finite: Tensor
    counted: tuple[Tensor, ...]


Checks = list[_Checked | None]
"""The steps of one update; None for a step that was taken."""


class _Update(NamedTuple):
    """The checks of an update, on their way to the host.

    finite: of all checked steps in their order, valid once `copied` is passed; None if no step was checked on the device.
    """

    checks: Checks
    finite: Tensor | None
    copied: Fence


class Guard:
    """Takes the steps of an optimiser whose weights lie on `device`, unless a number of the step is not finite.

    An update has one step or several. It is skipped if each of its steps was refused.

    On a CPU the check precedes the optimiser step. On a GPU the step is taken and reverted on the device, to the bit, if the
    check fails. So the host never waits, and the result is read one update later. If the optimiser counts its steps on the
    host, the count is corrected when the result is read. Until then Adam corrects its moments as if it had taken the step.

    Args:
        optimizer: takes the steps.
        device: of the weights.
        others: further tensors that a step changes, such as the weights of target networks.

    Attributes:
        steps: number of steps that were taken, as far as their checks are read.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, others: Sequence[Tensor] = ()) -> None:
        self.reads_late = device.type == "cuda"
        self.steps = 0
        self._optimizer = optimizer
        self._device = device
        self._others = list(others)
        self._true = torch.ones((), dtype=torch.bool, device=device)
        self._checks: Checks = []  # of the update that is not yet at its end
        self._pending: deque[_Update] = deque()
        self._reasons: list[str | None] = []

    def step(self, quantities: Mapping[str, Tensor], take_step: Callable[[], None], *, ends_update: bool = True) -> Tensor:
        """Take a step if all quantities, of any shape, are finite. Returns whether they are, bool `[]` on the device.

        Their order decides which is reported: causes come before consequences. The first step makes the optimiser's moments,
        which could not be reverted, so it is always checked before it is taken.

        ends_update: whether it is the last step of its update. If not, `end_update` must follow.
        """
        numbers = torch.stack([largest(quantity.detach()) for quantity in quantities.values()])
        if not self.reads_late and math.isfinite(numbers.sum().item()):  # a finite sum has no other terms
            take_step()
            self._checks.append(None)
            if ends_update:
                self.end_update()
            return self._true
        finite = numbers.isfinite()
        sound = finite.all()
        on_device = self.reads_late and all(weights in self._optimizer.state for weights in self._stepped())
        if on_device:
            self._step_where(sound, take_step)
        elif sound:
            take_step()
        self._checks.append(_Checked(tuple(quantities), finite, tuple(self._counted()) if on_device else ()))
        if ends_update:
            self.end_update()
        return sound

    def end_update(self) -> None:
        """The steps since the last call make one update."""
        checks, copied = self.take_checks(), Fence(self._device)
        on_device = [checked.finite for checked in checks if checked]
        together = torch.cat(on_device) if len(on_device) > 1 else next(iter(on_device), None)
        finite = None if together is None else together.to("cpu", non_blocking=True)
        copied.record()
        self._pending.append(_Update(checks, finite, copied))
        if not self.reads_late:
            self._read(keep=0)

    def take_checks(self) -> Checks:
        """Return the steps since the update began, which are then no part of it. A recording of them can be taken again."""
        checks, self._checks = self._checks, []
        return checks

    def add_checks(self, checks: Checks) -> None:
        """Count steps that were recorded and have been taken again: their checks lie in the same memory."""
        self._checks += checks

    def take_skip_reasons(self, *, everything: bool = False) -> list[str | None]:
        """For each update since the last call: the name of the first non-finite quantity, or None if the update was applied.

        The newest update on a GPU is left for the next call, unless everything is asked for.
        """
        self._read(keep=1 if self.reads_late and not everything else 0)
        reasons, self._reasons = self._reasons, []
        return reasons

    def settle(self) -> None:
        """Wait until all checks are read, so that the optimiser's count of steps is right."""
        self._read(keep=0)

    def _read(self, keep: int) -> None:
        while len(self._pending) > keep:
            reasons = self._reasons_of(self._pending.popleft())
            self.steps += reasons.count(None)
            self._reasons.append(None if None in reasons else next(iter(reasons), None))

    def _reasons_of(self, update: _Update) -> list[str | None]:
        """For each step of an update: the name of its first non-finite quantity, None if the step was taken."""
        if update.finite is None:
            return [None] * len(update.checks)
        update.copied.wait()
        finite = iter(update.finite.tolist())
        reasons: list[str | None] = []
        for checked in update.checks:
            bad = [name for name in checked.names if not next(finite)] if checked else []
            reasons.append(bad[0] if bad else None)
            for weights in checked.counted if checked and bad else ():
                self._optimizer.state[weights]["step"] -= 1
        return reasons

    def _stepped(self) -> Iterator[Tensor]:
        """The weights that the next step of the optimiser changes: those with a gradient."""
        groups = self._optimizer.param_groups
        return (weights for group in groups for weights in group["params"] if weights.grad is not None)

    def _counted(self) -> Iterator[Tensor]:
        """The weights whose next step the optimiser counts on the host."""
        return (weights for weights in self._stepped() if self._optimizer.state[weights]["step"].device != weights.device)

    @torch.no_grad()
    def _step_where(self, sound: Tensor, take_step: Callable[[], None]) -> None:
        """Take the step, then keep the new weights and moments or restore the old ones.

        sound: bool `[]` on the device. All tensors are handled together, since each operation costs host time.
        """
        changed: list[Tensor] = [
            weights for group in self._optimizer.param_groups for weights in group["params"]
        ] + self._others
        for weights, moments in self._optimizer.state.items():
            changed += [value for value in moments.values() if value.device == weights.device]
        parts = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in changed]  # in memory order
        before = torch.cat(parts)
        take_step()
        kept = torch.where(sound, torch.cat(parts), before)
        torch._foreach_copy_(parts, kept.split([len(part) for part in parts]))


def largest(quantity: Tensor) -> Tensor:
    """A scalar `[]` that is finite exactly if all of `quantity`, of any shape, is."""
    return torch.linalg.vector_norm(quantity, math.inf) if quantity.dim() else quantity
