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
from torch import Tensor, nn

from agents.actor_critic import CHARTS as SHARED_CHARTS
from agents.base import Updated
from agents.guarded import LearningRate, OptimizerName, Step
from agents.learned import Loss, Losses
from agents.losses import used_mean
from agents.minibatches import Epochs
from agents.networks.actor_critic import PolicyOutput, SeparateActorCritic
from agents.networks.base import NetworkConfig
from agents.ppo.epochs import EpochsAgent, EpochsConfig, Minibatches, value_loss
from agents.ppo.minibatch import Clipping, Minibatch, Rows
from agents.returns.advantages import normalised
from agents.surrogate import LARGEST_LOG_RATIO
from agents.trpo.region import Found, TrustRegion, line_search, natural_step
from replay.batch import Batch
from setting import Setting

CHARTS = {
    **SHARED_CHARTS,
    "divergence from the policy before, nats": [r"losses/kl$"],
    "steps tried by the line search": [r"trpo/steps_tried$"],
}

NUMBERS_AT_ONCE = 16_000_000
"""Numbers of observations that the policy's step takes at once: 64 MB as float32, 566 stacks of Atari frames."""


@dataclass(frozen=True)
class TRPOConfig(EpochsConfig):
    """Settings of TRPO. The learning rate, the optimiser, the epochs and the minibatches are those of the values."""

    lr: LearningRate = 1e-3
    optimizer: OptimizerName = "adam"
    epochs: Epochs = 10
    minibatches: Minibatches = 16
    max_kl: Annotated[
        float,
        Setting(
            "Largest mean divergence of the new policy from the one before (delta), in nats.", "a number in (0, 10]", 1e-9, 10
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


class TRPOAgent(EpochsAgent):
    """TRPO: a step of the policy within its trust region, then a fit of the values."""

    config_class = TRPOConfig
    network_class = SeparateActorCritic
    charts = CHARTS
    compiles = False  # torch.compile has no second derivatives
    exact = True
    steps_some = True  # the policy moves without the optimiser
    defaults: ClassVar[Mapping[str, Any]] = {"separate_value": True, "unroll_length": 64}
    unused = ("separate_value",)

    config: TRPOConfig
    network: SeparateActorCritic

    def passed_network(self) -> nn.Module:
        return self.network.alone("values")

    @classmethod
    def check(cls, config: Any, network: NetworkConfig) -> None:
        super().check(config, network)
        if not network.settings.separate_value:
            raise ValueError("separate_value: wanted true with agent trpo, whose values must not move the policy, got false")

    def update(self, batch: Batch, progress: float) -> Updated:
        inputs = self.finite_inputs(batch)
        learned = self.scaled(batch)
        learning_rate = self.set_learning_rate(progress)
        rows, metrics = self.rows(learned)
        sound, of_policy = self._improve_policy(rows, learned, inputs)
        steps, value_losses = self._fit_values(rows, learned, inputs)
        self.end_update()
        self.merge_moments(learned, torch.stack([sound, *(step.sound for step in steps)]).any())
        scalars = {**metrics, **of_policy}
        if value_losses:
            scalars["losses/value_loss"] = torch.stack(value_losses).mean()
        if steps:
            scalars |= self.gradient_metrics(torch.stack([step.gradient_norm for step in steps]))
        return Updated(scalars, learning_rate, self.guard.steps)

    def losses(self, batch: Minibatch, outputs: PolicyOutput) -> Losses:
        """The loss of the values on a minibatch. outputs: of the minibatch's rows, of their shape."""
        loss = value_loss(outputs.values, batch.rows.targets, batch.mask)
        return Losses({"value_loss": Loss(loss, self.config.value_loss_weight, "mean")}, {})

    def _improve_policy(self, rows: Rows, batch: Batch, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Take the policy's step. Returns whether all numbers of the step were finite, bool `[]`, and metrics."""
        used = batch.action_used
        rows = rows._replace(advantages=normalised(rows.advantages, used, self.peers))
        region = TrustRegion(
            self.network.policy_parameters,
            lambda columns: self._policy(batch, columns),
            self.network.distribution,
            lambda policy, old, columns: self._objective(policy, old, rows, columns),
            used,
            self.peers,
            inputs,
            parts=-(-batch.observations.numel() // NUMBERS_AT_ONCE),
        )
        for weights in self.network.parameters():
            weights.grad = None  # the optimiser has no part in this step, so the guard must count none of its steps
        searches: list[Found] = []
        sound = self.guard.step(region.numbers, lambda: searches.append(self._search(region)), ends_update=False)
        return sound, self._metrics(region, rows, used, searches)

    def _search(self, region: TrustRegion) -> Found:
        """Move the policy to the first good step, or leave it where it is."""
        config = self.config
        if not region.gradient.any():  # no step is used, or all advantages are equal
            return Found(False, 0)
        step = natural_step(
            lambda vector: region.product(vector) + config.cg_damping * vector,
            region.gradient,
            config.max_kl,
            config.cg_iterations,
        )

        def measure(fraction: float) -> tuple[float, float]:
            region.move(fraction * step)
            return region.measure()

        found = line_search(measure, config.max_kl, config.backtrack_coefficient, config.max_backtracks)
        if not found.accepted:
            region.move(torch.zeros_like(step))
        return found

    def _objective(self, policy: Tensor, old: Tensor, rows: Rows, columns: slice) -> Tensor:
        """The terms of L for each step of some columns, `[T, b]`, of policies `[T, b, P]` and those before the step."""
        config, distribution, drawn = self.config, self.network.distribution, rows.drawn[:, columns]
        log_ratios = distribution.log_prob(policy, drawn) - distribution.log_prob(old, drawn)
        # The clamp keeps exp finite, also in unused rows, which the region leaves out of the mean.
        ratios = log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
        objective = ratios * rows.advantages[:, columns]
        if config.entropy_loss_weight:
            objective = objective + config.entropy_loss_weight * distribution.entropy(policy)
        excess = distribution.excess(policy) if config.action_bound_loss_weight else None
        return objective if excess is None else objective - config.action_bound_loss_weight * excess

    def _policy(self, batch: Batch, columns: slice) -> Tensor:
        """The policies of rows 0 to T-1 of some columns, `[T, b, P]`, with gradient."""
        network = self.network.alone("policy")
        observations = batch.observations[:-1, columns]
        if batch.recurrent_state is not None:
            outputs: PolicyOutput = network(observations, batch.recurrent_state[columns], batch.reset[:-1, columns])
            return outputs.policy
        return network(observations.flatten(0, 1)).policy.unflatten(0, observations.shape[:2])

    @torch.no_grad()
    def _metrics(self, region: TrustRegion, rows: Rows, used: Tensor, searches: list[Found]) -> dict[str, Tensor]:
        """Metrics of the policy's step. searches: its line search; empty if the step was refused."""
        distribution = self.network.distribution
        errors = (distribution.log_prob(region.old, rows.drawn) - rows.log_mu).expm1().abs()
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

    def _fit_values(self, rows: Rows, batch: Batch, inputs: Mapping[str, Tensor]) -> tuple[list[Step], list[Tensor]]:
        """Take the values' steps. Returns them, and the losses of this learner's minibatches, `[]` each.

        Their loss has no gradient in the policy's head, so the optimiser leaves the policy as it is, to the bit.
        """
        steps, losses = [], []
        epochs = self.epochs(rows, batch, Clipping(None, None))
        for _ in range(self.config.epochs):
            for minibatch in self.peers.turns(next(epochs), self.most_minibatches(batch)):
                if minibatch is None:  # only other learners have one
                    steps.append(self.absent_step(inputs))
                    continue
                leaves, outputs = self.forward_minibatch(minibatch)
                terms = self.losses(minibatch, outputs).terms
                steps.append(self.take_step(terms, leaves, inputs, minibatch.used))
                losses.append(terms["value_loss"].value.detach())
        return steps, losses
