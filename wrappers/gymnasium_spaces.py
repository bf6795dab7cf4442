"""Translates the spaces of Gymnasium: observations become frames of our contract, our actions become the environment's.

Vectors of all kinds are flattened and joined to one float32 vector, in the order of the space. Numbers stay as they are. A
Discrete observation becomes a one-hot vector, a MultiDiscrete one a one-hot vector for each component. Images are uint8 with
two or three dimensions, or bool with three (true becomes 255), and stay images, `[H, W]` or `[H, W, C]`. A frame of one vector
or one image is stored as it is. A frame of several leaves is packed into bytes (`wrappers.spaces.Packing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from wrappers.gymnasium_parts import LAYOUTS, ObservationEntry, array_line, image_line, is_like_an_image, parts_of
from wrappers.space_json import is_text
from wrappers.spaces import ACTION_MASK, ActionSpace, Box, Discrete, Leaf, MultiDiscrete, Packing
from wrappers.spec import AUTO_NAME, CHANNELS_FIRST, CHANNELS_LAST, NO_NAME

VECTOR = "vector"
"""Name of the leaf that joins all vectors."""

TRUE = 255
"""The byte of a true value in an image of truth values. The network divides bytes by 255, so it sees 0 and 1."""


class ObservationPlan:
    """How observations of a space become frames.

    Args:
        space: the environment's observation space.
        mask_counts: places of an action mask for each component of an action; empty if actions cannot be masked.
        mask: the setting `action_mask`.
        ignored: the setting `ignored_observations`.
        info: of a reset, where a mask may be.
        layout: the setting `observation_layout`.

    Raises ValueError if the space cannot be used, or if the settings name an entry that does not exist.

    leaves, frame_shape and frame_dtype are those of `EnvSpec`.
    """

    def __init__(
        self,
        space: spaces.Space[Any],
        mask_counts: tuple[int, ...],
        mask: str,
        ignored: str = AUTO_NAME,
        info: Mapping[str, Any] | None = None,
        layout: str = AUTO_NAME,
    ) -> None:
        parts = list(parts_of(_without(space, ignored)))
        self.masks, self.mask_in_info = _find_mask(parts, sum(mask_counts), mask, info or {})
        self.mask_counts = mask_counts if self.masks or self.mask_in_info else ()
        self.mask_size = sum(self.mask_counts)
        images = [part for part in parts if part.is_image and part not in self.masks]
        if layout in (CHANNELS_FIRST, CHANNELS_LAST) and all(len(part.shape) < 3 for part in images):
            raise ValueError(f"observation_layout: wanted {AUTO_NAME} without an image of three dimensions, got {layout!r}")
        self.images = [replace(part, is_first=len(part.shape) == 3 and LAYOUTS[layout](part.shape)) for part in images]
        self.vectors = [part for part in parts if not part.is_image and part not in self.masks and part.size]
        self.vector_size = sum(part.size for part in self.vectors)
        leaves = [Leaf(VECTOR, (self.vector_size,), "float32")] if self.vector_size else []
        leaves += [Leaf(_image_name(part), part.image_shape, "uint8") for part in self.images]
        if not leaves:
            raise ValueError("wanted observations of one number or more, got none")
        if self.mask_size:
            leaves.append(Leaf(ACTION_MASK, (self.mask_size,), "uint8"))
        self.leaves = tuple(leaves) if len(leaves) > 1 else ()
        self.packing = Packing(self.leaves) if self.leaves else None
        self.frame_shape = (self.packing.size,) if self.packing else leaves[0].shape
        self.frame_dtype = "uint8" if self.packing else leaves[0].dtype

    def lines(self) -> tuple[str, ...]:
        """A line about each image, and about each array that could be one, which say how they are read."""
        return (*map(image_line, self.images), *map(array_line, filter(is_like_an_image, self.vectors)))


def _without(space: spaces.Space[Any], ignored: str) -> spaces.Space[Any]:
    """The space without the entries of a Dict that are ignored."""
    if ignored == AUTO_NAME:
        ignored = ",".join(texts_of(space)) or NO_NAME
    names = () if ignored == NO_NAME else tuple(ignored.split(","))
    known = tuple(space.spaces) if isinstance(space, spaces.Dict) else ()
    if unknown := [name for name in names if name not in known]:
        entries = f"entries of the observation ({', '.join(map(str, known))})" if known else "none: no Dict observation"
        raise ValueError(f"ignored_observations: wanted {entries}, got {unknown[0]!r}")
    if not names:
        return space
    assert isinstance(space, spaces.Dict)
    return spaces.Dict([(key, each) for key, each in space.spaces.items() if key not in names])


def texts_of(space: spaces.Space[Any]) -> tuple[str, ...]:
    """The entries of a Dict that are texts, such as the mission of a MiniGrid environment; empty for any other space."""
    entries = space.spaces.items() if isinstance(space, spaces.Dict) else ()
    return tuple(str(key) for key, each in entries if is_text(each))


def _find_mask(
    parts: list[ObservationEntry], mask_size: int, mask: str, info: Mapping[str, Any]
) -> tuple[list[ObservationEntry], str | None]:
    """The parts of the mask in the observation, or its name in info; no parts and None if there is no mask."""
    if mask == NO_NAME or (mask == AUTO_NAME and not mask_size):
        return [], None
    if not mask_size:
        raise ValueError(f"action_mask: wanted {AUTO_NAME} or {NO_NAME} for actions that cannot be masked, got {mask!r}")
    name = ACTION_MASK if mask == AUTO_NAME else mask
    entry = next((part.entry for part in parts if part.entry[-1:] == (name,)), None)
    found = [part for part in parts if part.entry == entry]
    size = sum(part.size for part in found) if found else joined(info[name]).size if name in info else None
    if size is None and mask != AUTO_NAME:
        entries = ", ".join(dict.fromkeys(str(part.entry[-1]) for part in parts if part.entry)) or "none"
        in_info = ", ".join(info) or "none"
        raise ValueError(f"action_mask: wanted an entry of the observation ({entries}) or of info ({in_info}), got {mask!r}")
    if size is not None and size != mask_size:
        raise ValueError(
            f"action_mask: wanted {mask_size} numbers for these actions, got {size} in the entry {name}; "
            f"--action_mask={NO_NAME} takes it for no mask"
        )
    return found, name if size is not None and not found else None


def joined(mask: Any) -> np.ndarray:
    """The numbers of a mask. One for several choices may be a tuple with an array for each, as `MultiDiscrete.sample` takes."""
    has_parts = isinstance(mask, tuple | list) and len(mask) > 0 and not np.isscalar(mask[0])
    return np.concatenate([joined(part) for part in mask]) if has_parts else np.ravel(mask)


def _image_name(part: ObservationEntry) -> str:
    name = part.name if part.path else "image"
    # Other leaves may have these names, and the names of leaves must differ.
    return f"{name}_image" if name in (VECTOR, ACTION_MASK, "previous_action", "previous_reward") else name


class FrameBuffer:
    """Collects the observations of N environments and turns them into frames. Arrays are reused by the next step."""

    def __init__(self, plan: ObservationPlan, num_envs: int) -> None:
        self._plan = plan
        self._everyone = np.arange(num_envs)[:, None]
        self._numbers = [np.zeros((num_envs, *part.shape), np.int64 if part.counts else np.float32) for part in plan.vectors]
        self._images = [np.zeros((num_envs, *part.shape), np.uint8) for part in plan.images]
        self._vector = np.zeros((num_envs, plan.vector_size), np.float32)
        self._mask = np.ones((num_envs, plan.mask_size), np.uint8)
        self._parts = list(zip((*plan.vectors, *plan.images), (*self._numbers, *self._images), strict=True))

    def put(self, where: int | slice, observation: Any, info: Mapping[str, Any], ended: bool | np.ndarray = False) -> None:
        """Take the observation of environment `where`, or the batched observations of all environments for a slice.

        ended: whether the episode is over, for a slice `[N]`. Its last info may lack the mask, because no action follows.

        Raises RuntimeError if info lacks the mask otherwise.
        """
        for part, array in self._parts:
            array[where] = part.of(observation)
            if part.is_image and part.is_bool:
                array[where] *= TRUE
        plan = self._plan
        if plan.masks:
            size = self._mask[where].shape[:-1]
            masks = [np.reshape(part.of(observation), (*size, part.size)) for part in plan.masks]
            self._mask[where] = np.not_equal(np.concatenate(masks, axis=-1), 0)
        elif plan.mask_in_info:
            self._mask[where] = self._mask_of(plan.mask_in_info, info, self._mask[where], np.asarray(ended))

    @staticmethod
    def _mask_of(name: str, info: Mapping[str, Any], like: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """The mask in entry `name` of info, all 1 where it is missing at an episode's end. Arguments as for `put`.

        like: an array of the mask's shape. Raises RuntimeError where the mask is missing otherwise.
        """
        # A vector of Gymnasium fills the entry with zeros for an environment without it, and says so under the name "_<name>".
        given = np.asarray(info.get(f"_{name}", name in info), bool)
        if not (given | ended).all():
            raise RuntimeError(f"action_mask: wanted an entry {name} of info, got {', '.join(info) or 'none'}")
        if name not in info:
            return np.ones_like(like)
        mask = info[name]
        if isinstance(mask, np.ndarray) and mask.dtype == object:
            # A vector of environments puts their tuples into one array, with None for an environment without a mask.
            mask = tuple(np.ones(like.shape[-1]) if one is None else one for one in mask)
        return np.where(given[..., None], np.not_equal(joined(mask), 0).reshape(like.shape), 1)

    def frame(self, index: int) -> np.ndarray:
        """The frame of environment `index`, `[*frame_shape]`."""
        frame: np.ndarray = self.frames(slice(index, index + 1))[0]
        return frame

    def frames(self, where: slice = slice(None)) -> np.ndarray:
        """The frames of all environments, or of those in a slice, `[N, *frame_shape]`."""
        plan, mask = self._plan, self._mask[where]
        if plan.mask_size:
            # Environments often forbid every action when an episode is over. A policy over none has no probabilities or value.
            for component in np.split(mask, np.cumsum(plan.mask_counts)[:-1].astype(int), axis=1):
                component[~component.any(1)] = 1
        vector = self._join(where) if plan.vectors else self._vector[where]
        if plan.packing is None:
            return vector if plan.vectors else plan.images[0].image_of(self._images[0][where])
        images = {_image_name(part): part.image_of(array[where]) for part, array in zip(plan.images, self._images, strict=True)}
        return plan.packing.pack({VECTOR: vector, **images, ACTION_MASK: mask})

    def _join(self, where: slice) -> np.ndarray:
        """Vectors of some environments, float32 `[N, vector_size]`. Raises RuntimeError for a value beyond its space."""
        if len(self._numbers) == 1 and not self._plan.vectors[0].counts:
            only: np.ndarray = self._numbers[0][where]
            return only.reshape(len(only), -1)
        vector, everyone = self._vector[where], self._everyone[: len(self._vector[where])]
        vector[:] = 0.0
        begin = 0
        for part, every in zip(self._plan.vectors, self._numbers, strict=True):
            end, array = begin + part.size, every[where]
            if part.counts:
                chosen = array.reshape(len(array), -1) - np.array(part.starts)
                counts = np.array(part.counts)
                # A wrong value would otherwise set the place of another component.
                if (chosen < 0).any() or (chosen >= counts).any():
                    raise RuntimeError(f"observation {part.name}: wanted values of its space, got {array.tolist()}")
                vector[everyone, begin + chosen + np.cumsum(counts) - counts] = 1.0
            else:
                vector[:, begin:end] = array.reshape(len(array), -1)
            begin = end
        return vector


Decoder = Callable[[np.ndarray], Any]
"""Turns actions `[N, *shape]` of our space into N actions of the environment."""


def translate_actions(space: spaces.Space[Any]) -> tuple[ActionSpace, Decoder]:
    """Our action space for one of Gymnasium, and the function that turns its actions back. Raises ValueError."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Discrete(int(space.n)), lambda actions: (actions + start).tolist()
    if isinstance(space, spaces.MultiDiscrete):
        counts, starts, dtype = np.ravel(space.nvec), space.start, space.dtype
        many = MultiDiscrete(tuple(map(int, counts)))
        return many, lambda actions: (actions.reshape(-1, *starts.shape) + starts).astype(dtype)
    if isinstance(space, spaces.MultiBinary):
        shape, dtype = tuple(map(int, space.shape)), space.dtype
        return MultiDiscrete((2,) * math.prod(shape)), lambda actions: actions.reshape(-1, *shape).astype(dtype)
    if isinstance(space, spaces.Box) and np.size(space.low):
        return _translate_box(space)
    raise ValueError(f"wanted actions of a Discrete, MultiDiscrete, MultiBinary or Box space, got {space}")


