"""DQN (Mnih et al. 2015, doi:10.1038/nature14236) and its extensions up to Rainbow and Ape-X, on windows of replayed steps.

Switches: double and dueling networks, windows of n steps, distributions of returns (C51, QR-DQN, IQN), HL-Gauss, noisy layers,
Ape-X's ladder of epsilons, and Munchausen targets. Prioritised replay is a replay kind, whose importance weights multiply the
losses. `agents/values` holds the formulas and their sources.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from agents.base import Agent, Needs
from agents.dqn.config import DqnConfig
from agents.dqn.errors import (
    ERRORS,
    NStepTransitions,
    categorical_targets,
    clipped_share,
    expected_targets,
    histogram_targets,
    quantile_targets,
)
from agents.engine.stepper import Stepper
from agents.engine.targets import TargetNetwork
from agents.losses import Losses, Term
from agents.networks.base import NetworkConfig
from agents.networks.cores import NO_CORE
from agents.networks.q_network import (
    C51,
    HL_GAUSS,
    IMPLICIT,
    NO_DISTRIBUTION,
    Output,
    QNetwork,
    QOutput,
    as_choices,
    choice_counts,
    chosen_values,
)
from agents.returns.nstep import DEFAULTS, Transitions, needs_of_windows, transitions
from agents.unused_settings import OF_CORES, OF_POLICIES
from agents.values.acting import CHARTS, TARGET, VALUE_MEANING, check_choices, epsilon_metrics, move_epsilon, stored_errors
from agents.values.q_learning import munchausen_targets, weighted_mean
from replay.batch import Batch, InitialErrors


class DqnAgent(Agent):
    """Q-learning on windows. Each of the batches that are drawn at once gives one optimiser step."""

    config_class = DqnConfig
    network_class = QNetwork
    tuned = ("lr", "gamma", "n_step", "updates_per_step")
    compiles = False  # compiled networks took longer
    several_steps = True
    charts = CHARTS
    defaults = {**DEFAULTS, "batch_size": 32}
    unused = (*OF_POLICIES, *OF_CORES)

    config: DqnConfig
    network: QNetwork

    def __init__(self, config: DqnConfig, network: QNetwork, *arguments: Any, **options: Any) -> None:
        self.target = TargetNetwork(network, config.target_update_period, config.target_update_rate)
        super().__init__(config, network, *arguments, target_networks={TARGET: self.target}, steps_some=True, **options)

    @classmethod
    def needs(cls, config: DqnConfig) -> Needs:
        return needs_of_windows(config)

    @classmethod
    def check(cls, config: DqnConfig, network: NetworkConfig) -> None:
        check_choices(network, cls.name())
        if network.settings.core != NO_CORE:
            raise ValueError(f"core: wanted {NO_CORE} with agent dqn, got {network.settings.core}; --agent=r2d2 has a memory")
        if len(choice_counts(network.action)) == 1:
            return
        if config.return_distribution != NO_DISTRIBUTION:
            wanted = f"{NO_DISTRIBUTION} for {network.action.summary()}"
            raise ValueError(f"return_distribution: wanted {wanted}, got {config.return_distribution}")
        if config.munchausen:
            raise ValueError(f"munchausen: wanted false for {network.action.summary()}, got true")

    @classmethod
    def initial_errors(cls, config: DqnConfig, network: NetworkConfig) -> InitialErrors | None:
        """Temporal differences of the values that acting has stored.

        None if these do not determine the errors: C51's are divergences and IQN's are of all quantiles, Munchausen targets
        contain a log-probability, and acting does not know the scale of normalised rewards.
        """
        if config.return_distribution in (C51, IMPLICIT) or config.normalise_rewards or config.munchausen:
            return None
        # Acting stores means over the components, whose errors may cancel; later priorities are means of the errors.
        if len(choice_counts(network.action)) > 1:
            return None
        return lambda trajectory: stored_errors(trajectory, config).squeeze(1).numpy()

    @classmethod
    def graphed(cls, config: DqnConfig) -> Literal["update"]:
        return "update"

    @classmethod
    def value_meaning(cls, config: DqnConfig) -> str:
        return VALUE_MEANING

    def update(self, batch: Batch, step: Stepper) -> None:
        for part in transitions(batch, self.config.gamma).split(self.config.batches_at_once):
            # The targets y [N], quantiles [N, K] or probabilities [N, K] are constants of the step.
            targets = self._targets(part, step)
            step.take_rows(self.losses, part, targets, *self._fractions(part, self.config.fractions).values())
        move_epsilon(self.config, self.network, step)

    def losses(self, part: Transitions, targets: Tensor, fractions: Tensor | None = None) -> Losses:
        """The losses of N transitions, as means over them. Only this pass of the network has a gradient.

        fractions: `[N, K]`, of IQN.
        """
        network, choices = self.network, self._choices(part)
        online: Output = network(part.observations, fractions=fractions)  # q [N, P], atoms [N, P, K]
        errors = ERRORS[self.config.return_distribution](online, targets, choices, network.counts)  # losses and sizes [N]
        metrics = {
            "losses/td_error": errors.sizes.mean(),
            "losses/value_mean": chosen_values(online.q.detach(), choices, network.counts).mean(),
            **epsilon_metrics(self.config, network),
        }
        if self.config.return_distribution == HL_GAUSS:
            metrics["losses/clipped_targets"] = clipped_share(targets, network.get_buffer("edges"))
        return Losses({"value_loss": Term(weighted_mean(errors.losses, part.weights))}, metrics, errors.sizes)

    def _targets(self, part: Transitions, step: Stepper) -> Tensor:
        """The targets of N transitions, without gradient."""
        config, lagged, kind = self.config, self.target.network, self.config.return_distribution
        steps = NStepTransitions(self._choices(part), part.returns, part.discounts)  # actions [N, D], G and discounts [N]
        lagged.draw_noise()
        # IQN: the first fractions make the targets. Those behind them only select the action, if this network selects.
        selects = 0 if config.double else config.acting_fractions
        target = self._outputs(part, step, lagged, config.target_fractions + selects)  # Q'(x', .), [N, P]
        selecting = target  # plain DQN: the target network selects as well
        if config.double:
            # The learned network selects the action and the target network values it, so their errors do not add up.
            self.network.draw_noise()
            selecting = self._outputs(part, step, self.network, config.acting_fractions)  # Q(x', .), [N, P]
        now: Output | None = None
        if config.munchausen:
            lagged.draw_noise()
            now = self._outputs(part, step, lagged, config.acting_fractions, following=False)  # Q'(x_t, .) [N, P]
        # The online network draws last, because the pass with gradient in `losses` uses this noise.
        self.network.draw_noise()
        if kind == C51:
            return categorical_targets(steps, target, selecting, self.network.get_buffer("support"))
        quantiles: Tensor | None = None if isinstance(target, QOutput) or kind == HL_GAUSS else target.atoms  # [N, P, K]
        if kind == IMPLICIT and quantiles is not None:
            quantiles = quantiles[..., : config.target_fractions]
        if now is None and quantiles is not None:
            return quantile_targets(steps, quantiles, selecting)
        if now is None:
            targets = expected_targets(steps, target, selecting, self.network.counts)
        else:
            targets = munchausen_targets(
                steps.returns,
                steps.discounts,
                steps.choices.squeeze(-1),
                now.q,  # [N, A]
                target.q,  # [N, A]
                temperature=config.munchausen_temperature,
                weight=config.munchausen_weight,
                lowest=config.munchausen_lowest,
                next_quantiles=quantiles,
            )
        return histogram_targets(targets, self.network.get_buffer("edges")) if kind == HL_GAUSS else targets

    def _outputs(
        self, part: Transitions, step: Stepper, network: QNetwork, fractions: int, *, following: bool = True
    ) -> Output:
        """A network's outputs at x' (or x_t, if not `following`) without gradient. fractions: K of IQN."""
        observations = part.next_observations if following else part.observations
        output: Output = step.passes.without_gradient(observations, network=network, **self._fractions(part, fractions))
        return output

    def _fractions(self, part: Transitions, count: int) -> dict[str, Tensor]:
        """IQN: fractions `[N, count]`, drawn for each transition and each pass. Nothing for other values."""
        if self.config.return_distribution != IMPLICIT:
            return {}
        return {"fractions": torch.rand(len(part.returns), count, device=part.returns.device)}

    def _choices(self, part: Transitions) -> Tensor:
        """The actions taken, int64 `[N, D]`."""
        return as_choices(part.actions, self.network.config.action)
