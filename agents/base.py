"""The interface of an agent, as the learner's loop uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from agents.acting import Acting
from agents.networks.base import FeatureNetwork, NetworkConfig
from agents.peers import Peers
from replay.batch import Batch, InitialErrors


@dataclass(frozen=True)
class Needs:
    """Requirements of an agent on the run. They are known from the settings alone and checked before anything starts.

    Args:
        on_policy: whether each row of a batch must have been acted by the version that learns from it. Workers and learner
            then take turns: one trajectory of every environment makes a batch, and the next ones begin after the new version
            is published. No replay but one queue makes sense.
        fresh: whether a part of each batch must be recent: a queue or a circular replay among the replays.
        window: rows of the windows that a batch is made of, which are drawn out of stored trajectories; 0 for a batch of whole
            trajectories. A transition is a window of one row.
        updates_per_step: batches that are learned from for each fresh step, however fast workers and learner are; None if the
            replays decide.
        learning_starts: steps of the environments before the first update, with `updates_per_step`.
        priorities: whether updates return priorities, so that a prioritised replay has an effect.
        batches_at_once: batches that are drawn together and given to one `update`, which takes an optimiser step on each.
        episodes: whether batches hold the returns of the episodes that ended in them.
        alone: whether the agent learns with a single learner only.
        recorded: whether the agent learns from recordings only.
    """

    on_policy: bool = False
    fresh: bool = False
    window: int = 0
    updates_per_step: float | None = None
    learning_starts: int = 0
    batches_at_once: int = 1
    priorities: bool = False
    episodes: bool = False
    alone: bool = False
    recorded: bool = False

    @property
    def workers_wait(self) -> bool:
        """Whether the workers wait while the learner computes, at least where it limits the run."""
        return self.on_policy or self.updates_per_step is not None


class Updated(NamedTuple):
    """The report of one update.

    scalars: metrics as tensors on the device; reading them is left to the recorder, so no update waits.
    optimizer_steps: steps of the optimiser since the run began, on a GPU up to the update before; None if each update is one.
    priorities: sizes of the temporal differences of the batch's columns, float32 `[B]` on the device, by which a prioritised
    replay draws them again; NaN leaves a priority as it is. None from an agent without them.
    """

    scalars: Mapping[str, Tensor]
    learning_rate: float
    optimizer_steps: int | None = None
    priorities: Tensor | None = None


class Agent(ABC):
    """Owns the network that learns and its optimiser. Agents never see flags, files or processes.

    config_class: the dataclass of the agent's settings; each of its fields is a flag. network_class: adds the heads to a torso.
    compiles: whether updates may go through torch.compile. exact: whether products of matrices must have the precision of
    float32, so neither bfloat16 nor TF32. charts: TensorBoard charts of the agent's metrics, title -> regular
    expressions of their names. defaults: of settings that every run has, in place of the usual ones. unused: settings that
    every run has, which the agent takes at their defaults only or never reads; `--help` leaves them out.
    """

    config_class: ClassVar[type]
    network_class: ClassVar[type[FeatureNetwork]]
    compiles: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    charts: ClassVar[Mapping[str, list[str]]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    unused: ClassVar[tuple[str, ...]] = ()

    network: FeatureNetwork

    @classmethod
    def name(cls) -> str:
        """The agent's name on the command line."""
        return cls.__name__.removesuffix("Agent").lower()

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
    def scales_rewards(cls, settings: Mapping[str, Any]) -> bool:
        """Whether `normalise_rewards` is on by default where rewards may have any size. settings: all of the run."""
        return False

    @classmethod
    def initial_errors(cls, config: Any, network: NetworkConfig) -> InitialErrors | None:
        """The function that gives new trajectories their first priorities; None if acting does not store what it needs."""
        return None

    @classmethod
    def value_meaning(cls, config: Any) -> str:
        """One sentence on the quantity that the network's values estimate, for readers of an exported policy."""
        return "see the agent's documentation"

    def calibrate(self, observations: Tensor) -> None:
        """Learn the scale of observations `[N, *observation_shape]` of random play, before the first update."""
        if self.network.config.settings.calibrate_input:
            self.network.calibrate(observations)

    @abstractmethod
    def join(self, peers: Peers) -> None:
        """Learn together with other learners from now on. All of them have the same state, and keep it."""

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
        """Raise ValueError if `load_state_dict` could not load this. The agent's network may lie on the meta device."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Load what `state_dict` returned, by copying. Without the optimiser's part its moments start at zero."""