def from_gymnasium(space: spaces.Space[Any], actions: Any) -> np.ndarray:
    """N actions of an environment as ours, `[N, *shape]`: the opposite of a decoder. Raises ValueError for another space."""
    given = np.asarray(actions)
    if isinstance(space, spaces.Discrete):
        return given.astype(np.int64) - int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return (given - space.start).reshape(len(given), -1).astype(np.int64)
    if isinstance(space, spaces.MultiBinary):
        return given.reshape(len(given), -1).astype(np.int64)
    ours, _ = translate_actions(space)
    assert isinstance(ours, Box)
    return ours.from_environment(given.reshape(len(given), -1))


def _translate_box(space: spaces.Box) -> tuple[ActionSpace, Decoder]:
    shape, dtype = space.shape, np.dtype(space.dtype)
    lowest, highest = (np.array([_within(each) for each in bound.ravel().tolist()]) for bound in (space.low, space.high))
    # Gymnasium gives integers without bounds those of their dtype, and remembers that they have none.
    low, high = np.where(space.bounded_below.ravel(), lowest, -np.inf), np.where(space.bounded_above.ravel(), highest, np.inf)
    box, is_whole = Box(tuple(low.tolist()), tuple(high.tolist())), dtype.kind in "iub"

    def decode(actions: np.ndarray) -> np.ndarray | list[np.ndarray]:
        numbers = np.rint(box.to_environment(actions, "float64")) if is_whole else box.to_environment(actions)
        # A cast of larger numbers than the dtype has would wrap around. The float32 next to 0.1 lies above a bound of 0.1.
        decoded = np.clip(numbers, lowest, highest).reshape(-1, *shape).astype(dtype)
        return decoded if shape else [np.asarray(one) for one in decoded]  # an action is an array, also one of shape ()

    return box, decode


def _within(bound: float) -> float:
    """A bound as float64, which lacks most integers above 2^53. The result lies within the bound then."""
    number = float(bound)
    return math.nextafter(number, 0.0) if abs(number) > abs(bound) else number
