"""What every agent offers to the learner's loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from agents.networks.actor_critic import ActorCritic
from replay.trajectory import Batch


class Agent(ABC):
    """Owns the network that learns and its optimiser. Agents never see flags, files or processes.

    config_class: the dataclass of the agent's settings; each of its settings is a flag.
    """

    config_class: ClassVar[type]
    network: ActorCritic

    @abstractmethod
    def update(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        """One optimiser step on a batch. Returns scalars for the metrics, still on the device (nothing waits for it).

        Where a number of the update is not finite it is skipped: weights and optimiser stay as they were.
        """

    @abstractmethod
    def take_verdicts(self, *, everything: bool = False) -> list[str | None]:
        """Of each update since the last call the first quantity that was not finite, None where it was sound.

        On a GPU the newest update is left for the next call, so that nothing waits, unless everything is asked for.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Network and optimiser, as tensors and plain data."""

    @abstractmethod
    def check_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Raise ValueError where `load_state_dict` could not take this over; the network may be one without memory."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Take over what `state_dict` gave; without the optimiser's part its moments start anew."""
