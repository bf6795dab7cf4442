"""Policies: the interface that a rollout asks, and the copy of the policy that a worker has on its CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from agents.networks.base import FeatureNetwork, NetworkOutput, SampledActions
from agents.networks.cores import zeroed
from replay.interleave import stack_innermost
from replay.trajectory import FEATURES
from workers.base import WorkerSetup
from workers.finite import check_policy
from workers.weights import Weights

VECTORS = 3  # dimensions of N stacks of vectors; images have more


class LearnerGone(Exception):
    """The learner asked this worker to stop, or it has ended."""


class Acted(NamedTuple):
    """A policy's answer to N observations.

    actions: `[N, *shape]`; fields: what the rollout stores with them, `[N, *shape]` each. state: the recurrent state with which
    the observations were seen, float32 `[N, K]`, zeros for an episode's first; None if not asked for, or without a core.
    """

    actions: np.ndarray
    fields: Mapping[str, np.ndarray]
    state: np.ndarray | None = None


class WorkerPolicy(Protocol):
    """Acts for N environments. version: the learner's update count of the weights that acted last."""

    version: int

    def refresh(self) -> None:
        """Called before each trajectory."""

    def ask(self, observations: np.ndarray, first: np.ndarray, *, with_state: bool = False) -> None:
        """Begin to act on observations `[N, S, *frame_shape]`.

        first: bool `[N]`, whether each is its episode's first. with_state: whether the answer holds the recurrent state.
        """

    def answer(self) -> Acted:
        """The actions, once for each `ask`; valid until the next one. Raises LearnerGone or NotFiniteError."""


class CpuPolicy:
    """Acts for one worker with its own copy of the network. The batch is the worker's environments.

    Args:
        network: the worker's copy; it never learns.
        weights: where new weights come from.
        seed: of the actions drawn.
        with_features: whether a replay compares the features, so that they are stored.
        exploration: float32 `[N, E]`, what `FeatureNetwork.exploration` returns for the worker's environments.

    Attributes:
        state: float32 `[N, K]`, the recurrent state after the last observations; None without a core and before the first.
        exploration: as given, or as the last actions changed it.
    """

    def __init__(
        self,
        network: FeatureNetwork,
        weights: Weights,
        seed: int,
        *,
        with_features: bool = False,
        exploration: Tensor | None = None,
    ) -> None:
        self.network = network
        self.weights = weights
        self.generator = torch.Generator().manual_seed(seed)
        self.with_features = with_features
        self.exploration = exploration
        self.version = -1
        self.state: Tensor | None = None
        self._asked: tuple[np.ndarray, np.ndarray, bool] = (np.empty(0), np.empty(0, bool), False)

    def refresh(self) -> None:
        """Take the newest weights. So each trajectory has one acting version."""
        if self.version != self.weights.published_version:
            self.version = self.weights.read(self.network)

    def ask(self, observations: np.ndarray, first: np.ndarray, *, with_state: bool = False) -> None:
        self._asked = (observations, first, with_state)

    def answer(self) -> Acted:
        observations, first, with_state = self._asked
        return self.act(observations, first, with_state=with_state)

    @torch.inference_mode()
    def act(self, observations: np.ndarray, first: np.ndarray | None = None, *, with_state: bool = False) -> Acted:
        """Sample one action for each of N observations `[N, S, *frame_shape]`. Raises NotFiniteError.

        first: bool `[N]`, whether each is its episode's first; None for none.
        """
        state = self._state_before(len(observations), first) if self.network.state_size else None
        if observations.ndim > VECTORS:  # images: the network convolves them faster with the stack innermost in memory
            observations = stack_innermost(observations)
        exploration = self._exploration_before(first)
        self.network.draw_noise(self.generator, exploration)
        inferred = self.network.infer(torch.from_numpy(observations), state)
        self.state = inferred.state
        chosen = self.network.choose(inferred, self.generator, exploration)
        if chosen.exploration is not None:
            self.exploration = chosen.exploration
        fields = {name: values.numpy() for name, values in stored_fields(inferred, chosen, self.with_features).items()}
        actions = chosen.actions.numpy()
        check_policy(self.version, *fields.values(), actions)
        return Acted(actions, fields, state.numpy() if with_state and state is not None else None)

    def _state_before(self, count: int, first: np.ndarray | None) -> Tensor:
        """The recurrent state for the next observations, `[count, K]`: zeros where an episode begins."""
        if self.state is None:
            return torch.zeros(count, self.network.state_size)
        return self.state if first is None else zeroed(self.state, torch.from_numpy(first))

    def _exploration_before(self, first: np.ndarray | None) -> Tensor | None:
        """The exploration of the next actions."""
        if self.exploration is None or first is None:
            return self.exploration
        return self.network.begun(self.exploration, torch.from_numpy(first))


def cpu_policy(setup: WorkerSetup, weights: Weights, worker: int, seed: int) -> CpuPolicy:
    """The policy of a worker that computes its own actions. seed: of the actions drawn."""
    network, environments = setup.make_network(), torch.from_numpy(setup.config.environments_of(worker, 0))
    exploration = network.exploration(environments, setup.config.environments)
    return CpuPolicy(network, weights, seed, with_features=setup.wants_features, exploration=exploration)


def stored_fields(inferred: NetworkOutput, chosen: SampledActions, with_features: bool) -> dict[str, Tensor]:
    """The tensors that the rollout stores with the actions: those of the agent and, for some replays, the features."""
    return {**chosen.fields, FEATURES: inferred.features} if with_features else chosen.fields
