"""The base of the worker kinds that run in the learner's own process. All of their state can be saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from workers.base import Block, Workers, block_of


class InProcessWorkers(Workers):
    """Workers that fill a block in each `poll`. Between two updates their state can be saved for an exact resume."""

    def prepare(self) -> None:
        return  # there are no other processes

    def kill(self) -> None:
        return  # there are no other processes

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state that the next trajectories follow from, and the blocks that are filled and not yet released.

        Published weights are not among it. Tensors look at the slots' own memory where they can.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any], should_stop: Callable[[], bool] = lambda: False) -> None:
        """Continue from `state_dict()`, after `start`. Raises ValueError if it does not fit.

        should_stop: asked before each replayed step of a worker. Raises ReplayStopped once it returns true, and WorkerError if
        an environment fails.
        """

    @staticmethod
    @abstractmethod
    def steps_to_replay(state: dict[str, Any]) -> int:
        """Steps of environments that `load_state_dict` takes again."""

    def _block(self, worker: int) -> Block:
        return block_of(self.setup.config, worker, 0)

    def _rows(self, block: Block) -> dict[str, torch.Tensor]:
        """The slots of a block, `[slot_count, *shape]` each field."""
        rows = slice(block.first_slot, block.first_slot + block.slot_count)
        return {name: torch.from_numpy(array[rows]) for name, array in self.slots.items()}
