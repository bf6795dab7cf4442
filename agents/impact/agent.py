"""IMPACT: a clipped surrogate around a target network, on a circular replay (Luo et al. 2019, arXiv:1912.00167, section 3.1).

Three policies: mu acted, pi_tgt is that of the target network, pi is learned.

    R_t = pi(a_t|x_t) / max(pi_tgt(a_t|x_t), mu(a_t|x_t) / rho)  =  min(mu / pi_tgt, rho) pi / mu

V-trace takes the ratio pi_tgt/mu, and the values of the current network. Its advantage has the clipped ratio min(1, pi_tgt/mu).
With R_t the weight of a step is pi / max(pi_tgt, mu), as long as mu <= rho pi_tgt. So no ratio enters twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from agents.appo.agent import AdvantageEstimates, APPOAgent, LogProbs, vtrace_of
from agents.appo.config import SurrogateConfig
from agents.losses import used_mean
from agents.surrogate import Clip
from replay.batch import Batch
from setting import Setting


@dataclass(frozen=True)
class ImpactConfig(SurrogateConfig):
    """Settings of IMPACT, by default those of RLlib for discrete actions."""

    clip: Clip = 0.4
    target_worker_clip: Annotated[
        float,
        Setting(
            "Largest ratio of the policy that acted to the target network's by which a step is weighted (the paper's rho).",
            "a ratio from 1 to 1000000",
            1,
            1e6,
        ),
    ] = 2.0


class ImpactAgent(APPOAgent):
    """IMPACT. It replays each batch a few times, and its target network keeps the replayed batches from being clipped away."""

    config_class = ImpactConfig
    defaults: ClassVar[Mapping[str, Any]] = {"replay_parameters": '[{"type": "circular", "sample_ratio": 1.0}]'}
    has_target = True
    config: ImpactConfig

    def estimates(self, batch: Batch, log_probs: LogProbs, values: Tensor, gamma: float) -> AdvantageEstimates:
        config = self.config
        assert log_probs.target is not None
        # The target network stands between the two policies: its ratio to mu corrects the targets, and changes rarely.
        # V-trace with the ratio pi_tgt / mu
        targets = vtrace_of(batch, log_probs.target - log_probs.behaviour, values, gamma, config.vtrace_lambda)
        # log R_t [T, b]
        log_ratios = impact_log_ratios(log_probs.policy, log_probs.target, log_probs.behaviour, config.target_worker_clip)
        # mu / pi_tgt > rho: the denominator is mu / rho
        capped = log_probs.behaviour - log_probs.target > math.log(config.target_worker_clip)
        metrics = {"losses/capped_fraction": used_mean(capped.float(), batch.action_used)}
        # V-trace's own advantage, with min(1, pi_tgt / mu): times R_t = pi / pi_tgt that is pi / mu, once.
        return AdvantageEstimates(log_ratios, targets.pg_advantages, targets.vs, metrics)


def impact_log_ratios(policy: Tensor, target: Tensor, behaviour: Tensor, target_worker_clip: float) -> Tensor:
    """log R_t of IMPACT, of any shape. A tiny pi_tgt cannot make it large, because mu / rho bounds the denominator.

    Args:
        policy: log pi(a_t|x_t), with gradient.
        target: log pi_tgt(a_t|x_t), a constant.
        behaviour: log mu(a_t|x_t), a constant.
        target_worker_clip: rho, 1 or more.
    """
    # log pi - log max(pi_tgt, mu / rho). The target network is the usual denominator, so it stays unscaled.
    return policy - torch.maximum(target, behaviour - math.log(target_worker_clip))
