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
from typing import Annotated, Any

import torch
from torch import Tensor

from agents.actor_critic import CHARTS, ActionBoundWeight, ActorCriticAgent, ActorCriticConfig, EntropyWeight, ValueWeight
from agents.base import Needs
from agents.bc.agent import DEFAULTS
from agents.guarded import GradientClip, LearningRate, OptimizerName
from agents.imitation.losses import accuracy, advantage_weights, cloning_loss, squared_scale
from agents.learned import Loss, Losses
from agents.losses import used_mean
from agents.metrics import value_metrics
from agents.networks.actor_critic import PolicyOutput
from agents.networks.base import NetworkConfig
from agents.networks.policy import Policy, drawn_actions
from agents.peers import Used
from agents.returns.gae import gae
from agents.rewards import clip_rewards
from replay.batch import Batch
from setting import Setting

SCALE = "advantages"
"""Name of the running mean square of the advantages among the agent's numbers."""
FIRST_SCALE = 100.0


@dataclass(frozen=True)
class MarwilConfig(ActorCriticConfig):
    """Settings of MARWIL. All losses are means over the used steps."""

    lr: LearningRate = 1e-3
    optimizer: OptimizerName = "adam"
    gradient_clip_by_norm_threshold: GradientClip = 10.0
    value_loss_weight: ValueWeight = 1.0
    entropy_loss_weight: EntropyWeight = 0.0
    action_bound_loss_weight: ActionBoundWeight = 0.0
    advantage_weight: Annotated[
        float,
        Setting(
            "beta: how much more good actions count than bad ones; 0 clones all of them alike.", "a number in [0, 100]", 0, 100
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


class MarwilAgent(ActorCriticAgent):
    """Cloning weighted by advantages."""

    config_class = MarwilConfig
    graphed = True
    charts = {**CHARTS, "weights of the actions": [r"losses/mean_weight$", r"losses/cut_weights$"]}
    defaults = DEFAULTS

    config: MarwilConfig

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        device = next(self.network.parameters()).device
        self.squared_scale = torch.full((), FIRST_SCALE, device=device)
        self._next_scale = self.squared_scale

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(recorded=True)

    @classmethod
    def acting(cls, config: Any, network: NetworkConfig) -> Any:
        return Policy.acting(network)  # the policy that was recorded need not be known

    def losses(self, batch: Batch, outputs: PolicyOutput) -> Losses:
        config, distribution, used = self.config, self.network.distribution, batch.action_used
        drawn = drawn_actions(batch.actions, batch.acting)
        policy, values = outputs.policy[:-1], outputs.values[:-1]
        advantages, returns = self._estimate(batch, outputs.values.detach())
        self._next_scale = self.peers.mean(
            squared_scale(self.squared_scale, advantages, used, config.advantage_scale_rate), used
        )
        weights = advantage_weights(advantages, self._next_scale, config.advantage_weight, config.weight_limit)
        entropy = used_mean(distribution.entropy(policy), used)
        terms = {
            "policy_loss": Loss(cloning_loss(distribution.log_prob(policy, drawn), used, weights), 1.0, "mean"),
            "value_loss": Loss(0.5 * used_mean((returns - values).square(), used), config.value_loss_weight, "mean"),
        }
        if config.entropy_loss_weight:
            terms["entropy_loss"] = Loss(-entropy, config.entropy_loss_weight, "mean")
        excess = distribution.excess(policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Loss(used_mean(excess, used), config.action_bound_loss_weight, "mean")
        metrics = {
            **value_metrics(values.detach(), returns, used),
            "losses/entropy": entropy.detach(),
            "losses/mean_weight": used_mean(weights, used),
            "losses/cut_weights": used_mean((weights >= config.weight_limit).float(), used),
        }
        if not drawn.is_floating_point():
            metrics["losses/accuracy"] = accuracy(distribution.mode(policy.detach()), drawn, used)
        return Losses(terms, metrics)

    def _estimate(self, batch: Batch, values: Tensor) -> tuple[Tensor, Tensor]:
        """A and R of every row, `[T, B]` each. values: `[T+1, B]`, constants."""
        return gae(
            rewards=clip_rewards(batch.rewards, self.config.reward_clipping),
            discounts=self.config.gamma * (~batch.terminated).to(values.dtype),
            values=values[:-1],
            bootstrap_value=values[-1],
            lambda_=1.0,
            mask=batch.action_used,
        )

    def used(self, batch: Batch) -> Used:
        return batch.action_used

    def after_update(self, progress: float, sound: Tensor) -> None:
        self.squared_scale.copy_(torch.where(sound, self._next_scale, self.squared_scale))

    def own_numbers(self) -> dict[str, dict[str, Tensor]]:
        return {**super().own_numbers(), SCALE: {"squared_scale": self.squared_scale}}

    def load_own_numbers(self, numbers: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_own_numbers(numbers)
        if SCALE in numbers:
            self.squared_scale = numbers[SCALE]["squared_scale"].to(self.squared_scale.device)
