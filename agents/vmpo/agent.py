"""V-MPO: the policy imitates the better half of its own actions (Song et al. 2019, arXiv:1909.12238).

pi_old is the policy of a target network, copied every few updates. It acts, and its advantages A_t are those of V-trace with
the ratio pi_old / mu, which is 1 unless the data is older than the copy. The loss is

    L_pi + L_eta + L_alpha + c_v mean (G_t - V(x_t))^2 / 2

(agents/vmpo/losses.py). Neither are advantages normalised, nor is entropy rewarded: the bound on KL(pi_old || pi) keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from agents.appo.agent import TARGET, vtrace_of
from agents.base import Agent, Needs
from agents.distributions import DiagonalGaussian
from agents.engine.stepper import Stepper
from agents.engine.targets import TargetNetwork
from agents.losses import Losses, Term, used_mean
from agents.metrics import ACTOR_CRITIC_CHARTS, replay_metrics, value_metrics
from agents.networks.actor_critic import ActorCritic, PolicyOutput, drawn_actions
from agents.settings import (
    ActionBoundWeight,
    AgentConfig,
    ClipRewards,
    Gamma,
    GradientClip,
    LastLearningRate,
    LearningRate,
    NormaliseRewards,
    OptimizerName,
    PopArtRate,
    PopArtSwitch,
    RewardClipping,
    RmspropEpsilon,
    TraceFactor,
    ValueWeight,
)
from agents.vmpo.losses import bound_losses, divergences, e_step, policy_loss, temperature_loss
from replay.batch import Batch
from setting import Setting

MULTIPLIERS = "multipliers"
"""Name of eta and alpha among the agent's modules."""
SMALLEST = 1e-8
"""Eta and alpha are at least this after each step."""


@dataclass(frozen=True)
class VMPOConfig(AgentConfig):
    """Settings of V-MPO. All losses are means over the used steps."""

    lr: LearningRate = 1e-4
    lr_end_value: LastLearningRate = 0.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-8
    gradient_clip_by_norm_threshold: GradientClip = 40.0
    gamma: Gamma = 0.99
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = True
    reward_clipping_method: RewardClipping = "abs_one_sign"
    popart: PopArtSwitch = False
    popart_rate: PopArtRate = 3e-4
    value_loss_weight: ValueWeight = 1.0
    action_bound_loss_weight: ActionBoundWeight = 1.0
    vtrace_lambda: TraceFactor = 1.0
    initial_eta: Annotated[
        float,
        Setting("Temperature of the weights of good actions at the start of the run.", "a number from 1e-8 to 1e6", 1e-8, 1e6),
    ] = 1.0
    eps_eta: Annotated[
        float, Setting("Bound that the temperature follows, in nats.", "a divergence from 1e-9 to 1e3", 1e-9, 1e3)
    ] = 0.1
    initial_alpha: Annotated[
        float,
        Setting("Weight of the divergence from pi_old at the start of the run.", "a number from 1e-8 to 1e6", 1e-8, 1e6),
    ] = 5.0
    eps_alpha: Annotated[
        float,
        Setting(
            "Divergence from pi_old that its weight aims at, in nats; of Gaussians that of the means.",
            "a divergence from 1e-9 to 1e3",
            1e-9,
            1e3,
        ),
    ] = 0.005
    eps_alpha_std: Annotated[
        float,
        Setting("The same for the standard deviations of Gaussians.", "a divergence from 1e-9 to 1e3", 1e-9, 1e3),
    ] = 5e-5
    target_update_period: Annotated[
        int,
        Setting(
            "Updates between two copies of the network into pi_old, which acts.",
            "a whole number of updates from 1 to 1000000000",
            1,
            1e9,
        ),
    ] = 10


class Multipliers(nn.Module):
    """eta `[]` and alpha `[parts]`, one for each part of the divergence."""

    def __init__(self, eta: float, alpha: float, parts: int) -> None:
        super().__init__()
        self.eta = nn.Parameter(torch.full((), eta))
        self.alpha = nn.Parameter(torch.full((parts,), alpha))

    @torch.no_grad()
    def bound(self) -> None:
        """Keep both above 0. A step of the optimiser knows no bound."""
        for parameter in self.parameters():
            parameter.clamp_(min=SMALLEST)


