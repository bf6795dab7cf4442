"""The one declaration of what a policy writes with its action. Every store of trajectories is laid out from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from replay.trajectory import Field

BEHAVIOUR_LOG_PROB = "behaviour_log_prob"
"""Field of the log-probability with which the action was taken."""


@dataclass(frozen=True)
class Acting:
    """The fields that acting gives. They are known before any weight exists and are sent to every process.

    Args:
        fields: name -> shape of one environment's value, and numpy dtype. The rollout stores them for each step; the agent
            finds them as `batch.acting[name]`, `[T, B, *shape]`.
    """

    fields: Mapping[str, Field]
