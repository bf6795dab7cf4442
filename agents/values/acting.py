"""How value-based agents act: checks of the run, the epsilon of a schedule, and first priorities from stored values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.engine.stepper import Stepper
from agents.networks.base import NetworkConfig
from agents.networks.exploration import LADDER, SCHEDULE
from agents.networks.q_network import BEHAVIOUR_Q, BEHAVIOUR_Q_MAX, QNetwork, choice_counts
from agents.rewards import clip_rewards
from agents.unused_settings import OF_DEVIATIONS, check_unused
from agents.values.windows import initial_errors

TARGET = "target"
"""Name of the target network among an agent's modules and numbers."""
CHARTS: dict[str, list[str]] = {
    "loss": [r"losses/value_loss$"],
    "values of actions taken": [r"losses/value_mean$"],
    "temporal difference, absolute": [r"losses/td_error$"],
    "epsilon": [r"losses/epsilon$"],
}
VALUE_MEANING = "expected discounted sum of rewards, as they are learned from"


def check_choices(network: NetworkConfig, agent: str) -> None:
    """Raise ValueError in one line if values of actions cannot be learned with such a network and its actions."""
    choice_counts(network.action)  # raises ValueError for real numbers
    check_unused(network, agent, OF_DEVIATIONS)
    settings = network.settings
    if settings.separate_value:
        raise ValueError("separate_value: wanted false with an agent that learns values alone, got true")
    if settings.action_distribution != "auto":
        raise ValueError(
            f"action_distribution: wanted auto with an agent that learns values alone, got {settings.action_distribution}"
        )


def check_exploration(config: Any) -> None:
    """Raise ValueError in one line if two settings explore at once."""
    if config.noisy and config.exploration == LADDER:
        raise ValueError(f"exploration: wanted {SCHEDULE} with --noisy, got {config.exploration}")
    if config.epsilon_zeta and config.noisy and not getattr(config, "noisy_epsilon", False):
        raise ValueError(f"epsilon_zeta: wanted 0 with --noisy, whose epsilon is 0, got {config.epsilon_zeta:g}")


def has_schedule(config: Any) -> bool:
    """Whether one epsilon holds for all environments and falls over the run. With `--noisy` noise may take its place."""
    return config.exploration == SCHEDULE and (not config.noisy or getattr(config, "noisy_epsilon", False))


def epsilon_metrics(config: Any, network: QNetwork) -> dict[str, Tensor]:
    """The epsilon of the schedule that acting has had; nothing with a ladder or with noisy weights."""
    return {"losses/epsilon": network.epsilon.clone()} if has_schedule(config) else {}


def move_epsilon(config: Any, network: QNetwork, step: Stepper) -> None:
    """Set the epsilon of a schedule, with which the weights of this update act."""
    if not has_schedule(config):
        return
    # The same line as `agents.schedules.linear_schedule`, on the device, because a CUDA graph would keep a number of the host.
    fraction = (step.progress_on_device / config.epsilon_fraction).clamp(max=1.0)  # float64 []
    epsilon = config.epsilon_start + (config.epsilon_end - config.epsilon_start) * fraction
    # It stays after a refused update, as the weights do, so both always belong to the same version.
    network.epsilon.copy_(torch.where(step.applied, epsilon.float(), network.epsilon))


def stored_errors(trajectory: Mapping[str, np.ndarray], config: Any, burn_in: int = 0, *, rescaling: bool = False) -> Tensor:
    """Sizes of the temporal differences of a new trajectory's rows by the values that acting has stored, `[T, 1]`.

    NaN where acting has stored too little, and 0 where no window starts.

    Args:
        trajectory: `[*shape]` each field.
        config: the discount, n, and how rewards are clipped.
        burn_in: rows at the beginning that are not learned from; T counts the others.
        rescaling: whether the values are rescaled ones.
    """
    names = ("rewards", "terminated", "action_used", BEHAVIOUR_Q, BEHAVIOUR_Q_MAX)
    rewards, *others = (torch.from_numpy(trajectory[name][burn_in:, None].copy()) for name in names)  # [T, 1] each
    clipped = clip_rewards(rewards, config.reward_clipping)  # rows store raw rewards; the errors are of learned ones
    return initial_errors(clipped, *others, steps=config.n_step, gamma=config.gamma, rescaling=rescaling)
