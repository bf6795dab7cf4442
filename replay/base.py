"""The interface of a replay, the settings of one replay in a mixture, and the context in which it is built."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from replay.batch import InitialErrors
from replay.kinds.distances import DISTANCES, POLICY_DISTANCES, Divergence, make_distance
from replay.kinds.selection import STRATEGIES
from replay.priorities.priorities import Tickets
from replay.trajectory import Fields, TrajectoryContract
from setting import Setting

LARGEST_CAPACITY = 10**12  # trajectories; far above any memory, and small enough to be counted in bytes
LARGEST_NUMBER = 10**6  # for numbers without a bound of their own; far above any sensible value
REWARD_FUNCTION = r"[^:]+:[A-Za-z_]\w*"
ABOVE_ZERO = math.ulp(0.0)
"""The lower end of a range that excludes 0: the smallest positive number."""


def _whole(help_text: str, unit: str, most: int = LARGEST_NUMBER) -> Setting:
    """A key for a whole number from 1 on."""
    return Setting(help_text, f"a whole number of {unit} from 1 to {most}", 1, most)


def _number(help_text: str, low: float, high: float) -> Setting:
    """A key for a number in [low, high], or in (0, high] if `low` is `ABOVE_ZERO`."""
    opening = "(" if low == ABOVE_ZERO else "["
    return Setting(help_text, f"a number in {opening}{low if low > ABOVE_ZERO else 0:g}, {high:.15g}]", low, high)


@dataclass(frozen=True)
class ReplayConfig:
    """One entry of `--replay_parameters`. A field with a `Setting` is a key of its object.

    Every replay has the keys type and sample_ratio and a size. A kind names the others that it takes (`Replay.keys`).

    type: a name of `replay.registry.REPLAYS`. memory: size in bytes, if the entry gives one; capacity is then the number of
    trajectories that fit in any case, and 0 until the bytes of a trajectory are known (see `replay.memory`). steps: size in
    environment steps, if the entry gives one; capacity is 0 until the length of a trajectory is known. insert_strategy: which
    trajectory makes room in a full replay instead of the oldest, `elite_insertion` or None. compress: keep the frames
    compressed, where they are given more than once.
    """

    type: str
    capacity: Annotated[int, _whole("Trajectories.", "trajectories", LARGEST_CAPACITY)] = 0
    sample_ratio: Annotated[float, _number("Part of every batch.", ABOVE_ZERO, 1)] = 1.0
    memory: int | None = None
    steps: Annotated[int, _whole("Steps of the environments.", "environment steps", LARGEST_CAPACITY)] = 0
    retention: Annotated[Literal["fifo", "reservoir"], Setting("Which trajectories a full standard replay keeps.")] = "fifo"
    insert_strategy: str | None = None
    dist_function: Annotated[str, Setting("Distance of policies or features.", choices=tuple(DISTANCES))] = "ln_norm"
    p: Annotated[float, _number("Exponent of ln_norm.", 1, LARGEST_NUMBER)] = 2.0
    elite_sampling_strategy: Annotated[str, Setting("Which candidates an elite replay takes.", choices=tuple(STRATEGIES))] = (
        "strategy3"
    )
    elite_batch_size: Annotated[int, _whole("Random trajectories that elite_insertion compares.", "trajectories")] = 10
    lambda_batch_multiplier: Annotated[
        float, _number("Candidates for each trajectory taken, at the start.", 1, LARGEST_NUMBER)
    ] = 6.0
    annealing_factor: Annotated[
        float, _number("Part of the run after which no candidate is compared; above 1: never.", ABOVE_ZERO, LARGEST_NUMBER)
    ] = 2.0
    alpha: Annotated[float, _number("Exponent of the priorities.", 0, 1)] = 0.6
    beta: Annotated[float, _number("Exponent of the importance weights at the start.", 0, 1)] = 0.4
    beta_end: Annotated[float, _number("Exponent of the importance weights at the end of the run.", 0, 1)] = 1.0
    priority_epsilon: Annotated[float, _number("Added to every priority.", ABOVE_ZERO, LARGEST_NUMBER)] = 1e-6
    slots: Annotated[int, _whole("Batches of a circular replay; 0 until the actions decide.", "batches")] = 0
    uses: Annotated[int, _whole("Uses of each batch; 0 until the actions decide.", "updates")] = 0
    staggered: Annotated[bool, Setting("Whether the first batches get 1, 2, .. uses.")] = True
    device: Annotated[Literal["cpu", "cuda"], Setting("Where frames are kept; cuda: in the learner's device memory.")] = "cpu"
    hindsight: Annotated[
        int,
        Setting(
            "Transitions with a goal that was achieved later, for each with its own goal; 0: none.",
            "a whole number of transitions from 0 to 1000",
            0,
            1000,
        ),
    ] = 0
    reward_function: Annotated[
        str,
        Setting(
            "The function that computes the rewards of other goals; without it the environment's compute_reward.",
            "module:function",
            pattern=REWARD_FUNCTION,
        ),
    ] = ""
    compress: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether it gives trajectories that no batch has had before, without being filled first."""
        return self.type in ("queue", "circular")

    @property
    def fresh_part(self) -> float:
        """The fraction of what it gives that no batch has had before, as soon as all of its slots are filled."""
        return 1 / self.uses if self.type == "circular" else float(self.is_fresh)

    @property
    def compares_policies(self) -> bool:
        """Whether it compares the policy that acted with the current one."""
        return self.insert_strategy is not None or self.type == "elite"

    @property
    def needs_features(self) -> bool:
        """Whether its trajectories must carry the features of the policy that acted."""
        return self.compares_policies and self.dist_function not in POLICY_DISTANCES

    @property
    def needs_encode(self) -> bool:
        """Whether it asks the learner to encode stored trajectories with the current network."""
        return self.insert_strategy is not None or self.type in ("elite", "attentive")


