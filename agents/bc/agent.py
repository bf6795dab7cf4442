"""Behaviour cloning (Pomerleau 1991, doi:10.1162/neco.1991.3.1.88): supervised learning of recorded actions.

The loss is the mean of - log pi(a|x) over the recorded steps, for any action space. Nothing is learned from rewards, so the
policy becomes as good as the one that was recorded, and fails where that one never was. `--agent=marwil` prefers the actions
that turned out well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.imitation.losses import accuracy, cloning_loss
from agents.losses import Losses, Term, used_mean
from agents.networks.actor_critic import PolicyAlone, PolicyNetwork, drawn_actions
from agents.networks.base import NetworkConfig
from agents.settings import (
    AgentConfig,
    GradientClip,
    HeldLearningRate,
    LastEntropyWeight,
    LearningRate,
    OptimizerName,
    RmspropEpsilon,
)
from agents.unused_settings import check_unused
from replay.batch import Batch
from setting import Log, Setting

CHARTS: dict[str, list[str]] = {
    "loss": [r"losses/cloning_loss$"],
    "share of recorded actions that are the policy's best": [r"losses/accuracy$"],
    "entropy, nats": [r"losses/entropy$"],
}
DEFAULTS: Mapping[str, Any] = {"batch_size": 32, "eval_seconds": 60.0}
"""Defaults of settings that every run has. Evaluations show what recorded episodes cannot: how the policy plays."""


@dataclass(frozen=True)
class BCConfig(AgentConfig):
    """Settings of behaviour cloning."""

    lr: LearningRate = 1e-3
    lr_end_value: HeldLearningRate = 0.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 1e-5
    adam_eps: float = 1e-8
    gradient_clip_by_norm_threshold: GradientClip = 10.0
    entropy_loss_weight: Annotated[
        float,
        Setting(
            "Weight of the entropy bonus, against a policy that few examples make too sure.",
            "a weight >= 0",
            0,
            1e9,
            search=Log(1e-5, 0.1),
        ),
    ] = 0.0
    entropy_loss_weight_end: LastEntropyWeight = -1.0


class BCAgent(Agent):
    """Behaviour cloning."""

    config_class = BCConfig
    network_class = PolicyNetwork
    tuned = ("lr", "entropy_loss_weight")
    charts = CHARTS
    defaults = DEFAULTS
    unused = ("separate_value",)

    config: BCConfig
    network: PolicyNetwork

    @classmethod
    def needs(cls, config: BCConfig) -> Needs:
        return Needs(recorded=True)

    @classmethod
    def check(cls, config: BCConfig, network: NetworkConfig) -> None:
        check_unused(network, cls.name(), cls.unused)

    @classmethod
    def graphed(cls, config: BCConfig) -> Literal["update"]:
        return "update"

    def update(self, batch: Batch, step: Stepper) -> None:
        outputs = step.forward(batch)
        step.take(*self.losses(batch, outputs), used=batch.action_used)

    def losses(self, batch: Batch, outputs: PolicyAlone) -> Losses:
        """The terms of the loss. outputs: the policy for all T+1 rows, `[T+1, B, P]`."""
        # `drawn` is the value before tanh where a recording has it: atanh of the action would be rounded.
        distribution, used, drawn = self.network.distribution, batch.action_used, drawn_actions(batch.actions, batch.acting)
        policy = outputs.policy[:-1]  # row T has an observation, but no action
        entropy = used_mean(distribution.entropy(policy), used)  # [T, B] -> []
        terms = {"cloning_loss": Term(cloning_loss(distribution.log_prob(policy, drawn), used))}  # - mean log pi(a|x)
        if self.config.entropy_loss_weight:
            terms["entropy_loss"] = Term(-entropy, self.stepper.entropy_weight.now)
        metrics = {"losses/entropy": entropy.detach()}
        if not drawn.is_floating_point():  # real numbers hardly ever agree exactly
            metrics["losses/accuracy"] = accuracy(distribution.mode(policy.detach()), drawn, used)
        return Losses(terms, metrics)
