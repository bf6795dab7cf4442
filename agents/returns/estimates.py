"""Off-policy estimates: the return that a policy pi would have, from whole episodes that another policy mu played.

With rho_t = pi(a_t|x_t) / mu(a_t|x_t), w_t their product up to step t, and G the discounted return of an episode:

    importance sampling (IS)     mean of w_last G
    weighted (WIS)               sum of w_last G / sum of w_last
    per decision (step IS)       mean of sum_t gamma^t w_t r_t
    weighted per decision        sum_t gamma^t (sum_i w_t r_t) / (sum_i w_t); an ended episode keeps its last w

Source: Precup, Sutton and Singh 2000, "Eligibility Traces for Off-Policy Policy Evaluation". Ratios are not clipped. RLlib
divides the last one by the mean over the episodes that still run, which is wrong where lengths differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class OffPolicyEstimates(NamedTuple):
    """Estimates of pi's mean return, and what they are made of. NaN where pi could not have played any of the episodes.

    recorded: mean return of mu. effective_episodes: (sum w)^2 / sum w^2 of the whole episodes' weights, at most their number.
    """

    recorded: float
    importance_sampling: float
    weighted: float
    per_decision: float
    weighted_per_decision: float
    effective_episodes: float


def estimate(log_ratios: Sequence[np.ndarray], rewards: Sequence[np.ndarray], gamma: float = 1.0) -> OffPolicyEstimates:
    """Estimates from n episodes of one step or more. Raises ValueError if there is none, or lengths differ.

    Args:
        log_ratios: log rho_t of each episode, float64 `[steps]`; minus infinity for an action that pi never takes.
        rewards: of each episode, `[steps]`.
        gamma: discount per step.
    """
    lengths = [len(each) for each in rewards]
    if not lengths or min(lengths) < 1 or lengths != [len(each) for each in log_ratios]:
        raise ValueError("estimates: wanted episodes of one step or more, with a ratio for each step")
    shape = (len(lengths), max(lengths))
    logs, gains = np.zeros(shape), np.zeros(shape)  # [n, longest episode]
    for row, (ratios, own) in enumerate(zip(log_ratios, rewards, strict=True)):
        logs[row, : len(own)], gains[row, : len(own)] = ratios, own
    # Behind an episode's end the log-ratio is 0, so that it keeps its last weight, and the reward is 0.
    weights_of = np.cumsum(logs, axis=1)  # log w_t [n, steps]; sums of logarithms do not overflow as products would
    gains *= gamma ** np.arange(shape[1])  # gamma^t r_t [n, steps]
    returns, last = gains.sum(1), weights_of[:, -1]  # G [n] and log w_last [n]
    relative = _relative(last)  # [n]; a common factor cancels in every quotient below, so the weights may be relative
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        steps = _relative(weights_of)  # [n, steps], each column relative to its own largest
        return OffPolicyEstimates(
            recorded=float(returns.mean()),
            importance_sampling=float(_product(last, returns).mean()),  # mean of w_last G
            weighted=float((relative * returns).sum() / relative.sum()),  # sum w_last G / sum w_last
            per_decision=float(_product(weights_of, gains).sum(1).mean()),  # mean of sum_t w_t gamma^t r_t
            weighted_per_decision=float(((steps * gains).sum(0) / steps.sum(0)).sum()),
            effective_episodes=float(relative.sum() ** 2 / np.square(relative).sum()),  # (sum w)^2 / sum w^2
        )


def _relative(logs: np.ndarray) -> np.ndarray:
    """Weights relative to the largest of the episodes, which neither overflow nor all vanish. logs: `[n]` or `[n, steps]`."""
    largest = logs.max(0)
    # A largest logarithm of minus infinity means that pi could have played none of the episodes: all weights are 0.
    return np.where(np.isfinite(largest), np.exp(logs - np.where(np.isfinite(largest), largest, 0.0)), 0.0)


def _product(logs: np.ndarray, values: np.ndarray) -> np.ndarray:
    """exp(logs) * values; 0 where the value is 0, however large the weight is."""
    return np.where(values == 0, 0.0, np.exp(logs) * values)
