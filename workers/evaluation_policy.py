"""The policy of evaluations, of seats that exploit, and of a server without training. It never learns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from agents.networks.base import FeatureNetwork, NetworkOutput, SampledActions
from agents.networks.cores import zeroed
from workers.finite import NotFiniteError


class EvaluationPolicy:
    """Acts as trained, by sampling, or greedily by the mode of the distribution. The network never learns here.

    epsilon: probability of a random action, for networks that explore by epsilon.
    """

    def __init__(self, network: FeatureNetwork, device: torch.device, *, greedy: bool, seed: int, epsilon: float = 0.0) -> None:
        self._network = network.to(device).eval()
        self._device = device
        self._greedy = greedy
        self._epsilon = epsilon if network.explores_by_epsilon else None
        self._generator = torch.Generator().manual_seed(seed)
        self._states: dict[int, Tensor] = {}  # environment -> the core's state `[K]` after its last observation

    @torch.inference_mode()
    def choose(
        self, observations: np.ndarray, first: np.ndarray | None = None, environments: np.ndarray | None = None
    ) -> SampledActions:
        """One action on the CPU for each of `[N, S, *frame_shape]` observations, with the fields that are stored with it.

        Args:
            first: bool `[N]`, whether each observation is its episode's first; None for all.
            environments: int `[N]`, the environments' numbers, by which a core's state is kept; None for 0 to N - 1.

        Raises NotFiniteError with the rows: large finite weights of a policy that diverged, or large finite observations,
        can give infinite outputs. The states of cores are then as before.
        """
        count = len(observations)
        first = np.ones(count, bool) if first is None else first
        environments = np.arange(count) if environments is None else environments
        state = self._state_before(torch.from_numpy(first), environments)
        output, features, state = self._network.infer(torch.from_numpy(observations).to(self._device), state)
        # Actions are drawn on the CPU, so that one seed means one game on any device.
        inferred = NetworkOutput(type(output)(*(tensor.cpu() for tensor in output)), features)
        if not all(tensor.isfinite().all() for tensor in inferred.output):
            rows = torch.stack([~tensor.isfinite().reshape(count, -1).all(1) for tensor in inferred.output]).any(0)
            raise NotFiniteError("the policy's outputs are not finite: its training diverged", rows.numpy())
        if state is not None:  # only now, so that a caller may leave out the rows of an error and ask again
            self._states.update(zip(environments.tolist(), state, strict=True))
        exploration = None if self._epsilon is None else torch.full((count, 1), self._epsilon)
        return self._network.choose(inferred, self._generator, exploration, greedy=self._greedy)

    def take_weights(self, other: EvaluationPolicy) -> None:
        """Act by the weights of another policy from now on. States are kept."""
        self._network = other._network

    def forget(self, environment: int) -> None:
        """Forget the core's state of an environment."""
        self._states.pop(environment, None)

    def _state_before(self, first: Tensor, environments: np.ndarray) -> Tensor | None:
        """The core's state for these environments, `[N, K]`; None without a core."""
        if not self._network.state_size:
            return None
        begins = torch.zeros(self._network.state_size, device=self._device)
        kept = torch.stack([self._states.get(environment, begins) for environment in environments.tolist()])
        return zeroed(kept, first.to(self._device))
