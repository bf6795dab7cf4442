"""The interface of a replay, the settings of one replay in a mixture, and the context in which it is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from replay.batch import InitialErrors
from replay.kinds.distances import POLICY_DISTANCES, Divergence, make_distance
from replay.priorities.priorities import Tickets
from replay.trajectory import Fields, TrajectoryContract


@dataclass(frozen=True)
class ReplayConfig:
    """One entry of `--replay_parameters`. sample_ratio: its part of every batch, in (0, 1].

    capacity: trajectories. memory: bytes, where the entry names them instead; capacity is then the number of trajectories
    that they hold in any case, and 0 until their size is known (see `replay.memory`). steps: steps of the environments, where
    the entry names them instead; capacity is 0 until the length of a trajectory is known. compress: keep the frames
    compressed, where they are given more than once. device: `cuda` keeps them in the learner's device memory.

    alpha, beta, beta_end and priority_epsilon belong to a prioritised replay (see `replay.kinds.prioritised`).

    slots, uses and staggered belong to a circular replay; 0 until the actions of the environment are known, which decide.

    retention: what a full standard replay keeps, `fifo` or `reservoir`. insert_strategy: which trajectory makes room in a
    full replay instead, `elite_insertion` or None. The others belong to elite and attentive sampling and to that strategy.
    """

    type: str
    capacity: int
    sample_ratio: float
    retention: str = "fifo"
    dist_function: str = "ln_norm"
    p: float = 2.0
    insert_strategy: str | None = None
    elite_sampling_strategy: str = "strategy3"
    elite_batch_size: int = 10
    lambda_batch_multiplier: float = 6.0
    annealing_factor: float = 2.0
    memory: int | None = None
    steps: int | None = None
    alpha: float = 0.6
    beta: float = 0.4
    beta_end: float = 1.0
    priority_epsilon: float = 1e-6
    compress: bool = False
    device: str = "cpu"
    slots: int = 0
    uses: int = 0
    staggered: bool = True

    @property
    def is_fresh(self) -> bool:
        """Whether it gives trajectories that no batch has had before, without being filled first."""
        return self.type in ("queue", "circular")

    @property
    def fresh_part(self) -> float:
        """The fraction of what it gives that no batch has had before, as soon as all of its slots are filled."""
        return 1 / self.uses if self.type == "circular" else float(self.is_fresh)

    @property
    def keeps_newest(self) -> bool:
        """Whether a full one always lets its oldest trajectory go; a queue and a circular replay keep all."""
        return not self.is_fresh and self.retention == "fifo" and self.insert_strategy is None

    @property
    def needs_features(self) -> bool:
        """Whether its trajectories must carry the features of the policy that acted."""
        compares = self.insert_strategy is not None or self.type == "elite"
        return compares and self.dist_function not in POLICY_DISTANCES

    @property
    def needs_encode(self) -> bool:
        """Whether it asks the learner what the current network makes of stored trajectories."""
        return self.insert_strategy is not None or self.type in ("elite", "attentive")


class Encoded(NamedTuple):
    """The current network's output for n trajectories: features float32 `[n, T, F]`, and the policies' parameters float32
    `[n, T, P]`."""

    features: np.ndarray
    policy: np.ndarray


Encode = Callable[[Fields], Encoded]
"""Takes n stored trajectories, `[n, *shape]` each field."""


@dataclass(frozen=True)
class ReplayContext:
    """The context that a replay is built with, besides its settings.

    share: the most that one batch takes from it. min_fill: trajectories to be written before it gives any. encode: the
    current network, which the learner owns. progress: the part of the schedule that is over, in [0, 1]. device: the learner's.
    policy_divergence: compares policies; None if their parameters are the logits of one choice. initial_errors: see
    `InitialErrors`; None if nothing is known of new trajectories.
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


class Drawn(NamedTuple):
    """The leaves of the last sample of a replay with priorities, in the order of its columns.

    tickets: of n leaves. weights: importance weights before the division by their maximum, float64 `[n]`.
    """

    tickets: Tickets
    weights: np.ndarray


class Replay(ABC):
    """A store of trajectories from which batches are drawn. It copies what it keeps: the slot goes back to the workers."""

    gives_replayed: bool
    """Whether the trajectories of the last `sample` may have been given before (their columns are `is_replay`)."""
    drawn: Drawn | None = None
    """The leaves of the last `sample`; None without priorities."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that a saved state must share with this replay to be loaded."""

    @abstractmethod
    def has_room(self) -> bool:
        """Whether `insert` loses nothing; where it has none, the trajectory can wait in its slot (backpressure)."""

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
        """All it needs to go on to the bit, as tensors, numbers and text; tensors may look at its own memory."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()` of a replay with the same settings; what was stored here is forgotten."""


def behaviour_distances(
    config: ReplayConfig, encoded: Encoded, trajectories: Fields, divergence: Divergence | None
) -> np.ndarray:
    """How far each of n trajectories (`[n, *shape]` each field) is from the current network. Returns `[n]`.

    divergence: `ReplayContext.policy_divergence`.
    """
    distance = make_distance(config.dist_function, config.p, divergence)
    if config.dist_function in POLICY_DISTANCES:
        return distance(encoded.policy, trajectories["behaviour_policy"])
    return distance(encoded.features, trajectories["behaviour_features"])
