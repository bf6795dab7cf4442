"""Trust region policy optimisation (Schulman et al. 2015, arXiv:1502.05477): one natural-gradient step on each fresh batch.

The policy's step maximises, within mean KL(pi_old || pi) <= delta,

    L = mean R_t A_t + c_e mean H(pi(.|x_t)),   R_t = pi(a_t|x_t) / pi_old(a_t|x_t)

with c_e = 0 by default. Then the values are fitted to their targets by Adam, in several epochs of minibatches. Policy and value
share no weights: the second part would otherwise move the policy out of the region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.losses import Term, used_mean
from agents.metrics import ACTOR_CRITIC_CHARTS
from agents.networks.actor_critic import ActorCritic, PolicyOutput
from agents.networks.base import NetworkConfig
from agents.ppo.agent import value_loss
from agents.ppo.minibatch import Clipping, Rows, epochs_of, most_minibatches, rows_of, takes_columns
from agents.returns.advantages import normalised
from agents.settings import (
    ActionBoundWeight,
    AgentConfig,
    ClipRewards,
    EntropyWeight,
    Epochs,
    Gamma,
    GradientClip,
    Lambda,
    LastEntropyWeight,
    LastLearningRate,
    LearningRate,
    Minibatches,
    MinibatchUnit,
    NormaliseRewards,
    OptimizerName,
    PopArtRate,
    PopArtSwitch,
    RewardClipping,
    RmspropEpsilon,
    ValueWeight,
)
from agents.surrogate import LARGEST_LOG_RATIO
from agents.trpo.region import LineSearchResult, TrustRegion, line_search, natural_step
from replay.batch import Batch
from setting import Log, Setting

CHARTS = {
    **ACTOR_CRITIC_CHARTS,
    "divergence from the policy before, nats": [r"losses/kl$"],
    "steps tried by the line search": [r"trpo/steps_tried$"],
}

NUMBERS_AT_ONCE = 16_000_000
"""Numbers of observations that the policy's step takes at once: 64 MB as float32, 566 stacks of Atari frames."""


@dataclass(frozen=True)
class TRPOConfig(AgentConfig):
    """Settings of TRPO. The learning rate, the optimiser, the epochs and the minibatches are those of the values."""

    separates_cores: ClassVar[bool] = True  # policy and value share no weight

    lr: LearningRate = 1e-3
    lr_end_value: LastLearningRate = 0.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-8
    gradient_clip_by_norm_threshold: GradientClip = 40.0
    gamma: Gamma = 0.99
    gae_lambda: Lambda = 0.95
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    popart: PopArtSwitch = False
    popart_rate: PopArtRate = 3e-4
    value_loss_weight: ValueWeight = 0.5
    entropy_loss_weight: EntropyWeight = 0.0
    entropy_loss_weight_end: LastEntropyWeight = -1.0
    action_bound_loss_weight: ActionBoundWeight = 0.0
    epochs: Epochs = 10
    minibatches: Minibatches = 16
    minibatch_unit: MinibatchUnit = "auto"
    max_kl: Annotated[
        float,
        Setting(
            "Largest mean divergence of the new policy from the one before (delta), in nats.",
            "a number in (0, 10]",
            1e-9,
            10,
            search=Log(1e-3, 0.1),
        ),
    ] = 0.01
    cg_iterations: Annotated[
        int,
        Setting(
            "Most iterations of conjugate gradients, each a product with the Fisher matrix.",
            "a whole number from 1 to 1000",
            1,
            1000,
        ),
    ] = 10
    cg_damping: Annotated[
        float, Setting("Multiple of the identity that is added to the Fisher matrix.", "a number from 1e-6 to 1000", 1e-6, 1e3)
    ] = 0.1
    backtrack_coefficient: Annotated[
        float,
        Setting("Factor by which the line search shortens the step each time.", "a number from 0.01 to 0.99", 0.01, 0.99),
    ] = 0.8
    max_backtracks: Annotated[
        int,
        Setting(
            "Steps that the line search tries. The policy stays as it is if none is good.",
            "a whole number from 1 to 1000",
            1,
            1000,
        ),
    ] = 10


