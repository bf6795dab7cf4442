"""Refuses non-finite numbers of environments and policies before a policy acts on them or the learner trains on them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wrappers.spaces import Packing


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


def float_parts(packing: Packing | None, observations: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Name and values of each part of observations `[N, S, *frame_shape]` that may hold non-finite numbers.

    packing: of frames with several leaves; only the newest frame of these is looked at. None for other frames.
    """
    if packing is None:
        if observations.dtype.kind == "f":
            yield "observations", observations
        return
    for leaf in packing.leaves:
        if np.dtype(leaf.dtype).kind == "f":
            # The older frames of a stack were checked when they were the newest.
            yield leaf.name, np.ascontiguousarray(observations[:, -1, packing.parts[leaf.name]]).view(leaf.dtype)


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
