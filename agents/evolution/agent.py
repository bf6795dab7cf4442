"""The common part of ES and CEM: settings, and the returns of a generation until all its members have played."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.evolution.policy import GENERATION, MEMBER, PopulationPolicy
from agents.metrics import UpdateReport
from agents.networks.base import NetworkConfig
from agents.unused_settings import OF_DEVIATIONS, OF_POLICIES, check_distribution, check_unused
from replay.batch import Batch
from setting import Setting

CHARTS: dict[str, list[str]] = {
    "returns of the members": [r"evolution/mean_return$", r"evolution/best_return$", r"evolution/worst_return$"],
    "return of the centre": [r"evolution/centre_return$"],
    "steps that counted": [r"evolution/counted_steps$"],
}


Population = Annotated[
    int,
    Setting(
        "Members of a generation. Each plays one episode before the weights change.",
        "a whole number from 2 to 1000000",
        2,
        1_000_000,
    ),
]


class PopulationAgent(Agent):
    """Learns from whole episodes of a population's members. Subclasses say how the weights follow from the returns.

    Attributes:
        returns: float64 `[population]`, the return of each member of this generation, NaN until its episode has ended.
    """

    network_class = PopulationPolicy
    charts = CHARTS
    compiles = False  # an update has no pass through the network
    merges_moments = False  # the members of a generation are compared with the same scale
    exact = True  # bfloat16 would round the perturbations
    defaults: ClassVar[Mapping[str, Any]] = {"unroll_length": 16}
    unused: ClassVar[tuple[str, ...]] = (*OF_POLICIES, "spectral_norm")

    config: Any
    network: PopulationPolicy

    def __init__(self, config: Any, network: PopulationPolicy, *arguments: Any, **options: Any) -> None:
        self.returns = torch.full((config.population,), math.nan, dtype=torch.float64)
        self._steps = torch.zeros(2, dtype=torch.int64)  # of this generation: all, and those that counted
        state = {GENERATION: {"returns": self.returns, "steps": self._steps}}
        # Returns are compared on the host, so no step needs to be reverted on a GPU.
        super().__init__(config, network, *arguments, extra_state=state, checks_on_host=True, **options)

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(on_policy=True, episodes=True, alone=True)

    @classmethod
    def check(cls, config: Any, network: NetworkConfig) -> None:
        check_unused(network, cls.name(), ("separate_value", "spectral_norm", *OF_DEVIATIONS))
        check_distribution(network, cls.name())

    @classmethod
    def value_meaning(cls, config: Any) -> str:
        return "see the agent's documentation"

    def learn(self, batch: Batch, progress: float) -> UpdateReport:
        report = super().learn(batch, progress)
        return report._replace(optimizer_steps=int(self.network.generation) - 1)  # a generation makes one step

    @abstractmethod
    def improve(self, step: Stepper) -> dict[str, Tensor]:
        """Move the weights by the returns of all members. Returns metrics."""

    def update(self, batch: Batch, step: Stepper) -> None:
        # Through the guard, so that an update without a step is counted too, and non-finite inputs take no returns.
        step.apply({}, lambda: step.note(self._learn(batch, step)))

    def _learn(self, batch: Batch, step: Stepper) -> dict[str, Tensor]:
        """Take the batch's returns, and end the generation if they are the last ones. Returns metrics."""
        found = self._take_returns(batch)
        # The scale changes only between generations: members that saw other inputs could not be compared.
        step.merge_moments(batch, None, rescales=False)
        if self.returns.isnan().any():  # some member has not ended its episode yet
            return found
        found |= self._report() | {name: value.cpu() for name, value in self.improve(step).items()}
        self.network.generation += 1  # published with the weights, so workers draw the next members
        self.returns.fill_(math.nan)
        self._steps.zero_()
        if step.observation_moments:
            step.observation_moments.rescale()
        return found

    @torch.no_grad()
    def _take_returns(self, batch: Batch) -> dict[str, Tensor]:
        """Take the returns of this generation's members. Returns the mean return of the centre, where it has played."""
        assert batch.episode_return is not None
        fields = [batch.episode_return, batch.acting[GENERATION], batch.acting[MEMBER]]
        episodes, generations, members = torch.stack(fields).cpu().double()  # [T, B] each
        current = generations == self.network.generation.cpu()  # bool [T, B]
        awaited = torch.cat([torch.tensor([False]), self.returns.isnan()])  # the centre and those that repeat do not count
        self._steps += torch.tensor([members.numel(), int((current & awaited[members.long()]).sum())])
        ended = current & ~episodes.isnan()  # bool [T, B]
        for member, value in zip(members[ended].long().tolist(), episodes[ended].tolist(), strict=True):
            # A member may be repeated. Which of two returns counts must not depend on them.
            if member and math.isnan(self.returns[member - 1]):
                self.returns[member - 1] = value
        of_centre = episodes[ended & (members == 0)]  # [episodes]
        return {"evolution/centre_return": of_centre.mean()} if len(of_centre) else {}

    def _report(self) -> dict[str, Tensor]:
        return {
            "evolution/mean_return": self.returns.mean(),
            "evolution/best_return": self.returns.max(),
            "evolution/worst_return": self.returns.min(),
            "evolution/counted_steps": self._steps[1] / self._steps[0],
        }
