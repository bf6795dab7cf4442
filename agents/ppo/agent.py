"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347): several epochs on each batch of fresh trajectories.

The loss of a minibatch is (equation 9, with the signs of a loss)

    - mean S_t + c_v mean (G_t - V(x_t))^2 / 2 - c_e mean H(pi(.|x_t)),  S_t = min(R_t A_t, clip(R_t, 1 - eps, 1 + eps) A_t)

Means are over used steps. mu, A_t, G_t and the values before the update are constants of the update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.losses import Losses, Term, used_mean
from agents.metrics import ACTOR_CRITIC_CHARTS
from agents.networks.actor_critic import ActorCritic, PolicyOutput
from agents.networks.base import NetworkConfig
from agents.ppo.config import PPOConfig
from agents.ppo.minibatch import Clipping, Minibatch, Rows, epochs_of, most_minibatches, rows_of, takes_columns
from agents.returns.advantages import normalised
from agents.schedules import linear_schedule
from agents.surrogate import (
    KL_WEIGHT,
    STOP_FACTOR,
    RatioBounds,
    approx_kl,
    clip_fraction,
    clipped_value_errors,
    next_kl_weight,
    surrogate,
    zero_gradient_fraction,
)
from replay.batch import Batch

CHARTS = {
    **ACTOR_CRITIC_CHARTS,
    "divergence from the policy that acted, nats": [r"losses/approx_kl$"],
    "clipped ratios, fraction of steps": [r"losses/clip_fraction$", r"losses/zero_gradient_fraction$"],
}


class Before(NamedTuple):
    """The policy before a step on a minibatch, without gradient.

    log_ratios: log R, of the shape of the minibatch's advantages; 0 where a step is masked. policy: `[..., P]`.
    """

    log_ratios: Tensor
    policy: Tensor


