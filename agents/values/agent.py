"""The common part of value-based agents: the target network, the fall of epsilon, and the actions they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from agents.base import Needs
from agents.networks.base import NetworkConfig
from agents.networks.exploration import SCHEDULE
from agents.networks.q_network import BEHAVIOUR_Q, BEHAVIOUR_Q_MAX, QNetwork, choice_counts
from agents.passes import NetworkPasses
from agents.schedules import linear_schedule
from agents.stepping import SteppingAgent
from agents.target_network import TargetNetwork
from agents.unused_settings import OF_POLICIES
from agents.values.config import ValueConfig
from agents.values.windows import initial_errors

TARGET = "target"
"""Name of the target network among an agent's modules and numbers."""
CHARTS: dict[str, list[str]] = {
    "loss": [r"losses/value_loss$"],
    "values of actions taken": [r"losses/value_mean$"],
    "temporal difference, absolute": [r"losses/td_error$"],
    "epsilon": [r"losses/epsilon$"],
}


class ValueAgent(SteppingAgent):
    """Q-values with a target network. A subclass adds the update."""

    config_class: ClassVar[type] = ValueConfig
    network_class = QNetwork
    charts = CHARTS
    unused: ClassVar[tuple[str, ...]] = OF_POLICIES

    config: Any
    network: QNetwork

    def __init__(self, config: ValueConfig, network: QNetwork, *arguments: Any, **options: Any) -> None:
        self.target = TargetNetwork(network, config.target_update_period, config.target_update_rate)
        super().__init__(config, network, *arguments, **options)
        self.target_passes = NetworkPasses(self.target.network, self.passes.threads)

    @classmethod
    def needs(cls, config: Any) -> Needs:
        needs: Needs = config.needs
        return needs

    @classmethod
    def check(cls, config: Any, network: NetworkConfig) -> None:
        choice_counts(network.action)  # raises ValueError for real numbers
        settings = network.settings
        if settings.separate_value:
            raise ValueError("separate_value: wanted false with an agent that learns values alone, got true")
        if settings.action_distribution != "auto":
            raise ValueError(
                f"action_distribution: wanted auto with an agent that learns values alone, got {settings.action_distribution}"
            )

    @classmethod
    def value_meaning(cls, config: Any) -> str:
        return "expected discounted sum of rewards, as they are learned from"

    @property
    def followers(self) -> Mapping[str, TargetNetwork]:
        return {TARGET: self.target}

    @property
    def has_schedule(self) -> bool:
        """Whether one epsilon holds for all environments and falls over the run."""
        return self.config.exploration == SCHEDULE and not self.config.noisy

    def acting_metrics(self) -> dict[str, Tensor]:
        """The epsilon of the schedule that acting has had; nothing with a ladder or with noisy weights."""
        return {"losses/epsilon": self.network.epsilon.clone()} if self.has_schedule else {}

    def after_update(self, progress: float, sound: Tensor) -> None:
        """Set the epsilon of a schedule, with which the weights of this update act. sound: bool `[]`."""
        config = self.config
        if self.has_schedule:
            epsilon = linear_schedule(config.epsilon_start, config.epsilon_end, progress / config.epsilon_fraction)
            self.network.epsilon.copy_(torch.where(sound, epsilon, self.network.epsilon))


def stored_errors(
    trajectory: Mapping[str, np.ndarray], config: ValueConfig, burn_in: int = 0, *, rescaling: bool = False
) -> Tensor:
    """Sizes of the temporal differences of a new trajectory's rows by the values that acting has stored, `[T, 1]`.

    NaN where acting has stored too little, and 0 where no window starts.

    Args:
        trajectory: `[*shape]` each field.
        config: the discount, n, and how rewards are clipped.
        burn_in: rows at the beginning that are not learned from; T counts the others.
        rescaling: whether the values are rescaled ones.
    """
    names = ("rewards", "terminated", "action_used", BEHAVIOUR_Q, BEHAVIOUR_Q_MAX)
    rewards, *others = (torch.from_numpy(trajectory[name][burn_in:, None].copy()) for name in names)
    return initial_errors(config.clipped(rewards), *others, steps=config.n_step, gamma=config.gamma, rescaling=rescaling)
