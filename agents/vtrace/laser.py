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

RELEVANCES = ("implied", "behaviour")


@torch.no_grad()
def relevance_divergence(
    target_logits: Tensor, behaviour_logits: Tensor, *, rho_bar: float, relevance: str = "implied"
) -> Tensor:
    """beta `[T, B]` in nats; small where the behaviour policy is relevant to the current one.

    Args:
        target_logits: `[T, B, A]` of the current policy pi.
        behaviour_logits: `[T, B, A]` of the policy mu that acted.
        rho_bar: V-trace's clip of the importance ratio.
        relevance: `implied` measures KL(pi || implied policy) as the paper does, `behaviour` KL(pi || mu).
    """
    if target_logits.dim() != 3 or target_logits.shape != behaviour_logits.shape:
        shapes = f"{list(target_logits.shape)} and {list(behaviour_logits.shape)}"
        raise ValueError(f"target_logits and behaviour_logits: wanted the same [T, B, A], got {shapes}")
    if relevance not in RELEVANCES:
        raise ValueError(f"relevance: wanted {' or '.join(RELEVANCES)}, got {relevance!r}")
    log_pi = target_logits.log_softmax(-1)
    reference = behaviour_logits.log_softmax(-1)
    if relevance == "implied":
        unnormalised = torch.minimum(log_pi, reference + math.log(rho_bar))
        reference = unnormalised - unnormalised.logsumexp(-1, keepdim=True)
    return (log_pi.exp() * (log_pi - reference)).sum(-1)
