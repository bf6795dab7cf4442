"""LinUCB (Li et al. 2010, arXiv:1003.0146) and linear Thompson sampling: contextual bandits.

In a bandit an action changes nothing but its own reward. The agent takes the reward of each step as the whole outcome of its
action. In other environments it ignores all later rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.linucb.arms import ArmSums, estimates_and_widths, solved, sums_of
from agents.linucb.network import LinUCBNetwork
from agents.losses import used_mean
from agents.networks.base import NetworkConfig
from agents.settings import AgentConfig
from agents.unused_settings import OF_CORES, OF_DEVIATIONS, OF_POLICIES, check_distribution, check_unused
from replay.batch import Batch
from setting import Log, Setting

SUMS = "sums"
"""Name of the arms' sums among the agent's numbers."""


@dataclass(frozen=True)
class LinUCBConfig(AgentConfig):
    """Settings of LinUCB."""

    epsilon: ClassVar[float] = 0.0  # evaluations take the best action

    alpha: Annotated[
        float,
        Setting(
            "Standard deviations of an estimate that are added to it, so that the action is tried.",
            "a number >= 0",
            0,
            1e6,
            search=Log(0.01, 10),
        ),
    ] = 1.0
    ridge: Annotated[
        float,
        Setting(
            "Weight of the penalty on each arm's squared weights (the ridge).",
            "a number in (0, 1000000]",
            1e-6,
            1e6,
            search=Log(0.01, 100),
        ),
    ] = 1.0
    thompson: Annotated[
        bool, Setting("Add normally distributed numbers with that standard deviation instead (Thompson sampling).")
    ] = False


class LinUCBAgent(Agent):
    """Ridge regressions of rewards on contexts, one for each action. They are exact, so there is no optimiser.

    sums: over all pulls so far, float64.
    """

    config_class = LinUCBConfig
    network_class = LinUCBNetwork
    tuned = ("alpha", "ridge")
    compiles = False
    exact = True
    charts: ClassVar[Mapping[str, list[str]]] = {
        "reward of a step": [r"bandit/reward$"],
        "squared error of the estimates": [r"bandit/squared_error$"],
        "uncertainty of the actions taken": [r"bandit/width$"],
    }
    defaults: ClassVar[Mapping[str, Any]] = {"network": "flat", "frames_stacked": 1, "unroll_length": 4, "batch_size": 8}
    unused = ("normalise_observations", *OF_CORES, *OF_POLICIES)

    network: LinUCBNetwork

    def __init__(self, config: LinUCBConfig, network: LinUCBNetwork, *arguments: Any, **options: Any) -> None:
        theta, inverse = network.theta.double(), network.inverse.double()
        self.sums = ArmSums(torch.zeros_like(inverse), torch.zeros_like(theta))
        state = {SUMS: self.sums._asdict()}
        super().__init__(config, network, *arguments, extra_state=state, checks_on_host=True, **options)

    @classmethod
    def needs(cls, config: LinUCBConfig) -> Needs:
        return Needs(on_policy=True)

    @classmethod
    def check(cls, config: LinUCBConfig, network: NetworkConfig) -> None:
        check_unused(network, cls.name(), ("normalise_observations", "core", "separate_value", *OF_DEVIATIONS))
        check_distribution(network, cls.name())

    @classmethod
    def value_meaning(cls, config: LinUCBConfig) -> str:
        return "the expected reward of the step"

    @torch.no_grad()
    def update(self, batch: Batch, step: Stepper) -> None:
        rows = batch.observations[:-1].flatten(0, 1)  # [T * B, S, *F]; row T has no action
        arms, rewards, used = (field.flatten() for field in (batch.actions, batch.rewards, batch.action_used))
        contexts = self.network.contexts(rows)  # [N, F]
        # Before the update: the error of estimates on steps that they have not seen.
        step.note(self._metrics(contexts, arms, rewards, used))
        # Only used rows are pulls. float64, because contexts and rewards are added up over the whole run.
        pulled = sums_of(contexts[used].double(), arms[used], rewards[used].double(), len(self.network.theta))
        # A number that is not finite goes to all learners with the sums, so that none of them takes the step.
        poison = torch.stack(list(step.inputs.values())).sum() * 0.0
        # [learners, numbers] -> [numbers]
        together = step.collectives.gather(torch.cat([part.flatten() for part in pulled]) + poison.double()).sum(0)
        parts = zip(self.sums, together.split([part.numel() for part in pulled]), strict=True)
        sums = ArmSums(*(kept + added.view_as(kept) for kept, added in parts))  # A and b of all pulls so far
        known = bool(together.isfinite().all())  # otherwise the factorisation could not be computed
        theta, inverse = solved(sums, self.config.ridge) if known else (self.network.theta, self.network.inverse)
        numbers = {"the sums of all learners": together, "inverse matrices": inverse}
        step.apply(numbers, lambda: self._take(sums, theta, inverse))

    def _take(self, sums: ArmSums, theta: Tensor, inverse: Tensor) -> None:
        for kept, new in zip((*self.sums, self.network.theta, self.network.inverse), (*sums, theta, inverse), strict=True):
            kept.copy_(new)

    def _metrics(self, contexts: Tensor, arms: Tensor, rewards: Tensor, used: Tensor) -> dict[str, Tensor]:
        found = estimates_and_widths(contexts, self.network.theta, self.network.inverse)
        # [N] each, of the actions taken
        estimates, widths = (part.gather(-1, arms.unsqueeze(-1)).squeeze(-1) for part in found)
        return {
            "bandit/reward": used_mean(rewards, used),
            "bandit/squared_error": used_mean((rewards - estimates).square(), used),
            "bandit/width": used_mean(widths, used),
        }