class TRPOAgent(Agent):
    """TRPO: a step of the policy within its trust region, then a fit of the values."""

    config_class = TRPOConfig
    network_class = ActorCritic
    tuned = ("max_kl", "lr", "gamma", "gae_lambda")
    charts = CHARTS
    compiles = False  # torch.compile has no second derivatives
    exact = True
    several_steps = True
    defaults: ClassVar[Mapping[str, Any]] = {"separate_value": True, "unroll_length": 64}
    unused = ("separate_value",)

    config: TRPOConfig
    network: ActorCritic

    def __init__(self, config: TRPOConfig, network: ActorCritic, *arguments: Any, **options: Any) -> None:
        self._columns = takes_columns(config, network.config.settings)
        # The optimiser steps the values alone; the policy moves without it.
        values = network.alone("values")
        super().__init__(config, network, *arguments, learned=values, steps_some=True, **options)

    @classmethod
    def needs(cls, config: TRPOConfig) -> Needs:
        return Needs(on_policy=True)

    @classmethod
    def scales_rewards(cls, settings: Mapping[str, Any]) -> bool:
        return True

    @classmethod
    def check(cls, config: TRPOConfig, network: NetworkConfig) -> None:
        takes_columns(config, network.settings)
        if not network.settings.separate_value:
            raise ValueError("separate_value: wanted true with agent trpo, whose values must not move the policy, got false")

    def update(self, batch: Batch, step: Stepper) -> None:
        # A_t and G_t are those of the values before the update, for both parts of it.
        rows, metrics = rows_of(batch, step.without_gradient(batch), self.network, self.config, step)
        step.note(metrics)
        self._improve_policy(rows, batch, step)
        self._fit_values(rows, batch, step)

    def _improve_policy(self, rows: Rows, batch: Batch, step: Stepper) -> None:
        """Take the policy's step."""
        used = batch.action_used
        # Over the whole batch, because one step is taken on all of it.
        rows = rows._replace(advantages=normalised(rows.advantages, used, step.collectives))
        region = TrustRegion(
            self.network.policy_parameters,
            lambda columns: self._policy(batch, columns),
            self.network.distribution,
            lambda policy, old, columns: self._objective(policy, old, rows, columns),
            used,
            step.collectives,
            step.inputs,
            parts=-(-batch.observations.numel() // NUMBERS_AT_ONCE),  # rounded up
        )
        for weights in self.network.parameters():
            weights.grad = None  # the optimiser has no part in this step, so the guard must count none of its steps
        searches: list[LineSearchResult] = []
        # Gradient and objective are checked first. A refused step leaves the policy, and the values are fitted all the same.
        step.apply(region.numbers, lambda: searches.append(self._search(region)))
        step.note(self._metrics(region, rows, used, searches))

    def _search(self, region: TrustRegion) -> LineSearchResult:
        """Move the policy to the first good step, or leave it where it is."""
        config = self.config
        if not region.gradient.any():  # no step is used, or all advantages are equal
            return LineSearchResult(False, 0)
        step = natural_step(
            lambda vector: region.product(vector) + config.cg_damping * vector,  # (F + c I) v
            region.gradient,
            config.max_kl,
            config.cg_iterations,
        )

        def measure(fraction: float) -> tuple[float, float]:
            region.move(fraction * step)  # theta_old + coefficient^j s
            return region.measure()

        found = line_search(measure, config.max_kl, config.backtrack_coefficient, config.max_backtracks)
        if not found.accepted:
            region.move(torch.zeros_like(step))  # the last candidate is still in the weights
        return found

    def _objective(self, policy: Tensor, old: Tensor, rows: Rows, columns: slice) -> Tensor:
        """The terms of L for each step of some columns, `[T, b]`, of policies `[T, b, P]` and those before the step."""
        config, distribution, drawn = self.config, self.network.distribution, rows.drawn[:, columns]
        log_ratios = distribution.log_prob(policy, drawn) - distribution.log_prob(old, drawn)  # [T, b]
        # The clamp keeps exp finite, also in unused rows, which the region leaves out of the mean.
        ratios = log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
        objective = ratios * rows.advantages[:, columns]  # R_t A_t [T, b]
        if config.entropy_loss_weight:
            objective = objective + self.stepper.entropy_weight.now * distribution.entropy(policy)
        excess = distribution.excess(policy) if config.action_bound_loss_weight else None
        return objective if excess is None else objective - config.action_bound_loss_weight * excess

    def _policy(self, batch: Batch, columns: slice) -> Tensor:
        """The policies of rows 0 to T-1 of some columns, `[T, b, P]`, with gradient."""
        network = self.network.alone("policy")
        observations = batch.observations[:-1, columns]  # [T, b, S, *F]
        if batch.recurrent_state is not None:
            outputs: PolicyOutput = network(observations, batch.recurrent_state[columns], batch.reset[:-1, columns])
            return outputs.policy
        policy: Tensor = network(observations.flatten(0, 1)).policy.unflatten(0, observations.shape[:2])
        return policy

    @torch.no_grad()
    def _metrics(self, region: TrustRegion, rows: Rows, used: Tensor, searches: list[LineSearchResult]) -> dict[str, Tensor]:
        """Metrics of the policy's step. searches: its line search; empty if the step was refused."""
        distribution = self.network.distribution
        errors = (distribution.log_prob(region.old, rows.drawn) - rows.log_mu).expm1().abs()  # |R - 1| [T, B]
        metrics = {
            "losses/entropy": used_mean(distribution.entropy(region.old), used),
            # 0 but for rounding: another number means that acting and learning compute different policies.
            "losses/first_ratio_error": torch.where(used, errors, 0.0).max(),
        }
        for found in searches:
            numbers = {
                "losses/surrogate_gain": found.gain,
                "losses/kl": found.divergence,
                "trpo/steps_tried": found.tried,
                "trpo/step_accepted": found.accepted,
            }
            metrics |= {name: torch.full((), float(number), device=used.device) for name, number in numbers.items()}
        return metrics

    def _fit_values(self, rows: Rows, batch: Batch, step: Stepper) -> None:
        """Take the values' steps.

        Their loss has no gradient in the policy's head, so the optimiser leaves the policy as it is, to the bit.
        """
        config = self.config
        most = most_minibatches(batch, config.minibatches, columns=self._columns)
        # The values' loss reads no advantages and no bounds.
        epochs = epochs_of(rows, batch, config.minibatches, "none", Clipping(None, None), columns=self._columns)
        for _ in range(config.epochs):
            for minibatch in step.turns(next(epochs), most):
                outputs: PolicyOutput = step.forward(minibatch)
                tasks = self.network.task_of(minibatch.rows.observations)
                values = step.units.normalised(outputs.values, tasks)  # as the rows' targets are
                loss = value_loss(values, minibatch.rows.targets, minibatch.mask)  # mean (G - V)^2 / 2
                step.take({"value_loss": Term(loss, config.value_loss_weight)}, {}, used=minibatch.used)
