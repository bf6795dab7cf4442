"""APPO: PPO's clipped surrogate on asynchronous trajectories, with V-trace targets (Petrenko et al. 2020, arXiv:2006.11751).

With R_t = pi(a_t|x_t) / mu(a_t|x_t) and the targets v_t of V-trace (rho_bar = c_bar = 1)

    A_t = r_t + d_t v_{t+1} - V(x_t)

The advantage has no ratio: the surrogate brings R_t in, once. Sample Factory's own form also multiplies A_t by min(1, R_t).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from agents.actor_critic import EntropyWeight, ValueWeight
from agents.asynchronous import (
    AsynchronousAgent,
    AsynchronousConfig,
    Estimates,
    LogProbs,
    Normalise,
    rewards_and_discounts,
    vtrace_of,
)
from agents.guarded import GradientClip
from agents.returns.gae import gae
from replay.batch import Batch
from setting import Setting


@dataclass(frozen=True)
class APPOConfig(AsynchronousConfig):
    """Settings of APPO, by default near those of Sample Factory."""

    gradient_clip_by_norm_threshold: GradientClip = 4.0
    adam_eps: float = 1e-6
    vtrace_lambda: Annotated[float, Setting("Factor on the traces, of GAE too.", "a number in [0, 1]", 0, 1)] = 0.95
    advantages: Annotated[
        Literal["vtrace", "gae"],
        Setting(
            "How advantages and value targets are estimated: with V-trace's correction, or by GAE as if the policy had acted."
        ),
    ] = "vtrace"
    normalise_advantages: Normalise = True
    value_loss_weight: ValueWeight = 1.0
    entropy_loss_weight: EntropyWeight = 0.003


class APPOAgent(AsynchronousAgent):
    """Asynchronous PPO."""

    config_class = APPOConfig
    graphed = True
    config: APPOConfig

    def estimates(self, batch: Batch, log_probs: LogProbs, values: Tensor) -> Estimates:
        config = self.config
        log_ratios = log_probs.policy - log_probs.behaviour
        rewards, discounts = rewards_and_discounts(batch, config)
        # GAE takes every ratio for 1, so its estimates are those of the policy that acted.
        if config.advantages == "gae":
            found = gae(
                rewards=rewards,
                discounts=discounts,
                values=values[:-1],
                bootstrap_value=values[-1],
                lambda_=config.vtrace_lambda,
                mask=batch.action_used,
            )
            return Estimates(log_ratios, found.advantages, found.targets, {})
        # Without the gradient of the ratios: the surrogate alone moves the policy by them.
        vs = vtrace_of(batch, log_ratios.detach(), values, config).vs
        return Estimates(log_ratios, one_step_advantages(rewards, discounts, values, vs, batch.action_used), vs, {})


def one_step_advantages(rewards: Tensor, discounts: Tensor, values: Tensor, vs: Tensor, mask: Tensor) -> Tensor:
    """A_t = r_t + d_t v_{t+1} - V(x_t) `[T, B]`, 0 where a step is masked. v_T is V(x_T).

    Args:
        rewards: `[T, B]`.
        discounts: `[T, B]`, gamma, 0 where step t terminated its episode.
        values: `[T+1, B]`, V(x_t).
        vs: `[T, B]`, the targets of V-trace.
        mask: bool `[T, B]`, the steps that may be used.
    """
    # Row T has no target of its own: it has no action, and its value bootstraps.
    next_vs = torch.cat([vs[1:], values[-1:]])
    return torch.where(mask, rewards + discounts * next_vs - values[:-1], 0.0)
