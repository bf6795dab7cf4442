"""Spaces of actions, and the parts of an observation: plain data that a checkpoint holds as JSON.

No object of Gymnasium leaves this package. The program's spaces are flat: a batch of N actions is `[N]` or `[N, D]`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

ACTION_MASK = "action_mask"
"""Name of the leaf that says which actions are legal: uint8, 1 for a legal action. See `ActionSpace.mask_size`."""
PREVIOUS_ACTION, PREVIOUS_REWARD = "previous_action", "previous_reward"
"""Names of the leaves that `--core_inputs` adds."""

TASK, TASK_INPUT = "_task", "_task_input"
"""Names of the leaves of a run with several environments: the index of its own, uint8 `[1]`, which no torso reads, and with
`--task_input` the same as a one-hot float32 vector. See `wrappers.many`."""


@dataclass(frozen=True)
class Leaf:
    """One part of an observation.

    Args:
        name: its name. A Dict observation gives the names of its entries.
        shape: shape in ONE frame.
        dtype: name of a numpy dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class ActionSpace(ABC):
    """The actions of one environment. shape and dtype: of one action in memory."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def dtype(self) -> str: ...

    @property
    def mask_counts(self) -> tuple[int, ...]:
        """Number of mask entries for each component of an action, one per value; empty if it cannot be masked."""
        return ()

    @property
    def mask_size(self) -> int:
        """Length of an action mask; 0 for a space that cannot be masked."""
        return sum(self.mask_counts)

    @abstractmethod
    def sample(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Uniformly random actions, `[count, *shape]`."""

    @abstractmethod
    def in_range(self, actions: np.ndarray) -> bool:
        """Whether actions `[N, *shape]` of the right dtype are all allowed."""

    @abstractmethod
    def describe(self) -> str:
        """The values that are allowed, in a few words."""

    @abstractmethod
    def summary(self) -> str:
        """The kind of actions, in a few words."""

    def check(self, actions: np.ndarray, count: int) -> np.ndarray:
        """The actions `[count, *shape]` in the space's dtype. Raises ValueError for another shape, dtype or range.

        An action out of range could hang a native environment.
        """
        wanted, kinds = (count, *self.shape), "iu" if np.dtype(self.dtype).kind == "i" else "f"
        if actions.shape != wanted or actions.dtype.kind not in kinds:
            numbers = "integers" if kinds == "iu" else "floating-point numbers"
            raise ValueError(f"actions: wanted {numbers} of shape {wanted}, got {actions.dtype} {actions.shape}")
        if not self.in_range(actions):
            raise ValueError(f"actions: wanted {self.describe()}, got {actions.tolist()}")
        return actions.astype(self.dtype, copy=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data from which `action_space` makes the same space."""
        return {"kind": self.kind, **{name: _plain(value) for name, value in vars(self).items()}}


@dataclass(frozen=True)
class Discrete(ActionSpace):
    """The actions 0 to count - 1. meanings: their names, if the environment names them."""

    count: int
    meanings: tuple[str, ...] = ()

    kind = "discrete"
    shape = ()
    dtype = "int64"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"actions: wanted 1 or more, got {self.count}")

    @property
    def mask_counts(self) -> tuple[int, ...]:
        return (self.count,)

    def sample(self, generator: np.random.Generator, count: int) -> np.ndarray:
        return generator.integers(self.count, size=count)

    def in_range(self, actions: np.ndarray) -> bool:
        return bool(actions.min() >= 0 and actions.max() < self.count)

    def describe(self) -> str:
        return f"values from 0 to {self.count - 1}"

    def summary(self) -> str:
        return f"the {self.count} actions"


@dataclass(frozen=True)
class MultiDiscrete(ActionSpace):
    """Several choices at once: component i is one of 0 to counts[i] - 1. MultiBinary has two values for each."""

    counts: tuple[int, ...]

    kind = "multi_discrete"
    dtype = "int64"

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1:
            raise ValueError(f"actions: wanted components with 1 or more values, got {self.counts}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.counts),)

    @property
    def mask_counts(self) -> tuple[int, ...]:
        return self.counts

    def sample(self, generator: np.random.Generator, count: int) -> np.ndarray:
        return generator.integers(np.array(self.counts), size=(count, len(self.counts)))

    def in_range(self, actions: np.ndarray) -> bool:
        return bool((actions >= 0).all() and (actions < np.array(self.counts)).all())

    def describe(self) -> str:
        return f"components below {', '.join(map(str, self.counts))}"

    def summary(self) -> str:
        return f"the {len(self.counts)} choices among {', '.join(map(str, self.counts))} actions"


@dataclass(frozen=True)
class Box(ActionSpace):
    """D real numbers at once. low and high: the environment's bounds of each, infinite where there are none.

    Inside the program a component with two finite bounds is in [-1, 1] and the family of the environment rescales it. Others
    are as the environment takes them.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    kind = "box"
    dtype = "float32"

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high) or any(low > high for low, high in self._bounds()):
            raise ValueError(f"actions: wanted as many lower as upper bounds, each at most the upper, got {self}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.low),)

    @property
    def bounded(self) -> np.ndarray:
        """Return which components have two finite bounds, bool `[D]`."""
        return np.isfinite(self.low) & np.isfinite(self.high)

    def sample(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Uniform in [-1, 1] where there are bounds, otherwise normal with standard deviation 1."""
        size = (count, len(self.low))
        drawn = np.where(self.bounded, generator.uniform(-1, 1, size), generator.normal(size=size))
        return drawn.astype(np.float32)

    def in_range(self, actions: np.ndarray) -> bool:
        return bool(np.isfinite(actions).all())

    def describe(self) -> str:
        return "finite numbers"

    def summary(self) -> str:
        return f"the {len(self.low)} real number{'s' * (len(self.low) > 1)}"

    def to_environment(self, actions: np.ndarray, dtype: str = "float32") -> np.ndarray:
        """Actions `[N, D]` as the environment takes them: clipped to the bounds, and rescaled from [-1, 1] between them.

        dtype: of the result. float32 cannot hold every integer.
        """
        low, high, bounded = np.array(self.low), np.array(self.high), self.bounded
        below, above = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        inside = (below + above) / 2 + (above - below) / 2 * np.clip(actions, -1.0, 1.0)
        # A component may have only one bound, so all are clipped once more.
        return np.clip(np.where(bounded, inside, actions), low, high).astype(dtype)

    def from_environment(self, actions: np.ndarray) -> np.ndarray:
        """Actions `[N, D]` of the environment as the program has them, float32: in [-1, 1] between two finite bounds."""
        bounded = self.bounded
        below, above = np.where(bounded, self.low, -1.0), np.where(bounded, self.high, 1.0)
        width = np.where(above > below, above - below, 1.0)  # a component with equal bounds has one value
        return np.where(bounded, np.clip(2 * (actions - below) / width - 1, -1.0, 1.0), actions).astype(np.float32)

    def _bounds(self) -> list[tuple[float, float]]:
        return list(zip(self.low, self.high, strict=True))


ACTION_SPACES: Mapping[str, type[ActionSpace]] = {space.kind: space for space in (Discrete, MultiDiscrete, Box)}
"""Name in JSON -> class."""


def action_space(data: Mapping[str, Any]) -> ActionSpace:
    """The space that `ActionSpace.to_json` described. Raises ValueError for anything else."""
    fields = {name: _from_plain(value) for name, value in data.items() if name != "kind"}
    try:
        return ACTION_SPACES[data["kind"]](**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"actions: wanted the description of a space, got {dict(data)} ({error})") from None


def same_actions(one: ActionSpace, other: ActionSpace) -> bool:
    """Whether a policy for the one space can act in the other. Names of actions do not matter."""

    def essence(space: ActionSpace) -> ActionSpace:
        return Discrete(space.count) if isinstance(space, Discrete) else space

    return essence(one) == essence(other)


def _plain(value: Any) -> Any:
    """JSON has no infinity, so infinite bounds are text."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_from_plain(part) for part in value)
    return float(value) if value in ("inf", "-inf") else value


class Packing:
    """The bytes of one frame that holds several leaves. Every store and transfer handles such a frame as bytes.

    leaves: in the order of their bytes. size: bytes of a frame.
    """

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        # Those with the longest numbers come first, so that every leaf starts at a multiple of its own numbers' length.
        self.leaves = tuple(sorted(leaves, key=lambda leaf: -np.dtype(leaf.dtype).itemsize))
        ends = np.cumsum([leaf.bytes for leaf in self.leaves]).tolist()
        self.size: int = ends[-1]
        self.parts = {leaf.name: slice(end - leaf.bytes, end) for leaf, end in zip(self.leaves, ends, strict=True)}
        """Name of a leaf -> its bytes in a frame."""

    def pack(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Frames, uint8 `[N, size]`, of leaves `[N, *shape]` each."""
        count = len(next(iter(values.values())))
        frames = np.empty((count, self.size), np.uint8)
        for leaf in self.leaves:
            value = np.ascontiguousarray(values[leaf.name], leaf.dtype).reshape(count, -1)
            frames[:, self.parts[leaf.name]] = value.view(np.uint8).reshape(count, -1)
        return frames

    def unpack(self, frames: np.ndarray) -> dict[str, np.ndarray]:
        """Copies of the leaves, `[*dims, *shape]`, of frames uint8 `[*dims, size]`."""
        return {
            leaf.name: np.ascontiguousarray(frames[..., self.parts[leaf.name]])
            .view(leaf.dtype)
            .reshape(*frames.shape[:-1], *leaf.shape)
            for leaf in self.leaves
        }


@dataclass(frozen=True)
class Goals:
    """The goal that an observation names and the goal that it has achieved, for learning from goals that were achieved.

    Args:
        leaf: name of the float32 vector that holds both; empty if the frame is that vector.
        achieved, desired: first number of each in the vector, and the one behind its last.
        shape, dtype: of a goal as the environment has it.
        functions: those of `compute_reward` and `compute_terminated` that the environment has.
    """

    leaf: str
    achieved: tuple[int, int]
    desired: tuple[int, int]
    shape: tuple[int, ...]
    dtype: str
    functions: tuple[str, ...] = ()

    def places(self, leaves: tuple[Leaf, ...]) -> tuple[slice, slice]:
        """The bytes of the achieved and of the desired goal in a frame with these leaves."""
        start = Packing(leaves).parts[self.leaf].start if leaves else 0
        achieved, desired = (slice(start + 4 * first, start + 4 * end) for first, end in (self.achieved, self.desired))
        return achieved, desired

    def to_json(self) -> dict[str, Any]:
        """Plain data from which `goals_from_json` makes the same."""
        return {name: _plain(value) for name, value in vars(self).items()}


def goals_from_json(data: Mapping[str, Any]) -> Goals:
    """The goals that `Goals.to_json` described."""
    return Goals(**{name: _from_plain(value) for name, value in data.items()})


def leaves_to_json(leaves: tuple[Leaf, ...]) -> list[dict[str, Any]]:
    """Leaves as plain data."""
    return [{**asdict(leaf), "shape": list(leaf.shape)} for leaf in leaves]
