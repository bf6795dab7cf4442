"""MARWIL (Wang et al. 2018, "Exponentially Weighted Imitation Learning for Batched Historical Data", NeurIPS).

Recorded actions are cloned, and those that turned out better than expected count more:

    R_t = discounted rewards to the episode's end; at a time limit and at the trajectory's end the value takes their place
    A = R - V,   c^2 <- c^2 + rate (mean A^2 - c^2)
    loss = - mean exp(beta A / c) log pi(a|x) + c_v mean A^2 / 2

The weights are constants, at most `weight_limit` (AWR, Peng et al. 2019, arXiv:1910.00177). RLlib, whose c^2 begins at 100 too,
has a rate of 1e-8, with which c stays 10 whatever the rewards are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from agents.base import Agent, Needs
from agents.bc.agent import DEFAULTS
from agents.engine.stepper import Stepper
from agents.imitation.losses import accuracy, advantage_weights, cloning_loss, squared_scale
from agents.losses import Losses, Term, used_mean
from agents.metrics import ACTOR_CRITIC_CHARTS, value_metrics
from agents.networks.actor_critic import ActorCritic, PolicyNetwork, PolicyOutput, drawn_actions
from agents.networks.base import NetworkConfig
from agents.returns.gae import advantages_of
from agents.settings import (
    ActionBoundWeight,
    AgentConfig,
    ClipRewards,
    EntropyWeight,
    Gamma,
    GradientClip,
    LastEntropyWeight,
    LastLearningRate,
    LearningRate,
    NormaliseRewards,
    OptimizerName,
    PopArtRate,
    PopArtSwitch,
    RewardClipping,
    RmspropEpsilon,
    ValueWeight,
)
from replay.batch import Batch
from setting import Linear, Setting

SCALE = "advantages"
"""Name of the running mean square of the advantages among the agent's numbers."""
FIRST_SCALE = 100.0


@dataclass(frozen=True)
class MarwilConfig(AgentConfig):
    """Settings of MARWIL. All losses are means over the used steps."""

    lr: LearningRate = 1e-3
    lr_end_value: LastLearningRate = 0.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-8
    gradient_clip_by_norm_threshold: GradientClip = 10.0
    gamma: Gamma = 0.99
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = True
    reward_clipping_method: RewardClipping = "abs_one_sign"
    popart: PopArtSwitch = False
    popart_rate: PopArtRate = 3e-4
    value_loss_weight: ValueWeight = 1.0
    entropy_loss_weight: EntropyWeight = 0.0
    entropy_loss_weight_end: LastEntropyWeight = -1.0
    action_bound_loss_weight: ActionBoundWeight = 0.0
    advantage_weight: Annotated[
        float,
        Setting(
            "beta: how much more good actions count than bad ones; 0 clones all of them alike.",
            "a number in [0, 100]",
            0,
            100,
            search=Linear(0, 3),
        ),
    ] = 1.0
    advantage_scale_rate: Annotated[
        float,
        Setting(
            "Rate at which the scale of the advantages follows those of a batch; the squared scale begins at 100.",
            "a number in [0, 1]",
            0,
            1,
        ),
    ] = 0.01
    weight_limit: Annotated[float, Setting("Largest weight of an action.", "a number >= 1", 1, 1e9)] = 20.0


class MarwilAgent(Agent):
    """Cloning weighted by advantages."""

    config_class = MarwilConfig
    network_class = ActorCritic
    tuned = ("lr", "advantage_weight", "gamma")
    charts = {**ACTOR_CRITIC_CHARTS, "weights of the actions": [r"losses/mean_weight$", r"losses/cut_weights$"]}
    defaults = DEFAULTS

    config: MarwilConfig
    network: ActorCritic

    def __init__(self, config: MarwilConfig, network: ActorCritic, *arguments: Any, **options: Any) -> None:
        self.squared_scale = torch.full((), FIRST_SCALE, device=network.policy_head.weight.device)  # c^2
        state = {SCALE: {"squared_scale": self.squared_scale}}
        super().__init__(config, network, *arguments, extra_state=state, **options)

    @classmethod
    def needs(cls, config: MarwilConfig) -> Needs:
        return Needs(recorded=True)

    @classmethod
    def scales_rewards(cls, settings: Mapping[str, Any]) -> bool:
        return True

    @classmethod
    def acting(cls, config: MarwilConfig, network: NetworkConfig) -> Any:
        return PolicyNetwork.acting(network)  # the policy that was recorded need not be known

    @classmethod
    def graphed(cls, config: MarwilConfig) -> Literal["update"]:
        return "update"

    def update(self, batch: Batch, step: Stepper) -> None:
        outputs, used = step.forward(batch), batch.action_used
        values = outputs.values.detach()  # [T+1, B]
        # A and R of every row, [T, B] each: with lambda = 1 they reach to the episode's or the trajectory's end.
        advantages, returns = advantages_of(batch, values, self.config.gamma, 1.0)
        advantages = step.units.in_losses(
            values[:-1], returns, advantages, used, self.network.task_of_columns(batch.observations)
        ).advantages
        scale = squared_scale(self.squared_scale, advantages, used, self.config.advantage_scale_rate)  # c^2 []
        scale = step.collectives.mean(scale, used)  # one c for all learners, so that their weights agree
        # c^2 is updated before it is used, as in RLlib.
        applied = step.take(*self.losses(batch, outputs, advantages, returns, scale), used=used)
        self.squared_scale.copy_(torch.where(applied, scale, self.squared_scale))  # a refused batch leaves no trace in c either

    def losses(self, batch: Batch, outputs: PolicyOutput, advantages: Tensor, returns: Tensor, scale: Tensor) -> Losses:
        """The terms of the loss.

        Args:
            batch: recorded steps.
            outputs: of the network for all T+1 rows: policy `[T+1, B, P]` and values `[T+1, B]`.
            advantages: A, `[T, B]`, constants.
            returns: R, `[T, B]`, constants.
            scale: c^2, `[]`, with this batch's advantages.
        """
        config, distribution, used = self.config, self.network.distribution, batch.action_used
        drawn = drawn_actions(batch.actions, batch.acting)  # u of a tanh(u) that was recorded
        policy, values = outputs.policy[:-1], outputs.values[:-1]  # row T has no action
        weights = advantage_weights(advantages, scale, config.advantage_weight, config.weight_limit)  # exp(beta A / c) [T, B]
        entropy = used_mean(distribution.entropy(policy), used)
        units, tasks = self.stepper.units, self.network.task_of_columns(batch.observations)
        errors = units.normalised(returns, tasks) - units.normalised(values, tasks)  # [T, B]
        terms = {
            "policy_loss": Term(cloning_loss(distribution.log_prob(policy, drawn), used, weights)),
            "value_loss": Term(0.5 * used_mean(errors.square(), used), config.value_loss_weight),  # mean A^2 / 2
        }
        if config.entropy_loss_weight:
            terms["entropy_loss"] = Term(-entropy, self.stepper.entropy_weight.now)
        excess = distribution.excess(policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Term(used_mean(excess, used), config.action_bound_loss_weight)
        metrics = {
            **value_metrics(values.detach(), returns, used),
            "losses/entropy": entropy.detach(),
            "losses/mean_weight": used_mean(weights, used),
            "losses/cut_weights": used_mean((weights >= config.weight_limit).float(), used),
        }
        if not drawn.is_floating_point():
            metrics["losses/accuracy"] = accuracy(distribution.mode(policy.detach()), drawn, used)
        return Losses(terms, metrics)
