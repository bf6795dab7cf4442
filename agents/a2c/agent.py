"""A2C, the synchronous form of A3C (Mnih et al. 2016, arXiv:1602.01783): one step on each batch of fresh trajectories.

With G_t of `agents.returns.gae` the loss is

    - mean m_t A_t log pi(a_t|x_t) + c_v mean m_t (G_t - V(x_t))^2 / 2 - c_e mean m_t H(pi(.|x_t))

There is no importance ratio: each batch is learned from by the version that acted. Advantages are not normalised. A3C sums over
its five steps; the mean is that of OpenAI baselines and Stable-Baselines3, whose learning rate and clip norm hold for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.losses import Losses, Term, used_mean
from agents.metrics import ACTOR_CRITIC_CHARTS, value_metrics
from agents.networks.actor_critic import ActorCritic, PolicyOutput, drawn_actions
from agents.returns.gae import advantages_of
from agents.settings import (
    ActionBoundWeight,
    AgentConfig,
    ClipRewards,
    EntropyWeight,
    ExtrinsicWeight,
    Gamma,
    GradientClip,
    IntrinsicEpisodes,
    IntrinsicGamma,
    IntrinsicKind,
    IntrinsicWeight,
    Lambda,
    LastEntropyWeight,
    LastLearningRate,
    LearningRate,
    NormaliseRewards,
    OptimizerName,
    PopArtRate,
    PopArtSwitch,
    PredictorShare,
    RewardClipping,
    RmspropEpsilon,
    ValueWeight,
)
from replay.batch import Batch


@dataclass(frozen=True)
class A2CConfig(AgentConfig):
    """Settings of A2C, by default those of OpenAI baselines. All losses are means over the used steps."""

    lr: LearningRate = 7e-4
    lr_end_value: LastLearningRate = 0.0
    optimizer: OptimizerName = "rmsprop"
    rmsprop_eps: RmspropEpsilon = 1e-5
    adam_eps: float = 1e-8
    gradient_clip_by_norm_threshold: GradientClip = 0.5
    gamma: Gamma = 0.99
    gae_lambda: Lambda = 1.0
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    popart: PopArtSwitch = False
    popart_rate: PopArtRate = 3e-4
    intrinsic: IntrinsicKind = "none"
    intrinsic_gamma: IntrinsicGamma = 0.99
    intrinsic_weight: IntrinsicWeight = 1.0
    extrinsic_weight: ExtrinsicWeight = 2.0
    intrinsic_episodic: IntrinsicEpisodes = False
    predictor_share: PredictorShare = 1.0
    value_loss_weight: ValueWeight = 1.0
    entropy_loss_weight: EntropyWeight = 0.01
    entropy_loss_weight_end: LastEntropyWeight = -1.0
    action_bound_loss_weight: ActionBoundWeight = 0.0


class A2CAgent(Agent):
    """Advantage actor-critic."""

    config_class = A2CConfig
    network_class = ActorCritic
    tuned = ("lr", "entropy_loss_weight", "gamma", "unroll_length")
    charts = ACTOR_CRITIC_CHARTS

    config: A2CConfig
    network: ActorCritic

    @classmethod
    def needs(cls, config: A2CConfig) -> Needs:
        return Needs(on_policy=True)

    @classmethod
    def scales_rewards(cls, settings: Mapping[str, Any]) -> bool:
        return True

    @classmethod
    def graphed(cls, config: A2CConfig) -> Literal["update"]:
        return "update"

    def update(self, batch: Batch, step: Stepper) -> None:
        outputs = step.forward(batch)
        step.take(*self.losses(batch, outputs), used=batch.action_used)

    def losses(self, batch: Batch, outputs: PolicyOutput) -> Losses:
        """The terms of the loss. outputs: of the network for all T+1 rows: policy `[T+1, B, P]` and values `[T+1, B]`."""
        config, distribution, used = self.config, self.network.distribution, batch.action_used
        # Row T has an observation and a value to bootstrap from, but no action.
        policy, values = outputs.policy[:-1], outputs.values[:-1]  # [T, B, P], [T, B]
        log_probs = distribution.log_prob(policy, drawn_actions(batch.actions, batch.acting))  # [T, B]
        # Advantages and targets [T, B] are constants: gradients pass through log_probs, values and the entropy alone.
        advantages, targets = advantages_of(batch, outputs.values.detach(), config.gamma, config.gae_lambda)
        tasks = self.network.task_of_columns(batch.observations) if self.stepper.popart else None
        # [T, B] each, as they are or by PopArt
        compared = self.stepper.units.in_losses(values, targets, advantages, used, tasks)
        advantages, of_intrinsic = compared.advantages, {}
        if intrinsic := self.stepper.intrinsic:
            advantages, intrinsic_targets = intrinsic.combined(
                batch,
                outputs,
                advantages,
                lambda part: advantages_of(part.batch, part.values, part.gamma, config.gae_lambda),
            )
            of_intrinsic = intrinsic.value_terms(outputs, intrinsic_targets, used, config.value_loss_weight)
        entropy = used_mean(distribution.entropy(policy), used)  # [], a mean over the used steps
        terms = {
            # No ratio: the weights that acted are those that learn.
            "policy_loss": Term(-used_mean(advantages * log_probs, used)),
            # mean (G - V)^2 / 2
            "value_loss": Term(0.5 * used_mean((compared.targets - compared.values).square(), used), config.value_loss_weight),
            "entropy_loss": Term(-entropy, self.stepper.entropy_weight.now),  # added, so entropy is rewarded
            **of_intrinsic,
        }
        excess: Tensor | None = distribution.excess(policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Term(used_mean(excess, used), config.action_bound_loss_weight)
        return Losses(terms, {**value_metrics(values.detach(), targets, used), "losses/entropy": entropy.detach()})
