"""Settings of every value-based agent. Each switch works alone and with the others, or is refused in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from agents.networks.exploration import LADDER, SCHEDULE
from agents.networks.q_network import EXPECTATION, ReturnDistribution
from agents.off_policy import OffPolicyConfig
from agents.rewards import clip_rewards
from setting import Setting

Double = Annotated[
    bool, Setting("Let the learned network select the next action, and the target network value it (double Q-learning).")
]
Dueling = Annotated[bool, Setting("Give the network a head for the value of the state and one for advantages of actions.")]
Noisy = Annotated[
    bool, Setting("Explore by noise in the weights of the heads (NoisyNet) instead of by epsilon, which is then 0.")
]
Exploration = Annotated[
    Literal["schedule", "ladder"],
    Setting(
        "Epsilon, the probability of a random action: one for all environments that falls over the run (schedule), or a fixed "
        "one for each environment (ladder, Ape-X)."
    ),
]
EpsilonStart = Annotated[float, Setting("schedule: epsilon before the first update.", "a probability in [0, 1]", 0, 1)]
EpsilonEnd = Annotated[float, Setting("schedule: epsilon at the end of its fall.", "a probability in [0, 1]", 0, 1)]
EpsilonFraction = Annotated[
    float, Setting("schedule: part of the run's steps in which epsilon falls.", "a number in (0, 1]", 1e-9, 1)
]
Epsilon = Annotated[
    float,
    Setting(
        "Test mode and evaluations: probability of a random action instead of the best one (published scores on Atari: 0.001).",
        "a probability in [0, 1]",
        0,
        1,
        kind="output",
    ),
]
TargetPeriod = Annotated[
    int,
    Setting("Optimiser steps between two moves of the target network.", "a whole number of steps from 1 to 10000000", 1, 1e7),
]
TargetRate = Annotated[
    float,
    Setting(
        "Part of the way that the target network moves to the learned one; 1 copies it, and 0.005 with a period of 1 is Polyak "
        "averaging.",
        "a number in (0, 1]",
        1e-9,
        1,
    ),
]


AdamEpsilon = Annotated[float, Setting("Epsilon of Adam, added to the root.", "a number in (0, 10]", 1e-12, 10)]


@dataclass(frozen=True)
class ValueConfig(OffPolicyConfig):
    """Settings of every value-based agent."""

    adam_eps: AdamEpsilon = 1e-8
    double: Double = False
    dueling: Dueling = False
    noisy: Noisy = False
    exploration: Exploration = "schedule"
    epsilon_start: EpsilonStart = 1.0
    epsilon_end: EpsilonEnd = 0.05
    epsilon_fraction: EpsilonFraction = 0.1
    epsilon: Epsilon = 0.0
    target_update_period: TargetPeriod = 1000
    target_update_rate: TargetRate = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noisy and self.exploration == LADDER:
            raise ValueError(f"exploration: wanted {SCHEDULE} with --noisy, whose epsilon is 0, got {self.exploration}")

    @property
    def distribution(self) -> ReturnDistribution:
        """How the heads represent the return of an action. A subclass with distributions overrides it."""
        return EXPECTATION

    def clipped(self, rewards: Tensor) -> Tensor:
        """Rewards of any shape, as they are learned from."""
        return clip_rewards(rewards, self.reward_clipping)
