"""What the current network makes of stored trajectories: the function that replays ask, which own no network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from agents.networks import ActorCritic
from replay import Encoded
from replay.trajectory import stack_frames

OBSERVATIONS_AT_ONCE = 1024  # bounds the memory of one pass, however many candidates a replay draws


class Encoder:
    """Runs the feature layer (the last hidden layer, trained by the losses like all others) and the policy head."""

    def __init__(self, network: ActorCritic, frames_stacked: int, device: torch.device) -> None:
        self.network = network
        self.frames_stacked = frames_stacked
        self.device = device

    @torch.no_grad()
    def __call__(self, trajectories: Mapping[str, np.ndarray]) -> Encoded:
        """n trajectories (`[n, *shape]` each field) -> features `[n, T, F]` and logits `[n, T, A]`; x_T is left out."""
        frames = torch.from_numpy(trajectories["frames"]).to(self.device)
        observations = stack_frames(frames, trajectories["reset"], self.frames_stacked)[:-1]
        steps, count = observations.shape[:2]
        features, logits = [], []
        for part in observations.flatten(0, 1).split(OBSERVATIONS_AT_ONCE):
            hidden = self.network.features(part)
            features.append(hidden.float())
            logits.append(self.network.heads(hidden).logits)
        return Encoded(
            *(torch.cat(parts).unflatten(0, (steps, count)).transpose(0, 1).cpu().numpy() for parts in (features, logits))
        )
