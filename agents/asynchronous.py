"""The common part of the asynchronous agents with a clipped surrogate: settings, and an update of minibatches of columns.

Workers do not wait for the learner, so the policy mu that acted is older than the policy pi that learns. An agent says by which
ratio its surrogate is clipped, and which advantages and value targets it takes (`AsynchronousAgent.estimates`). The loss is

    - mean min(R_t A_t, clip(R_t, 1 - eps, 1 + eps) A_t) + c_v mean (G_t - V(x_t))^2 / 2 - c_e mean H(pi(.|x_t))
    + beta mean KL(pi_tgt(.|x_t) || pi(.|x_t))

Means are over the used steps of a minibatch. pi_tgt is the policy of a target network. beta follows the divergence.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from agents.actor_critic import CHARTS as SHARED_CHARTS
from agents.actor_critic import ActorCriticAgent, ActorCriticConfig
from agents.base import Needs
from agents.graphs import Outcome
from agents.guarded import GradientClip, LearningRate, OptimizerName
from agents.learned import Loss, Losses, per_step
from agents.losses import used_mean
from agents.metrics import means_of_steps, replay_metrics, value_metrics
from agents.minibatches import Epochs, cut, shuffled
from agents.networks.actor_critic import ActorCritic, PolicyOutput
from agents.networks.policy import drawn_actions
from agents.returns.advantages import normalised
from agents.returns.vtrace import VTraceReturns, vtrace
from agents.rewards import clip_rewards
from agents.schedules import linear_schedule
from agents.surrogate import (
    KL_WEIGHT,
    Clip,
    LastClip,
    RatioBounds,
    approx_kl,
    clip_fraction,
    last_clip,
    next_kl_weight,
    ratio_bounds,
    surrogate,
    zero_gradient_fraction,
)
from agents.target_network import TargetPolicy
from replay.batch import Batch
from setting import Setting

TARGET = "target"
"""Name of the target network among an agent's modules and numbers."""
ALL = torch.empty(0, dtype=torch.int64)
"""Stands for all columns of a batch."""
CHARTS: dict[str, list[str]] = {
    **SHARED_CHARTS,
    "divergence from the policy that acted, nats": [r"losses/approx_kl$"],
    "divergence from the target network, nats": [r"losses/target_kl$"],
    "clipped ratios, fraction of steps": [
        r"losses/clip_fraction$",
        r"losses/zero_gradient_fraction$",
        r"losses/capped_fraction$",
    ],
    "effective sample size, fraction": [r"replay/.*/effective_sample_size$"],
}
Normalise = Annotated[
    bool, Setting("Give the advantages of each minibatch mean 0 and standard deviation 1 before the policy gradient.")
]


