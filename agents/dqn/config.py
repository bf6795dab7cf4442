"""Settings of DQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from agents.networks.q_network import C51, HL_GAUSS, IMPLICIT, QUANTILES, ReturnDistribution
from agents.settings import (
    AdamEpsilon,
    AgentConfig,
    BatchesAtOnce,
    ClipOfEachLoss,
    ClipRewards,
    Gamma,
    HeldLearningRate,
    LearningRate,
    LearningStarts,
    NormaliseRewards,
    OptimizerName,
    RewardClipping,
    RmspropEpsilon,
    UpdatesPerStep,
    WindowRows,
)
from agents.values.acting import check_exploration
from agents.values.settings import (
    Double,
    Dueling,
    Epsilon,
    EpsilonEnd,
    EpsilonFraction,
    EpsilonStart,
    EpsilonZeta,
    Exploration,
    Noisy,
    TargetPeriod,
    TargetRate,
)
from setting import Setting

LearnedDistribution = Annotated[
    Literal["none", "c51", "qr", "iqn", "hl_gauss"],
    Setting(
        "Distribution of returns that is learned: none, c51 (fixed atoms), qr (fixed quantiles), iqn (quantiles at drawn "
        "fractions), or hl_gauss: the expected return by classification into bins."
    ),
]
Atoms = Annotated[
    int, Setting("c51, hl_gauss: atoms or bins of a distribution.", "a whole number of atoms from 2 to 10000", 2, 10_000)
]
LowestValue = Annotated[
    float, Setting("c51, hl_gauss: value of the first atom or edge of the bins, in units of returns.", "a number", -1e9, 1e9)
]
HighestValue = Annotated[
    float, Setting("c51, hl_gauss: value of the last atom or edge of the bins, in units of returns.", "a number", -1e9, 1e9)
]
Quantiles = Annotated[
    int, Setting("qr: quantiles of a distribution.", "a whole number of quantiles from 1 to 10000", 1, 10_000)
]
Fractions = Annotated[
    int,
    Setting(
        "iqn: fractions whose quantiles the learned network gives for each window, drawn for each update.",
        "a whole number of fractions from 1 to 10000",
        1,
        10_000,
    ),
]
TargetFractions = Annotated[
    int,
    Setting(
        "iqn: fractions whose quantiles the target network gives for each window.",
        "a whole number of fractions from 1 to 10000",
        1,
        10_000,
    ),
]
ActingFractions = Annotated[
    int,
    Setting(
        "iqn: fractions over which values are averaged where an action is chosen; evaluations take the midpoints.",
        "a whole number of fractions from 1 to 10000",
        1,
        10_000,
    ),
]
HeadUnits = Annotated[
    int,
    Setting(
        "Units of a hidden layer in each head, in place of the network's last hidden layer; 0: heads are linear in that one.",
        "a whole number of units from 0 to 65536",
        0,
        65536,
    ),
]


@dataclass(frozen=True)
class DqnConfig(AgentConfig):
    """Settings of DQN. All losses are means over the windows of a batch, with importance weights if a replay gives them."""

    lr: LearningRate = 1e-4
    lr_end_value: HeldLearningRate = -1.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: AdamEpsilon = 1e-8
    gradient_clip_by_norm_threshold: ClipOfEachLoss = 10.0
    gamma: Gamma = 0.99
    n_step: WindowRows = 1
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    updates_per_step: UpdatesPerStep = 0.25
    learning_starts: LearningStarts = 1000
    batches_at_once: BatchesAtOnce = 8
    double: Double = False
    dueling: Dueling = False
    noisy: Noisy = False
    noisy_epsilon: Annotated[
        bool, Setting("noisy: explore by the schedule's epsilon too, as Beyond the Rainbow does early in a run.")
    ] = False
    exploration: Exploration = "schedule"
    epsilon_start: EpsilonStart = 1.0
    epsilon_end: EpsilonEnd = 0.05
    epsilon_fraction: EpsilonFraction = 0.1
    epsilon_zeta: EpsilonZeta = 0.0
    epsilon: Epsilon = 0.0
    target_update_period: TargetPeriod = 1000
    target_update_rate: TargetRate = 1.0
    head_units: HeadUnits = 0
    return_distribution: LearnedDistribution = "none"
    atoms: Atoms = 51
    v_min: LowestValue = -10.0
    v_max: HighestValue = 10.0
    quantiles: Quantiles = 200
    fractions: Fractions = 64
    target_fractions: TargetFractions = 64
    acting_fractions: ActingFractions = 32
    munchausen: Annotated[
        bool, Setting("Add a part of the action's log-probability to its reward, and bootstrap softly (Munchausen-DQN).")
    ] = False
    munchausen_temperature: Annotated[
        float, Setting("munchausen: temperature of the softmax, in units of values.", "a number > 0", 1e-9, 1e9)
    ] = 0.03
    munchausen_weight: Annotated[float, Setting("munchausen: weight of the log-probability.", "a weight in [0, 1]", 0, 1)] = 0.9
    munchausen_lowest: Annotated[
        float, Setting("munchausen: least value of temperature times log-probability.", "a number <= 0", -1e9, 0)
    ] = -1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_exploration(self)
        if self.return_distribution in (C51, HL_GAUSS):
            self._check_atoms()
        if not self.munchausen:
            return
        if self.double:
            raise ValueError("double: wanted False with --munchausen, got True")
        if self.return_distribution == C51:
            raise ValueError("return_distribution: wanted none, qr, iqn or hl_gauss with --munchausen, got c51")

    def _check_atoms(self) -> None:
        """Raise ValueError if float32 cannot tell the atoms or edges apart."""
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min: wanted less than v_max {self.v_max:g}, got {self.v_min:g}")
        if (gap := (self.v_max - self.v_min) / (self.atoms - 1)) < self._least_gap:
            raise ValueError(
                f"atoms: wanted atoms at least {self._least_gap:g} apart, because float32 rounds their values, got {gap:g}"
            )

    @property
    def _least_gap(self) -> float:
        """The least distance between atoms at which rounding to float32 changes a target's mass by a thousandth at most."""
        return 1000 * float(torch.finfo(torch.float32).eps) * max(abs(self.v_min), abs(self.v_max))

    @property
    def distribution(self) -> ReturnDistribution:
        """The representation of returns that the heads learn, and how many numbers it has for each action."""
        sizes = {C51: self.atoms, HL_GAUSS: self.atoms, QUANTILES: self.quantiles, IMPLICIT: self.acting_fractions}
        return ReturnDistribution(self.return_distribution, sizes.get(self.return_distribution, 1), self.v_min, self.v_max)
