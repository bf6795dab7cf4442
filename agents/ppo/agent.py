"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347): several epochs on each batch of fresh trajectories.

The loss of a minibatch is (equation 9, with the signs of a loss)

    - mean S_t + c_v mean (G_t - V(x_t))^2 / 2 - c_e mean H(pi(.|x_t)),  S_t = min(R_t A_t, clip(R_t, 1 - eps, 1 + eps) A_t)

Means are over used steps. mu, A_t, G_t and the values before the update are constants of the update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from agents.actor_critic import CHARTS as SHARED_CHARTS
from agents.base import Updated
from agents.graphs import copied
from agents.learned import Loss, Losses
from agents.losses import used_mean
from agents.networks.actor_critic import ActorCritic, PolicyOutput
from agents.peers import Used
from agents.ppo.config import PPOConfig
from agents.ppo.epochs import EpochsAgent, value_loss
from agents.ppo.minibatch import Clipping, Minibatch, Rows
from agents.ppo.report import Report, Taken
from agents.returns.advantages import normalised
from agents.schedules import linear_schedule
from agents.surrogate import KL_WEIGHT, approx_kl, clipped_value_errors, next_kl_weight, stops_early, surrogate
from replay.batch import Batch

CHARTS = {
    **SHARED_CHARTS,
    "divergence from the policy that acted, nats": [r"losses/approx_kl$"],
    "clipped ratios, fraction of steps": [r"losses/clip_fraction$", r"losses/zero_gradient_fraction$"],
}


