"""The parts of an observation of Gymnasium: its images, and its numbers. Images may have their channels first or last."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from wrappers.spec import AUTO_NAME, BY_COLOURS, CHANNELS_FIRST, CHANNELS_LAST

Path = tuple[str | int, ...]

COLOURS = (1, 3, 4)
"""Usual numbers of channels of an image."""
SMALLEST_SIDE = 4
"""Arrays of fewer rows or columns are not taken for boards or pictures."""
FEW = 3
"""A first dimension that fits so many times into both others is one of channels."""


@dataclass(frozen=True)
class ObservationEntry:
    """One entry of an observation.

    Args:
        path: keys and indices that lead to it; empty if the observation is this entry.
        shape: of the entry.
        starts: smallest value of each component of a discrete entry, otherwise empty.
        counts: number of values of each such component.
        is_image: whether it is an image.
        is_bool: whether the image has truth values.
        is_first: whether the image has its channels first.
        dtype: of a Box, otherwise empty.
    """

    path: Path
    shape: tuple[int, ...]
    starts: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    is_image: bool = False
    is_bool: bool = False
    is_first: bool = False
    dtype: str = ""

    @property
    def name(self) -> str:
        return "/".join(map(str, self.path)) or "observation"

    @property
    def entry(self) -> Path:
        """The path of the entry that holds this part: its own path without the positions in Tuples at its end."""
        path = self.path
        while path and isinstance(path[-1], int):
            path = path[:-1]
        return path

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return sum(self.counts) if self.counts else math.prod(self.shape)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """`[H, W]` or `[H, W, C]` of an image."""
        return self.image_of(np.empty((1, *self.shape), np.uint8)).shape[1:]

    def image_of(self, images: np.ndarray) -> np.ndarray:
        """N images `[N, *shape]` as `[N, H, W]` or `[N, H, W, C]`. Channels come last; a single one has no dimension."""
        if self.is_first:
            images = np.moveaxis(images, 1, -1)
        return images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images

    def of(self, observation: Any) -> Any:
        """This entry of an observation."""
        for key in self.path:
            observation = observation[key]
        return observation


def are_colours_first(shape: tuple[int, ...]) -> bool:
    """Whether an image of this shape has a usual number of channels first, and none last."""
    return shape[0] in COLOURS and shape[2] not in COLOURS


def are_channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an image of this shape is likely to have its channels first. Its other two dimensions are often equal."""
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return middle == last
    is_undecided = first not in COLOURS and last not in COLOURS
    return FEW * first <= min(middle, last) if is_undecided else are_colours_first(shape)


LAYOUTS: Mapping[str, Callable[[tuple[int, ...]], bool]] = {
    AUTO_NAME: are_channels_first,
    CHANNELS_FIRST: lambda _: True,
    CHANNELS_LAST: lambda _: False,
    BY_COLOURS: are_colours_first,
}
"""Value of `observation_layout` -> whether an image of a shape has its channels first."""


def parts_of(space: spaces.Space[Any], path: Path = ()) -> Iterator[ObservationEntry]:
    """The entries of an observation space. Raises ValueError for one that has no fixed number of numbers."""
    if isinstance(space, spaces.Dict):
        for key, each in space.spaces.items():
            yield from parts_of(each, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, each in enumerate(space.spaces):
            yield from parts_of(each, (*path, index))
    elif isinstance(space, spaces.Discrete):
        yield ObservationEntry(path, (), (int(space.start),), (int(space.n),))
    elif isinstance(space, spaces.MultiDiscrete):
        counts = tuple(map(int, np.ravel(space.nvec)))
        starts = tuple(map(int, np.ravel(space.start)))
        yield ObservationEntry(path, space.nvec.shape, starts, counts)
    elif isinstance(space, spaces.MultiBinary):
        yield ObservationEntry(path, space.shape)
    elif isinstance(space, spaces.Box):
        is_bool = space.dtype == np.bool_
        dimensions = {np.dtype(np.uint8): (2, 3), np.dtype(np.bool_): (3,)}.get(np.dtype(space.dtype), ())
        is_image = len(space.shape) in dimensions and min(space.shape) > 0
        yield ObservationEntry(path, space.shape, is_image=is_image, is_bool=is_bool, dtype=str(space.dtype))
    else:
        entry = f" in its entry {'/'.join(map(str, path))}" if path else ""
        hint = f"; --ignored_observations={path[0]} leaves it out" if path and isinstance(path[0], str) else ""
        raise ValueError(
            "wanted observations of Box, Discrete, MultiDiscrete and MultiBinary spaces, also in Dict and Tuple, got "
            f"{type(space).__name__}{entry}{hint}"
        )


def image_line(part: ObservationEntry) -> str:
    """How an image is read."""
    height, width, *channels = (*part.image_shape, 1)[:3]
    text = f"{_title(part)}: image {height}x{width} with {channels[0]} channel{'s' * (channels[0] > 1)}"
    if len(part.shape) == 2:
        return text
    layout, other = (CHANNELS_LAST, CHANNELS_FIRST)[:: -1 if part.is_first else 1]
    return f"{text} ({layout.replace('_', ' ')}; otherwise --observation_layout={other})"


def is_like_an_image(part: ObservationEntry) -> bool:
    """Whether a part is an array of numbers that is no image, but has the shape of one."""
    return bool(part.dtype) and len(part.shape) > 1 and sorted(part.shape)[-2] >= SMALLEST_SIDE


def array_line(part: ObservationEntry) -> str:
    """How such an array is read."""
    shape = "x".join(map(str, part.shape))
    return f"{_title(part)}: {shape} numbers of {part.dtype}, flattened (images have dtype uint8, or bool and three dimensions)"


def _title(part: ObservationEntry) -> str:
    return f"observation {part.name}" if part.path else "observations"
