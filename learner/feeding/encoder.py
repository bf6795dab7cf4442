"""Encodes stored trajectories with the current network, for replays that compare them. Replays own no network."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from agents.distributions import Categorical, MultiCategorical
from agents.engine.streams import Fence
from agents.networks.base import FeatureNetwork
from replay import Encoded
from replay.batch import stack_frames
from replay.kinds.distances import FORBIDDEN, LOG_OF_FORBIDDEN, Divergence
from replay.trajectory import RECURRENT_STATE, Fields
from workers.weights import Weights

OBSERVATIONS_AT_ONCE = 1024  # bounds the memory of one pass, for any number of candidates


class Encoder:
    """Runs a copy of the network with the newest published weights.

    It needs a copy because batches are prepared while the optimiser changes the learner's network in place. On a GPU it
    computes in a stream of its own, in parallel with the updates.

    Args:
        network: the learner's, which is copied.
        weights: where new weights come from.
        frames_stacked: S.
        device: the learner's.
    """

    def __init__(self, network: FeatureNetwork, weights: Weights, frames_stacked: int, device: torch.device) -> None:
        self.network = deepcopy(network).only_act()
        self.weights = weights
        self.frames_stacked = frames_stacked
        self.device = device
        self._version = -1
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._done = Fence(device)

    @torch.no_grad()
    def __call__(self, trajectories: Fields) -> Encoded:
        """Features `[n, T, F]` and policies `[n, T, P]` of n trajectories (`[n, *shape]` each field).

        The observation after the last step has no action, so it is left out.
        """
        with torch.cuda.stream(self._stream):
            if self._version != self.weights.published_version:
                self._version = self.weights.read(self.network)
            return self._encode(trajectories)

    def _encode(self, trajectories: Fields) -> Encoded:
        frames = torch.as_tensor(trajectories["frames"], device=self.device)  # frames that lie there already are not copied
        observations = stack_frames(frames, trajectories["reset"], self.frames_stacked)[:-1]
        steps, count = observations.shape[:2]
        thoughts = self._unrolled(observations, trajectories) if self.network.state_size else self._by_row(observations)
        found = [torch.cat(parts, -2).to("cpu", non_blocking=True) for parts in zip(*thoughts, strict=True)]
        # One wait covers the copies of features and policies.
        self._done.record()
        self._done.wait()
        return Encoded(*(tensor.reshape(steps, count, -1).transpose(0, 1).numpy() for tensor in found))

    def _by_row(self, observations: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and policies of parts of the observations `[T, n, ...]`, `[part, ...]` each, row after row."""
        for part in observations.flatten(0, 1).split(OBSERVATIONS_AT_ONCE):
            inferred = self.network.infer(part)
            yield inferred.features, inferred.output.policy

    def _unrolled(self, observations: Tensor, trajectories: Fields) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and policies of parts of the trajectories, `[T, part, ...]` each. A core starts from its stored state."""
        columns = max(1, OBSERVATIONS_AT_ONCE // len(observations))
        names = (RECURRENT_STATE, "reset")
        state, reset = (torch.from_numpy(trajectories[name]).to(self.device, non_blocking=True) for name in names)
        # The reset of row t clears the state before row t+1, so that of the last row has no effect here.
        parts = (observations.split(columns, 1), state.split(columns), reset.transpose(0, 1)[:-1].split(columns, 1))
        for part in zip(*parts, strict=True):
            inferred = self.network.unroll(*part)
            yield inferred.features, inferred.output.policy


def policy_divergence(network: FeatureNetwork) -> Divergence | None:
    """The function with which replays compare policies of this network; None for a categorical distribution or for none."""
    distribution = network.distribution
    if distribution is None or isinstance(distribution, Categorical):
        return None

    def divergence(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        tensors = [torch.from_numpy(np.asarray(part, np.float64)) for part in (one, other)]
        if isinstance(distribution, MultiCategorical):
            return _of_choices(*map(distribution.components, tensors)).numpy()
        return distribution.kl(*tensors).numpy()

    return divergence


def _of_choices(one: Tensor, other: Tensor) -> Tensor:
    """KL(one || other) `[...]` of logits `[..., D, K]` of D choices, whose masks may differ.

    An action that `other` alone forbids has `LOG_OF_FORBIDDEN` there, as in `state_distances`.
    """
    log_one, log_other = one.log_softmax(-1), other.log_softmax(-1)
    return (log_one.exp() * (log_one - torch.where(log_other < FORBIDDEN, LOG_OF_FORBIDDEN, log_other))).sum(-1).sum(-1)
