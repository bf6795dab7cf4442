"""What the current network makes of stored trajectories: the function that replays ask, which own no network."""

from __future__ import annotations

from copy import deepcopy

import torch

from agents.networks.actor_critic import ActorCritic
from agents.streams import Fence
from replay import Encoded
from replay.trajectory import Fields, stack_frames
from workers.weights import Weights

OBSERVATIONS_AT_ONCE = 1024  # bounds the memory of one pass, however many candidates a replay draws


class Encoder:
    """Runs the feature layer (the last hidden layer, trained by the losses like all others) and the policy head.

    It has its own copy of the network, always with the newest published weights: batches are prepared while the optimiser
    changes the learner's network in place. On a GPU it computes beside the updates, in a stream of its own.
    """

    def __init__(self, network: ActorCritic, weights: Weights, frames_stacked: int, device: torch.device) -> None:
        self.network = deepcopy(network).only_act()
        self.weights = weights
        self.frames_stacked = frames_stacked
        self.device = device
        self._version = -1
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._done = Fence(device)

    @torch.no_grad()
    def __call__(self, trajectories: Fields) -> Encoded:
        """n trajectories (`[n, *shape]` each field) -> features `[n, T, F]` and logits `[n, T, A]`; x_T is left out."""
        with torch.cuda.stream(self._stream):
            if self._version != self.weights.published_version:
                self._version = self.weights.read(self.network)
            return self._encode(trajectories)

    def _encode(self, trajectories: Fields) -> Encoded:
        frames = torch.as_tensor(trajectories["frames"], device=self.device)  # those that lie there already stay
        observations = stack_frames(frames, trajectories["reset"], self.frames_stacked)[:-1]
        steps, count = observations.shape[:2]
        features, logits = [], []
        for part in observations.flatten(0, 1).split(OBSERVATIONS_AT_ONCE):
            hidden = self.network.features(part)
            features.append(hidden.float())
            logits.append(self.network.heads(hidden).logits)
        found = [torch.cat(parts).to("cpu", non_blocking=True) for parts in (features, logits)]
        self._done.record()
        self._done.wait()
        return Encoded(*(tensor.unflatten(0, (steps, count)).transpose(0, 1).numpy() for tensor in found))
