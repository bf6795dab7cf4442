"""The base class of the agents that learn from trajectories: passes through the network, and an update on its losses.

A new agent is a subclass with `config_class`, `network_class` and `losses`; see docs/extending.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from agents.graphs import Outcome
from agents.guarded import Step
from agents.optimizers import clip_gradients
from agents.peers import Used
from agents.stepping import SteppingAgent
from replay.batch import Batch


class Loss(NamedTuple):
    """One term of the loss. value: a scalar with gradient. weight: a number, or a scalar `[]` on the device.

    reduction: whether the value is a sum over the batch's steps or a mean. The gradient is that of weight * value in either
    case; metrics show the value per step.
    """

    value: Tensor
    weight: float | Tensor
    reduction: Literal["sum", "mean"] = "sum"


class Losses(NamedTuple):
    """The terms of one update's loss by name, and further scalars for the metrics, without gradient."""

    terms: Mapping[str, Loss]
    metrics: Mapping[str, Tensor]


class LearnedAgent(SteppingAgent):
    """One network and by default one step an update, on `losses` of trajectories. The arguments are those of `GuardedAgent`.

    An agent that takes several steps an update sets `several_steps`, overrides `take_steps`, and is made of the same parts:
    `finite_inputs`, `scaled`, `take_step`, `absent_step` and `merge_moments`. See agents/asynchronous.py. If it decides on the
    host whether to go on, it overrides `update`, with `end_update`. See agents/ppo/agent.py.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._weights: dict[float, Tensor] = {}

    @abstractmethod
    def losses(self, batch: Any, outputs: Any) -> Losses:
        """The loss of one step.

        Args:
            batch: a `Batch` of B trajectories of T steps, without the rows of burn-in. An agent with an `update` of its own
                decides what it passes.
            outputs: what the network's heads return for all T+1 rows, each tensor `[T+1, B, ...]`.
        """

    def take_steps(self, batch: Batch) -> Outcome:
        inputs = self.finite_inputs(batch)
        leaves, outputs = self._forward(batch)
        # Rows of burn-in are in the pass, because they make the core's state, but not in the loss.
        learned = self.scaled(batch.without_overlap())
        terms, metrics = self.losses(learned, outputs)
        step = self.take_step(terms, leaves, inputs, self.used(learned))
        self.merge_moments(learned, step.sound)
        scalars = {**per_step(terms, learned.rewards.numel()), **self.gradient_metrics(step.gradient_norm), **metrics}
        return Outcome(scalars, step.sound)

    def used(self, batch: Batch) -> Used:
        """The steps that the means among the terms of `losses` are over. By default they are as many on every learner."""
        return None

    def take_step(self, terms: Mapping[str, Loss], outputs: Any, inputs: Mapping[str, Tensor], used: Used = None) -> Step:
        """Take one optimiser step on the weighted sum of the terms if all numbers are finite. `end_update` must follow.

        Args:
            terms: of the loss, by name.
            outputs: those of `self.passes.forward` from which the terms were computed.
            inputs: further scalars that must be finite. Their order with the terms decides which one is reported.
            used: the steps that means among the terms are over.
        """
        weights = [self._weight(weight) for weight in self.peers.weights(terms)]
        self.passes.backward([term.value for term in terms.values()], outputs, weights)
        # Causes come before consequences, since the first non-finite number is the one that is reported.
        numbers = {**inputs, **{name: term.value for name, term in terms.items()}}
        sums = any(term.reduction == "sum" for term in terms.values())
        return self._clip_and_step(numbers, self.peers.add_gradients(self._parameters, numbers, used, sums=sums))

    def absent_step(self, inputs: Mapping[str, Tensor]) -> Step:
        """Take a step of several learners in which this one has no part. inputs: as for `take_step`."""
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        return self._clip_and_step(inputs, self.peers.add_gradients(self._parameters, inputs, 0, present=False))

    def _clip_and_step(self, numbers: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Step:
        """Take the step if all numbers of this learner and of others are finite."""
        gradient_norm = clip_gradients(self._parameters, self.config.gradient_clip_by_norm_threshold)
        sound = self.guard.step({**numbers, **others, "gradient": gradient_norm}, self._step, ends_update=False)
        return Step(sound, gradient_norm)

    def _weight(self, weight: float | Tensor) -> Tensor:
        """A weight as a scalar on the device, kept because making one takes as long as an operation of a small network."""
        if isinstance(weight, Tensor):
            return weight
        if weight not in self._weights:
            self._weights[weight] = torch.full((), weight, device=self._parameters[0].device)
        return self._weights[weight]

    def _forward(self, batch: Batch) -> tuple[Any, Any]:
        """The network's outputs as leaves, and the same tensors by row, `[T+1, B, ...]`, without the rows of burn-in."""
        if batch.recurrent_state is not None:
            leaves = self.passes.forward(batch.observations, batch.recurrent_state, batch.reset, batch.overlap)
            return leaves, leaves
        # Without a core no row depends on another, so all are one batch.
        leaves = self.passes.forward(batch.observations.flatten(0, 1))
        rows = batch.observations.shape[:2]
        return leaves, type(leaves)(*(leaf.unflatten(0, rows) for leaf in leaves))


def per_step(terms: Mapping[str, Loss], steps: int) -> dict[str, Tensor]:
    """Each term as a mean over the batch's steps, without its weight, and the weighted total of these."""
    shown = {f"losses/{name}": term.value.detach() / (steps if term.reduction == "sum" else 1) for name, term in terms.items()}
    sums, means = (
        [term.weight * term.value.detach() for term in terms.values() if term.reduction == reduction]
        for reduction in ("sum", "mean")
    )
    totals = [*([torch.stack(sums).sum() / steps] if sums else []), *means]
    return {**shown, "losses/total_loss": torch.stack(totals).sum()}
