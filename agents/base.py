"""The interface of an agent, as the learner's loop uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from agents.acting import Acting
from agents.networks.base import FeatureNetwork, NetworkConfig
from replay.batch import Batch


@dataclass(frozen=True)
class Needs:
    """Requirements of an agent on the run. They are known from the settings alone and checked before anything starts.

    Args:
        on_policy: whether each row of a batch must have been acted by the version that learns from it. Workers and learner
            then take turns: one trajectory of every environment makes a batch, and the next ones begin after the new version
            is published. No replay but one queue makes sense.
    """

    on_policy: bool = False


class Updated(NamedTuple):
    """The report of one update.

    scalars: metrics as tensors on the device; reading them is left to the recorder, so no update waits.
    optimizer_steps: steps of the optimiser since the run began, on a GPU up to the update before; None if an update has one.
    """

    scalars: Mapping[str, Tensor]
    learning_rate: float
    optimizer_steps: int | None = None


class Agent(ABC):
    """Owns the network that learns and its optimiser. Agents never see flags, files or processes.

    config_class: the dataclass of the agent's settings; each of its fields is a flag. network_class: adds the heads to a torso.
    charts: TensorBoard charts of the agent's metrics, title -> regular expressions of their names.
    """

    config_class: ClassVar[type]
    network_class: ClassVar[type[FeatureNetwork]]
    charts: ClassVar[Mapping[str, list[str]]] = {}

    network: FeatureNetwork

    @classmethod
    def acting(cls, config: Any, network: NetworkConfig) -> Acting:
        """The fields that acting stores with the action. By default those that the network's `choose` returns."""
        return network.network_class.acting(network)

    @classmethod
    def needs(cls, config: Any) -> Needs:
        """The agent's requirements on the run."""
        return Needs()

    @classmethod  # noqa: B027  (most agents take every network)
    def check(cls, config: Any, network: NetworkConfig) -> None:
        """Raise ValueError in one line if the agent, with these settings, cannot learn with such a network and its actions."""

    @classmethod  # noqa: B027  (most agents learn with all their settings)
    def check_learning(cls, config: Any) -> None:
        """Raise ValueError in one line if the agent cannot learn with these settings. Testing and exporting do not ask."""

    @classmethod
    def value_meaning(cls, config: Any) -> str:
        """One sentence on the quantity that the network's values estimate, for readers of an exported policy."""
        return "see the agent's documentation"

    def calibrate(self, observations: Tensor) -> None:
        """Learn the scale of observations `[N, *observation_shape]` of random play, before the first update."""
        if self.network.config.settings.calibrate_input:
            self.network.calibrate(observations)

    @abstractmethod
    def update(self, batch: Batch, progress: float) -> Updated:
        """Learn from a batch. progress: the part of the run's budget that is used, in [0, 1].

        If a number of the update is not finite, the update is skipped: weights and optimiser stay as they were.
        """

    @abstractmethod
    def take_skip_reasons(self, *, everything: bool = False) -> list[str | None]:
        """For each update since the last call: the name of the first non-finite quantity, or None if the update was applied.

        On a GPU the newest update is left for the next call, so that nothing waits, unless `everything` is asked for.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """`modules`, `optimizers` and `numbers` by name, as tensors and plain data.

        The tensors are live: the next update changes them.
        """

    @abstractmethod
    def check_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Raise ValueError if `load_state_dict` could not load this. The agent's network may be one without memory."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Load what `state_dict` returned, by copying. Without the optimiser's part its moments start at zero."""