@dataclass(frozen=True)
class AsynchronousConfig(ActorCriticConfig):
    """Settings of every asynchronous agent with a clipped surrogate. All losses are means over the used steps."""

    lr: LearningRate = 5e-4
    optimizer: OptimizerName = "adam"
    gradient_clip_by_norm_threshold: GradientClip = 40.0
    vtrace_lambda: Annotated[float, Setting("Factor on the traces.", "a number in [0, 1]", 0, 1)] = 1.0
    clip: Clip = 0.2
    clip_end_value: LastClip = -1.0
    epochs: Epochs = 1
    minibatches: Annotated[
        int,
        Setting(
            "Parts of the batch in each epoch, one optimiser step each. They are made of whole trajectories, so there are at "
            "most as many.",
            "a whole number of minibatches from 1 to 65536",
            1,
            65536,
        ),
    ] = 1
    normalise_advantages: Normalise = False
    kl_weight: Annotated[
        float,
        Setting(
            "Weight at the start of the penalty on the divergence from the target network; 0: none.", "a weight >= 0", 0, 1e6
        ),
    ] = 0.0
    target_kl: Annotated[
        float,
        Setting(
            "Divergence from the target network, in nats, that the weight of the penalty follows.",
            "a divergence > 0",
            1e-9,
            1e9,
        ),
    ] = 0.04
    target_update_period: Annotated[
        int,
        Setting(
            "Updates between two copies into the target network; 0: 2 times slots times uses of a circular replay, or 32.",
            "a whole number of updates from 0 to 1000000000",
            0,
            1e9,
        ),
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        last_clip(self.clip, self.clip_end_value)
        if self.kl_weight and self.target_update_period == self.epochs == self.minibatches == 1:
            raise ValueError(
                "target_update_period: wanted 0 or at least 2 updates with kl_weight and one step an update, because there is "
                "no divergence from a copy of the newest weights; got 1"
            )

    @property
    def last_clip(self) -> float:
        """The clip at the end of the run."""
        return last_clip(self.clip, self.clip_end_value)


class Columns(NamedTuple):
    """The part of an update that one step learns from.

    Args:
        batch: b whole columns, with scaled rewards and without rows of burn-in. Its observations may be missing.
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


class Estimates(NamedTuple):
    """An agent's ratios, advantages and value targets for a minibatch, `[T, b]` each.

    log_ratios: log R_t of the surrogate, with gradient. advantages: A_t, constants. targets: G_t, constants.
    metrics: further numbers, means over the used steps.
    """

    log_ratios: Tensor
    advantages: Tensor
    targets: Tensor
    metrics: Mapping[str, Tensor]


class AsynchronousAgent(ActorCriticAgent):
    """A clipped surrogate on trajectories of older policies. Subclasses say what the ratio and the advantages are.

    has_target: whether there is a target network without a KL penalty too.
    """

    config_class = AsynchronousConfig
    charts = CHARTS
    several_steps = True
    has_target = False

    config: AsynchronousConfig

    def __init__(self, config: AsynchronousConfig, network: ActorCritic, *arguments: Any, **options: Any) -> None:
        super().__init__(config, network, *arguments, **options)
        needs_target = self.has_target or config.kl_weight > 0
        period = max(1, config.target_update_period)
        self.target = TargetPolicy(network, period, self.passes.threads) if needs_target else None
        device = next(network.parameters()).device
        self.kl_weight = torch.full((), config.kl_weight, dtype=torch.float64, device=device)

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(fresh=True)

    @abstractmethod
    def estimates(self, batch: Batch, log_probs: LogProbs, values: Tensor) -> Estimates:
        """The ratios, advantages and value targets of a minibatch. values: `[T+1, b]` of the current network, constants."""

    def calibrate(self, observations: Tensor) -> None:
        super().calibrate(observations)
        if self.target:
            self.target.reset()

    @property
    def can_be_graphed(self) -> bool:
        """Not with minibatches, whose columns the host draws, nor with a clip that changes, which is a number of the host."""
        constant = self.config.minibatches == 1 and self.config.clip == self.config.last_clip
        return super().can_be_graphed and constant

    def before_update(self, progress: float) -> None:
        self._clip = linear_schedule(self.config.clip, self.config.last_clip, progress)

    def take_steps(self, batch: Batch) -> Outcome:
        config = self.config
        inputs = self.finite_inputs(batch)
        learned = self.scaled(batch.without_overlap())
        # The target network's policy is computed once, since no step of this update changes it.
        target_policy = self.target.policy(batch) if self.target else None
        # The loss reads outputs instead of observations, so those of a minibatch are copied once, for the forward pass.
        all_columns = Columns(replace(learned, observations=learned.observations[:0]), target_policy, self._clip)
        steps, scalars = [], []
        most = config.epochs * min(config.minibatches, batch.action_used.shape[1])
        for chosen in self.peers.turns(self._minibatches(batch), most):
            if chosen is None:  # other learners have a minibatch
                steps.append(self.absent_step(inputs))
                continue
            whole, part = (batch, all_columns) if chosen is ALL else (batch.take_columns(chosen), _taken(all_columns, chosen))
            leaves, outputs = self._forward(whole)
            terms, metrics = self.losses(part, outputs)
            steps.append(self.take_step(terms, leaves, inputs, part.batch.action_used))
            scalars.append({**per_step(terms, 1), **metrics})
        sound, means = torch.stack([step.sound for step in steps]).any(), means_of_steps(scalars)
        if self.target:
            copied = self.target.end_update(sound)
            if config.kl_weight:
                divergence = self.peers.mean(means["losses/target_kl"], learned.action_used)
                # The divergence counts just before a copy, since just after one it is 0.
                following = next_kl_weight(self.kl_weight, divergence, config.target_kl)
                self.kl_weight.copy_(torch.where(copied, following, self.kl_weight))
        # Moments come last, so that all steps see the inputs scaled as acting did.
        self.merge_moments(learned, sound)
        norms = torch.stack([step.gradient_norm for step in steps])
        return Outcome({**means, **self.gradient_metrics(norms)}, sound)

    def losses(self, batch: Columns, outputs: PolicyOutput) -> Losses:
        """The loss of a minibatch. outputs: for all T+1 rows, `[T+1, b, ...]` each."""
        config, distribution, part = self.config, self.network.distribution, batch.batch
        # Row T has an observation and a value to bootstrap from, but no action.
        policy, values, used = outputs.policy[:-1], outputs.values[:-1], part.action_used
        log_probs = self._log_probs(batch, policy)
        # Advantages and targets are constants of this step; V-trace corrects them for the present policy.
        found = self.estimates(part, log_probs, outputs.values.detach())
        advantages = normalised(found.advantages, used) if config.normalise_advantages else found.advantages
        bounds = ratio_bounds(advantages, batch.clip)
        objective = surrogate(found.log_ratios, advantages, bounds)
        entropy = used_mean(distribution.entropy(policy), used)
        terms = {
            "policy_loss": Loss(-used_mean(objective, used), 1.0, "mean"),
            "value_loss": Loss(0.5 * used_mean((found.targets - values).square(), used), config.value_loss_weight, "mean"),
            "entropy_loss": Loss(-entropy, config.entropy_loss_weight, "mean"),
        }
        metrics = {"losses/entropy": entropy.detach(), **found.metrics}
        if batch.target_policy is not None:
            compared = policy if config.kl_weight else policy.detach()
            divergence = used_mean(distribution.kl(batch.target_policy, compared), used)
            metrics["losses/target_kl"] = divergence.detach()
            if config.kl_weight:
                metrics["losses/kl_weight"] = self.kl_weight.clone()
                terms["kl_loss"] = Loss(divergence, self.kl_weight.to(divergence.dtype), "mean")
        excess = distribution.excess(policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Loss(used_mean(excess, used), config.action_bound_loss_weight, "mean")
        metrics |= self._metrics(batch, log_probs, found, bounds, values.detach())
        return Losses(terms, metrics)

    def _metrics(
        self, batch: Columns, log_probs: LogProbs, found: Estimates, bounds: RatioBounds, values: Tensor
    ) -> dict[str, Tensor]:
        """Return metrics of the distance of the policies, of what the clipping removes, and of the values `[T, b]`."""
        part, used, log_ratios = batch.batch, batch.batch.action_used, found.log_ratios.detach()
        log_rhos = (log_probs.policy - log_probs.behaviour).detach()
        effective = replay_metrics(part, used, log_rhos, torch.ones_like(used), self.replay_names)
        return {
            "losses/approx_kl": used_mean(approx_kl(log_rhos), used),
            "losses/clip_fraction": used_mean(clip_fraction(log_ratios, batch.clip), used),
            "losses/zero_gradient_fraction": used_mean(zero_gradient_fraction(log_ratios, bounds), used),
            **value_metrics(values, found.targets, used),
            **{name: value for name, value in effective.items() if name.endswith("effective_sample_size")},
        }

    def _log_probs(self, batch: Columns, policy: Tensor) -> LogProbs:
        part, distribution = batch.batch, self.network.distribution
        drawn = drawn_actions(part.actions, part.acting)

        def of(parameters: Tensor) -> Tensor:
            # `where` before any exp: inf * 0 would destroy the gradient of the whole batch.
            return torch.where(part.action_used, distribution.log_prob(parameters, drawn), 0.0)

        target = None if batch.target_policy is None else of(batch.target_policy)
        return LogProbs(of(policy), of(part.acting["behaviour_policy"]), target)

    def _minibatches(self, batch: Batch) -> Iterator[Tensor]:
        """The columns of each minibatch of all epochs, int64 `[b]`, or `ALL`. Columns without a used step are left out."""
        parts = self.config.minibatches
        members = batch.action_used[batch.overlap :].any(0).nonzero().squeeze(-1) if parts > 1 else ()
        for _ in range(self.config.epochs):
            yield from cut(shuffled(members), parts) if isinstance(members, Tensor) and len(members) else (ALL,)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "modules": {**state["modules"], **({TARGET: self.target.state_dict()} if self.target else {})}}

    def own_numbers(self) -> dict[str, dict[str, Tensor]]:
        weight = {KL_WEIGHT: {"weight": self.kl_weight}} if self.config.kl_weight else {}
        return {**super().own_numbers(), **({TARGET: self.target.own_numbers()} if self.target else {}), **weight}

    def check_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        super().check_state_dict(state, load_optimizer=load_optimizer)
        if self.target and TARGET in state["modules"]:
            self.target.check(state["modules"][TARGET])

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        super().load_state_dict(state, load_optimizer=load_optimizer)
        numbers = state.get("numbers", {})
        if self.target and TARGET in state["modules"] and TARGET in numbers:
            self.target.load(state["modules"][TARGET], numbers[TARGET])
        elif self.target:  # the run before had none
            self.target.reset()
        if self.config.kl_weight and KL_WEIGHT in numbers:
            self.kl_weight = numbers[KL_WEIGHT]["weight"].to(self.kl_weight.device, copy=True)


def rewards_and_discounts(batch: Batch, config: AsynchronousConfig) -> tuple[Tensor, Tensor]:
    """Clipped rewards and d_t, `[T, B]` each."""
    # Only a termination has no future. After a time limit the value of the final observation follows, in the next row.
    return clip_rewards(batch.rewards, config.reward_clipping), config.gamma * (~batch.terminated).to(batch.rewards.dtype)


def vtrace_of(batch: Batch, log_rhos: Tensor, values: Tensor, config: AsynchronousConfig) -> VTraceReturns:
    """V-trace with all clips at 1. Rows whose action was ignored, such as autoreset rows, are masked.

    log_rhos: `[T, B]`, 0 where a step is masked. values: `[T+1, B]`, constants; the last row bootstraps.
    """
    rewards, discounts = rewards_and_discounts(batch, config)
    return vtrace(
        log_rhos=log_rhos,
        discounts=discounts,
        rewards=rewards,
        values=values[:-1],
        bootstrap_value=values[-1],
        lambda_=config.vtrace_lambda,
        mask=batch.action_used,
    )


def _taken(part: Columns, columns: Tensor) -> Columns:
    target = None if part.target_policy is None else part.target_policy.index_select(1, columns)
    return Columns(part.batch.take_columns(columns), target, part.clip)
