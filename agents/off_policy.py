"""Settings and updates of the agents that learn from replayed windows: SAC, TD3, DDPG and value-based ones.

A batch has B windows of n consecutive rows, drawn from all stored rows, uniformly or by their priorities. Each window becomes
one transition: the observation and action of its first row, the discounted sum of its rewards, and the observation to bootstrap
from.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from agents import passes
from agents.base import Needs
from agents.graphs import Outcome
from agents.guarded import HeldLearningRate, LearnedConfig, LearningRate, OptimizerName, Step
from agents.metrics import means_of_steps
from agents.optimizers import clip_gradients, give_gradients
from agents.rewards import REWARD_CLIPPING
from agents.stepping import SteppingAgent
from agents.transitions import Transitions, transitions
from replay.batch import Batch
from setting import Setting

REPLAY = '[{"type": "standard", "steps": 1000000, "sample_ratio": 1.0}]'
"""The usual replay: the newest million steps, drawn uniformly."""
DEFAULTS = {"batch_size": 256, "unroll_length": 8, "replay_fill_fraction": 0.0, "replay_parameters": REPLAY}
"""Defaults of settings that every run has. Short trajectories reach the replay soon."""

Clip = Annotated[
    float,
    Setting(
        "Gradient norm above which the gradients of a loss, such as the critics', are scaled down; 0: never.",
        "a gradient norm >= 0",
        0,
        1e9,
    ),
]
Gamma = Annotated[float, Setting("Discount per step.", "a discount in [0, 1]", 0, 1)]
Steps = Annotated[
    int,
    Setting(
        "Rows of a window: rewards that are summed before the value of the observation after them.",
        "a whole number of rows from 1 to 1000",
        1,
        1000,
    ),
]
UpdatesPerStep = Annotated[
    float,
    Setting(
        "Optimiser steps for each step of the environments. Workers and learner wait for each other to keep it.",
        "a number in (0, 1000]",
        1e-6,
        1000,
    ),
]
LearningStarts = Annotated[
    int,
    Setting(
        "Steps of the environments before the first update; they are not caught up on later.",
        "a whole number of steps >= 0",
        0,
        1e12,
    ),
]
BatchesAtOnce = Annotated[
    int,
    Setting(
        "Batches that are drawn in one call and copied in one transfer; the agent takes an optimiser step on each.",
        "a whole number of batches from 1 to 1024",
        1,
        1024,
    ),
]
TargetRate = Annotated[
    float,
    Setting(
        "Rate tau at which a target network follows the learned one: target = (1 - tau) target + tau learned.",
        "a number in (0, 1]",
        1e-9,
        1,
    ),
]


@dataclass(frozen=True)
class OffPolicyConfig(LearnedConfig):
    """Settings of every agent that learns from windows. All losses are means over the windows of a batch.

    An agent with other defaults names the field again.
    """

    lr: LearningRate = 3e-4
    lr_end_value: HeldLearningRate = -1.0
    optimizer: OptimizerName = "adam"
    gradient_clip_by_norm_threshold: Clip = 0.0
    gamma: Gamma = 0.99
    n_step: Steps = 1
    updates_per_step: UpdatesPerStep = 1.0
    learning_starts: LearningStarts = 10_000
    batches_at_once: BatchesAtOnce = 8
    clip_rewards: Annotated[bool, Setting("Clip rewards for learning; reported returns stay raw.")] = False
    reward_clipping_method: Annotated[str, Setting("How rewards are clipped for learning.", choices=REWARD_CLIPPING)] = (
        "abs_one_sign"
    )

    @property
    def reward_clipping(self) -> str | None:
        """A name of `agents.rewards.REWARD_CLIPPING`, or None for raw rewards."""
        return self.reward_clipping_method if self.clip_rewards else None

    @property
    def needs(self) -> Needs:
        """The requirements of such an agent on a run."""
        return Needs(
            window=self.n_step,
            updates_per_step=self.updates_per_step,
            learning_starts=self.learning_starts,
            batches_at_once=self.batches_at_once,
            priorities=True,
        )


class Objective(NamedTuple):
    """One term of an update's loss. value: a mean over the rows, `[]`, with gradient. parameters: those that it changes."""

    value: Tensor
    parameters: Sequence[Tensor]