class VMPOAgent(Agent):
    """V-MPO on asynchronous trajectories."""

    config_class = VMPOConfig
    network_class = ActorCritic
    charts = {
        **ACTOR_CRITIC_CHARTS,
        "divergence from pi_old, nats": [r"losses/kl$"],
        "temperature eta": [r"vmpo/eta$"],
        "weight alpha of the divergence": [r"vmpo/alpha$"],
        "effective sample size, fraction": [r"replay/.*/effective_sample_size$"],
    }

    config: VMPOConfig
    network: ActorCritic

    def __init__(self, config: VMPOConfig, network: ActorCritic, *arguments: Any, **options: Any) -> None:
        gaussian = isinstance(network.distribution, DiagonalGaussian)
        self.epsilons = (config.eps_alpha, config.eps_alpha_std) if gaussian else (config.eps_alpha,)
        self.multipliers = Multipliers(config.initial_eta, config.initial_alpha, len(self.epsilons))
        self.multipliers.to(next(network.parameters()).device)
        self.target = TargetNetwork(network, config.target_update_period, counts="updates")
        options |= {"modules": {MULTIPLIERS: self.multipliers}, "target_networks": {TARGET: self.target}}
        super().__init__(config, network, *arguments, **options)

    @property
    def acting_network(self) -> ActorCritic:
        acting: ActorCritic = self.target.network
        return acting

    @classmethod
    def needs(cls, config: VMPOConfig) -> Needs:
        return Needs(fresh=True)

    @classmethod
    def scales_rewards(cls, settings: Mapping[str, Any]) -> bool:
        return True

    @classmethod
    def graphed(cls, config: VMPOConfig) -> Literal["update"]:
        return "update"

    def update(self, batch: Batch, step: Stepper) -> None:
        old = step.without_gradient(batch, self.target.network, last_row=False).policy  # pi_old [T, B, P]
        outputs = step.forward(batch)
        step.take(*self.losses(batch, outputs, old), used=batch.action_used)
        self.multipliers.bound()

    def losses(self, batch: Batch, outputs: PolicyOutput, old: Tensor) -> Losses:
        """The terms of the loss.

        Args:
            batch: B columns.
            outputs: of the network for all T+1 rows: policy `[T+1, B, P]` and values `[T+1, B]`.
            old: pi_old's parameters, `[T, B, P]`.
        """
        config, distribution, used = self.config, self.network.distribution, batch.action_used
        # Row T has an observation and a value to bootstrap from, but no action.
        policy, values, drawn = outputs.policy[:-1], outputs.values[:-1], drawn_actions(batch.actions, batch.acting)
        # log pi_old - log mu [T, B]: V-trace corrects for what acted before the last copy.
        log_rhos = distribution.log_prob(old, drawn) - distribution.log_prob(batch.acting["behaviour_policy"], drawn)
        log_rhos = torch.where(used, log_rhos, 0.0)
        returns = vtrace_of(batch, log_rhos, outputs.values.detach(), config.gamma, config.vtrace_lambda)
        # V(x_t), G_t and A_t [T, B], as they are or by PopArt.
        compared, targets, advantages = self.stepper.units.in_losses(
            values, returns.vs, returns.pg_advantages, used, self.network.task_of_columns(batch.observations)
        )
        # E-step: psi [T, B] are constants, and the same as with one learner that had all columns.
        eta, alpha = self.multipliers.eta, self.multipliers.alpha  # [] and [parts]
        better = e_step(advantages, used, eta, self.stepper.collectives)
        # M-step: the divergence is bounded on all used steps, and not only on the better half.
        kls = torch.stack([used_mean(part, used) for part in divergences(distribution, old, policy)])  # [parts]
        kl_loss, alpha_loss = bound_losses(kls, alpha, self.epsilons)
        terms = {
            "policy_loss": Term(policy_loss(better, distribution.log_prob(policy, drawn))),
            "temperature_loss": Term(temperature_loss(eta, better, config.eps_eta)),
            "kl_loss": Term(kl_loss),
            "alpha_loss": Term(torch.where(better.share > 0, alpha_loss, 0.0)),  # no used step says nothing about a bound
            "value_loss": Term(0.5 * used_mean((targets - compared).square(), used), config.value_loss_weight),
        }
        excess = distribution.excess(policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Term(used_mean(excess, used), config.action_bound_loss_weight)
        effective = replay_metrics(batch, used, log_rhos, torch.ones_like(used), self.replay_names)
        metrics = {
            "losses/entropy": used_mean(distribution.entropy(policy.detach()), used),
            "losses/kl": kls.detach().sum(),
            "vmpo/eta": eta.detach().clone(),
            "vmpo/alpha": alpha.detach().mean(),
            **value_metrics(values.detach(), returns.vs, used),
            **{name: value for name, value in effective.items() if name.endswith("effective_sample_size")},
        }
        return Losses(terms, metrics)
