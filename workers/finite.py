"""Refuses non-finite numbers of environments and policies before a policy acts on them or the learner trains on them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wrappers.spaces import Packing


class NotFiniteError(RuntimeError):
    """An environment or a policy returned a non-finite number.

    wrong_rows: bool `[N]`, which of a policy's N observations its outputs are not finite for; empty for an environment.
    """

    def __init__(self, message: str, wrong_rows: np.ndarray = np.zeros(0, bool)) -> None:  # noqa: B008  (never written)
        super().__init__(message)
        self.wrong_rows = wrong_rows


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
    """Check the outputs of a policy, `[N, ...]` each, actions among them. Raises NotFiniteError with the rows.

    version: update whose weights acted. Integers are finite by their dtype.
    """
    floats = [output for output in outputs if output.dtype.kind == "f"]
    wrong = [output[~np.isfinite(output)][0] for output in floats if not np.isfinite(output).all()]
    if wrong:
        rows = np.any([~np.isfinite(output.reshape(len(output), -1)).all(axis=1) for output in floats], axis=0)
        raise NotFiniteError(f"the policy of update {version}: wanted finite outputs, got {wrong[0]}", rows)
