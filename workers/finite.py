"""Refuses numbers that are not finite before anybody acts on them or learns from them."""

from __future__ import annotations

import numpy as np


class NotFiniteError(RuntimeError):
    """An environment or a policy gave a number that is not finite."""


def check_environments(name: str, values: np.ndarray, environment_ids: np.ndarray) -> None:
    """values: `[N, ...]` of the N environments with these ids. Raises NotFiniteError, which names the first bad one."""
    finite = np.isfinite(values)
    if not finite.all():
        first = np.argwhere(~finite)[0]
        raise NotFiniteError(f"environment {environment_ids[first[0]]}: wanted finite {name}, got {values[tuple(first)]}")


def check_policy(version: int, *outputs: np.ndarray) -> None:
    """outputs: what the policy of update `version` says. Raises NotFiniteError."""
    if not all(np.isfinite(output).all() for output in outputs):
        raise NotFiniteError(f"the policy of update {version} says numbers that are not finite")
