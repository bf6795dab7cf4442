"""Targets and losses of SAC, TD3 and DDPG, as pure functions. M rows; Q-values of k critics are `[k, M]`.

Critics of quantiles (TQC, arXiv:2005.04269) give K of them, `[k, M, K]`. Their targets are `[M, J]`: J quantiles for each row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agents.values.quantiles import quantile_loss


def kept_quantiles(next_q: Tensor, dropped: int) -> Tensor:
    """The quantiles of the target critics that targets are made of, `[M, J]`: all but the largest of the pool of all critics.

    A critic that is higher than the others loses more of its quantiles (TQC, equation 4).

    next_q: `[k, M, K]`. dropped: quantiles that are left out for each critic: J = k (K - dropped).
    """
    pool = next_q.transpose(0, 1).flatten(1)  # [M, k K]: sorted together, not for each critic by itself
    return pool.sort(-1).values[:, : pool.shape[-1] - dropped * len(next_q)]  # [M, J]


def drawn_critics(next_q: Tensor, ranks: Tensor, subset: int) -> Tensor:
    """The values of those critics whose ranks are the smallest, `[subset, M, ...]` (REDQ, arXiv:2101.05982, algorithm 1).

    next_q: `[k, M, ...]`. ranks: random numbers `[M, k]`.
    """
    index = ranks.argsort(-1)[:, :subset].t()  # [subset, M]
    return next_q.gather(0, index.view(*index.shape, *[1] * (next_q.dim() - 2)).expand(-1, -1, *next_q.shape[2:]))


def soft_targets(
    returns: Tensor, discounts: Tensor, next_q: Tensor, next_log_probs: Tensor, temperature: Tensor, dropped: int = 0
) -> Tensor:
    """Targets of SAC (arXiv:1812.05905, equations 2 and 3): G + D (min_k Q'_k(x', a') - alpha log pi(a'|x')), `[M]`.

    Args:
        returns: G, `[M]`.
        discounts: D, `[M]`.
        next_q: of the target critics, `[k, M]`, or `[k, M, K]` for targets `[M, J]`.
        next_log_probs: `[M]`.
        temperature: alpha, `[]`.
        dropped: see `kept_quantiles`.
    """
    bonus = temperature * next_log_probs
    if next_q.dim() == 2:
        # The smallest critic, since a policy finds and exploits what one critic overestimates.
        return returns + discounts * (next_q.amin(0) - bonus)
    value = kept_quantiles(next_q, dropped) - bonus.unsqueeze(-1)
    return returns.unsqueeze(-1) + discounts.unsqueeze(-1) * value  # [M, J]


def soft_choice_targets(returns: Tensor, discounts: Tensor, next_q: Tensor, next_logits: Tensor, temperature: Tensor) -> Tensor:
    """Targets of SAC for one choice (arXiv:1910.07207): G + D sum_a pi(a|x') (min_k Q'_k(x', a) - alpha log pi(a|x')), `[M]`.

    next_q: of the target critics, `[k, M, A]`. next_logits: `[M, A]`. The others as for `soft_targets`.
    """
    log_probs = next_logits.log_softmax(-1)  # log pi(.|x') [M, A]
    # The expectation over all actions is exact, so no action is drawn and no variance added.
    return returns + discounts * (log_probs.exp() * (next_q.amin(0) - temperature * log_probs)).sum(-1)


def hard_targets(returns: Tensor, discounts: Tensor, next_q: Tensor, dropped: int = 0) -> Tensor:
    """Targets of TD3 (arXiv:1802.09477, equation 10) and, with one critic, DDPG: G + D min_k Q'_k(x', a'), `[M]`.

    Critics of quantiles give targets `[M, J]`. dropped: see `kept_quantiles`.
    """
    if next_q.dim() == 2:
        return returns + discounts * next_q.amin(0)  # [k, M] -> [M]
    return returns.unsqueeze(-1) + discounts.unsqueeze(-1) * kept_quantiles(next_q, dropped)  # [M, J]


def smoothed_actions(actions: Tensor, normals: Tensor, noise: float, noise_clip: float) -> Tensor:
    """Actions of the target policy with clipped noise (TD3, section 5.3), `[M, D]`, in [-1, 1]."""
    # The value is averaged over near actions, so the policy cannot climb a narrow peak of a wrong Q. The inner clip keeps
    # them near; the outer one keeps them within the bounds.
    return (actions + (noise * normals).clamp(-noise_clip, noise_clip)).clamp(-1, 1)


def critic_loss(q: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum over the critics of the mean of w (Q - y)^2, or of the quantile Huber loss (TQC, equations 6 and 7).

    Args:
        q: Q, `[k, M]`, or quantiles `[k, M, K]`, with gradient.
        targets: y, `[M]`, or `[M, J]`, constants.
        weights: w, importance weights of prioritised replay, `[M]`; 1 by default.
    """
    # Of quantiles the mean over both kinds, where QR-DQN has a sum over its own: [k, M, K] and [M, J] -> [k, M].
    errors = (q - targets).square() if q.dim() == 2 else quantile_loss(q, targets) / q.shape[-1]
    return (errors if weights is None else weights * errors).mean(-1).sum()  # mean over rows, sum over critics


def critic_errors(q: Tensor, targets: Tensor) -> Tensor:
    """Sizes of the temporal differences, a mean over the critics, `[M]`, without gradient. Arguments as for `critic_loss`."""
    if q.dim() == 3:
        q, targets = q.mean(-1), targets.mean(-1)  # a distribution's mean is the value
    return (q.detach() - targets).abs().mean(0)  # [k, M] -> [M]


def soft_policy_loss(q: Tensor, log_probs: Tensor, temperature: Tensor, *, mean: bool = False) -> Tensor:
    """Loss of SAC's policy (equation 9): mean(alpha log pi - min_k Q_k).

    Args:
        q: of the policy's own actions, `[k, M]`, or quantiles `[k, M, K]`, all of which count alike.
        log_probs: `[M]`.
        temperature: alpha, `[]`.
        mean: whether the mean over the critics takes the place of the minimum (REDQ).
    """
    value = q.mean((0, 2)) if q.dim() == 3 else q.mean(0) if mean else q.amin(0)  # [M]
    return (temperature * log_probs - value).mean()  # its gradient reaches the policy through log pi and through a in Q


def deterministic_policy_loss(q: Tensor) -> Tensor:
    """Loss of the policy of TD3 (section 5.2) and DDPG (equation 6): - mean Q_1.

    q: of the policy's own actions, `[k, M]`, or quantiles `[k, M, K]`, all of which count alike.
    """
    return -q.mean() if q.dim() == 3 else -q[0].mean()  # Q_1 alone, as in TD3: only targets need the minimum


def soft_choice_policy_loss(q: Tensor, logits: Tensor, temperature: Tensor, *, mean: bool = False) -> Tensor:
    """Loss of SAC's policy for one choice: mean over rows of the SUM over actions of pi (alpha log pi - min_k Q_k).

    q: `[k, M, A]`, constants. logits: `[M, A]`. mean: as for `soft_policy_loss`.
    """
    log_probs, value = logits.log_softmax(-1), q.mean(0) if mean else q.amin(0)  # [M, A] each
    return (log_probs.exp() * (temperature * log_probs - value)).sum(-1).mean()  # the gradient passes through pi alone


def temperature_loss(log_temperature: Tensor, entropy: Tensor, target_entropy: Tensor | float) -> Tensor:
    """Loss of the temperature in the form of Stable-Baselines3, in log alpha: log alpha (H(pi) - target).

    The paper's form (equation 18) has alpha in place of log alpha; its gradient is alpha times as large.

    entropy: mean entropy of the policy, `[]`, constant.
    """
    # An entropy below its target makes the gradient negative, so the temperature grows.
    return log_temperature * (entropy - target_entropy)


def next_noise(noise: Tensor, normals: Tensor, theta: float, sigma: float, dt: float) -> Tensor:
    """The next state of Ornstein-Uhlenbeck noise around 0 (DDPG, arXiv:1509.02971, section 7), of the shape of `noise`."""
    # sqrt(dt): variances add up over time.
    following: Tensor = noise - theta * noise * dt + sigma * dt**0.5 * normals
    return following


@torch.no_grad()
def mean_entropy(logits: Tensor) -> Tensor:
    """Mean entropy of choices with these logits `[M, A]`, `[]`."""
    log_probs = logits.log_softmax(-1)  # [M, A]
    return -(log_probs.exp() * log_probs).sum(-1).mean()
