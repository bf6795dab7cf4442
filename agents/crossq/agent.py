"""CrossQ: soft actor-critic without target networks (Bhatt et al., arXiv:1902.05605).

[Q_k(x, a); Q_k(x', a')] = one pass of critic k over both halves, 2N rows that batch renormalisation treats as one batch
y = G + D (min_k Q_k(x', a') - alpha log pi(a'|x')), constants          losses: those of agents/sac/agent.py

A target network keeps targets from running away with the critics. Here that is done by the normalisation: (x, a) and (x', a')
are seen by the same statistics, where two passes would normalise each by its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from agents.engine.stepper import Stepper
from agents.engine.targets import TargetNetwork
from agents.networks.base import NetworkConfig
from agents.networks.batch_renorm import WARM_UP, renorms_of, statistics_of_batch
from agents.networks.inputs import input_parts
from agents.networks.torsos import SIMBA
from agents.returns.nstep import Transitions, transitions
from agents.sac.agent import ActorDelay, PolicyLoss, SACAgent, SoftConfig
from agents.settings import AdamMomentum, LearningRate
from replay.batch import Batch
from setting import Setting


@dataclass(frozen=True)
class CrossQConfig(SoftConfig):
    """Settings of CrossQ. Those of its authors are the defaults, but for the width of the critics: they have 2048,2048."""

    lr: LearningRate = 1e-3
    adam_beta1: AdamMomentum = 0.5
    delay: ActorDelay = 3
    renorm_warm_up: Annotated[
        int,
        Setting(
            "Steps of a network in which batches are normalised by their own statistics alone; later these are corrected "
            "towards the running ones (batch renormalisation).",
            "a whole number of steps from 0 to 16000000",
            0,
            16_000_000,
        ),
    ] = WARM_UP
    critic_layer_norm: ClassVar[bool] = False  # hidden layers are normalised over the rows


class CrossQAgent(SACAgent):
    """SAC whose critics have no lagged copies, and whose networks are normalised over the rows of a batch."""

    config_class = CrossQConfig
    tuned = ("lr", "gamma", "updates_per_step")

    config: CrossQConfig

    @classmethod
    def check(cls, config: Any, network: NetworkConfig) -> None:
        super().check(config, network)
        vectors = all(part.is_vector for part in input_parts(network.observation_shape, network.leaves))
        if network.settings.network == SIMBA or (vectors and network.settings.network != "mlp"):
            wanted = "mlp" if vectors else "another"
            raise ValueError(f"network: wanted {wanted} with agent crossq, which normalises it, got {network.settings.network}")

    def make_targets(self, config: Any) -> dict[str, TargetNetwork]:
        return {}

    def update(self, batch: Batch, step: Stepper) -> None:
        config = self.config
        self.network.acts_randomly.zero_()  # the first update comes when learning starts
        parts = transitions(batch, config.gamma).split(config.batches_at_once)
        for number, part in enumerate(parts, int(self.asked) + 1):  # steps count from 1
            losses = partial(self.losses, actor_learns=number % config.delay == 0)
            # One thread computes all rows, as their statistics are those of all.
            applied = step.take_rows(losses, part, *self.drawn(part), draws=True)
            for renorm in (*renorms_of(self.critics), *renorms_of(self.network)):
                renorm.follow(applied)  # a refused step leaves the running statistics as they were

    def values(
        self, encoded: Tensor, actions: Tensor | None, next_encoded: Tensor, next_actions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        both = None if actions is None or next_actions is None else torch.cat([actions, next_actions])  # [2N, D]
        with statistics_of_batch(self.critics, self.stepper.collectives):
            q = self.critics(torch.cat([encoded, next_encoded]), both)  # [k, 2N, ...]
        q, next_q = q.chunk(2, 1)  # [k, N, ...] each
        return q, next_q.detach()  # targets are constants, though the statistics of both halves have a gradient

    def policy_of_numbers(self, part: Transitions, alpha: Tensor, encoded: Tensor, normals: Tensor) -> PolicyLoss:
        # Of the batch are the statistics of the policy that learns. Actions a' and the critics here go by the running ones.
        with statistics_of_batch(self.network, self.stepper.collectives):
            return super().policy_of_numbers(part, alpha, encoded, normals)

    def policy_of_choice(self, part: Transitions, alpha: Tensor, encoded: Tensor, normals: Tensor) -> PolicyLoss:
        with statistics_of_batch(self.network, self.stepper.collectives):
            return super().policy_of_choice(part, alpha, encoded, normals)
