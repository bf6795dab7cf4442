"""Who acts: a copy of the policy on the CPU, refreshed from the shared weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks import ActorCritic
from workers.weights import SharedWeights


class Acted(NamedTuple):
    """What a policy says to N observations.

    actions int64 `[N]`, logits float32 `[N, A]`, values float32 `[N]`, features float32 `[N, F]` or None where nobody asks.
    """

    actions: np.ndarray
    logits: np.ndarray
    values: np.ndarray
    features: np.ndarray | None = None


class CpuPolicy:
    """Acts for one worker with its own copy of the network, batch = the worker's environments."""

    def __init__(self, network: ActorCritic, weights: SharedWeights, seed: int, *, with_features: bool = False) -> None:
        self.network = network
        self.weights = weights
        self.generator = torch.Generator().manual_seed(seed)
        self.with_features = with_features
        self.version = -1

    def refresh(self) -> None:
        """Take the newest weights; called between trajectories, so that each has one acting version."""
        if self.version != self.weights.published_version:
            self.version = self.weights.read(self.network)

    @torch.inference_mode()
    def act(self, observations: np.ndarray) -> Acted:
        """Sample one action for each of `[N, S, *frame_shape]` observations."""
        features = self.network.features(torch.from_numpy(observations))
        output = self.network.heads(features)
        actions = sample_actions(output.logits, self.generator)
        kept = features.numpy() if self.with_features else None
        return Acted(actions.numpy(), output.logits.numpy(), output.values.numpy(), kept)


def sample_actions(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """One action a row from softmax(logits `[N, A]`): int64 `[N]`."""
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
