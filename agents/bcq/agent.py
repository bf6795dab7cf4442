"""Discrete BCQ (Fujimoto et al. 2019, arXiv:1910.01708): Q-learning from recordings, with recorded actions alone.

A Q-value of an action that was never recorded is a guess, and a maximum over guesses is too large. So a second head G learns
which actions were recorded, and only those with

    G(a|x) / max_a' G(a'|x) > threshold

can be chosen, for the target and in play:

    y = r + gamma Q'(x', argmax over the allowed a of Q(x', a))
    loss = mean Huber(y - Q(x, a)) - mean log G(a|x) + logit_penalty * mean of squared logits

With a threshold of 0 it is double DQN, and near 1 cloning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from agents.base import Agent, Needs
from agents.bcq.network import BCQNetwork, BCQOutput, allowed_choices
from agents.distributions import ILLEGAL_LOGIT, make_distribution
from agents.dqn.errors import NStepTransitions, expected_errors, expected_targets
from agents.engine.stepper import Stepper
from agents.engine.targets import TargetNetwork
from agents.imitation.losses import accuracy
from agents.losses import Losses, Term
from agents.networks.base import NetworkConfig
from agents.networks.cores import NO_CORE
from agents.networks.exploration import SCHEDULE
from agents.networks.q_network import EXPECTATION, QOutput, ReturnDistribution, as_choices, best_choices, chosen_values
from agents.returns.nstep import DEFAULTS, Transitions, needs_of_windows, transitions
from agents.settings import (
    AdamEpsilon,
    AgentConfig,
    BatchesAtOnce,
    ClipOfEachLoss,
    ClipRewards,
    Gamma,
    HeldLearningRate,
    LearningRate,
    LearningStarts,
    NormaliseRewards,
    OptimizerName,
    RewardClipping,
    RmspropEpsilon,
    UpdatesPerStep,
    WindowRows,
)
from agents.unused_settings import OF_CORES, OF_POLICIES
from agents.values.acting import TARGET, VALUE_MEANING, check_choices
from agents.values.q_learning import weighted_mean
from agents.values.settings import Dueling, Epsilon, TargetPeriod, TargetRate
from replay.batch import Batch
from setting import Linear, Setting


@dataclass(frozen=True)
class BCQConfig(AgentConfig):
    """Settings of discrete BCQ."""

    # The network of value-based agents reads these. Nothing explores here.
    noisy: ClassVar[bool] = False
    exploration: ClassVar[str] = SCHEDULE
    epsilon_start: ClassVar[float] = 0.0
    distribution: ClassVar[ReturnDistribution] = EXPECTATION

    lr: LearningRate = 3e-4
    lr_end_value: HeldLearningRate = -1.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: AdamEpsilon = 1e-8
    gradient_clip_by_norm_threshold: ClipOfEachLoss = 0.0
    gamma: Gamma = 0.99
    n_step: WindowRows = 1
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    updates_per_step: UpdatesPerStep = 0.25
    learning_starts: LearningStarts = 1000
    batches_at_once: BatchesAtOnce = 8
    dueling: Dueling = False
    epsilon: Epsilon = 0.0
    target_update_period: TargetPeriod = 1
    target_update_rate: TargetRate = 0.005
    threshold: Annotated[
        float,
        Setting(
            "Probability, in parts of the most likely action's, that an action must have had in the recording to be chosen.",
            "a number in [0, 1)",
            0,
            1,
            search=Linear(0.05, 0.7),
        ),
    ] = 0.3
    logit_penalty: Annotated[
        float, Setting("Weight of the mean square of the recorded actions' logits.", "a weight >= 0", 0, 1e9)
    ] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold >= 1:
            raise ValueError(f"threshold: wanted a number in [0, 1), got {self.threshold:g}")


class BCQAgent(Agent):
    """Q-learning on windows of recordings, constrained to recorded actions."""

    config_class = BCQConfig
    network_class = BCQNetwork
    tuned = ("lr", "gamma", "n_step", "threshold")
    compiles = False
    several_steps = True
    defaults = {**DEFAULTS, "batch_size": 64, "eval_seconds": 60.0}
    unused = (*OF_POLICIES, *OF_CORES)
    charts: ClassVar[dict[str, list[str]]] = {
        "losses": [r"losses/(loss|value_loss|behaviour_loss)$"],
        "values of recorded actions": [r"losses/value_mean$"],
        "share of actions that are allowed": [r"losses/allowed$"],
        "share of recorded actions that are the most likely": [r"losses/accuracy$"],
    }

    config: BCQConfig
    network: BCQNetwork

    def __init__(self, config: BCQConfig, network: BCQNetwork, *arguments: Any, **options: Any) -> None:
        self.target = TargetNetwork(network, config.target_update_period, config.target_update_rate)
        super().__init__(config, network, *arguments, target_networks={TARGET: self.target}, steps_some=True, **options)

    @classmethod
    def needs(cls, config: BCQConfig) -> Needs:
        return replace(needs_of_windows(config), recorded=True)

    @classmethod
    def graphed(cls, config: BCQConfig) -> Literal["update"]:
        return "update"

    @classmethod
    def value_meaning(cls, config: BCQConfig) -> str:
        return VALUE_MEANING

    @classmethod
    def check(cls, config: BCQConfig, network: NetworkConfig) -> None:
        check_choices(network, cls.name())
        if network.settings.core != NO_CORE:
            raise ValueError(f"core: wanted {NO_CORE} with agent bcq, got {network.settings.core}")

    def update(self, batch: Batch, step: Stepper) -> None:
        for part in transitions(batch, self.config.gamma).split(self.config.batches_at_once):
            step.take_rows(self.losses, part, self._targets(part, step))

    def _targets(self, part: Transitions, step: Stepper) -> Tensor:
        """The targets y of N transitions, `[N]`, without gradient: the best of the actions that were recorded."""
        steps = NStepTransitions(self._choices(part), part.returns, part.discounts)
        target: BCQOutput = step.passes.without_gradient(part.next_observations, network=self.target.network)  # Q'(x', .)
        online: BCQOutput = step.passes.without_gradient(part.next_observations)  # Q and G at x', [N, P]
        # The learned network selects among the actions that G allows AT x', and the target network values the choice.
        return expected_targets(steps, QOutput(target.q), self.network.constrained(online), self.network.counts)

    def losses(self, part: Transitions, targets: Tensor) -> Losses:
        """The losses of N transitions, as means over them. targets: y, `[N]`."""
        online: BCQOutput = self.network(part.observations)  # q and behaviour [N, P]
        choices, counts = self._choices(part), self.network.counts  # [N, D]
        errors = expected_errors(QOutput(online.q), targets, choices, counts)  # [N]
        value_loss = weighted_mean(errors.losses, part.weights)  # mean Huber(y - Q(x, a))
        # - mean log G(a|x)
        behaviour_loss = -make_distribution(self.network.config.action).log_prob(online.behaviour, part.actions).mean()
        # Small logits keep G from ruling out actions that are merely rare in the recording.
        penalty = mean_square_of_legal(online.behaviour)
        # One term, because both heads share the torso, whose gradient is clipped once.
        loss = value_loss + behaviour_loss + self.config.logit_penalty * penalty
        used = torch.ones_like(part.returns, dtype=torch.bool)  # [N]: windows start at used rows only
        allowed = allowed_choices(online.behaviour.detach(), counts, self.config.threshold)  # bool [N, P]
        metrics = {
            "losses/value_loss": value_loss.detach(),
            "losses/behaviour_loss": behaviour_loss.detach(),
            "losses/td_error": errors.sizes.mean(),
            "losses/value_mean": chosen_values(online.q.detach(), choices, counts).mean(),
            "losses/allowed": allowed.float().mean(),
            "losses/accuracy": accuracy(best_choices(online.behaviour, counts), choices, used),
        }
        return Losses({"loss": Term(loss)}, metrics, errors.sizes)

    def _choices(self, part: Transitions) -> Tensor:
        """The recorded actions, int64 `[N, D]`."""
        return as_choices(part.actions, self.network.config.action)


def mean_square_of_legal(logits: Tensor) -> Tensor:
    """Mean of the squares of logits `[N, P]`, a scalar. Those of illegal actions count as 0."""
    # The square of an illegal action's logit, 1e16, would be the whole loss.
    return torch.where(logits == ILLEGAL_LOGIT, 0.0, logits).square().mean()
