"""A2C, the synchronous form of A3C (Mnih et al. 2016, arXiv:1602.01783): one step on each batch of fresh trajectories.

With G_t of `agents.returns.gae` the loss is

    - mean m_t A_t log pi(a_t|x_t) + c_v mean m_t (G_t - V(x_t))^2 / 2 - c_e mean m_t H(pi(.|x_t))

There is no importance ratio: each batch is learned from by the version that acted. Advantages are not normalised. A3C sums over
its five steps; the mean is that of OpenAI baselines and Stable-Baselines3, whose learning rate and clip norm hold for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.actor_critic import ActorCriticAgent, EntropyWeight, ValueWeight
from agents.base import Needs
from agents.guarded import GradientClip, LearningRate, OptimizerName, RmspropEpsilon
from agents.learned import Loss, Losses
from agents.losses import used_mean
from agents.metrics import value_metrics
from agents.networks.actor_critic import PolicyOutput
from agents.networks.policy import drawn_actions
from agents.on_policy import Lambda, OnPolicyConfig, estimate
from agents.peers import Used
from replay.batch import Batch


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Settings of A2C, by default those of OpenAI baselines."""

    lr: LearningRate = 7e-4
    optimizer: OptimizerName = "rmsprop"
    rmsprop_eps: RmspropEpsilon = 1e-5
    gradient_clip_by_norm_threshold: GradientClip = 0.5
    gae_lambda: Lambda = 1.0
    value_loss_weight: ValueWeight = 1.0
    entropy_loss_weight: EntropyWeight = 0.01


class A2CAgent(ActorCriticAgent):
    """Advantage actor-critic."""

    config_class = A2CConfig
    graphed = True

    config: A2CConfig

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(on_policy=True)

    def losses(self, batch: Batch, outputs: PolicyOutput) -> Losses:
        config, distribution, used = self.config, self.network.distribution, batch.action_used
        # Row T has an observation and a value to bootstrap from, but no action.
        policy, values = outputs.policy[:-1], outputs.values[:-1]
        log_probs = distribution.log_prob(policy, drawn_actions(batch.actions, batch.acting))
        # Advantages and targets are constants: gradients pass through log_probs, values and the entropy alone.
        advantages, targets = estimate(batch, outputs.values.detach(), config)
        entropy = used_mean(distribution.entropy(policy), used)
        terms = {
            "policy_loss": Loss(-used_mean(advantages * log_probs, used), 1.0, "mean"),
            "value_loss": Loss(0.5 * used_mean((targets - values).square(), used), config.value_loss_weight, "mean"),
            "entropy_loss": Loss(-entropy, config.entropy_loss_weight, "mean"),
        }
        excess = distribution.excess(policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Loss(used_mean(excess, used), config.action_bound_loss_weight, "mean")
        metrics = {**value_metrics(values.detach(), targets, used), "losses/entropy": entropy.detach()}
        return Losses(terms, metrics)

    def used(self, batch: Batch) -> Used:
        return batch.action_used
