"""The V-trace actor-critic agent (IMPALA, arXiv 1802.01561): targets, losses and one optimiser step.

Losses are summed over time and batch, as in the paper's settings: learning rate, clip norm and epsilon belong to the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agents.base import Agent
from agents.losses import action_log_probs, entropy_loss, policy_gradient_loss, value_loss
from agents.networks import ActorCritic
from agents.rewards import clip_rewards
from agents.vtrace import VTraceReturns, vtrace
from replay.trajectory import Batch

RMSPROP_DECAY = 0.99


@dataclass(frozen=True)
class VTraceConfig:
    """Settings of the V-trace agent. reward_clipping: a name of `agents.rewards.REWARD_CLIPPING`, or None for raw rewards."""

    gamma: float = 0.99
    rho_bar: float = 1.0
    c_bar: float = 1.0
    pg_rho_bar: float = 1.0
    lambda_: float = 1.0
    policy_gradient_loss_weight: float = 1.0
    value_loss_weight: float = 0.5
    entropy_loss_weight: float = 0.01
    reward_clipping: str | None = "abs_one_sign"
    optimizer: str = "rmsprop"
    rmsprop_eps: float = 0.01
    adam_eps: float = 1e-8
    gradient_clip_by_norm_threshold: float = 40.0

    def __post_init__(self) -> None:
        if self.rho_bar < self.c_bar:
            raise ValueError(
                f"wanted the V-trace clip rho_bar >= c_bar (IMPALA, section 4.1), got rho_bar {self.rho_bar:g} "
                f"and c_bar {self.c_bar:g}"
            )


def make_optimizer(config: VTraceConfig, network: ActorCritic) -> torch.optim.Optimizer:
    """The optimiser by its name; the learning rate is set anew at every update."""
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(network.parameters(), lr=0.0, alpha=RMSPROP_DECAY, eps=config.rmsprop_eps, foreach=True)
    if config.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), lr=0.0, eps=config.adam_eps, foreach=True)
    raise ValueError(f"optimizer: wanted rmsprop or adam, got {config.optimizer!r}")


class VTraceAgent(Agent):
    """V-trace on a mixture of fresh and replayed trajectories."""

    def __init__(self, config: VTraceConfig, network: ActorCritic) -> None:
        self.config = config
        self.network = network
        self.optimizer = make_optimizer(config, network)

    def update(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        config = self.config
        logits, values = self._evaluate(batch)
        mask = batch.action_used.to(values.dtype)
        log_probs = action_log_probs(logits, batch.actions)
        log_rhos = log_probs.detach() - action_log_probs(batch.behaviour_logits, batch.actions)
        targets = vtrace(
            log_rhos=log_rhos,
            discounts=config.gamma * (~batch.terminated).to(values.dtype),
            rewards=clip_rewards(batch.rewards, config.reward_clipping),
            values=values[:-1].detach(),
            bootstrap_value=values[-1].detach(),
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            pg_rho_bar=config.pg_rho_bar,
            lambda_=config.lambda_,
            mask=mask,
        )
        losses = {
            "policy": policy_gradient_loss(logits, batch.actions, targets.pg_advantages, mask),
            "value": value_loss(values[:-1], targets.vs, mask),
            "entropy": entropy_loss(logits, mask),
        }
        total = (
            config.policy_gradient_loss_weight * losses["policy"]
            + config.value_loss_weight * losses["value"]
            + config.entropy_loss_weight * losses["entropy"]
        )
        gradient_norm = self._step(total, learning_rate)
        return self._metrics(losses, total, gradient_norm, targets, log_rhos, values[:-1].detach(), mask)

    def _evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits `[T, B, A]` and values `[T+1, B]` of the current network: one forward over all T+1 observations."""
        rows, columns = batch.observations.shape[:2]
        output = self.network(batch.observations.flatten(0, 1))
        return output.logits.unflatten(0, (rows, columns))[:-1], output.values.unflatten(0, (rows, columns))

    def _step(self, loss: Tensor, learning_rate: float) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(
            self.network.parameters(), self.config.gradient_clip_by_norm_threshold, foreach=True
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self.config.optimizer == "rmsprop" and not self.optimizer.state:
            self._start_mean_squares()
        self.optimizer.step()
        return norm

    def _start_mean_squares(self) -> None:
        """Start RMSProp's running mean of squared gradients at the first squared gradient instead of at zero.

        From zero the first step is 1/sqrt(1 - 0.99) = 10 times the learning rate in every weight, whatever the gradient: seen
        to leave a convolutional network with a constant value for good.
        """
        for parameter in self.network.parameters():
            assert parameter.grad is not None
            self.optimizer.state[parameter] = {"step": torch.zeros(()), "square_avg": parameter.grad.square()}

    @torch.no_grad()
    def _metrics(
        self,
        losses: dict[str, Tensor],
        total: Tensor,
        gradient_norm: Tensor,
        targets: VTraceReturns,
        log_rhos: Tensor,
        values: Tensor,
        mask: Tensor,
    ) -> dict[str, Tensor]:
        """Per used step, so that settings with other batch sizes can be compared."""
        used = mask.sum().clamp(min=1)
        ratios = log_rhos.exp()

        def mean(x: Tensor) -> Tensor:
            return (x * mask).sum() / used

        def variance(x: Tensor) -> Tensor:
            return mean((x - mean(x)) ** 2)

        return {
            "losses/total_loss": total.detach() / used,
            "losses/policy_loss": losses["policy"].detach() / used,
            "losses/value_loss": losses["value"].detach() / used,
            "losses/entropy": -losses["entropy"].detach() / used,
            "losses/gradient_norm": gradient_norm,
            "losses/gradient_clipped": (gradient_norm > self.config.gradient_clip_by_norm_threshold).float(),
            "losses/explained_variance": 1 - variance(targets.vs - values) / variance(targets.vs).clamp(min=1e-8),
            "losses/value_mean": mean(values),
            "losses/value_std": variance(values).sqrt(),
            "vtrace/rho_clip_fraction": mean((ratios > self.config.rho_bar).float()),
            "vtrace/c_clip_fraction": mean((ratios > self.config.c_bar).float()),
            "vtrace/pg_rho_clip_fraction": mean((ratios > self.config.pg_rho_bar).float()),
            "vtrace/mean_rho": mean(ratios.clamp(max=self.config.rho_bar)),
            "vtrace/used_fraction": mask.mean(),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        self.network.load_state_dict(state["network"])
        if load_optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
