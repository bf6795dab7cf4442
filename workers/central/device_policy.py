"""One policy that acts for all environments of a run, on the learner's device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from agents import compute
from agents.engine.streams import Fence, side_stream
from agents.networks.base import NetworkOutput, on_device
from agents.networks.cores import zeroed
from replay.trajectory import Field
from workers.base import WorkerSetup
from workers.finite import check_policy
from workers.policy import Acted, stored_fields
from workers.weights import Weights


class AnswerLayout:
    """Packs actions and stored fields of N environments into one float32 matrix `[N, columns]`, for a single transfer.

    float32 holds integers exactly below 2^24, more than any action count.
    """

    def __init__(self, action: Field, fields: Mapping[str, Field]) -> None:
        self._fields = {"actions": action, **fields}
        sizes = [math.prod(field.shape) for field in self._fields.values()]
        self.columns = sum(sizes)
        self._ends = np.cumsum(sizes)[:-1]

    def pack(self, actions: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        """One matrix on the device; each tensor is `[N, *shape]`."""
        parts = {"actions": actions, **fields}
        return torch.cat([parts[name].float().reshape(len(actions), -1) for name in self._fields], 1)

    def unpack(self, matrix: np.ndarray) -> Acted:
        """Views of a matrix `[N, columns]`; the actions are copied into their own dtype."""
        parts = np.split(matrix, self._ends, axis=1)
        shaped = {
            name: part.reshape(len(matrix), *field.shape)
            for (name, field), part in zip(self._fields.items(), parts, strict=True)
        }
        actions = shaped.pop("actions").astype(self._fields["actions"].dtype)
        return Acted(actions, shaped)


class DevicePolicy:
    """Keeps every environment's stack of frames and recurrent state on the device. Only the newest frames are copied to it, and
    one matrix of answers to the host. A group's recurrent state is copied only when it asks, once a trajectory.

    On a GPU it works in a stream of its own, in parallel with the updates. version: that of the weights that acted last.

    Args:
        setup: the workers of the run.
        weights: where new weights come from.
        environments: how many environments there are in all.
        device: where it acts.
        seed: of the actions drawn.
    """

    def __init__(self, setup: WorkerSetup, weights: Weights, environments: int, device: torch.device, seed: int) -> None:
        contract = setup.contract
        self.weights = weights
        self.device = device
        self.with_features = setup.wants_features
        self.version = -1
        self._stream = side_stream(device)
        self._answered = Fence(device)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._layout = AnswerLayout(contract.action, contract.policy_fields)
        frame_shape, frame_dtype = contract.frame.shape, torch.from_numpy(np.empty(0, contract.frame.dtype)).dtype
        pinned = device.type == "cuda"
        self._frames = torch.empty((environments, *frame_shape), dtype=frame_dtype, pin_memory=pinned)
        self._places = torch.empty((environments, 2), dtype=torch.int64, pin_memory=pinned)  # environment, first
        self._answers = torch.empty((environments, self._layout.columns), dtype=torch.float32, pin_memory=pinned)
        with torch.cuda.stream(self._stream):
            self.network = on_device(setup.make_network(), device)
            self._infer: Callable[..., NetworkOutput] = self.network.infer
            if setup.compiled:
                self._infer = compute.compiled(self._infer, dynamic=True)  # for any number of environments that ask
            # The stack is the innermost axis, as the network's first convolution reads it.
            self._stacks = torch.zeros((environments, *frame_shape, contract.frames_stacked), dtype=frame_dtype, device=device)
            self._states = torch.zeros((environments, contract.state_size), device=device)
            self._exploration = self.network.exploration(torch.arange(environments, device=device), environments)
        self._asked_states = torch.empty((environments, contract.state_size), pin_memory=pinned)

    @torch.inference_mode()
    def act(
        self,
        frames: Sequence[np.ndarray],
        first: Sequence[np.ndarray],
        environments: Sequence[np.ndarray],
        with_state: Sequence[bool] = (),
    ) -> Acted:
        """Sample one action for each of N environments, which come in parts of n each. Waits for the answer.

        Args:
            frames: the newest ones, `[n, *frame_shape]` a part.
            first: bool `[n]` a part, whether the frame begins an episode.
            environments: int `[n]` a part, the environments' numbers.
            with_state: whether each part asks for its recurrent state. The answer leaves the rows of other parts unwritten.

        Returns arrays that the next call overwrites. Raises NotFiniteError.
        """
        count = sum(map(len, environments))
        np.concatenate(frames, out=self._frames.numpy()[:count])
        # Environments and `first` go up as one matrix, in one transfer. It is int64, because the numbers are an index.
        np.concatenate(environments, out=self._places.numpy()[:count, 0])
        np.concatenate(first, out=self._places.numpy()[:count, 1], casting="safe")
        with torch.cuda.stream(self._stream):
            # Weights are read in this stream, so their copy is complete before the pass that uses them.
            if self.version != self.weights.published_version:
                self.version = self.weights.read(self.network)
            newest = self._frames[:count].to(self.device, non_blocking=True)
            places = self._places[:count].to(self.device, non_blocking=True)
            answers, states = self._answer(newest, places[:, 0], places[:, 1])
            self._answers[:count].copy_(answers, non_blocking=True)
            for rows in _rows_of(environments, with_state):
                self._asked_states[rows].copy_(states[rows], non_blocking=True)
            self._answered.record()
        self._answered.wait()
        acted = self._layout.unpack(self._answers.numpy()[:count])
        check_policy(self.version, *acted.fields.values(), acted.actions)
        return acted._replace(state=self._asked_states.numpy()[:count]) if any(with_state) else acted

    def _answer(self, newest: Tensor, environments: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Push the newest frames into the stacks and act on these.

        Returns float32 `[N, columns]`, and the recurrent states `[N, K]` with which the stacks were seen.
        """
        first = first.bool()
        older = self._stacks[environments][..., 1:]
        # A new worker reports `first` for all its environments, so nothing of the failed worker's stacks survives.
        older = older.masked_fill(first.view(-1, *(1 for _ in older.shape[1:])), 0)
        stacks = torch.cat([older, newest.unsqueeze(-1)], -1)
        self._stacks[environments] = stacks
        observations, states = stacks.movedim(-1, 1), self._states
        exploration = None
        if self._exploration is not None:
            exploration = self.network.begun(self._exploration[environments], first)
        self.network.draw_noise(self._generator, exploration)
        if self.network.state_size:
            states = zeroed(states[environments], first)
            inferred = self._infer(observations, states)
            assert inferred.state is not None
            self._states[environments] = inferred.state
        else:
            inferred = self._infer(observations)
        chosen = self.network.choose(inferred, self._generator, exploration)
        if self._exploration is not None and chosen.exploration is not None:
            self._exploration[environments] = chosen.exploration
        return self._layout.pack(chosen.actions, stored_fields(inferred, chosen, self.with_features)), states


def _rows_of(parts: Sequence[np.ndarray], wanted: Sequence[bool]) -> Iterator[slice]:
    """The rows of each wanted part, counted over all parts together."""
    end = 0
    for part, each in zip(parts, wanted, strict=False):
        start, end = end, end + len(part)
        if each:
            yield slice(start, end)
