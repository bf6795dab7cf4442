"""The common part of PPO and TRPO: the constants of an update, and several epochs of minibatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from agents.actor_critic import ActorCriticAgent
from agents.base import Needs
from agents.losses import used_mean
from agents.metrics import value_metrics
from agents.minibatches import Epochs
from agents.networks.actor_critic import PolicyOutput
from agents.networks.base import NetworkConfig
from agents.networks.cores import NO_CORE
from agents.networks.policy import drawn_actions
from agents.networks.settings import NetworkSettings
from agents.on_policy import OnPolicyConfig, estimate
from agents.ppo.minibatch import Clipping, Minibatch, Normalisation, Rows, epochs_of_columns, epochs_of_steps
from replay.batch import Batch
from setting import Setting

Minibatches = Annotated[
    int,
    Setting(
        "Parts of the batch in each epoch, one optimiser step each; at most as many as there are steps or columns.",
        "a whole number of minibatches from 1 to 1000000",
        1,
        1e6,
    ),
]


@dataclass(frozen=True)
class EpochsConfig(OnPolicyConfig):
    """Settings of every agent that goes through a batch several times."""

    epochs: Epochs = 4
    minibatches: Minibatches = 4
    minibatch_unit: Annotated[
        Literal["auto", "steps", "columns"],
        Setting("Members of a minibatch: single steps, or whole trajectories. auto: columns with a core, otherwise steps."),
    ] = "auto"


class EpochsAgent(ActorCriticAgent):
    """An on-policy agent that takes several optimiser steps on minibatches of each batch. Subclasses have the `update`."""

    config_class = EpochsConfig
    several_steps = True

    config: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._columns = takes_columns(self.config, self.network.config.settings)

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(on_policy=True)

    @classmethod
    def check(cls, config: Any, network: NetworkConfig) -> None:
        takes_columns(config, network.settings)

    @torch.no_grad()
    def rows(self, batch: Batch) -> tuple[Rows, dict[str, Tensor]]:
        """The constants of an update, from one pass over all T+1 rows, and metrics of its values."""
        values = self.outputs(batch).values
        behaviour, drawn = batch.acting["behaviour_policy"], drawn_actions(batch.actions, batch.acting)
        advantages, targets = estimate(batch, values, self.config)
        metrics = value_metrics(values[:-1], targets, batch.action_used)
        log_mu = self.network.distribution.log_prob(behaviour, drawn)
        # Row T has a value to bootstrap from, but no action, so minibatches are made of rows 0 to T-1.
        return Rows(batch.observations[:-1], behaviour, drawn, log_mu, values[:-1], advantages, targets), metrics

    def outputs(self, batch: Batch) -> PolicyOutput:
        """The outputs for all T+1 rows without gradient, `[T+1, B, ...]` each."""
        if batch.recurrent_state is not None:
            outputs: PolicyOutput = self.passes.without_gradient(batch.observations, batch.recurrent_state, batch.reset)
            return outputs
        flat = self.passes.without_gradient(batch.observations.flatten(0, 1))
        return PolicyOutput(*(output.unflatten(0, batch.observations.shape[:2]) for output in flat))

    def epochs(
        self, rows: Rows, batch: Batch, clipping: Clipping, normalisation: Normalisation = "none"
    ) -> Iterator[Iterable[Minibatch]]:
        """The minibatches of each epoch, without end. normalisation: `minibatch` normalises the advantages of each."""
        shared = (rows, batch.action_used, self.config.minibatches, normalisation, clipping)
        return epochs_of_columns(*shared, batch.recurrent_state, batch.reset) if self._columns else epochs_of_steps(*shared)

    def most_minibatches(self, batch: Batch) -> int:
        """The most minibatches of an epoch: fewer are made if steps or columns of the batch are not used."""
        return min(self.config.minibatches, batch.action_used.shape[1] if self._columns else batch.action_used.numel())

    def forward_minibatch(self, minibatch: Minibatch) -> tuple[Any, PolicyOutput]:
        """The outputs as leaves, and in the shape of the minibatch's rows."""
        observations, rows = minibatch.rows.observations, minibatch.rows.log_mu.shape
        flat = minibatch.state is None and len(rows) > 1
        leaves = self.passes.forward(observations.flatten(0, 1) if flat else observations, minibatch.state, minibatch.reset)
        return leaves, PolicyOutput(*(leaf.unflatten(0, rows) for leaf in leaves)) if flat else leaves


def value_loss(values: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """mean (G - V)^2 / 2 over the used steps, a scalar. mask: bool, of the values' shape; None if all are used."""
    if mask is None:
        return 0.5 * functional.mse_loss(values, targets)  # one operation in each direction
    return 0.5 * used_mean((targets - values).square(), mask)


def takes_columns(config: EpochsConfig, network: NetworkSettings) -> bool:
    """Whether minibatches are made of whole trajectories. Raises ValueError for single steps of a network with a core."""
    if network.core != NO_CORE and config.minibatch_unit == "steps":
        raise ValueError(
            f"minibatch_unit: wanted columns or auto with --core={network.core}, whose memory links steps, got steps"
        )
    return network.core != NO_CORE or config.minibatch_unit == "columns"
