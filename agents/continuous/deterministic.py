"""The common part of TD3 and DDPG: a deterministic policy, noise for exploration, and target networks of actor and critics."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from agents.continuous.actors import DeterministicActor
from agents.continuous.agent import TARGETS, ContinuousAgent, ContinuousConfig
from agents.continuous.losses import critic_errors, critic_loss, deterministic_policy_loss, hard_targets, smoothed_actions
from agents.guarded import LearningRate
from agents.networks.base import NetworkConfig
from agents.off_policy import Learned, Objective, Objectives
from agents.target_network import TargetNetwork
from agents.transitions import Transitions
from agents.unused_settings import OF_CORES, OF_POLICIES, check_distribution
from setting import Setting

TARGET_ACTOR = "target_actor"
"""Name of the module in a checkpoint."""
STEPS = "steps"
"""Name of the count of steps among the agent's numbers."""


@dataclass(frozen=True)
class DeterministicConfig(ContinuousConfig):
    """Settings of the agents with a deterministic policy."""

    lr: LearningRate = 1e-3
    exploration_noise: Annotated[
        float,
        Setting("Size of the noise on actions in training, which are in [-1, 1].", "a standard deviation in [0, 10]", 0, 10),
    ] = 0.1
    exploration_noise_kind: Annotated[
        Literal["gaussian", "ou"],
        Setting("Noise on actions: gaussian (independent), or ou (Ornstein-Uhlenbeck: correlated from step to step)."),
    ] = "gaussian"
    noise_theta: Annotated[
        float, Setting("Part of ou noise that a unit of time takes away.", "a number in [0, 100]", 0, 100)
    ] = 0.15
    noise_dt: Annotated[float, Setting("Time of a step, for ou noise.", "a number in (0, 1]", 1e-6, 1)] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        pull = self.noise_theta * self.noise_dt
        if self.exploration_noise_kind == "ou" and pull >= 2:
            raise ValueError(
                f"noise_theta: wanted less than 2 / noise_dt {self.noise_dt:g}, or noise grows, got {self.noise_theta:g}"
            )

    @property
    def epsilon(self) -> float:
        """Evaluations act without noise, so they are greedy."""
        return 0.0

    @property
    def policy_delay(self) -> int:
        """Steps of the critics for each step of the actor."""
        return 1

    @property
    def smoothing(self) -> tuple[float, float]:
        """Size and bound of the noise on the target policy's actions."""
        return 0.0, 0.0


class DeterministicAgent(ContinuousAgent):
    """Learns a deterministic policy with target networks of critics and actor."""

    config_class = DeterministicConfig
    network_class = DeterministicActor
    unused = (*OF_POLICIES, *OF_CORES)

    config: DeterministicConfig
    network: DeterministicActor

    @classmethod
    def check_actions(cls, config: Any, network: NetworkConfig) -> None:
        super().check_actions(config, network)
        check_distribution(network, cls.name())

    def make_modules(self) -> dict[str, nn.Module]:
        modules = super().make_modules()
        self.target_actor = TargetNetwork(self.network, rate=self.config.target_update_rate)
        self._steps = 0  # of the critics, also refused ones: the host does not wait to learn which a GPU refuses
        self._steps_now = 0  # of the update that is being made
        return modules

    @property
    def actor_learns(self) -> bool:
        """Whether actor and targets move in the step that is being taken."""
        return (self._steps + self._steps_now + 1) % self.config.policy_delay == 0

    @property
    def followers(self) -> Mapping[str, TargetNetwork]:
        return {TARGETS: self.target_critics, TARGET_ACTOR: self.target_actor}

    def constants(self, part: Transitions) -> tuple[Tensor, ...]:
        return (torch.randn_like(part.actions),) if self.config.smoothing[0] else ()

    def objectives(self, part: Transitions, constants: tuple[Tensor, ...]) -> Objectives:
        network, target_actor = self.network, self.target_actor.network
        assert isinstance(target_actor, DeterministicActor)
        encoded = network.encode(part.observations)
        with torch.no_grad():
            next_encoded = network.encode(part.next_observations)
            # The action of the target policy, not the stored one: windows of any age teach the value of the present policy.
            next_actions = target_actor.policy(part.next_observations, next_encoded)
            if constants:
                next_actions = smoothed_actions(next_actions, constants[0], *self.config.smoothing)
            targets = hard_targets(part.returns, part.discounts, self.target_critics.network(next_encoded, next_actions))
        q = self.critics(encoded, part.actions)
        terms = {"critic_loss": Objective(critic_loss(q, targets, part.weights), self.critic_parameters)}
        if self.actor_learns:
            # The gradient passes through the critic to the action; `Objective` names the actor's weights, so no critic changes.
            actions = network.policy(part.observations, encoded)
            terms["actor_loss"] = Objective(
                deterministic_policy_loss(self.critics(encoded.detach(), actions)), self.actor_parameters
            )
        # A metric has a value in every step; NaN where there is nothing to measure.
        missing = {} if "actor_loss" in terms else {"losses/actor_loss": torch.full_like(targets[0], math.nan)}
        metrics = {"losses/q": q.detach().mean(), "losses/target": targets.mean(), **missing}
        return Objectives(terms, metrics, critic_errors(q, targets))

    def learn(self, batch: Transitions, inputs: Mapping[str, Tensor]) -> Learned:
        learned = super().learn(batch, inputs)
        self._steps_now += 1
        return learned

    @property
    def variant(self) -> Hashable:
        return self._steps % self.config.policy_delay

    def after_update(self, progress: float, sound: Tensor) -> None:
        super().after_update(progress, sound)
        self._steps += self.config.batches_at_once
        self._steps_now = 0

    def after_step(self) -> None:
        if self.actor_learns:
            super().after_step()

    def own_numbers(self) -> dict[str, dict[str, Tensor]]:
        return {**super().own_numbers(), STEPS: {"count": torch.tensor(self._steps)}}

    def load_own_numbers(self, numbers: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_own_numbers(numbers)
        if STEPS in numbers:
            self._steps = int(numbers[STEPS]["count"])
