"""Keeps numbers that are not finite out of the weights: an update that meets one changes nothing, and says what it was."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from agents.streams import Fence


class _Judged(NamedTuple):
    """An update whose verdict is on its way. finite: bool, one for each name, on the host once the fence is passed. counted:
    whether the optimiser counted its step, sound or not."""

    names: tuple[str, ...]
    finite: Tensor
    copied: Fence
    counted: bool


class Guard:
    """Takes the steps of an optimiser whose weights lie on `device`, but for those of updates that are not sound.

    A CPU looks first. A GPU takes the step and undoes it itself, to the bit: no thread waits for it, and verdicts are read one
    update late. Only the optimiser's count of steps, which the host keeps, is put right when they are read; until then Adam
    corrects its moments as if it had made the step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.reads_late = device.type == "cuda"
        self._optimizer = optimizer
        self._device = device
        self._pending: deque[_Judged] = deque()
        self._verdicts: list[str | None] = []

    def step(self, quantities: Mapping[str, Tensor], take_step: Callable[[], None]) -> None:
        """Take a step where all quantities, of any shape, are finite. They come in order, causes before what follows from them.

        The first step, which makes the optimiser's moments, is always looked at before it is taken.
        """
        finite = torch.stack([_largest(quantity.detach()) for quantity in quantities.values()]).isfinite()
        on_device = self.reads_late and bool(self._optimizer.state)
        if on_device:
            self._step_where(finite.all(), take_step)
        elif finite.all():
            take_step()
        told = finite.to("cpu", non_blocking=True)
        copied = Fence(self._device)
        copied.record()
        self._pending.append(_Judged(tuple(quantities), told, copied, on_device))

    def take_verdicts(self, *, everything: bool = False) -> list[str | None]:
        """Of each update since the last call the first quantity that was not finite, None where it was sound.

        The newest update on a GPU is left for the next call, unless everything is asked for.
        """
        self._read(keep=1 if self.reads_late and not everything else 0)
        verdicts, self._verdicts = self._verdicts, []
        return verdicts

    def settle(self) -> None:
        """Wait until all verdicts are read, so that the optimiser's state is what it seems to be."""
        self._read(keep=0)

    def _read(self, keep: int) -> None:
        while len(self._pending) > keep:
            judged = self._pending.popleft()
            judged.copied.wait()
            verdict = next((name for name, ok in zip(judged.names, judged.finite.tolist(), strict=True) if not ok), None)
            self._verdicts.append(verdict)
            if verdict and judged.counted:
                for moments in self._optimizer.state.values():
                    moments["step"] -= 1

    @torch.no_grad()
    def _step_where(self, sound: Tensor, take_step: Callable[[], None]) -> None:
        """sound: bool `[]` on the device, whether what the step makes of weights and moments is kept.

        All of them together, since each operation costs a GPU's host time.
        """
        changed: list[Tensor] = [weights for group in self._optimizer.param_groups for weights in group["params"]]
        for moments in self._optimizer.state.values():
            changed += [value for name, value in moments.items() if name != "step"]
        parts = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in changed]  # as they lie in memory
        before = torch.cat(parts)
        take_step()
        kept = torch.where(sound, torch.cat(parts), before)
        torch._foreach_copy_(parts, kept.split([len(part) for part in parts]))


def _largest(quantity: Tensor) -> Tensor:
    """A scalar `[]` that is finite where all of `quantity`, of any shape, is."""
    return torch.linalg.vector_norm(quantity, math.inf) if quantity.dim() else quantity
