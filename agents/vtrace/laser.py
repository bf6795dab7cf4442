"""LASER's trust region (Schmitt et al. 2019, arXiv:1909.11583): which stored steps are near enough to the current policy.

The relevance of a step is a divergence between whole distributions, so that it does not depend on the action that was drawn:
rejecting by the action would bias what is learned.

    implied policy  pit(a) = min(rho_bar mu(a), pi(a)) / sum_b min(rho_bar mu(b), pi(b))        (IMPALA, equation 3)
    beta(x_t) = KL(pi(.|x_t) || pit(.|x_t)),   the step is used where beta < threshold
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agents.distributions import Categorical, Distribution

RELEVANCES = ("implied", "behaviour")


@torch.no_grad()
def relevance_divergence(
    distribution: Distribution, target: Tensor, behaviour: Tensor, *, rho_bar: float | None, relevance: str = "implied"
) -> Tensor:
    """beta `[T, B]` in nats; small where the behaviour policy is relevant to the current one.

    Args:
        distribution: of the actions. The implied policy sums over all actions, so it takes a `Categorical`.
        target: `[T, B, P]` of the current policy pi.
        behaviour: `[T, B, P]` of the policy mu that acted.
        rho_bar: V-trace's clip of the importance ratio; None clips nothing, so the implied policy is pi.
        relevance: `implied` measures KL(pi || implied policy) as the paper does, `behaviour` KL(pi || mu).
    """
    if target.dim() != 3 or target.shape != behaviour.shape:
        raise ValueError(
            f"target and behaviour: wanted the same [T, B, P], got {list(target.shape)} and {list(behaviour.shape)}"
        )
    if relevance not in RELEVANCES:
        raise ValueError(f"relevance: wanted {' or '.join(RELEVANCES)}, got {relevance!r}")
    if relevance == "behaviour":
        return distribution.kl(target, behaviour)  # [T, B]
    if not isinstance(distribution, Categorical):
        raise ValueError(f"relevance: wanted behaviour for {distribution}, got implied")
    log_pi = target.log_softmax(-1)  # [T, B, A]
    # min(rho_bar mu, pi) in logarithms, where a product with rho_bar is a sum and no probability underflows.
    unnormalised = log_pi if rho_bar is None else torch.minimum(log_pi, behaviour.log_softmax(-1) + math.log(rho_bar))
    implied = unnormalised - unnormalised.logsumexp(-1, keepdim=True)  # log pit [T, B, A]
    return (log_pi.exp() * (log_pi - implied)).sum(-1)  # KL(pi || pit) [T, B]
