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
    """A step whose finite check is on its way to the host.

    names: the quantities. finite: bool, one for each name, valid once `copied` is passed. counted: weights for which the
    optimiser counted the step in any case.
    """

    names: tuple[str, ...]
    finite: Tensor
    copied: Fence
    counted: tuple[Tensor, ...]


class Guard:
    """Takes the steps of an optimiser whose weights lie on `device`, unless a number of the step is not finite.

    An update has one step or several. It is skipped if each of its steps was refused.

    On a CPU the check precedes the optimiser step. On a GPU the step is taken and reverted on the device, to the bit, if the
    check fails. So the host never waits, and the result is read one update later. Only the optimiser's count of steps lies on
    the host; it is corrected when the result is read. Until then Adam corrects its moments as if it had taken the step.

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
        self._checks: list[_Checked | None] = []  # of the update that is not yet at its end; None for a step that was taken
        self._pending: deque[list[_Checked | None]] = deque()  # one entry an update
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
        flags = finite.to("cpu", non_blocking=True)
        copied = Fence(self._device)
        copied.record()
        self._checks.append(_Checked(tuple(quantities), flags, copied, tuple(self._stepped()) if on_device else ()))
        if ends_update:
            self.end_update()
        return sound

    def end_update(self) -> None:
        """The steps since the last call make one update."""
        self._pending.append(self._checks)
        self._checks = []
        if not self.reads_late:
            self._read(keep=0)

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
            reasons = [self._reason(checked) for checked in self._pending.popleft()]
            self.steps += reasons.count(None)
            self._reasons.append(None if None in reasons else next(iter(reasons), None))

    def _reason(self, checked: _Checked | None) -> str | None:
        """The name of the first non-finite quantity of a step, None if the step was taken."""
        if checked is None:
            return None
        checked.copied.wait()
        finite = checked.finite.tolist()
        if all(finite):
            return None
        for weights in checked.counted:
            self._optimizer.state[weights]["step"] -= 1
        return checked.names[finite.index(False)]

    def _stepped(self) -> Iterator[Tensor]:
        """The weights that the next step of the optimiser changes: those with a gradient."""
        groups = self._optimizer.param_groups
        return (weights for group in groups for weights in group["params"] if weights.grad is not None)

    @torch.no_grad()
    def _step_where(self, sound: Tensor, take_step: Callable[[], None]) -> None:
        """Take the step, then keep the new weights and moments or restore the old ones.

        sound: bool `[]` on the device. All tensors are handled together, since each operation costs host time.
        """
        changed: list[Tensor] = [
            weights for group in self._optimizer.param_groups for weights in group["params"]
        ] + self._others
        for moments in self._optimizer.state.values():
            changed += [value for name, value in moments.items() if name != "step"]
        parts = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in changed]  # in memory order
        before = torch.cat(parts)
        take_step()
        kept = torch.where(sound, torch.cat(parts), before)
        torch._foreach_copy_(parts, kept.split([len(part) for part in parts]))


def largest(quantity: Tensor) -> Tensor:
    """A scalar `[]` that is finite exactly if all of `quantity`, of any shape, is."""
    return torch.linalg.vector_norm(quantity, math.inf) if quantity.dim() else quantity
