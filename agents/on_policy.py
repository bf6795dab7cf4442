"""What on-policy actor-critic agents share: settings, value targets, and the terms that do not depend on the objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from agents.learned import LearnedConfig
from agents.returns.gae import Advantages, gae
from agents.rewards import REWARD_CLIPPING, clip_rewards
from replay.batch import Batch
from setting import Setting

CHARTS: dict[str, list[str]] = {
    "losses, mean per step": [r"losses/.*_loss$"],
    "entropy, nats": [r"losses/entropy$"],
    "explained variance of the value": [r"losses/explained_variance$"],
}
"""TensorBoard charts: title -> regular expressions of the metrics' names."""

Gamma = Annotated[float, Setting("Discount per step.", "a discount in [0, 1]", 0, 1)]
Lambda = Annotated[
    float,
    Setting(
        "Decay of the advantages' trace (GAE); 1 takes whole returns, 0 one step and the next value.",
        "a number in [0, 1]",
        0,
        1,
    ),
]
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
ClippingMethod = Annotated[str, Setting("How rewards are clipped for learning.", choices=REWARD_CLIPPING)]


@dataclass(frozen=True)
class OnPolicyConfig(LearnedConfig):
    """Settings of every on-policy actor-critic agent. All losses are means over the used steps."""

    gamma: Gamma = 0.99
    gae_lambda: Lambda = 0.95
    value_loss_weight: ValueWeight = 0.5
    entropy_loss_weight: EntropyWeight = 0.0
    action_bound_loss_weight: ActionBoundWeight = 0.0
    clip_rewards: ClipRewards = False
    reward_clipping_method: ClippingMethod = "abs_one_sign"

    @property
    def reward_clipping(self) -> str | None:
        """A name of `agents.rewards.REWARD_CLIPPING`, or None for raw rewards."""
        return self.reward_clipping_method if self.clip_rewards else None


def describe_value(config: OnPolicyConfig) -> str:
    """One sentence on the quantity that the values estimate."""
    rewards = f"rewards clipped by {config.reward_clipping}" if config.reward_clipping else "raw rewards"
    if config.normalise_rewards:
        rewards = "rewards divided by the running standard deviation of their discounted sum"
    return f"expected sum of {rewards}, discounted by {config.gamma} per step"


def estimate(batch: Batch, values: Tensor, config: OnPolicyConfig) -> Advantages:
    """Advantages and value targets of a batch. Rows whose action was ignored, such as autoreset rows, have advantage 0.

    values: `[T+1, B]`, constants; the last row bootstraps.
    """
    return gae(
        rewards=clip_rewards(batch.rewards, config.reward_clipping),
        discounts=config.gamma * (~batch.terminated).to(values.dtype),
        values=values[:-1],
        bootstrap_value=values[-1],
        lambda_=config.gae_lambda,
        mask=batch.action_used,
    )


def used_mean(steps: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of steps of any shape over those of a bool mask of that shape, a scalar; over all of them without a mask.

    What a masked step holds does not matter. A mask without any step gives 0.
    """
    if mask is None:
        return steps.mean()
    return torch.where(mask, steps, 0.0).sum() / mask.sum().clamp(min=1)