class PPOAgent(EpochsAgent):
    """PPO with clipped ratios, an adaptive KL penalty, or both."""

    config_class = PPOConfig
    graphed = True
    charts = CHARTS

    config: PPOConfig

    def __init__(self, config: PPOConfig, network: ActorCritic, *arguments: Any, **options: Any) -> None:
        super().__init__(config, network, *arguments, **options)
        self.kl_weight = torch.full((), config.kl_weight, dtype=torch.float64, device=next(network.parameters()).device)

    def update(self, batch: Batch, progress: float) -> Updated:
        config = self.config
        inputs = self.finite_inputs(batch)
        learned = self.scaled(batch)
        learning_rate = self.set_learning_rate(progress)
        clip = linear_schedule(config.clip, config.last_clip, progress)
        report = Report(clip)
        metrics: dict[str, Tensor] = {}
        for epoch in range(config.epochs):
            # Advantages and targets are those of the values before the update, unless each epoch asks for new ones.
            if epoch == 0 or config.recompute_advantages:
                rows, values = self.rows(learned)
                if config.advantage_normalisation == "batch":
                    rows = rows._replace(advantages=normalised(rows.advantages, learned.action_used))
                epochs = self._epochs(rows, learned, clip)  # without end; each `next` is one epoch over these rows
                metrics = metrics or values
            if not self._learn(next(epochs), batch, inputs, report):
                break
        self.end_update()
        taken = report.any_taken(batch.rewards.device)
        if config.penalises:
            metrics["losses/kl_weight"] = self.kl_weight.clone()
            self._adapt_kl_weight(learned, taken)
        self.merge_moments(learned, taken)
        scalars = {**report.scalars(self.network.distribution), **metrics}
        if report.steps:
            scalars |= self.gradient_metrics(report.gradient_norms())
        return Updated(scalars, learning_rate, self.guard.steps)

    def losses(self, batch: Minibatch, outputs: PolicyOutput) -> Losses:
        """The loss of a minibatch, and its log-ratios. outputs: of the minibatch's rows, of their shape."""
        config, distribution, rows, mask = self.config, self.network.distribution, batch.rows, batch.mask
        log_ratios = distribution.log_prob(outputs.policy, rows.drawn) - rows.log_mu
        if mask is not None:  # before exp: inf * 0 would destroy the gradient of the whole batch
            log_ratios = torch.where(mask, log_ratios, 0.0)
        objective = surrogate(log_ratios, rows.advantages, batch.bounds)
        terms = {
            "policy_loss": Loss(-used_mean(objective, mask), 1.0, "mean"),
            "value_loss": Loss(self._value_loss(outputs.values, rows, mask), config.value_loss_weight, "mean"),
        }
        if config.entropy_loss_weight:
            entropy = used_mean(distribution.entropy(outputs.policy), mask)
            terms["entropy_loss"] = Loss(-entropy, config.entropy_loss_weight, "mean")
        if config.penalises:
            divergence = used_mean(distribution.kl(rows.behaviour, outputs.policy), mask)
            terms["kl_loss"] = Loss(divergence, self.kl_weight.to(divergence.dtype), "mean")
        excess = distribution.excess(outputs.policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Loss(used_mean(excess, mask), config.action_bound_loss_weight, "mean")
        return Losses(terms, {"log_ratios": log_ratios.detach()})

    def _value_loss(self, values: Tensor, rows: Rows, mask: Tensor | None) -> Tensor:
        if self.config.value_clip:
            return used_mean(clipped_value_errors(values, rows.old_values, rows.targets, self.config.value_clip), mask)
        return value_loss(values, rows.targets, mask)

    def own_numbers(self) -> dict[str, dict[str, Tensor]]:
        weight = {KL_WEIGHT: {"weight": self.kl_weight}} if self.config.penalises else {}
        return {**super().own_numbers(), **weight}

    def load_own_numbers(self, numbers: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_own_numbers(numbers)
        if self.config.penalises and KL_WEIGHT in numbers:
            self.kl_weight = numbers[KL_WEIGHT]["weight"].to(self.kl_weight.device, copy=True)

    def _epochs(self, rows: Rows, batch: Batch, clip: float) -> Iterator[Iterable[Minibatch]]:
        config = self.config
        clipping = Clipping(None if config.policy_objective == "kl" else clip, config.dual_clip or None)
        return self.epochs(rows, batch, clipping, config.advantage_normalisation)

    def _learn(self, minibatches: Iterable[Minibatch], batch: Batch, inputs: Mapping[str, Tensor], report: Report) -> bool:
        """Take a step on each minibatch of the batch. Returns whether the update continues; an early stop ends it."""
        most = self.most_minibatches(batch)
        for minibatch in self.peers.turns(minibatches, most):
            if minibatch is None:  # other learners have one; all of them decide and step together
                if self._stops_early(self._parameters[0].new_zeros(1), 0):
                    return False
                report.steps.append(self.absent_step(inputs))
                continue
            if self._graphs:  # all calls of a graph have the same shapes
                minibatch = minibatch.filled_up(math.ceil(batch.rewards.numel() / most))
            taken = self.launched((minibatch, inputs))
            if taken is None:
                return False
            # The next launch of a graph overwrites its results, and the report is made after the last step.
            report.add(minibatch, copied(taken) if self._graphs else taken)
        return True

    @property
    def recorded(self) -> Callable[[Any], Any]:
        return self.learn_from

    def learn_from(self, given: tuple[Minibatch, Mapping[str, Tensor]]) -> Taken | None:
        """Take a step on a minibatch; None if the update stops before it. given: with the inputs that must be finite."""
        minibatch, inputs = given
        leaves, outputs = self.forward_minibatch(minibatch)
        terms, seen = self.losses(minibatch, outputs)
        log_ratios, used = seen["log_ratios"], minibatch.used
        # The check precedes the step: a minibatch on which the policy is too far from mu is not learned from.
        if self._stops_early(log_ratios, used, minibatch.mask):
            return None
        step = self.take_step(terms, leaves, inputs, used)
        values = {name: term._replace(value=term.value.detach()) for name, term in terms.items()}
        return Taken(values, log_ratios, outputs.policy.detach(), step)

    @property
    def can_be_graphed(self) -> bool:
        """Not with an early stop, which the host decides before each step."""
        return super().can_be_graphed and not self.config.stops_early

    def _stops_early(self, log_ratios: Tensor, used: Used, mask: Tensor | None = None) -> bool:
        """Whether the update ends before this step, on all learners alike. mask: of the used steps, all by default."""
        if not self.config.stops_early:
            return False
        divergence = self.peers.mean(used_mean(approx_kl(log_ratios), mask), used)
        return stops_early(float(divergence), self.config.target_kl)

    def _adapt_kl_weight(self, batch: Batch, taken: Tensor) -> None:
        """Let the weight of the KL penalty follow the divergence after an update of which a step was taken, bool `[]`."""
        # Forwards, KL(mu || pi), over the whole batch and with the weights after the last step.
        divergences = self.network.distribution.kl(batch.acting["behaviour_policy"], self.outputs(batch).policy[:-1])
        divergence = self.peers.mean(used_mean(divergences, batch.action_used), batch.action_used)
        following = next_kl_weight(self.kl_weight, divergence, self.config.target_kl)
        # A refused update leaves the policy where it was, so its divergence says nothing of the weight.
        self.kl_weight.copy_(torch.where(taken, following, self.kl_weight))
