"""LinUCB (Li et al. 2010, arXiv:1003.0146) and linear Thompson sampling: contextual bandits.

In a bandit an action changes nothing but its own reward. The agent takes the reward of each step as the whole outcome of its
action. In other environments it ignores all later rewards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from agents.base import Agent, Needs, Updated
from agents.guarded import NETWORK
from agents.linucb.arms import Sums, estimates_and_widths, solved, sums_of
from agents.linucb.network import LinUCBNetwork
from agents.losses import used_mean
from agents.networks.base import NetworkConfig
from agents.optimizers import check_weights
from agents.peers import Peers
from agents.unused_settings import OF_CORES, OF_DEVIATIONS, OF_POLICIES, check_distribution, check_unused
from replay.batch import Batch
from setting import Setting, check_fields

SUMS = "sums"
"""Name of the arms' sums among the agent's numbers."""


@dataclass(frozen=True)
class LinUCBConfig:
    """Settings of LinUCB."""

    normalise_rewards: ClassVar[bool] = False  # a running scale would give equal rewards different weights
    epsilon: ClassVar[float] = 0.0  # evaluations take the best action

    alpha: Annotated[
        float,
        Setting(
            "Standard deviations of an estimate that are added to it, so that the action is tried.", "a number >= 0", 0, 1e6
        ),
    ] = 1.0
    ridge: Annotated[
        float,
        Setting("Weight of the penalty on each arm's squared weights (the ridge).", "a number in (0, 1000000]", 1e-6, 1e6),
    ] = 1.0
    thompson: Annotated[
        bool, Setting("Add normally distributed numbers with that standard deviation instead (Thompson sampling).")
    ] = False

    def __post_init__(self) -> None:
        check_fields(self)


class LinUCBAgent(Agent):
    """Ridge regressions of rewards on contexts, one for each action. They are exact, so there is no optimiser.

    sums: over all pulls so far, float64.
    """

    config_class = LinUCBConfig
    network_class = LinUCBNetwork
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

    def __init__(self, config: LinUCBConfig, network: LinUCBNetwork, replay_names: object = (), **_: object) -> None:
        self.config, self.network, self.peers = config, network, Peers()
        theta, inverse = network.theta.double(), network.inverse.double()
        self.sums = Sums(torch.zeros_like(inverse), torch.zeros_like(theta))
        self._reasons: list[str | None] = []

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(on_policy=True)

    @classmethod
    def check(cls, config: Any, network: NetworkConfig) -> None:
        check_unused(network, cls.name(), ("normalise_observations", "core", "separate_value", *OF_DEVIATIONS))
        check_distribution(network, cls.name())

    @classmethod
    def value_meaning(cls, config: Any) -> str:
        return "the expected reward of the step"

    def join(self, peers: Peers) -> None:
        self.peers = peers

    @torch.no_grad()
    def update(self, batch: Batch, progress: float) -> Updated:
        rows = batch.observations[:-1].flatten(0, 1)
        arms, rewards, used = (field.flatten() for field in (batch.actions, batch.rewards, batch.action_used))
        inputs = {"rewards": rewards, **self.network.float_inputs(batch.observations.flatten(0, 1))}
        wrong = next((name for name, numbers in inputs.items() if not numbers.isfinite().all()), None)
        contexts = self.network.contexts(rows)
        metrics = self._metrics(contexts, arms, rewards, used)
        pulled = sums_of(contexts[used].double(), arms[used], rewards[used].double(), len(self.network.theta))
        self._reasons.append(self._add(pulled, wrong))
        return Updated(metrics, 0.0)

    def _add(self, pulled: Sums, wrong: str | None) -> str | None:
        """Add the pulls of all learners, unless a number is not finite: then it is named.

        wrong: what is not finite on this learner.
        """
        sizes = [part.numel() for part in pulled]
        own = torch.cat([part.flatten() for part in pulled])
        together = self.peers.gather(own if wrong is None else own * math.nan).sum(0)
        if not together.isfinite().all():
            return wrong or "the sums of all learners"
        parts = zip(self.sums, together.split(sizes), strict=True)
        sums = Sums(*(kept + added.view_as(kept) for kept, added in parts))
        theta, inverse = solved(sums, self.config.ridge)
        if not inverse.isfinite().all():
            return "inverse matrices"
        self.sums = sums
        self.network.theta.copy_(theta)
        self.network.inverse.copy_(inverse)
        return None

    def _metrics(self, contexts: Tensor, arms: Tensor, rewards: Tensor, used: Tensor) -> dict[str, Tensor]:
        found = estimates_and_widths(contexts, self.network.theta, self.network.inverse)
        estimates, widths = (part.gather(-1, arms.unsqueeze(-1)).squeeze(-1) for part in found)
        return {
            "bandit/reward": used_mean(rewards, used),
            "bandit/squared_error": used_mean((rewards - estimates).square(), used),
            "bandit/width": used_mean(widths, used),
        }

    def take_skip_reasons(self, *, everything: bool = False) -> list[str | None]:
        reasons, self._reasons = self._reasons, []
        return reasons

    def state_dict(self) -> dict[str, Any]:
        return {
            "modules": {NETWORK: self.network.state_dict()},
            "optimizers": {},
            "numbers": {SUMS: self.sums._asdict()},
        }

    def check_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        check_weights(self.network.state_dict(), state["modules"][NETWORK])
        check_weights(self.sums._asdict(), state["numbers"][SUMS])

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        self.network.load_state_dict(state["modules"][NETWORK])
        for name, kept in self.sums._asdict().items():
            kept.copy_(state["numbers"][SUMS][name])
