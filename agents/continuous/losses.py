"""Targets and losses of SAC, TD3 and DDPG, as pure functions. M rows; Q-values of k critics are `[k, M]`."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_targets(returns: Tensor, discounts: Tensor, next_q: Tensor, next_log_probs: Tensor, temperature: Tensor) -> Tensor:
    """Targets of SAC (arXiv:1812.05905, equations 2 and 3): G + D (min_k Q'_k(x', a') - alpha log pi(a'|x')), `[M]`.

    Args:
        returns: G, `[M]`.
        discounts: D, `[M]`.
        next_q: of the target critics, `[k, M]`.
        next_log_probs: `[M]`.
        temperature: alpha, `[]`.
    """
    # The smallest critic, since a policy finds and exploits what one critic overestimates.
    return returns + discounts * (next_q.amin(0) - temperature * next_log_probs)


def soft_choice_targets(returns: Tensor, discounts: Tensor, next_q: Tensor, next_logits: Tensor, temperature: Tensor) -> Tensor:
    """Targets of SAC for one choice (arXiv:1910.07207): G + D sum_a pi(a|x') (min_k Q'_k(x', a) - alpha log pi(a|x')), `[M]`.

    next_q: of the target critics, `[k, M, A]`. next_logits: `[M, A]`. The others as for `soft_targets`.
    """
    log_probs = next_logits.log_softmax(-1)  # log pi(.|x') [M, A]
    # The expectation over all actions is exact, so no action is drawn and no variance added.
    return returns + discounts * (log_probs.exp() * (next_q.amin(0) - temperature * log_probs)).sum(-1)


def hard_targets(returns: Tensor, discounts: Tensor, next_q: Tensor) -> Tensor:
    """Targets of TD3 (arXiv:1802.09477, equation 10) and, with one critic, DDPG: G + D min_k Q'_k(x', a'), `[M]`."""
    return returns + discounts * next_q.amin(0)  # [k, M] -> [M]


def smoothed_actions(actions: Tensor, normals: Tensor, noise: float, noise_clip: float) -> Tensor:
    """Actions of the target policy with clipped noise (TD3, section 5.3), `[M, D]`, in [-1, 1]."""
    # The value is averaged over near actions, so the policy cannot climb a narrow peak of a wrong Q. The inner clip keeps
    # them near; the outer one keeps them within the bounds.
    return (actions + (noise * normals).clamp(-noise_clip, noise_clip)).clamp(-1, 1)


def critic_loss(q: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum over the critics of the mean of w (Q - y)^2.

    Args:
        q: Q, `[k, M]`, with gradient.
        targets: y, `[M]`, constants.
        weights: w, importance weights of prioritised replay, `[M]`; 1 by default.
    """
    squares = (q - targets).square()  # [k, M]
    return (squares if weights is None else weights * squares).mean(-1).sum()  # mean over rows, sum over critics


def critic_errors(q: Tensor, targets: Tensor) -> Tensor:
    """Sizes of the temporal differences, a mean over the critics, `[M]`, without gradient. Arguments as for `critic_loss`."""
    return (q.detach() - targets).abs().mean(0)  # [k, M] -> [M]


def soft_policy_loss(q: Tensor, log_probs: Tensor, temperature: Tensor) -> Tensor:
    """Loss of SAC's policy (equation 9): mean(alpha log pi - min_k Q_k). q: of the policy's own actions, `[k, M]`."""
    return (temperature * log_probs - q.amin(0)).mean()  # its gradient reaches the policy through log pi and through a in Q


def deterministic_policy_loss(q: Tensor) -> Tensor:
    """Loss of the policy of TD3 (section 5.2) and DDPG (equation 6): - mean Q_1. q: of the policy's own actions, `[k, M]`."""
    return -q[0].mean()  # Q_1 alone, as in TD3: only targets need the minimum


def soft_choice_policy_loss(q: Tensor, logits: Tensor, temperature: Tensor) -> Tensor:
    """The same for one choice: mean over rows of the SUM over actions of pi (alpha log pi - min_k Q_k).

    q: `[k, M, A]`, constants. logits: `[M, A]`.
    """
    log_probs = logits.log_softmax(-1)
    return (log_probs.exp() * (temperature * log_probs - q.amin(0))).sum(-1).mean()  # the gradient passes through pi alone


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
