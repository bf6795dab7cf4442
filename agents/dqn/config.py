"""Settings of DQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from agents.guarded import LearningRate
from agents.networks.q_network import C51, NO_DISTRIBUTION, QUANTILES, ReturnDistribution
from agents.off_policy import Clip, LearningStarts, UpdatesPerStep
from agents.values.config import ValueConfig
from setting import Setting

Distributional = Annotated[
    Literal["none", "c51", "qr"],
    Setting("Distribution of returns that is learned: none, c51 (fixed atoms) or qr (quantiles)."),
]
Atoms = Annotated[int, Setting("c51: atoms of a distribution.", "a whole number of atoms from 2 to 10000", 2, 10_000)]
LowestValue = Annotated[float, Setting("c51: value of the first atom, in units of returns.", "a number", -1e9, 1e9)]
HighestValue = Annotated[float, Setting("c51: value of the last atom, in units of returns.", "a number", -1e9, 1e9)]
Quantiles = Annotated[
    int, Setting("qr: quantiles of a distribution.", "a whole number of quantiles from 1 to 10000", 1, 10_000)
]


@dataclass(frozen=True)
class DqnConfig(ValueConfig):
    """Settings of DQN. All losses are means over the windows of a batch, with importance weights if a replay gives them."""

    lr: LearningRate = 1e-4
    gradient_clip_by_norm_threshold: Clip = 10.0
    learning_starts: LearningStarts = 1000
    updates_per_step: UpdatesPerStep = 0.25
    distributional: Distributional = "none"
    atoms: Atoms = 51
    v_min: LowestValue = -10.0
    v_max: HighestValue = 10.0
    quantiles: Quantiles = 200
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
        if self.distributional == C51 and self.v_min >= self.v_max:
            raise ValueError(f"v_min: wanted less than v_max {self.v_max:g}, got {self.v_min:g}")
        if self.distributional == C51 and (gap := (self.v_max - self.v_min) / (self.atoms - 1)) < self._least_gap:
            raise ValueError(
                f"atoms: wanted atoms at least {self._least_gap:g} apart, because float32 rounds their values, got {gap:g}"
            )
        if not self.munchausen:
            return
        for name, wanted in (("double", False), ("distributional", NO_DISTRIBUTION), ("n_step", 1)):
            if (got := getattr(self, name)) != wanted:
                raise ValueError(f"{name}: wanted {wanted} with --munchausen, got {got}")

    @property
    def _least_gap(self) -> float:
        """The least distance between atoms at which rounding to float32 changes a target's mass by a thousandth at most."""
        return 1000 * float(torch.finfo(torch.float32).eps) * max(abs(self.v_min), abs(self.v_max))

    @property
    def distribution(self) -> ReturnDistribution:
        """Whether the heads learn the expected return, C51's atoms or quantiles, and how many numbers for each action."""
        size = {C51: self.atoms, QUANTILES: self.quantiles}.get(self.distributional, 1)
        return ReturnDistribution(self.distributional, size, self.v_min, self.v_max)
