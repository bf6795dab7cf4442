"""Settings and value targets of the on-policy agents: PPO, A2C and TRPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from agents.actor_critic import ActionBoundWeight, ActorCriticConfig, ClipRewards, EntropyWeight
from agents.returns.gae import Advantages, gae
from agents.rewards import clip_rewards
from replay.batch import Batch
from setting import Setting

Lambda = Annotated[
    float,
    Setting(
        "Decay of the advantages' trace (GAE); 1 takes whole returns, 0 one step and the next value.",
        "a number in [0, 1]",
        0,
        1,
    ),
]


@dataclass(frozen=True)
class OnPolicyConfig(ActorCriticConfig):
    """Settings of every on-policy agent. All losses are means over the used steps."""

    gae_lambda: Lambda = 0.95
    entropy_loss_weight: EntropyWeight = 0.0
    action_bound_loss_weight: ActionBoundWeight = 0.0
    clip_rewards: ClipRewards = False


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
