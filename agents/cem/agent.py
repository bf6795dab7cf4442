"""The cross-entropy method, with the extra variance of Szita and Loerincz 2006 (doi:10.1162/neco.2006.18.12.2936).

Every weight of a member is drawn from a normal distribution of its own. After each generation the distribution moves to that
of the members with the highest returns. The variance of few good members is too small, and the search would end before it has
found much. So a number that falls to 0 over the first generations is added to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from agents.engine.stepper import Stepper
from agents.evolution.agent import CHARTS, Population, PopulationAgent
from agents.evolution.policy import PopulationPolicy
from agents.evolution.search import best_members, cross_entropy
from agents.settings import AgentConfig
from setting import Log, Setting


@dataclass(frozen=True)
class CEMConfig(AgentConfig):
    """Settings of the cross-entropy method."""

    epsilon: ClassVar[float] = 0.0  # evaluations take the best action

    population: Population = 64
    elites: Annotated[
        int,
        Setting("Best members, whose mean and variance are taken over.", "a whole number from 1 to 1000000", 1, 1_000_000),
    ] = 8
    initial_std: Annotated[
        float,
        Setting("Standard deviation of the first members' weights.", "a number in (0, 100]", 1e-6, 100, search=Log(0.01, 10)),
    ] = 1.0
    smoothing: Annotated[
        float,
        Setting("Part of the way that mean and variance move to those of the elites.", "a number in (0, 1]", 1e-6, 1),
    ] = 1.0
    extra_variance: Annotated[
        float,
        Setting("Variance that is added after the first generation.", "a number in [0, 100]", 0, 100, search=Log(1e-3, 1)),
    ] = 0.05
    extra_variance_generations: Annotated[
        int,
        Setting(
            "Generations after which nothing is added to the variance any more; it falls linearly.",
            "a whole number from 1 to 1000000",
            1,
            1_000_000,
        ),
    ] = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites > self.population:
            raise ValueError(f"elites: wanted at most the {self.population} members of --population, got {self.elites}")


class DrawnPolicy(PopulationPolicy):
    """Members whose weights are drawn with a standard deviation for each.

    std: float32 `[weight_count]`, in the order of `parameters()`.
    """

    std: Tensor

    def make_heads(self) -> None:
        super().make_heads()
        # A buffer, so that every process that draws members has it, and each checkpoint.
        self.register_buffer("std", torch.full((self.weight_count,), float(self.config.agent.initial_std)))

    def perturbation(self, member: int) -> Tensor:
        return self.std * self.noise(member - 1)  # mean + std N(0, 1), [weight_count]


class CEMAgent(PopulationAgent):
    """The cross-entropy method."""

    config_class = CEMConfig
    network_class = DrawnPolicy
    tuned = ("initial_std", "extra_variance")
    charts = {**CHARTS, "standard deviation of the weights": [r"evolution/weight_std$"]}

    config: CEMConfig
    network: DrawnPolicy

    @torch.no_grad()
    def improve(self, step: Stepper) -> dict[str, Tensor]:
        config, own = self.config, [weights.data for weights in self.network.parameters()]
        mean = torch.cat([weights.flatten() for weights in own])  # theta [dim]
        # Members are drawn anew from their numbers; none was stored.
        elites = [mean + self.network.perturbation(index + 1) for index in best_members(self.returns, config.elites)]
        # The part of the extra variance that is left.
        left = 1 - (int(self.network.generation) - 1) / config.extra_variance_generations
        extra = config.extra_variance * max(0.0, left)
        # [dim] each
        mean, std = cross_entropy(elites, mean, self.network.std, smoothing=config.smoothing, extra_variance=extra)
        torch._foreach_copy_(own, self.network.parts_of(mean))  # the mean is the policy that is evaluated and saved
        self.network.std.copy_(std)
        return {"evolution/weight_std": std.mean()}
