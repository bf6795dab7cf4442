"""Settings of all actor-critic agents, and what their values mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from agents.guarded import LearnedConfig
from agents.learned import LearnedAgent
from agents.networks.actor_critic import ActorCritic
from agents.rewards import REWARD_CLIPPING
from setting import Setting

CHARTS: dict[str, list[str]] = {
    "losses, mean per step": [r"losses/.*_loss$"],
    "entropy, nats": [r"losses/entropy$"],
    "explained variance of the value": [r"losses/explained_variance$"],
}
"""TensorBoard charts: title -> regular expressions of the metrics' names."""

ValueWeight = Annotated[float, Setting("Weight of the value loss (half the squared error).", "a weight >= 0", 0, 1e9)]
EntropyWeight = Annotated[float, Setting("Weight of the entropy bonus.", "a weight >= 0", 0, 1e9)]
ActionBoundWeight = Annotated[
    float,
    Setting(
        "Weight of the penalty on means of Gaussian actions outside their bounds: the squared distance beyond 1.1 times "
        "a bound.",
        "a weight >= 0",
        0,
        1e9,
    ),
]
ClipRewards = Annotated[bool, Setting("Clip rewards for learning; reported returns stay raw.")]


@dataclass(frozen=True)
class ActorCriticConfig(LearnedConfig):
    """Settings that every actor-critic agent has. An agent with other defaults names the field again."""

    gamma: Annotated[float, Setting("Discount per step.", "a discount in [0, 1]", 0, 1)] = 0.99
    value_loss_weight: ValueWeight = 0.5
    entropy_loss_weight: EntropyWeight = 0.01
    action_bound_loss_weight: ActionBoundWeight = 1.0
    clip_rewards: ClipRewards = True
    reward_clipping_method: Annotated[str, Setting("How rewards are clipped for learning.", choices=REWARD_CLIPPING)] = (
        "abs_one_sign"
    )

    @property
    def reward_clipping(self) -> str | None:
        """A name of `agents.rewards.REWARD_CLIPPING`, or None for raw rewards."""
        return self.reward_clipping_method if self.clip_rewards else None


class ActorCriticAgent(LearnedAgent):
    """An agent with a policy and a state value."""

    config_class = ActorCriticConfig
    network_class = ActorCritic
    charts = CHARTS

    config: ActorCriticConfig
    network: ActorCritic

    @classmethod
    def scales_rewards(cls, settings: Mapping[str, Any]) -> bool:
        return True

    @classmethod
    def value_meaning(cls, config: Any) -> str:
        rewards = f"rewards clipped by {config.reward_clipping}" if config.reward_clipping else "raw rewards"
        if config.normalise_rewards:
            rewards = "rewards divided by the running standard deviation of their discounted sum"
        return f"expected sum of {rewards}, discounted by {config.gamma} per step"