class Encoded(NamedTuple):
    """The current network's output for n trajectories: features float32 `[n, T, F]`, and the policies' parameters float32
    `[n, T, P]`."""

    features: np.ndarray
    policy: np.ndarray


Encode = Callable[[Fields], Encoded]
"""Takes n stored trajectories, `[n, *shape]` each field."""


GoalFunction = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Takes achieved and desired goals, float32 `[n, G]`, and returns a number for each of the n rows, `[n]`."""


@dataclass(frozen=True)
class GoalAccess:
    """Where the goals lie in a frame, and how another goal changes a step.

    achieved, desired: their bytes in a frame, which are float32. reward: of a step with this achieved goal after it.
    terminated: whether the step terminates the episode; None if that does not depend on the goal.
    """

    achieved: slice
    desired: slice
    reward: GoalFunction
    terminated: GoalFunction | None = None


@dataclass(frozen=True)
class ReplayContext:
    """The context that a replay is built with, besides its settings.

    share: the most that one batch takes from it. min_fill: trajectories to be written before it gives any. encode: the
    current network, which the learner owns. progress: the part of the schedule that is over, in [0, 1]. device: the learner's.
    policy_divergence: compares policies; None if their parameters are the logits of one choice. initial_errors: see
    `InitialErrors`; None if nothing is known of new trajectories. goals: for replays with `hindsight`.
    """

    contract: TrajectoryContract
    share: int
    min_fill: int
    generator: np.random.Generator
    encode: Encode | None = None
    progress: Callable[[], float] = lambda: 0.0
    device: torch.device = torch.device("cpu")
    policy_divergence: Divergence | None = None
    initial_errors: InitialErrors | None = None
    goals: GoalAccess | None = None


class Drawn(NamedTuple):
    """The leaves of the last sample of a replay with priorities, in the order of its columns.

    tickets: of n leaves. weights: importance weights before the division by their maximum, float64 `[n]`.
    """

    tickets: Tickets
    weights: np.ndarray


class Replay(ABC):
    """A store of trajectories from which batches are drawn. It copies what it keeps: the slot goes back to the workers.

    keys: fields of `ReplayConfig` that this kind takes besides those of every replay. keeps_newest: whether a full replay
    evicts its oldest trajectory and takes every new one, unless a strategy decides. Trajectories then share frames, and the
    memory that is counted before the run relies on that. gives_windows: whether it also draws windows of rows, for agents
    whose `Needs.window` is not 0.
    """

    keys: ClassVar[tuple[str, ...]] = ()
    keeps_newest: ClassVar[bool] = False
    gives_windows: ClassVar[bool] = False
    takes_others: ClassVar[bool] = True
    """Whether it takes the trajectories of other runs (`replay.exchange`). Kinds whose columns are fresh do not."""

    gives_replayed: bool
    """Whether the trajectories of the last `sample` may have been given before (their columns are `is_replay`)."""
    drawn: Drawn | None = None
    """The leaves of the last `sample`; None without priorities."""

    @abstractmethod
    def __init__(self, config: ReplayConfig, context: ReplayContext) -> None: ...

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that a saved state must share with this replay to be loaded."""

    @abstractmethod
    def has_room(self) -> bool:
        """Whether to insert now; if not, the trajectory waits in its slot (backpressure). Kinds that evict always have room."""

    @abstractmethod
    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        """Copy one trajectory (`[*shape]` each field) in."""

    @abstractmethod
    def can_sample(self, count: int) -> bool:
        """Whether `sample(count)` has enough to give now."""

    @abstractmethod
    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> Tensor | None:
        """Write `count` trajectories into `out` (`[count, *shape]` each field).

        A replay whose frames lie on a device returns those, `[count, T+S, *frame_shape]`, whole and ready for any stream, and
        leaves the frames of `out` as they are.
        """

    def update_priorities(self, tickets: Tickets, errors: np.ndarray) -> None:  # noqa: B027  (most kinds have none)
        """Replace the priorities of drawn leaves. errors: `[n]`, sizes of their temporal differences; NaN changes nothing."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Numbers about what was given since the last call; a number that nothing was measured for is left out."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state for a bit-identical resume, as tensors, numbers and text. Tensors may be views of the replay's memory."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()` of a replay with the same settings; what was stored here is forgotten."""


def behaviour_distances(
    config: ReplayConfig, encoded: Encoded, trajectories: Fields, divergence: Divergence | None
) -> np.ndarray:
    """Return the distance `[n]` of each of n trajectories (`[n, *shape]` each field) from the current network.

    divergence: `ReplayContext.policy_divergence`.
    """
    distance = make_distance(config.dist_function, config.p, divergence)
    if config.dist_function in POLICY_DISTANCES:
        return distance(encoded.policy, trajectories["behaviour_policy"])  # [n, T, P] each
    return distance(encoded.features, trajectories["behaviour_features"])  # [n, T, F] each
