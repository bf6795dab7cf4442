"""Soft values of choices: the value of a state under the softmax policy, with its entropy (Haarnoja et al. 2017, 1702.08165).

    pi(a|x) = softmax(Q(x, .) / alpha)        V(x) = alpha log sum_a exp(Q(x, a) / alpha) = sum_a pi (Q - alpha log pi)

Of two critics Q is min(Q_1, Q_2), taken for each action first. Values `[..., P]` of several choices stand one after another.
V is then the mean over the components, and alpha weighs the mean of their entropies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def soft_values(q: Tensor, temperature: Tensor | float, counts: Sequence[int]) -> Tensor:
    """V, `[...]`. q: `[..., P]`. temperature: alpha, above 0. counts: values of each component."""
    # `logsumexp` takes the largest value off first: with a small alpha the exponentials would overflow.
    parts = [temperature * torch.logsumexp(part / temperature, -1) for part in q.split(list(counts), -1)]
    return torch.stack(parts).mean(0)


def expected_soft_values(q: Tensor, policy: Tensor, temperature: Tensor | float, counts: Sequence[int]) -> Tensor:
    """sum_a pi (Q - alpha log pi), `[...]`, for another policy than that of q.

    q: `[..., P]`. policy: logits of pi, `[..., P]`.
    """
    values = []
    for part, logits in zip(q.split(list(counts), -1), policy.split(list(counts), -1), strict=True):
        log_pi = logits.log_softmax(-1)
        # An action without probability adds nothing, however low its value is.
        values.append(torch.where(log_pi.exp() > 0, log_pi.exp() * (part - temperature * log_pi), 0.0).sum(-1))
    return torch.stack(values).mean(0)
