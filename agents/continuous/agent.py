"""The common part of SAC, TD3 and DDPG: settings, critics with their targets, and checks of the run's actions and networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import nn

from agents.continuous.actors import Actor
from agents.continuous.critics import Critics
from agents.networks.base import NetworkConfig
from agents.networks.cores import NO_CORE
from agents.networks.settings import parse_hidden_sizes
from agents.off_policy import OffPolicyAgent, OffPolicyConfig, TargetRate
from agents.target_network import TargetNetwork
from agents.unused_settings import OF_CORES, OF_DEVIATIONS, check_unused
from setting import Setting
from wrappers.spaces import Box

CRITICS, TARGETS = "critics", "target_critics"
"""Names of modules in a checkpoint."""
CHARTS: dict[str, list[str]] = {
    "values, discounted": [r"losses/q$", r"losses/target$"],
    "losses": [r"losses/critic_loss$", r"losses/actor_loss$"],
    "gradient norm": [r"losses/gradient_norm$"],
}


@dataclass(frozen=True)
class ContinuousConfig(OffPolicyConfig):
    """Settings of every agent with an actor and critics of actions."""

    target_update_rate: TargetRate = 0.005
    critic_layer_norm: Annotated[bool, Setting("Normalise the hidden layers of the critics.")] = False
    critic_dropout: Annotated[
        float,
        Setting(
            "Probability with which a hidden unit of a critic is left out (DroQ: 0.01, with --critic_layer_norm and 20 "
            "updates a step).",
            "a probability in [0, 0.9]",
            0,
            0.9,
        ),
    ] = 0.0


class ContinuousAgent(OffPolicyAgent):
    """An actor, critics, and target critics that follow them slowly. Subclasses say what the losses are.

    Critics are made on the network's device; their hidden layers are those of `--hidden_sizes` and `--activation`.

    critic_count: number of Q-functions. taken_actions: the actions that the agent can take, in words. actor_parameters,
    critic_parameters: the weights that each loss changes; that of the critics also changes a shared encoder.
    """

    config_class = ContinuousConfig
    charts = CHARTS
    unused: ClassVar[tuple[str, ...]] = ("separate_value", *OF_CORES, *OF_DEVIATIONS)
    critic_count = 2
    taken_actions = "actions that are real numbers between finite bounds"

    config: Any
    network: Actor

    @classmethod
    def check(cls, config: Any, network: NetworkConfig) -> None:
        settings, name = network.settings, cls.name()
        if settings.core != NO_CORE:
            wanted = f"{NO_CORE} with agent {name}, whose critics have no memory; ppo, vtrace and r2d2, among others, have one"
            raise ValueError(f"core: wanted {wanted}, got {settings.core}")
        check_unused(network, name, OF_DEVIATIONS)
        if settings.separate_value:
            raise ValueError(f"separate_value: wanted false with agent {name}, whose critics are always separate, got true")
        cls.check_actions(config, network)

    @classmethod
    def check_actions(cls, config: Any, network: NetworkConfig) -> None:
        """Raise ValueError in one line if the agent cannot act with the environment's actions."""
        action = network.action
        if not isinstance(action, Box) or not action.bounded.all():
            raise ValueError(f"env: wanted {cls.taken_actions} with agent {cls.name()}, got {action.summary()}")

    def make_modules(self) -> dict[str, nn.Module]:
        network, settings = self.network, self.network.config.settings
        action = network.config.action
        size, outputs = (len(action.low), 1) if isinstance(action, Box) else (0, network.parameter_count)
        critics = Critics(
            self.critic_count,
            network.encoded_size + size,
            outputs,
            parse_hidden_sizes(settings.hidden_sizes),
            settings.activation,
            layer_norm=self.config.critic_layer_norm,
            dropout=self.config.critic_dropout,
        )
        self.critics: Critics = critics.to(network.policy_head.weight.device)
        self.target_critics = TargetNetwork(self.critics, rate=self.config.target_update_rate)
        self.actor_parameters = network.actor_parameters
        self.critic_parameters = [*self.critics.parameters(), *network.encoder_parameters]
        return {CRITICS: self.critics}

    @property
    def most_threads(self) -> int:
        """One with dropout: several threads would draw their masks in another order each time."""
        return 1 if self.config.critic_dropout else super().most_threads

    @property
    def followers(self) -> Mapping[str, TargetNetwork]:
        return {TARGETS: self.target_critics}

    def before_update(self, progress: float) -> None:
        self.network.acts_randomly.zero_()  # the first update comes when learning starts