class Objectives(NamedTuple):
    """The losses of one batch, or of a thread's part of it.

    terms: name -> objective; no parameter belongs to two of them. metrics: further means over the rows, `[]` each. errors:
    sizes of the rows' temporal differences, constants `[N]`, by which prioritised replay draws them again; None without them.
    """

    terms: Mapping[str, Objective]
    metrics: Mapping[str, Tensor]
    errors: Tensor | None = None


class Learned(NamedTuple):
    """One step on a batch. scalars: values of the terms and the metrics, `[]` each. errors: see `Objectives`.

    clipped: bool `[]`, whether the gradient of some term was.
    """

    step: Step
    scalars: dict[str, Tensor]
    errors: Tensor | None
    clipped: Tensor


class OffPolicyAgent(SteppingAgent):
    """Takes one guarded optimiser step on each batch of an update. Subclasses say which losses it is taken on.

    All gradients of a batch are those at the same weights, so one finite check protects every network. Each learner thread
    computes them for a part of the rows, and the parts are added.
    """

    config_class = OffPolicyConfig
    defaults = DEFAULTS
    several_steps = True
    steps_some = True
    compiles = False  # compiled networks took 1.2 times as long for SAC, and the passes of this class are not compiled

    config: OffPolicyConfig

    @classmethod
    def needs(cls, config: Any) -> Needs:
        needs: Needs = config.needs
        return needs

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._multiplications = passes.multiplications(self._parameters)

    @abstractmethod
    def objectives(self, part: Transitions, constants: tuple[Tensor, ...]) -> Objectives:
        """The losses of N transitions, as means over them. Several threads call it at once. constants: those of these rows."""

    def constants(self, part: Transitions) -> tuple[Tensor, ...]:
        """Numbers without gradient for the objectives of a batch, `[N, ...]` each: random numbers, or targets.

        They are computed once for a batch, whatever the number of threads.
        """
        return ()

    def take_steps(self, batch: Batch) -> Outcome:
        inputs = self.finite_inputs(batch)
        # There are no fresh columns, so the running moments are those of drawn windows: of their first rows, which are uniform
        # unless the replay is prioritised.
        learned = self.scaled(replace(batch, is_replay=torch.zeros_like(batch.is_replay)))
        # All windows of the update are cut at once, then divided into the batches that were drawn together.
        windows = transitions(learned, gamma=self.config.gamma, reward_clipping=self.config.reward_clipping)
        parts = windows.split(self.config.batches_at_once)
        steps = [self.learn(part, inputs) for part in parts]
        sound = torch.stack([each.step.sound for each in steps]).any()
        first_rows = replace(learned, observations=learned.observations[:2])
        self.merge_moments(first_rows, sound)
        norms = torch.stack([each.step.gradient_norm for each in steps])
        clipped = torch.stack([each.clipped for each in steps])
        scalars = {**means_of_steps([each.scalars for each in steps]), **self.gradient_metrics(norms, clipped)}
        return Outcome(scalars, sound, _priorities(steps))

    @property
    def most_threads(self) -> int:
        """Return how many threads may share a step."""
        return self.passes.threads

    def learn(self, batch: Transitions, inputs: Mapping[str, Tensor]) -> Learned:
        """Take one step on a batch. inputs: scalars that must be finite."""
        constants = self.constants(batch)
        rows = len(batch.returns)
        multiplied = rows * self._multiplications
        threads = passes.threads_for(multiplied, min(self.most_threads, rows))
        parts = list(_parts(batch, constants, threads))
        whole = multiplied if threads == 1 else 0  # threads that divide the rows leave no core to share operations with
        with self.passes.operations.sharing(whole):
            found = self.passes.each(self._gradients, parts)
        self.passes.operations.end_pass(whole)
        # All gradients are taken before any step, so that one check of all numbers decides for every network.
        for parameter in self._parameters:
            parameter.grad = None  # the optimiser leaves a parameter without a gradient as it is
        values = self._join(found, [len(part.returns) / rows for part, _ in parts])
        losses = {name: values[f"losses/{name}"] for name in found[0][0].terms}
        numbers = {**inputs, **losses}
        numbers |= self.peers.add_gradients(self._parameters, numbers)
        limit = self.config.gradient_clip_by_norm_threshold
        norms = torch.stack([clip_gradients(objective.parameters, limit) for objective in found[0][0].terms.values()])
        norm = torch.linalg.vector_norm(norms)
        # The metric follows the clipping, which takes each loss by itself. The norm of all together may be above the limit.
        clipped = (norms > (limit or math.inf)).any()
        sound = self.guard.step({**numbers, "gradient": norm}, self._step, ends_update=False)
        errors = [part.errors for part, _ in found if part.errors is not None]
        return Learned(Step(sound, norm), values, torch.cat(errors) if errors else None, clipped)

    def _gradients(self, arguments: tuple[Transitions, tuple[Tensor, ...]]) -> tuple[Objectives, list[tuple[Tensor, ...]]]:
        """The objectives of a part, and the gradient of each with respect to its parameters."""
        found = self.objectives(*arguments)
        return found, [torch.autograd.grad(term.value, term.parameters) for term in found.terms.values()]

    def _join(
        self, found: Sequence[tuple[Objectives, list[tuple[Tensor, ...]]]], fractions: Sequence[float]
    ) -> dict[str, Tensor]:
        """Set every gradient to that of the whole batch. Returns values of the terms and metrics of the whole batch.

        fractions: part of the rows that each of the found ones has.
        """
        shown = [
            {**{f"losses/{name}": term.value.detach() for name, term in part.terms.items()}, **part.metrics}
            for part, _ in found
        ]
        flat = [[gradient for gradients in of_terms for gradient in gradients] for _, of_terms in found]
        parameters = [parameter for term in found[0][0].terms.values() for parameter in term.parameters]
        total = flat[0]
        if len(found) > 1:  # means over parts of different sizes
            for gradients, fraction in zip(flat, fractions, strict=True):
                torch._foreach_mul_(gradients, fraction)
            for others in flat[1:]:
                torch._foreach_add_(total, others)
            weighted = zip(shown, fractions, strict=True)
            shown = [{name: fraction * value for name, value in each.items()} for each, fraction in weighted]
        give_gradients(parameters, total)
        return {name: sum((each[name] for each in shown[1:]), shown[0][name]) for name in shown[0]}


def _parts(batch: Transitions, constants: tuple[Tensor, ...], threads: int) -> Iterator[tuple[Transitions, tuple[Tensor, ...]]]:
    """The rows of a batch and of its constants, divided among the threads."""
    if threads == 1:
        yield batch, constants
        return
    own = list(zip(*(tensor.tensor_split(threads) for tensor in constants), strict=True)) or [()] * threads
    rows = zip(*(tensor.tensor_split(threads) for tensor in batch), strict=True)
    for of_batch, of_constants in zip(rows, own, strict=True):
        yield Transitions(*of_batch), of_constants


def _priorities(found: Sequence[Learned]) -> Tensor | None:
    """The errors of all columns in their order, `[B]`; NaN for a refused step, which changes no priority. None without them."""
    errors = [torch.where(each.step.sound, each.errors, torch.nan) for each in found if each.errors is not None]
    return torch.stack(errors, -1).flatten() if errors else None  # batches take columns in turn, see `Transitions.split`
