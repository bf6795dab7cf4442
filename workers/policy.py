"""Who acts: what every policy offers, and a copy of the policy on the CPU, refreshed from the shared weights."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import ActorCritic
from replay.interleave import stack_innermost
from workers.finite import check_policy
from workers.weights import Weights

VECTORS = 3  # dimensions of N stacks of vectors; images have more


class LearnerGone(Exception):
    """The learner says stop, or is not there any more."""


class Acted(NamedTuple):
    """What a policy says to N observations.

    actions int64 `[N]`, logits float32 `[N, A]`, values float32 `[N]`, features float32 `[N, F]` or None where nobody asks.
    """

    actions: np.ndarray
    logits: np.ndarray
    values: np.ndarray
    features: np.ndarray | None = None


class Policy(Protocol):
    """Who acts for N environments. `version` is the learner's update count of the weights that acted last."""

    version: int

    def refresh(self) -> None:
        """Called before each trajectory."""

    def ask(self, observations: np.ndarray, first: np.ndarray) -> None:
        """Begin to think about `[N, S, *frame_shape]` observations; first: bool `[N]`, it is its episode's first."""

    def answer(self) -> Acted:
        """What to do, once for each `ask`; valid until the next one. Raises LearnerGone or NotFiniteError."""


class CpuPolicy:
    """Acts for one worker with its own copy of the network, batch = the worker's environments."""

    def __init__(self, network: ActorCritic, weights: Weights, seed: int, *, with_features: bool = False) -> None:
        self.network = network
        self.weights = weights
        self.generator = torch.Generator().manual_seed(seed)
        self.with_features = with_features
        self.version = -1
        self._asked = np.empty(0)

    def refresh(self) -> None:
        """Take the newest weights; each trajectory has one acting version."""
        if self.version != self.weights.published_version:
            self.version = self.weights.read(self.network)

    def ask(self, observations: np.ndarray, first: np.ndarray) -> None:
        self._asked = observations

    def answer(self) -> Acted:
        return self.act(self._asked)

    @torch.inference_mode()
    def act(self, observations: np.ndarray) -> Acted:
        """Sample one action for each of `[N, S, *frame_shape]` observations. Raises NotFiniteError."""
        if observations.ndim > VECTORS:  # images
            observations = stack_innermost(observations)
        features = self.network.features(torch.from_numpy(observations))
        output = self.network.heads(features)
        logits, values = output.logits.numpy(), output.values.numpy()
        check_policy(self.version, logits, values)
        actions = sample_actions(output.logits, self.generator)
        kept = features.numpy() if self.with_features else None
        return Acted(actions.numpy(), logits, values, kept)


def sample_actions(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """One action a row from softmax(logits `[N, A]`): int64 `[N]`."""
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
