"""One policy that acts for all environments of a run, on the learner's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from agents import compute
from agents.networks.actor_critic import ActorCritic, on_device
from agents.streams import Fence, side_stream
from workers.finite import check_policy
from workers.policy import Acted
from workers.weights import Weights
from wrappers.spec import EnvSpec


class DevicePolicy:
    """Keeps every environment's stack of frames on the device: only the newest frames come, and one answer goes back.

    On a GPU it works in a stream of its own, beside the updates. `version` is that of the weights that acted last.
    """

    def __init__(
        self,
        network: ActorCritic,
        weights: Weights,
        spec: EnvSpec,
        environments: int,
        device: torch.device,
        seed: int,
        *,
        with_features: bool = False,
        compiled: bool = False,
    ) -> None:
        self.weights = weights
        self.device = device
        self.with_features = with_features
        self.version = -1
        self._stream = side_stream(device)
        self._answered = Fence(device)
        self._generator = torch.Generator(device).manual_seed(seed)
        frame_dtype = torch.from_numpy(np.empty(0, spec.frame_dtype)).dtype
        columns = 2 + spec.action_count + (network.feature_count if with_features else 0)
        pinned = device.type == "cuda"
        self._frames = torch.empty((environments, *spec.frame_shape), dtype=frame_dtype, pin_memory=pinned)
        self._places = torch.empty((environments, 2), dtype=torch.int64, pin_memory=pinned)  # row in the stacks, first
        self._answers = torch.empty((environments, columns), dtype=torch.float32, pin_memory=pinned)
        with torch.cuda.stream(self._stream):
            self.network = on_device(network, device)
            self._features: Callable[[Tensor], Tensor] = network.features
            if compiled:
                self._features = compute.compiled(self._features, dynamic=True)  # as many rows as happen to ask
            # The stack is the innermost axis, as the network's first convolution reads it.
            self._stacks = torch.zeros((environments, *spec.frame_shape, spec.frames_stacked), dtype=frame_dtype, device=device)

    @torch.inference_mode()
    def act(self, frames: Sequence[np.ndarray], first: Sequence[np.ndarray], environments: Sequence[np.ndarray]) -> Acted:
        """Sample one action for each of N environments, given in parts of n each.

        frames: the newest, `[n, *frame_shape]`; first: bool `[n]`, an episode begins with it; environments: int `[n]`, which
        they are. Waits for the answer; the arrays are overwritten by the next call. Raises NotFiniteError.
        """
        count = sum(map(len, environments))
        np.concatenate(frames, out=self._frames.numpy()[:count])
        np.concatenate(environments, out=self._places.numpy()[:count, 0])
        np.concatenate(first, out=self._places.numpy()[:count, 1], casting="safe")
        with torch.cuda.stream(self._stream):
            if self.version != self.weights.published_version:
                self.version = self.weights.read(self.network)
            newest = self._frames[:count].to(self.device, non_blocking=True)
            places = self._places[:count].to(self.device, non_blocking=True)
            self._answers[:count].copy_(self._answer(newest, places[:, 0], places[:, 1]), non_blocking=True)
            self._answered.record()
        self._answered.wait()
        return self._split(self._answers.numpy()[:count])

    def _answer(self, newest: Tensor, rows: Tensor, first: Tensor) -> Tensor:
        """Float32 `[N, 2 + A + F]`: action, value, logits, features."""
        older = self._stacks[rows][..., 1:]
        older = older.masked_fill(first.bool().view(-1, *(1 for _ in older.shape[1:])), 0)
        stacks = torch.cat([older, newest.unsqueeze(-1)], -1)
        self._stacks[rows] = stacks
        features = self._features(stacks.movedim(-1, 1))
        output = self.network.heads(features)
        parts = [self._sample(output.logits)[:, None].float(), output.values[:, None], output.logits]
        return torch.cat([*parts, features] if self.with_features else parts, 1)

    def _sample(self, logits: Tensor) -> Tensor:
        """One action a row from softmax(logits `[N, A]`), as the winner of a race: nothing waits for the device."""
        arrivals = torch.empty_like(logits).exponential_(generator=self._generator)
        return (logits - arrivals.log()).argmax(-1)

    def _split(self, answers: np.ndarray) -> Acted:
        logits_end = 2 + self.network.config.action_count
        check_policy(self.version, answers[:, :logits_end])
        features = answers[:, logits_end:] if self.with_features else None
        return Acted(answers[:, 0].astype(np.int64), answers[:, 2:logits_end], answers[:, 1], features)
