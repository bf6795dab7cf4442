"""Values of spaces on the wire: reads observations and masks, and writes actions. Every value that is read is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from serve.frames import ProtocolError, array, shown

Reader = Callable[[Any, str], Any]
"""Turns a value of the wire into one of a space. Its second argument names the value. Raises ProtocolError."""


def reader_of(space: spaces.Space[Any]) -> Reader:
    """The function that reads the values of a space."""
    if isinstance(space, spaces.Box):
        return _box_reader(space)
    if isinstance(space, spaces.Discrete):
        first, count = int(space.start), int(space.n)
        return lambda value, name: _one_of(value, first, count, name)
    if isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
        return lambda value, name: _whole_numbers(value, low, high, name)
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(map(int, space.shape))
        return lambda value, name: _whole_numbers(value, np.zeros(shape, np.int64), np.ones(shape, np.int64), name)
    if isinstance(space, spaces.Text):
        return _text
    if isinstance(space, spaces.Dict):
        return _dict_reader(space)
    assert isinstance(space, spaces.Tuple)
    return _tuple_reader(space)


def wire_action(action: Any) -> Any:
    """An action of the environment as numbers and nested lists."""
    return action.tolist() if isinstance(action, np.ndarray | np.generic) else action


def read_mask(value: Any, size: int) -> np.ndarray:
    """A mask as int64 `[size]`, with 1 for each legal action. Raises ProtocolError."""
    return _whole_numbers(value, np.zeros(size, np.int64), np.ones(size, np.int64), "mask")


def _box_reader(space: spaces.Box) -> Reader:
    shape, dtype = tuple(map(int, space.shape)), np.dtype(space.dtype)
    if dtype.kind == "f":
        stored = np.dtype(np.float32) if dtype.itemsize > 4 else dtype  # frames are float32
        return lambda value, name: _finite(array(value, shape, name), stored, name)
    limits = None if dtype.kind == "b" else np.iinfo(dtype.name)
    low, high = (int(limits.min), int(limits.max)) if limits else (0, 1)

    def read(value: Any, name: str) -> np.ndarray:
        values = array(value, shape, name)
        # The bytes of an image have the right dtype already.
        return values if values.dtype == dtype else _within(values, low, high, name).astype(dtype)

    return read


def _finite(values: np.ndarray, dtype: np.dtype[Any], name: str) -> np.ndarray:
    """The values, which are finite in this dtype of floats. The dtype of the wire may hold larger numbers."""
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(dtype, copy=False))
    if not finite.all():
        raise ProtocolError("value", f"{name}: wanted finite numbers of {dtype}, got {values[~finite].flat[0]}")
    return values


def _within(values: np.ndarray, low: Any, high: Any, name: str) -> np.ndarray:
    """Whole numbers in a range."""
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.rint(values)).all()):
        raise ProtocolError("value", f"{name}: wanted whole numbers, got {shown(values.tolist())}")
    # As a float the largest int64 is rounded up, so it is compared with the number behind it.
    above = values >= high + 1.0 if values.dtype.kind == "f" else values > high
    if values.size and ((values < low).any() or above.any()):
        got = shown(values.tolist())
        raise ProtocolError("value", f"{name}: wanted numbers from {np.min(low)} to {np.max(high)}, got {got}")
    return values


def _whole_numbers(value: Any, low: np.ndarray, high: np.ndarray, name: str) -> np.ndarray:
    return _within(array(value, low.shape, name), low, high, name).astype(np.int64)


def _one_of(value: Any, first: int, count: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not first <= value < first + count:
        raise ProtocolError("value", f"{name}: wanted a whole number from {first} to {first + count - 1}, got {shown(value)}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ProtocolError("value", f"{name}: wanted a text, got {shown(value)}")
    return value


def _dict_reader(space: spaces.Dict) -> Reader:
    readers = {str(key): reader_of(each) for key, each in space.spaces.items()}

    def read(value: Any, name: str) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not readers.keys() <= value.keys():
            raise ProtocolError("value", f"{name}: wanted an object with {', '.join(readers)}, got {shown(value)}")
        return {key: reader(value[key], f"{name}/{key}") for key, reader in readers.items()}

    return read


def _tuple_reader(space: Any) -> Reader:
    readers = [reader_of(each) for each in space.spaces]

    def read(value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise ProtocolError("value", f"{name}: wanted an array of {len(readers)} values, got {shown(value)}")
        return tuple(reader(each, f"{name}/{index}") for index, (reader, each) in enumerate(zip(readers, value, strict=True)))

    return read
