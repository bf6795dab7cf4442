"""APPO: PPO's clipped surrogate on asynchronous trajectories, with V-trace targets (Petrenko et al. 2020, arXiv:2006.11751).

Workers do not wait for the learner, so the policy mu that acted is older than the policy pi that learns. The loss is

    - mean min(R_t A_t, clip(R_t, 1 - eps, 1 + eps) A_t) + c_v mean (G_t - V(x_t))^2 / 2 - c_e mean H(pi(.|x_t))
    + beta mean KL(pi_tgt(.|x_t) || pi(.|x_t))

Means are over the used steps of a minibatch. pi_tgt is the policy of a target network, and beta follows the divergence. With
R_t = pi(a_t|x_t) / mu(a_t|x_t) and the targets v_t of V-trace (rho_bar = c_bar = 1)

    G_t = v_t,   A_t = r_t + d_t v_{t+1} - V(x_t)

The advantage has no ratio: the surrogate brings R_t in, once. Sample Factory's own form also multiplies A_t by min(1, R_t).
IMPACT (agents/impact) has another ratio and other targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from agents.appo.config import APPOConfig, SurrogateConfig
from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.engine.targets import TargetNetwork
from agents.losses import Losses, Term, used_mean
from agents.metrics import ACTOR_CRITIC_CHARTS, replay_metrics, value_metrics
from agents.minibatches import cut, shuffled
from agents.networks.actor_critic import ActorCritic, PolicyOutput, drawn_actions
from agents.returns.advantages import normalised
from agents.returns.gae import advantages_of
from agents.returns.vtrace import VTraceReturns, vtrace
from agents.schedules import linear_schedule
from agents.surrogate import (
    KL_WEIGHT,
    RatioBounds,
    approx_kl,
    clip_fraction,
    next_kl_weight,
    ratio_bounds,
    surrogate,
    zero_gradient_fraction,
)
from replay.batch import Batch

TARGET = "target"
"""Name of the target network among an agent's modules and numbers."""
ALL = torch.empty(0, dtype=torch.int64)
"""Stands for all columns of a batch."""
CHARTS: dict[str, list[str]] = {
    **ACTOR_CRITIC_CHARTS,
    "divergence from the policy that acted, nats": [r"losses/approx_kl$"],
    "divergence from the target network, nats": [r"losses/target_kl$"],
    "clipped ratios, fraction of steps": [
        r"losses/clip_fraction$",
        r"losses/zero_gradient_fraction$",
        r"losses/capped_fraction$",
    ],
    "effective sample size, fraction": [r"replay/.*/effective_sample_size$"],
}


class MinibatchColumns(NamedTuple):
    """The part of an update that one step learns from.

    Args:
        batch: b whole columns, with the rewards that are learned from and without rows of burn-in.
        target_policy: `[T, b, P]`, parameters of the target network's policy; None without one.
        clip: eps of this update.
    """

    batch: Batch
    target_policy: Tensor | None
    clip: float


class LogProbs(NamedTuple):
    """Log-probabilities `[T, b]` of the actions taken, 0 where a step is not used.

    policy: of the current policy, with gradient. behaviour: of the policy that acted. target: of the target network's policy;
    None without one.
    """

    policy: Tensor
    behaviour: Tensor
    target: Tensor | None

    def moved(self, rows: Callable[[Tensor], Tensor]) -> LogProbs:
        """The same with the rows of a stream of intrinsic rewards."""
        target = None if self.target is None else rows(self.target)
        return LogProbs(rows(self.policy), rows(self.behaviour), target)


class AdvantageEstimates(NamedTuple):
    """An agent's ratios, advantages and value targets for a minibatch, `[T, b]` each.

    log_ratios: log R_t of the surrogate, with gradient. advantages: A_t, constants. targets: G_t, constants.
    metrics: further numbers, means over the used steps.
    """

    log_ratios: Tensor
    advantages: Tensor
    targets: Tensor
    metrics: Mapping[str, Tensor]


