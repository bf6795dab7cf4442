"""DQN (Mnih et al. 2015, doi:10.1038/nature14236) and its extensions up to Rainbow and Ape-X, on windows of replayed steps.

Switches: double and dueling networks, windows of n steps, distributions of returns (C51, QR-DQN), noisy layers, Ape-X's ladder
of epsilons, and Munchausen targets. Prioritised replay is a replay kind, whose importance weights multiply the losses.
`agents/values` holds the formulas and their sources.
"""

from __future__ import annotations

from torch import Tensor

from agents.dqn.config import DqnConfig
from agents.dqn.errors import ERRORS, Output, Window, categorical_targets, expected_targets, quantile_targets
from agents.networks.base import NetworkConfig
from agents.networks.cores import NO_CORE
from agents.networks.q_network import C51, NO_DISTRIBUTION, QUANTILES, as_choices, choice_counts, chosen_values
from agents.off_policy import (
    DEFAULTS,
    Objective,
    Objectives,
    OffPolicyAgent,
)
from agents.transitions import Transitions
from agents.unused_settings import OF_CORES
from agents.values.agent import ValueAgent, stored_errors
from agents.values.q_learning import munchausen_targets, weighted_mean
from replay.batch import InitialErrors


class DqnAgent(ValueAgent, OffPolicyAgent):
    """Q-learning on windows. Each of the batches that are drawn at once gives one optimiser step."""

    config_class = DqnConfig
    graphed = True
    defaults = {**DEFAULTS, "batch_size": 32}
    unused = (*ValueAgent.unused, *OF_CORES)

    config: DqnConfig

    @classmethod
    def check(cls, config: DqnConfig, network: NetworkConfig) -> None:
        super().check(config, network)
        if network.settings.core != NO_CORE:
            raise ValueError(f"core: wanted {NO_CORE} with agent dqn, got {network.settings.core}; --agent=r2d2 has a memory")
        if len(choice_counts(network.action)) == 1:
            return
        if config.distributional != NO_DISTRIBUTION:
            raise ValueError(
                f"distributional: wanted {NO_DISTRIBUTION} for {network.action.summary()}, got {config.distributional}"
            )
        if config.munchausen:
            raise ValueError(f"munchausen: wanted false for {network.action.summary()}, got true")

    @classmethod
    def initial_errors(cls, config: DqnConfig, network: NetworkConfig) -> InitialErrors | None:
        """Temporal differences of the values that acting has stored.

        None if these do not determine the errors: C51's are divergences, Munchausen targets contain a log-probability, and
        acting does not know the scale of normalised rewards.
        """
        if config.distributional == C51 or config.normalise_rewards or config.munchausen:
            return None
        # Acting stores means over the components, whose errors may cancel; later priorities are means of the errors.
        if len(choice_counts(network.action)) > 1:
            return None
        return lambda trajectory: stored_errors(trajectory, config).squeeze(1).numpy()

    def constants(self, part: Transitions) -> tuple[Tensor, ...]:
        """The targets of the rows: values y `[N]`, quantiles `[N, K]`, or probabilities of the atoms `[N, K]`."""
        window = Window(self._choices(part), part.returns, part.discounts)
        target, selecting = self._following(part.next_observations)
        # The online network draws last, because the pass with gradient in `objectives` uses this noise.
        now = self._of_target(part.observations) if self.config.munchausen else None
        self.network.draw_noise()
        return (self._targets(window, target, selecting, now),)

    def objectives(self, part: Transitions, constants: tuple[Tensor, ...]) -> Objectives:
        # Only this pass has a gradient; the targets came from `constants`.
        online: Output = self.network(part.observations)
        choices = self._choices(part)
        errors = ERRORS[self.config.distributional](online, constants[0], choices, self.network.counts)
        loss = Objective(weighted_mean(errors.losses, part.weights), self._parameters)
        metrics = {
            "losses/td_error": errors.sizes.mean(),
            "losses/value_mean": chosen_values(online.q.detach(), choices, self.network.counts).mean(),
            **self.acting_metrics(),
        }
        return Objectives({"value_loss": loss}, metrics, errors.sizes)

    def _following(self, observations: Tensor) -> tuple[Output, Output]:
        """Outputs at the next observations: of the target network, and of the network that selects the actions."""
        target = self._of_target(observations)
        if not self.config.double:
            return target, target
        self.network.draw_noise()
        # Double: the learned network selects the action and the target network values it, so their errors do not add up.
        selecting: Output = self.passes.without_gradient(observations)
        return target, selecting

    def _of_target(self, observations: Tensor) -> Output:
        self.target.network.draw_noise()
        output: Output = self.target_passes.without_gradient(observations)
        return output

    def _targets(self, window: Window, target: Output, selecting: Output, now: Output | None) -> Tensor:
        """now: outputs of the target network at x_t, for Munchausen targets; otherwise None."""
        config = self.config
        if config.distributional == C51:
            return categorical_targets(window, target, selecting, self.network.get_buffer("support"))
        if config.distributional == QUANTILES:
            return quantile_targets(window, target, selecting)
        if now is None:
            return expected_targets(window, target, selecting, self.network.counts)
        return munchausen_targets(
            window.returns,
            window.discounts,
            window.choices.squeeze(-1),
            now.q,
            target.q,
            temperature=config.munchausen_temperature,
            weight=config.munchausen_weight,
            lowest=config.munchausen_lowest,
        )

    def _choices(self, part: Transitions) -> Tensor:
        """The actions taken, int64 `[N, D]`."""
        return as_choices(part.actions, self.network.config.action)
