"""Metrics of one update of several steps. They are computed once at its end, so a step costs no more than it must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from agents.distributions import Distribution
from agents.guarded import Step
from agents.learned import Loss
from agents.losses import used_mean
from agents.ppo.minibatch import Minibatch
from agents.surrogate import RatioBounds, approx_kl, clip_fraction, zero_gradient_fraction


class Taken(NamedTuple):
    """A step on a minibatch, all without gradient.

    terms: of its loss. log_ratios: log R before the step, of the shape of the minibatch's advantages; 0 where a step is masked.
    policy: parameters of the policy before the step, `[..., P]`. step: what became of it.
    """

    terms: Mapping[str, Loss]
    log_ratios: Tensor
    policy: Tensor
    step: Step


@dataclass
class Report:
    """Collects what the steps of an update saw.

    clip: eps of the update. steps: all steps, also those in which only other learners had a minibatch.
    """

    clip: float
    steps: list[Step] = field(default_factory=list)
    _minibatches: list[Minibatch] = field(default_factory=list)
    _taken: list[Taken] = field(default_factory=list)

    def add(self, minibatch: Minibatch, taken: Taken) -> None:
        """Add the step that was taken on a minibatch."""
        self.steps.append(taken.step)
        self._minibatches.append(minibatch)
        self._taken.append(taken)

    def any_taken(self, device: torch.device) -> Tensor:
        """Whether a step was taken, bool `[]` on the device."""
        return torch.stack([step.sound for step in self.steps]).any() if self.steps else torch.zeros((), device=device).bool()

    @torch.no_grad()
    def scalars(self, distribution: Distribution) -> dict[str, Tensor]:
        """Means over all used steps of this learner's minibatches, but losses over its minibatches; empty without any.

        No GPU is waited for.
        """
        if not self._taken:
            return {}
        mask = self._mask()
        log_ratios, low, high = (_joined(parts) for parts in ([taken.log_ratios for taken in self._taken], *self._bounds()))
        policies = torch.cat([taken.policy.flatten(0, -2) for taken in self._taken])
        return {
            **self._means_of_terms(),
            "losses/entropy": used_mean(distribution.entropy(policies), mask),
            "losses/approx_kl": used_mean(approx_kl(log_ratios), mask),
            "losses/clip_fraction": used_mean(clip_fraction(log_ratios, self.clip), mask),
            "losses/zero_gradient_fraction": used_mean(zero_gradient_fraction(log_ratios, RatioBounds(low, high)), mask),
            # 0 but for rounding: another number means that acting and learning compute different policies.
            "losses/first_ratio_error": self._taken[0].log_ratios.expm1().abs().max(),
        }

    def gradient_norms(self) -> Tensor:
        """Norms before clipping, `[steps]`."""
        return torch.stack([step.gradient_norm for step in self.steps])

    def _bounds(self) -> tuple[list[Tensor], list[Tensor]]:
        bounds = [minibatch.bounds for minibatch in self._minibatches]
        return [each.low for each in bounds], [each.high for each in bounds]

    def _mask(self) -> Tensor | None:
        """The used steps of all minibatches, bool `[n]`; None if all are used."""
        masks = [minibatch.mask for minibatch in self._minibatches if minibatch.mask is not None]
        return _joined(masks) if masks else None

    def _means_of_terms(self) -> dict[str, Tensor]:
        """Each term without its weight, and the weighted total, as means over the minibatches."""
        weights = {name: term.weight for name, term in self._taken[0].terms.items()}
        values = torch.stack([term.value for taken in self._taken for term in taken.terms.values()])
        means = values.view(len(self._taken), len(weights)).mean(0)
        total = torch.stack([weight * mean for weight, mean in zip(weights.values(), means, strict=True)]).sum()
        return {**{f"losses/{name}": mean for name, mean in zip(weights, means, strict=True)}, "losses/total_loss": total}


def _joined(parts: list[Tensor]) -> Tensor:
    """All entries of the parts, `[n]`."""
    return torch.cat([part.flatten() for part in parts])
