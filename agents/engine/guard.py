"""Keeps non-finite numbers out of the weights: a step that meets one changes nothing and reports which quantity it was."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agents.engine.streams import Fence
from replay.batch import Batch

NORM_EPSILON = 1e-6
"""Added to a gradient's norm before the division, as PyTorch does."""


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

    def __init__(self, optimizer: torch.optim.Optimizer | None, device: torch.device, others: Sequence[Tensor] = ()) -> None:
        self.reads_late = device.type == "cuda"
        self.steps = 0
        self._optimizer: Any = optimizer  # None where all checks are on the host
        self._device = device
        self._others = list(others)
        self._true = torch.ones((), dtype=torch.bool, device=device)
        self._checks: Checks = []  # of the update that is not yet at its end
        self._pending: deque[_Update] = deque()
        self._reasons: list[str | None] = []

    def step(self, quantities: Mapping[str, Tensor], take_step: Callable[[], None]) -> Tensor:
        """Take a step if all quantities, of any shape, are finite. Returns whether they are, bool `[]` on the device.

        Their order decides which is reported: causes come before consequences. The first step makes the optimiser's moments,
        which could not be reverted, so it is always checked before it is taken. `end_update` follows the last step of an
        update.
        """
        # [quantities], each finite if all of it is
        numbers = torch.stack([largest(quantity.detach()) for quantity in quantities.values()])
        if not self.reads_late and math.isfinite(numbers.sum().item()):  # a finite sum has no other terms
            take_step()
            self._checks.append(None)
            return self._true
        finite = numbers.isfinite()  # bool [quantities]
        applied = finite.all()  # bool []
        on_device = self.reads_late and all(weights in self._optimizer.state for weights in self._stepped())
        if on_device:
            self._step_where(applied, take_step)
        elif applied:
            take_step()
        self._checks.append(_Checked(tuple(quantities), finite, tuple(self._counted()) if on_device else ()))
        return applied

    def end_update(self) -> int:
        """The steps since the last call make one update. Returns how many they are."""
        checks, self._checks = self._checks, []
        if not self.reads_late and not any(checks):  # all were taken
            self.steps += len(checks)
            self._reasons.append(None)
            return len(checks)
        copied = Fence(self._device)
        on_device = [checked.finite for checked in checks if checked]
        together = torch.cat(on_device) if len(on_device) > 1 else next(iter(on_device), None)
        finite = None if together is None else together.to("cpu", non_blocking=True)
        copied.record()
        self._pending.append(_Update(checks, finite, copied))  # read one update later, when the copy has arrived
        if not self.reads_late:
            self._read(keep=0)
        return len(checks)

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
                self._optimizer.state[weights]["step"] -= 1  # the device restored the weights; this count is the host's
        return reasons

    def _stepped(self) -> Iterator[Tensor]:
        """The weights that the next step of the optimiser changes: those with a gradient."""
        groups = self._optimizer.param_groups
        return (weights for group in groups for weights in group["params"] if weights.grad is not None)

    def _counted(self) -> Iterator[Tensor]:
        """The weights whose next step the optimiser counts on the host."""
        return (weights for weights in self._stepped() if self._optimizer.state[weights]["step"].device != weights.device)

    @torch.no_grad()
    def _step_where(self, applied: Tensor, take_step: Callable[[], None]) -> None:
        """Take the step, then keep the new weights and moments or restore the old ones.

        applied: bool `[]` on the device. All tensors are handled together, since each operation costs host time.
        """
        changed: list[Tensor] = [
            weights for group in self._optimizer.param_groups for weights in group["params"]
        ] + self._others
        for weights, moments in self._optimizer.state.items():
            changed += [value for value in moments.values() if value.device == weights.device]
        parts = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in changed]  # in memory order
        before = torch.cat(parts)  # a copy of all weights and moments, before the step changes them
        take_step()
        # `where` selects bits. A product with 0 would keep NaN, and the difference of two floats would not restore them.
        kept = torch.where(applied, torch.cat(parts), before)
        torch._foreach_copy_(parts, kept.split([len(part) for part in parts]))


def finite_inputs(batch: Batch, network: Any) -> dict[str, Tensor]:
    """For each input of an update that may hold non-finite numbers: a scalar that is finite if all of it is.

    Raw rewards are checked, because scaling would hide a non-finite one.
    """
    inputs = {"rewards": batch.rewards, **batch.acting}  # [T, B, ...] each
    if batch.recurrent_state is not None:
        inputs["recurrent_state"] = batch.recurrent_state
    found: dict[str, Tensor] = network.float_inputs(batch.observations.flatten(0, 1))
    found |= {name: tensor for name, tensor in inputs.items() if tensor.is_floating_point()}
    return {name: largest(tensor) for name, tensor in found.items()}


def largest(quantity: Tensor) -> Tensor:
    """A scalar `[]` that is finite exactly if all of `quantity`, of any shape, is."""
    return torch.linalg.vector_norm(quantity, math.inf) if quantity.dim() else quantity  # max |x|; NaN if any is NaN


@torch.no_grad()
def clip_gradients(parameters: Sequence[Tensor], largest_norm: float) -> Tensor:
    """Scale the gradients of all parameters down to a global norm of at most `largest_norm`; 0 only measures the norm.

    Returns the norm before, `[]`.

    The operations are those of `torch.nn.utils.clip_grad_norm_` without its checks, which take longer than a small network's
    gradients take to clip.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))  # norm of norms: the global one
    if largest_norm:
        # Below the limit the factor is 1, so the host needs no branch.
        torch._foreach_mul_(gradients, torch.clamp(largest_norm / (norm + NORM_EPSILON), max=1.0))
    return norm


@torch.no_grad()
def give_gradients(parameters: Iterable[Tensor], gradients: Iterable[Tensor]) -> None:
    """Set `grad` of each parameter, in the parameter's own memory layout.

    A convolution returns the gradient of its kernel in the layout of its input. `backward` converts it, and
    `torch.autograd.grad` does not. PyTorch's fused Adam checks no strides: it pairs numbers by their place in memory, so in
    another layout each weight would move by another weight's gradient.
    """
    for parameter, gradient in zip(parameters, gradients, strict=True):
        same = gradient.stride() == parameter.stride()
        parameter.grad = gradient if same else torch.empty_like(parameter).copy_(gradient)


def start_mean_squares(optimizer: torch.optim.RMSprop) -> None:
    """Start RMSProp's running mean of squared gradients at a weight's first squared gradient instead of at zero.

    From zero the first step is 1/sqrt(1 - 0.99) = 10 times the learning rate in every weight, whatever the gradient. It was
    seen to leave a convolutional network with a constant value for good.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None or parameter in optimizer.state:
                continue
            count = torch.zeros((), device=parameter.device if group["capturable"] else "cpu")
            optimizer.state[parameter] = {"step": count, "square_avg": parameter.grad.square()}