class PPOAgent(Agent):
    """PPO with clipped ratios, an adaptive KL penalty, or both."""

    config_class = PPOConfig
    network_class = ActorCritic
    tuned = ("lr", "entropy_loss_weight", "gamma", "gae_lambda", "unroll_length", "epochs")
    several_steps = True
    charts = CHARTS

    config: PPOConfig
    network: ActorCritic

    def __init__(self, config: PPOConfig, network: ActorCritic, *arguments: Any, **options: Any) -> None:
        self.kl_weight = torch.full((), config.kl_weight, dtype=torch.float64, device=next(network.parameters()).device)
        self._columns = takes_columns(config, network.config.settings)
        state = {KL_WEIGHT: {"weight": self.kl_weight}} if config.penalises else {}
        super().__init__(config, network, *arguments, extra_state=state, **options)

    @classmethod
    def needs(cls, config: PPOConfig) -> Needs:
        return Needs(on_policy=True)

    @classmethod
    def check(cls, config: PPOConfig, network: NetworkConfig) -> None:
        takes_columns(config, network.settings)

    @classmethod
    def scales_rewards(cls, settings: Mapping[str, Any]) -> bool:
        return True

    @classmethod
    def graphed(cls, config: PPOConfig) -> Literal["step", ""]:
        """Not with an early stop, which the host decides before each step."""
        return "" if config.stops_early else "step"

    def update(self, batch: Batch, step: Stepper) -> None:
        clip = linear_schedule(self.config.clip, self.config.last_clip, step.progress)
        seen: list[tuple[Minibatch, Before]] = []
        # The largest minibatch is as large as this; a smaller one is filled up with masked rows for a graph.
        size = math.ceil(batch.rewards.numel() / most_minibatches(batch, self.config.minibatches, columns=self._columns))
        for minibatch in self._minibatches(batch, step, clip):
            if step.records_steps:  # all calls of a CUDA graph have the same shapes
                minibatch = minibatch.filled_up(size)
            before = step.launch(lambda part: self._learn_from(part, step), minibatch)
            if before is None:
                break
            seen.append((minibatch, before))
        # Metrics come after all steps: they are computed once, and a graph of a step stays short.
        step.note(self._metrics(seen, clip))
        if self.config.penalises:
            step.note({"losses/kl_weight": self.kl_weight.clone()})
            self._adapt_kl_weight(batch, step)

    def losses(self, batch: Minibatch, outputs: PolicyOutput) -> Losses:
        """The loss of a minibatch; its log-ratios are among the metrics. outputs: of the minibatch's rows, of their shape."""
        config, distribution, rows, mask = self.config, self.network.distribution, batch.rows, batch.mask
        log_ratios = distribution.log_prob(outputs.policy, rows.drawn) - rows.log_mu  # [n] or [T, b]
        if mask is not None:  # before exp: inf * 0 would destroy the gradient of the whole batch
            log_ratios = torch.where(mask, log_ratios, 0.0)
        objective = surrogate(log_ratios, rows.advantages, batch.bounds)  # S_t, [n] or [T, b]
        values = outputs.values
        if popart := self.stepper.popart:
            values = popart.normalised(values, self.network.task_of(rows.observations))  # as the rows' values and targets are
        terms = {
            "policy_loss": Term(-used_mean(objective, mask)),
            "value_loss": Term(self._value_loss(values, rows, mask), config.value_loss_weight),
        }
        if (intrinsic := self.stepper.intrinsic) and rows.intrinsic_targets is not None:
            terms |= intrinsic.value_terms(outputs, rows.intrinsic_targets, mask, config.value_loss_weight)
        if config.entropy_loss_weight:
            entropy = used_mean(distribution.entropy(outputs.policy), mask)
            terms["entropy_loss"] = Term(-entropy, self.stepper.entropy_weight.now)
        if config.penalises:
            divergence = used_mean(distribution.kl(rows.behaviour, outputs.policy), mask)  # KL(mu || pi), equation 8
            terms["kl_loss"] = Term(divergence, self.kl_weight.to(divergence.dtype))
        excess = distribution.excess(outputs.policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Term(used_mean(excess, mask), config.action_bound_loss_weight)
        return Losses(terms, {"log_ratios": log_ratios.detach()})

    def _value_loss(self, values: Tensor, rows: Rows, mask: Tensor | None) -> Tensor:
        if self.config.value_clip:
            return used_mean(clipped_value_errors(values, rows.old_values, rows.targets, self.config.value_clip), mask)
        return value_loss(values, rows.targets, mask)

    def _minibatches(self, batch: Batch, step: Stepper, clip: float) -> Iterator[Minibatch]:
        """The minibatches of all epochs, of this learner."""
        config = self.config
        most = most_minibatches(batch, config.minibatches, columns=self._columns)
        clipping = Clipping(None if config.policy_objective == "kl" else clip, config.dual_clip or None)
        for epoch in range(config.epochs):
            # Advantages and targets are those of the values before the update, unless each epoch asks for new ones.
            if epoch == 0 or config.recompute_advantages:
                # A pass over T+1 rows: acting stored V(x_0) to V(x_{T-1}), and V(x_T) is needed to bootstrap.
                rows, metrics = rows_of(batch, step.without_gradient(batch), self.network, config, step)
                if config.advantage_normalisation == "batch":
                    rows = rows._replace(advantages=normalised(rows.advantages, batch.action_used))
                shared = (rows, batch, config.minibatches, config.advantage_normalisation, clipping)
                epochs = epochs_of(*shared, columns=self._columns)  # without end; each `next` is one epoch over these rows
            if epoch == 0:
                step.note(metrics)
            if (yield from step.turns(next(epochs), most, self._limit)):  # true if the learners stop
                return

    @property
    def _limit(self) -> float:
        """The divergence above which an update stops before a step."""
        return STOP_FACTOR * self.config.target_kl if self.config.stops_early else math.inf

    def _learn_from(self, minibatch: Minibatch, step: Stepper) -> Before | None:
        """Take a step on a minibatch; None if the update stops before it."""
        outputs = step.forward(minibatch)  # policy [n, P] or [T, b, P], values [n] or [T, b]
        terms, seen, _ = self.losses(minibatch, outputs)
        log_ratios, used = seen["log_ratios"], minibatch.used
        # The check precedes the step: a minibatch on which the policy is too far from mu is not learned from.
        if self.config.stops_early and step.exceeds(used_mean(approx_kl(log_ratios), minibatch.mask), used, self._limit):
            return None
        step.take(terms, {}, used=used)
        return Before(log_ratios, outputs.policy.detach())

    def _adapt_kl_weight(self, batch: Batch, step: Stepper) -> None:
        """Let the weight of the KL penalty follow the divergence after the update."""
        # Forwards, KL(mu || pi), over the whole batch and with the weights after the last step.
        policy = step.without_gradient(batch).policy[:-1]  # [T, B, P]
        divergences = self.network.distribution.kl(batch.acting["behaviour_policy"], policy)  # [T, B]
        divergence = step.collectives.mean(used_mean(divergences, batch.action_used), batch.action_used)
        following = next_kl_weight(self.kl_weight, divergence, self.config.target_kl)
        # A refused update leaves the policy where it was, so its divergence says nothing of the weight.
        self.kl_weight.copy_(torch.where(step.applied, following, self.kl_weight))

    @torch.no_grad()
    def _metrics(self, seen: Sequence[tuple[Minibatch, Before]], clip: float) -> dict[str, Tensor]:
        """Means over all used steps of this learner's minibatches. Computed once, so that a step costs no more than it must.

        seen: the minibatches, with the policy before each step. clip: eps of the update.
        """
        if not seen:
            return {}
        masks = [minibatch.mask for minibatch, _ in seen if minibatch.mask is not None]
        mask = _joined(masks) if masks else None  # [N], the rows of all minibatches
        log_ratios = _joined([before.log_ratios for _, before in seen])  # [N], each before its step
        bounds = RatioBounds(*(_joined([minibatch.bounds[side] for minibatch, _ in seen]) for side in (0, 1)))
        policies = torch.cat([before.policy.flatten(0, -2) for _, before in seen])  # [N, P]
        return {
            "losses/entropy": used_mean(self.network.distribution.entropy(policies), mask),
            "losses/approx_kl": used_mean(approx_kl(log_ratios), mask),
            "losses/clip_fraction": used_mean(clip_fraction(log_ratios, clip), mask),
            "losses/zero_gradient_fraction": used_mean(zero_gradient_fraction(log_ratios, bounds), mask),
            # 0 but for rounding: another number means that acting and learning compute different policies.
            "losses/first_ratio_error": seen[0][1].log_ratios.expm1().abs().max(),
        }


def value_loss(values: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """mean (G - V)^2 / 2 over the used steps, a scalar. mask: bool, of the values' shape; None if all are used."""
    if mask is None:
        return 0.5 * functional.mse_loss(values, targets)  # one operation in each direction
    return 0.5 * used_mean((targets - values).square(), mask)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """All entries of the parts, `[n]`."""
    return torch.cat([part.flatten() for part in parts])
