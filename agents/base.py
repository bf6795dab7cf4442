"""The base class of all agents, as the learner's loop uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from agents.acting import Acting
from agents.engine import saving
from agents.engine.collectives import Collectives
from agents.engine.stepper import Stepper
from agents.metrics import UpdateReport
from agents.networks.base import FeatureNetwork, NetworkConfig
from agents.user_class import user_file
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


class Agent(ABC):
    """An algorithm: it owns the network that learns, and its `update` says how. Agents never see flags, files or processes.

    The agent's `Stepper` does the work that updates share, around the call of `update` and in the functions that it calls.

    config_class: the dataclass of the agent's settings; each of its fields is a flag. network_class: adds the heads to a torso.
    compiles: whether updates may go through torch.compile. exact: whether products of matrices must have the precision of
    float32, so neither bfloat16 nor TF32. several_steps: whether an update may take several optimiser steps, which are counted
    and saved. merges_moments: whether each update's batch is merged into the running moments; otherwise the agent does it.
    charts: TensorBoard charts of the agent's metrics, title -> regular expressions of their names. defaults: of settings that
    every run has, in place of the usual ones. unused: settings that every run has, which the agent takes at their defaults only
    or never reads; `--help` leaves them out. tuned: settings that `--op_mode=tune` searches unless the command names others.

    Args:
        config: an instance of `config_class`.
        network: acts, and learns in place.
        replay_names: the run's replays, in the order of `batch.source`; names of metrics.
        parts: further parts of the agent that learn, follow or are saved; see `Stepper`.
    """

    config_class: ClassVar[type]
    network_class: ClassVar[type[FeatureNetwork]]
    compiles: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    several_steps: ClassVar[bool] = False
    merges_moments: ClassVar[bool] = True
    charts: ClassVar[Mapping[str, list[str]]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    unused: ClassVar[tuple[str, ...]] = ()
    tuned: ClassVar[tuple[str, ...]] = ("lr", "gamma")

    def __init__(self, config: Any, network: Any, replay_names: Sequence[str] = (), **parts: Any) -> None:
        self.config = config
        self.network = network
        self.replay_names = tuple(replay_names)
        self.stepper = Stepper(self, **parts)

    @classmethod
    def name(cls) -> str:
        """The agent's name on the command line."""
        file = user_file(cls.__module__)
        return f"{file}:{cls.__name__}" if file else cls.__name__.removesuffix("Agent").lower()

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
        rewards = f"rewards clipped by {config.reward_clipping}" if config.reward_clipping else "raw rewards"
        if getattr(config, "normalise_rewards", False):
            rewards = "rewards divided by the running standard deviation of their discounted sum"
        return f"expected sum of {rewards}, discounted by {config.gamma} per step"

    @classmethod
    def graphed(cls, config: Any) -> Literal["update", "step", ""]:
        """The part that can be recorded as a CUDA graph: a whole `update`, each call of `Stepper.launch` in it, or nothing.

        The recorded code depends on its argument, on `variant` and on tensors that are changed in place, and never waits for
        the device.
        """
        return ""

    @property
    def variant(self) -> Hashable:
        """A key for the decisions that the host makes in an update. Each key has its own CUDA graph."""
        return None

    @property
    def acting_network(self) -> Any:
        """The network whose weights are published to the workers."""
        return self.network

    @abstractmethod
    def update(self, batch: Batch, step: Stepper) -> None:
        """Learn from a batch.

        Args:
            batch: B trajectories of T steps, or B windows, without the rows of burn-in. Rewards are scaled or clipped as the
                settings say.
            step: computes the network's outputs and takes the optimiser steps.
        """

    def learn(self, batch: Batch, progress: float) -> UpdateReport:
        """Learn from a batch of the learner's loop. progress: the part of the run's budget that is used, in [0, 1].

        If a number of the update is not finite, the update is skipped: weights and optimiser stay as they were.
        """
        return self.stepper.learn(batch, progress)

    def calibrate(self, observations: Tensor) -> None:
        """Learn the scale of observations `[N, *observation_shape]` of random play, before the first update."""
        self.stepper.calibrate(observations)

    def join(self, collectives: Collectives) -> None:
        """Learn together with other learners from now on. All of them have the same state, and keep it."""
        self.stepper.join(collectives)

    def take_skip_reasons(self, *, everything: bool = False) -> list[str | None]:
        """For each update since the last call: the name of the first non-finite quantity, or None if the update was applied.

        On a GPU the newest update is left for the next call, so that nothing waits, unless `everything` is asked for.
        """
        return self.stepper.guard.take_skip_reasons(everything=everything)

    def state_dict(self) -> dict[str, Any]:
        """`modules`, `optimizers` and `numbers` by name, as tensors and plain data.

        The tensors are live: the next update changes them.
        """
        return saving.state_of(self.stepper)

    def check_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Raise ValueError if `load_state_dict` could not load this. The agent's network may lie on the meta device."""
        saving.check_state(self.stepper, state, load_optimizer=load_optimizer)

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Load what `state_dict` returned, by copying. Without the optimiser's part its moments start at zero."""
        self.stepper.load_state_dict(state, load_optimizer=load_optimizer)
