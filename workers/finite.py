"""Refuses non-finite numbers of environments and policies before a policy acts on them or the learner trains on them."""

from __future__ import annotations

import numpy as np


class NotFiniteError(RuntimeError):
    """An environment or a policy returned a non-finite number."""


def check_environments(name: str, values: np.ndarray, environment_ids: np.ndarray) -> None:
    """Check values of N environments.

    Args:
        name: what the values are, for the message.
        values: `[N, ...]`.
        environment_ids: int `[N]`, indices of the environments in the run.

    Raises NotFiniteError, which names the first non-finite value and its environment.
    """
    finite = np.isfinite(values)
    if not finite.all():
        first = np.argwhere(~finite)[0]
        raise NotFiniteError(f"environment {environment_ids[first[0]]}: wanted finite {name}, got {values[tuple(first)]}")


def check_policy(version: int, *outputs: np.ndarray) -> None:
    """Check the outputs of a policy, actions among them. version: update whose weights acted. Raises NotFiniteError.

    Integers are finite by their dtype.
    """
    for output in outputs:
        if output.dtype.kind != "f":
            continue
        finite = np.isfinite(output)
        if not finite.all():
            raise NotFiniteError(f"the policy of update {version}: wanted finite outputs, got {output[~finite][0]}")