class APPOAgent(Agent):
    """Asynchronous PPO. has_target: whether there is a target network without a KL penalty too."""

    config_class: ClassVar[type] = APPOConfig
    network_class = ActorCritic
    tuned = ("lr", "entropy_loss_weight", "gamma", "clip")
    several_steps = True
    charts = CHARTS
    has_target: ClassVar[bool] = False

    config: Any
    network: ActorCritic

    def __init__(self, config: SurrogateConfig, network: ActorCritic, *arguments: Any, **options: Any) -> None:
        self.target: TargetNetwork | None = None
        if self.has_target or config.kl_weight > 0:
            # Only its policy is used; a torso that values alone read is left out. A core reads both torsos.
            unused = ["value_torso"] if network.core is None else []
            period = max(1, config.target_update_period)
            self.target = TargetNetwork(network, period, counts="updates", without=unused)
        self.kl_weight = torch.full((), config.kl_weight, dtype=torch.float64, device=next(network.parameters()).device)
        target_networks = {TARGET: self.target} if self.target else {}
        state = {KL_WEIGHT: {"weight": self.kl_weight}} if config.kl_weight else {}
        super().__init__(config, network, *arguments, target_networks=target_networks, extra_state=state, **options)

    @classmethod
    def needs(cls, config: SurrogateConfig) -> Needs:
        return Needs(fresh=True)

    @classmethod
    def scales_rewards(cls, settings: Mapping[str, Any]) -> bool:
        return True

    @classmethod
    def graphed(cls, config: SurrogateConfig) -> Literal["update", ""]:
        """Not with minibatches, whose columns the host draws, nor with a clip that changes, which is a number of the host."""
        return "update" if config.minibatches == 1 and config.clip == config.last_clip else ""

    def update(self, batch: Batch, step: Stepper) -> None:
        config, divergences = self.config, []
        clip = linear_schedule(config.clip, config.last_clip, step.progress)
        # The target network's policy [T, B, P] is computed once, since no step of this update changes it.
        target = step.without_gradient(batch, self.target.network, last_row=False).policy if self.target else None
        if step.popart and config.minibatches > 1:
            self._observe_targets(batch, target, clip, step)
        most = config.epochs * min(config.minibatches, batch.action_used.shape[1])
        for columns in step.turns(self._minibatches(batch), most):
            part = MinibatchColumns(batch, target, clip) if columns is ALL else _taken(batch, target, columns, clip)
            terms, metrics, _ = self.losses(part, step.forward(part.batch))
            step.take(terms, metrics, used=part.batch.action_used)
            divergences += [metrics["losses/target_kl"]] if "losses/target_kl" in metrics else []
        if self.target and config.kl_weight:
            # A refused step may have a divergence of NaN, which is left out.
            mean = torch.stack(divergences).nanmean() if len(divergences) > 1 else divergences[0]
            divergence = step.collectives.mean(mean, batch.action_used)
            # The divergence counts just before a copy, since just after one it is 0.
            following = next_kl_weight(self.kl_weight, divergence, config.target_kl)
            self.kl_weight.copy_(torch.where(self.target.is_due & step.applied, following, self.kl_weight))

    def _observe_targets(self, batch: Batch, target: Tensor | None, clip: float, step: Stepper) -> None:
        """Show PopArt the value targets of the whole batch: a minibatch may have no column of a task."""
        assert step.popart is not None
        outputs = step.without_gradient(batch)
        log_probs = self._log_probs(MinibatchColumns(batch, target, clip), outputs.policy[:-1])
        targets = self.estimates(batch, log_probs, outputs.values, self.config.gamma).targets
        step.popart.observe(targets, batch.action_used, self.network.task_of_columns(batch.observations))

    def estimates(self, batch: Batch, log_probs: LogProbs, values: Tensor, gamma: float) -> AdvantageEstimates:
        """The ratios, advantages and value targets of a minibatch.

        values: `[T+1, b]` of the current network, constants. gamma: discount per step.
        """
        config = self.config
        log_ratios = log_probs.policy - log_probs.behaviour  # log R_t = log pi - log mu, [T, b]
        # GAE takes every ratio for 1, so its estimates are those of the policy that acted.
        if config.advantages == "gae":
            return AdvantageEstimates(log_ratios, *advantages_of(batch, values, gamma, config.vtrace_lambda), {})
        # Without the gradient of the ratios: the surrogate alone moves the policy by them.
        vs = vtrace_of(batch, log_ratios.detach(), values, gamma, config.vtrace_lambda).vs  # v_t [T, b]
        discounts = gamma * (~batch.terminated).to(values.dtype)  # d_t [T, b]
        return AdvantageEstimates(
            log_ratios, one_step_advantages(batch.rewards, discounts, values, vs, batch.action_used), vs, {}
        )

    def losses(self, batch: MinibatchColumns, outputs: PolicyOutput) -> Losses:
        """The loss of a minibatch. outputs: for all T+1 rows, `[T+1, b, ...]` each."""
        config, distribution, part = self.config, self.network.distribution, batch.batch
        # Row T has an observation and a value to bootstrap from, but no action.
        policy, values, used = outputs.policy[:-1], outputs.values[:-1], part.action_used  # [T, b, P], [T, b], [T, b]
        log_probs = self._log_probs(batch, policy)  # of pi, mu and perhaps pi_tgt, [T, b] each
        # Advantages and targets are constants of this step; V-trace corrects them for the present policy.
        found = self.estimates(part, log_probs, outputs.values.detach(), config.gamma)
        # V, G_t and A_t [T, b], as they are or by PopArt
        compared_values, targets, advantages = self.stepper.units.in_losses(
            values, found.targets, found.advantages, used, self.network.task_of_columns(part.observations)
        )
        of_intrinsic = {}
        if intrinsic := self.stepper.intrinsic:
            advantages, intrinsic_targets = intrinsic.combined(
                part,
                outputs,
                advantages,
                lambda stream: self.estimates(stream.batch, log_probs.moved(stream.rows), stream.values, stream.gamma),
            )
            of_intrinsic = intrinsic.value_terms(outputs, intrinsic_targets, used, config.value_loss_weight)
        if config.normalise_advantages:
            advantages = normalised(advantages, used)
        errors = targets - compared_values  # G_t - V(x_t) [T, b]
        bounds = ratio_bounds(advantages, batch.clip)
        objective = surrogate(found.log_ratios, advantages, bounds)  # S_t [T, b]
        entropy = used_mean(distribution.entropy(policy), used)  # []
        terms = {
            "policy_loss": Term(-used_mean(objective, used)),  # - mean S_t
            # mean (G_t - V)^2 / 2
            "value_loss": Term(0.5 * used_mean(errors.square(), used), config.value_loss_weight),
            "entropy_loss": Term(-entropy, self.stepper.entropy_weight.now),
            **of_intrinsic,
        }
        metrics = {"losses/entropy": entropy.detach(), **found.metrics}
        if batch.target_policy is not None:
            compared = policy if config.kl_weight else policy.detach()  # without the penalty it is a metric alone
            divergence = used_mean(distribution.kl(batch.target_policy, compared), used)  # KL(pi_tgt || pi)
            metrics["losses/target_kl"] = divergence.detach()
            if config.kl_weight:
                metrics["losses/kl_weight"] = self.kl_weight.clone()
                terms["kl_loss"] = Term(divergence, self.kl_weight.to(divergence.dtype))  # beta mean KL(pi_tgt || pi)
        excess = distribution.excess(policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Term(used_mean(excess, used), config.action_bound_loss_weight)
        metrics |= self._metrics(batch, log_probs, found, bounds, values.detach())
        return Losses(terms, metrics)

    def _metrics(
        self, batch: MinibatchColumns, log_probs: LogProbs, found: AdvantageEstimates, bounds: RatioBounds, values: Tensor
    ) -> dict[str, Tensor]:
        """Return metrics of the distance of the policies, of what the clipping removes, and of the values `[T, b]`."""
        part, used, log_ratios = batch.batch, batch.batch.action_used, found.log_ratios.detach()
        log_rhos = (log_probs.policy - log_probs.behaviour).detach()  # pi / mu, also where R_t has another denominator
        effective = replay_metrics(part, used, log_rhos, torch.ones_like(used), self.replay_names)
        return {
            "losses/approx_kl": used_mean(approx_kl(log_rhos), used),
            "losses/clip_fraction": used_mean(clip_fraction(log_ratios, batch.clip), used),
            "losses/zero_gradient_fraction": used_mean(zero_gradient_fraction(log_ratios, bounds), used),
            **value_metrics(values, found.targets, used),
            **{name: value for name, value in effective.items() if name.endswith("effective_sample_size")},
        }

    def _log_probs(self, batch: MinibatchColumns, policy: Tensor) -> LogProbs:
        part, distribution = batch.batch, self.network.distribution
        drawn = drawn_actions(part.actions, part.acting)  # [T, b], or [T, b, D]

        def of(parameters: Tensor) -> Tensor:
            # `where` before any exp: inf * 0 would destroy the gradient of the whole batch.
            return torch.where(part.action_used, distribution.log_prob(parameters, drawn), 0.0)

        target = None if batch.target_policy is None else of(batch.target_policy)
        return LogProbs(of(policy), of(part.acting["behaviour_policy"]), target)

    def _minibatches(self, batch: Batch) -> Iterator[Tensor]:
        """The columns of each minibatch of all epochs, int64 `[b]`, or `ALL`. Columns without a used step are left out."""
        parts = self.config.minibatches
        members = batch.action_used.any(0).nonzero().squeeze(-1) if parts > 1 else ()  # int64 [columns with a used step]
        for _ in range(self.config.epochs):
            yield from cut(shuffled(members), parts) if isinstance(members, Tensor) and len(members) else (ALL,)


def one_step_advantages(rewards: Tensor, discounts: Tensor, values: Tensor, vs: Tensor, mask: Tensor) -> Tensor:
    """A_t = r_t + d_t v_{t+1} - V(x_t) `[T, B]`, 0 where a step is masked. v_T is V(x_T).

    Args:
        rewards: `[T, B]`.
        discounts: `[T, B]`, gamma, 0 where step t terminated its episode.
        values: `[T+1, B]`, V(x_t).
        vs: `[T, B]`, the targets of V-trace.
        mask: bool `[T, B]`, the steps that may be used.
    """
    # Row T has no target of its own: it has no action, and its value bootstraps.
    next_vs = torch.cat([vs[1:], values[-1:]])  # v_{t+1} [T, B], v_T = V(x_T)
    # No ratio here, unlike V-trace's advantage: the surrogate multiplies by R_t, and a ratio may count once only.
    return torch.where(mask, rewards + discounts * next_vs - values[:-1], 0.0)


def vtrace_of(batch: Batch, log_rhos: Tensor, values: Tensor, gamma: float, lambda_: float) -> VTraceReturns:
    """V-trace with all clips at 1. Rows whose action was ignored, such as autoreset rows, are masked.

    log_rhos: `[T, B]`, 0 where a step is masked. values: `[T+1, B]`, constants; the last row bootstraps.
    """
    return vtrace(
        log_rhos=log_rhos,
        # Only a termination has no future. After a time limit the value of the final observation follows, in the next row.
        discounts=gamma * (~batch.terminated).to(values.dtype),
        rewards=batch.rewards,
        values=values[:-1],
        bootstrap_value=values[-1],
        lambda_=lambda_,
        mask=batch.action_used,
    )


def _taken(batch: Batch, target_policy: Tensor | None, columns: Tensor, clip: float) -> MinibatchColumns:
    target = None if target_policy is None else target_policy.index_select(1, columns)  # [T, b, P]
    return MinibatchColumns(batch.take_columns(columns), target, clip)
