"""An agent of your own: PPO with one more loss and a setting for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from agents.losses import Losses, Term
from agents.networks.actor_critic import PolicyOutput
from agents.ppo.agent import PPOAgent
from agents.ppo.config import PPOConfig
from agents.ppo.minibatch import Minibatch
from setting import Setting


@dataclass(frozen=True)
class MyConfig(PPOConfig):
    """The settings of PPO, and one more. It is a flag: `--logit_penalty_weight=0.1`."""

    logit_penalty_weight: Annotated[float, Setting("Weight of the penalty on logits.", "a weight >= 0", 0, 1e9)] = 0.01


class MyAgent(PPOAgent):
    """PPO with a penalty on large logits."""

    config_class = MyConfig
    config: MyConfig

    def losses(self, batch: Minibatch, outputs: PolicyOutput) -> Losses:
        losses = super().losses(batch, outputs)
        penalty = Term(outputs.policy.square().mean(), self.config.logit_penalty_weight)
        return losses._replace(terms={**losses.terms, "logit_penalty": penalty})
