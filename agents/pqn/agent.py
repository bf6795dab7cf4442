"""PQN (Gallici et al. 2024, arXiv:2407.04811): Q-learning on fresh trajectories, without replay and target network.

    R_t = r_t + d_t ((1 - lambda) V_{t+1} + lambda R_{t+1}),   V = max_a Q(x, a)          (`agents/returns/retrace.py`)
    loss of a minibatch = mean (R_t - Q(x_t, a_t))^2 / 2       over its used steps

R comes from one pass before the first epoch and stays. LayerNorm in the torso (`--layer_norm`, on by default) takes the place
of the target network: it bounds how far a step on some observations moves the values of others.

With `--retrace_lambda` the batch may be older than the network. Targets are then those of Retrace with the greedy policy pi:
pi(a_t|x_t) / mu(a_t|x_t) is at least 1 for the greedy action and 0 for any other, so the trace ends at an action that the
network would not take now, and mu need not be stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.losses import Losses, Term, used_mean
from agents.minibatches import cut, shuffled, take_steps, used_steps
from agents.networks.base import NetworkConfig
from agents.networks.q_network import (
    EXPECTATION,
    QNetwork,
    QOutput,
    ReturnDistribution,
    as_choices,
    best_choices,
    chosen_values,
)
from agents.ppo.minibatch import most_minibatches, takes_columns
from agents.returns.retrace import peng_q_lambda, retrace
from agents.settings import (
    AdamEpsilon,
    AgentConfig,
    ClipRewards,
    Epochs,
    Gamma,
    GradientClip,
    LastLearningRate,
    LearningRate,
    Minibatches,
    MinibatchUnit,
    NormaliseRewards,
    OptimizerName,
    RetraceLambda,
    RewardClipping,
    RmspropEpsilon,
)
from agents.unused_settings import OF_POLICIES
from agents.values.acting import CHARTS, VALUE_MEANING, check_choices, epsilon_metrics, move_epsilon
from agents.values.settings import Dueling, Epsilon, EpsilonEnd, EpsilonFraction, EpsilonStart, EpsilonZeta, Exploration
from replay.batch import Batch
from setting import Linear, Setting


@dataclass(frozen=True)
class PQNConfig(AgentConfig):
    """Settings of PQN, by default those of its authors for MinAtar, but with smaller blocks. The loss is a mean over the used
    steps."""

    lr: LearningRate = 5e-4
    lr_end_value: LastLearningRate = 0.0
    optimizer: OptimizerName = "radam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: AdamEpsilon = 1e-8
    gradient_clip_by_norm_threshold: GradientClip = 10.0
    gamma: Gamma = 0.99
    q_lambda: Annotated[
        float,
        Setting(
            "Decay of the trace of Q(lambda); 1 takes whole returns, 0 one step and the next value.",
            "a number in [0, 1]",
            0,
            1,
            search=Linear(0.3, 1),
        ),
    ] = 0.65
    retrace_lambda: RetraceLambda = -1.0
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    epochs: Epochs = 2
    minibatches: Minibatches = 16
    minibatch_unit: MinibatchUnit = "auto"
    dueling: Dueling = False
    exploration: Exploration = "schedule"
    epsilon_start: EpsilonStart = 1.0
    epsilon_end: EpsilonEnd = 0.05
    epsilon_fraction: EpsilonFraction = 0.1
    epsilon_zeta: EpsilonZeta = 0.0
    epsilon: Epsilon = 0.0
    noisy: ClassVar[bool] = False
    distribution: ClassVar[ReturnDistribution] = EXPECTATION


class Steps(NamedTuple):
    """Single steps as the network reads them. observations: `[n, *observation_shape]`."""

    observations: Tensor
    recurrent_state: None = None
    whole: None = None


class QMinibatch(NamedTuple):
    """The part of a batch that one step learns from: n single steps, or b whole columns.

    inputs: what the network reads; columns have T+1 rows. choices: int64 `[n, D]` or `[T, b, D]`, the actions taken. targets:
    R, `[n]` or `[T, b]`. mask: bool, of the same shape, the used steps; None if all are used.
    """

    inputs: Steps | Batch
    choices: Tensor
    targets: Tensor
    mask: Tensor | None

    @property
    def used(self) -> Tensor | int:
        """The mask of the used steps, or their number if all are used."""
        return self.targets.numel() if self.mask is None else self.mask


class PQNAgent(Agent):
    """Q(lambda) in several epochs of minibatches on each batch of fresh trajectories."""

    config_class = PQNConfig
    network_class = QNetwork
    several_steps = True
    charts = CHARTS
    tuned = ("lr", "gamma", "q_lambda", "epochs")
    unused = OF_POLICIES
    defaults: ClassVar[dict[str, Any]] = {"batch_size": 32, "unroll_length": 64, "layer_norm": True}

    config: PQNConfig
    network: QNetwork

    def __init__(self, config: PQNConfig, network: QNetwork, *arguments: Any, **options: Any) -> None:
        self._columns = takes_columns(config, network.config.settings)
        super().__init__(config, network, *arguments, **options)

    @classmethod
    def needs(cls, config: PQNConfig) -> Needs:
        return Needs(on_policy=config.retrace_lambda == -1)

    @classmethod
    def check(cls, config: PQNConfig, network: NetworkConfig) -> None:
        check_choices(network, cls.name())
        takes_columns(config, network.settings)

    @classmethod
    def graphed(cls, config: PQNConfig) -> Literal["step"]:
        return "step"

    @classmethod
    def value_meaning(cls, config: PQNConfig) -> str:
        return VALUE_MEANING

    def update(self, batch: Batch, step: Stepper) -> None:
        config = self.config
        targets = self.targets(batch, step.without_gradient(batch).q)  # R [T, B], of all epochs
        minibatch = (self._columns_of if self._columns else self._steps_of)(batch, targets, step)
        members = batch.action_used.any(0).nonzero().squeeze(-1) if self._columns else used_steps(batch.action_used)
        most = most_minibatches(batch, config.minibatches, columns=self._columns)
        for _ in range(config.epochs):
            order = shuffled(members) if config.minibatches > 1 else members  # the gradient of a whole batch has no order
            for part in step.turns(cut(order, config.minibatches), most):
                step.launch(lambda given: self._learn_from(given, step), minibatch(part))
        move_epsilon(config, self.network, step)

    def targets(self, batch: Batch, q: Tensor) -> Tensor:
        """R of each row, `[T, B]`, without gradient. q: `[T+1, B, P]` of the network before the update."""
        config, counts = self.config, self.network.counts
        best = best_choices(q, counts)  # [T+1, B, D]
        # The value of an action of several choices is the mean over its components.
        values = chosen_values(q, best, counts).mean(-1)  # V [T+1, B]
        # Only a termination has no future. After a time limit the final observation follows in the next row.
        discounts = config.gamma * (~batch.terminated).to(q.dtype)  # d_t [T, B]
        shared = {"rewards": batch.rewards, "discounts": discounts, "values": values, "mask": batch.action_used}
        if config.retrace_lambda == -1:
            return peng_q_lambda(**shared, lambda_=config.q_lambda)
        choices = self._choices(batch)  # [T, B, D]
        traces = config.retrace_lambda * (choices == best[:-1]).all(-1).to(q.dtype)  # c_t = lambda min(1, pi / mu), [T, B]
        return retrace(**shared, taken=chosen_values(q[:-1], choices, counts).mean(-1), traces=traces)

    def losses(self, batch: QMinibatch, outputs: QOutput) -> Losses:
        """The loss of a minibatch. outputs: of its steps or of rows 0 to T-1 of its columns, q `[n, P]` or `[T, b, P]`."""
        values = chosen_values(outputs.q, batch.choices, self.network.counts)  # Q_d(x_t, a_d), [n, D] or [T, b, D]
        errors = batch.targets.unsqueeze(-1) - values  # each component learns the value of the whole action
        terms = {"value_loss": Term(used_mean(0.5 * errors.square().mean(-1), batch.mask))}
        metrics = {
            "losses/td_error": used_mean(errors.detach().abs().mean(-1), batch.mask),
            "losses/value_mean": used_mean(values.detach().mean(-1), batch.mask),
            **epsilon_metrics(self.config, self.network),
        }
        return Losses(terms, metrics)

    def _learn_from(self, minibatch: QMinibatch, step: Stepper) -> None:
        outputs = step.forward(minibatch.inputs)
        if self._columns:
            outputs = outputs._replace(q=outputs.q[:-1])  # row T has values to bootstrap from, but no action
        terms, metrics, _ = self.losses(minibatch, outputs)
        step.take(terms, metrics, used=minibatch.used)

    def _columns_of(self, batch: Batch, targets: Tensor, step: Stepper) -> Callable[[Tensor], QMinibatch]:
        """A function that gives the minibatch of whole columns, int64 `[b]`."""

        def minibatch(columns: Tensor) -> QMinibatch:
            part = batch.take_columns(columns)
            return QMinibatch(part, self._choices(part), targets.index_select(1, columns), part.action_used)

        return minibatch

    def _steps_of(self, batch: Batch, targets: Tensor, step: Stepper) -> Callable[[Tensor], QMinibatch]:
        """A function that gives the minibatch of single steps t * B + b, int64 `[n]`."""
        rows = (batch.observations[:-1], self._choices(batch), targets)
        parts = most_minibatches(batch, self.config.minibatches, columns=False)
        largest = -(-targets.numel() // parts)  # steps

        def minibatch(order: Tensor) -> QMinibatch:
            mask = None
            if step.records_steps:  # a CUDA graph has one shape: the minibatch is filled up with masked repetitions of step 0
                mask = torch.arange(largest, device=order.device) < len(order)
                order = functional.pad(order, (0, largest - len(order)))
            observations, choices, wanted = (take_steps(tensor, order) for tensor in rows)
            return QMinibatch(Steps(observations), choices, wanted, mask)

        return minibatch

    def _choices(self, batch: Batch) -> Tensor:
        """The actions taken, int64 `[T, B, D]`."""
        return as_choices(batch.actions, self.network.config.action)
