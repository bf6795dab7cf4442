"""Settings of value-based agents: their types. Each switch works alone and with the others, or is refused in one line."""

from __future__ import annotations

from typing import Annotated, Literal

from setting import Log, Setting

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
EpsilonZeta = Annotated[
    float,
    Setting(
        "The number z with which a random action lasts n steps, P(n) ~ n^-z, n up to 10000 (ez-greedy, whose authors have 2). "
        "0: each lasts one step.",
        "a number in [0, 10]",
        0,
        10,
    ),
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
    Setting(
        "Optimiser steps between two moves of the target network.",
        "a whole number of steps from 1 to 10000000",
        1,
        1e7,
        search=Log(100, 10_000),
    ),
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
