"""Spaces of Gymnasium as plain data for JSON and MessagePack, in the form of docs/protocol.md."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")
"""Names of the dtypes of a Box."""
MOST_DIMENSIONS = 8
MOST_NUMBERS = 2**24
"""Numbers of an observation, all parts together: several large images. A space keeps two bounds for each."""
MOST_CHOICES = 2**20
"""Values of a Discrete or, together, of the parts of a MultiDiscrete. The network has an input or output for each."""
MOST_ENTRIES = 1024
"""Parts of an observation, and numbers of an action."""
DEEPEST = 16
LONGEST_TEXT = 4096
"""Characters of texts whose space names no limit."""

Plain = Mapping[str, Any]


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space as plain data. Raises ValueError for a kind of space that the protocol does not have."""
    if isinstance(space, spaces.Box):
        bounds = {"low": _bound_to_json(space.low), "high": _bound_to_json(space.high)}
        return {"type": "box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        start = {"start": space.start.tolist()} if space.start.any() else {}
        return {"type": "multi_discrete", "nvec": space.nvec.tolist(), **start}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "multi_binary", "shape": list(space.shape)}
    if isinstance(space, spaces.Text):
        return {"type": "text", "max_length": int(space.max_length)}
    if isinstance(space, spaces.Dict):
        return {"type": "dict", "spaces": {str(key): space_to_json(each) for key, each in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "tuple", "spaces": [space_to_json(each) for each in space.spaces]}
    if is_text(space):
        return {"type": "text", "max_length": LONGEST_TEXT}
    raise ValueError(f"wanted a space of {', '.join(_READERS)}, got {space}")


def is_text(space: spaces.Space[Any]) -> bool:
    """Whether a space holds texts. MiniGrid's is a class of its own, so an unknown space is asked for a sample."""
    known = (spaces.Dict, spaces.Tuple, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)
    return isinstance(space, spaces.Text) or (not isinstance(space, known) and isinstance(space.sample(), str))


def _bound_to_json(bound: np.ndarray) -> Any:
    """One number if all places have the same, otherwise nested lists. An infinite one is None."""
    if bound.size and (bound == bound.flat[0]).all():
        return _finite(bound.flat[0].item())
    return _nested(bound.tolist())


def _nested(values: Any) -> Any:
    return [_nested(each) for each in values] if isinstance(values, list) else _finite(values)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def spaces_text(observation: spaces.Space[Any], action: spaces.Space[Any], *, has_mask: bool) -> str:
    """The spaces of an environment as JSON, or a line that begins with "wanted" if the protocol does not have one of them."""
    try:
        plain = {"observation": space_to_json(observation), "action": space_to_json(action), "mask": has_mask}
    except ValueError as error:
        return str(error)
    return json.dumps(plain)


def space_from_json(data: Any, most: int = MOST_NUMBERS) -> spaces.Space[Any]:
    """The space that plain data describes. It may come from anywhere. Raises ValueError in one line.

    most: numbers of its values. A space with more is refused before memory is taken for it.
    """
    if (numbers := numbers_of(data)) > most:
        raise ValueError(f"wanted at most {most:,} numbers in all, got {numbers:,}")
    return _read(data, 0)


def numbers_of(data: Any) -> int:
    """Numbers in a value of the space that plain data describes. Raises ValueError for more than `MOST_ENTRIES` parts."""
    parts = numbers = 0
    left = [data]
    while left:
        each = left.pop()
        kind = each.get("type") if isinstance(each, Mapping) else None
        inner = each.get("spaces") if kind in ("dict", "tuple") else None
        if isinstance(inner, Mapping | list):
            left.extend(inner.values() if isinstance(inner, Mapping) else inner)
            continue
        parts += 1
        numbers += math.prod(_shape(each.get("shape"))) if kind in ("box", "multi_binary") else 1
        if parts > MOST_ENTRIES:
            raise ValueError(f"wanted at most {MOST_ENTRIES} parts in all, got more")
    return numbers


def _read(data: Any, depth: int) -> spaces.Space[Any]:
    kind = data.get("type") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in _READERS:
        raise ValueError(f"wanted a space with the type {', '.join(_READERS)}, got {str(data)[:80]}")
    if depth > DEEPEST:
        raise ValueError(f"wanted at most {DEEPEST} spaces within each other, got more")
    try:
        return _READERS[kind](data, depth)
    except (AssertionError, TypeError, OverflowError, KeyError, MemoryError) as error:
        raise ValueError(f"wanted a space of the type {kind}, got {str(data)[:80]} ({type(error).__name__} {error})") from None


def _box(data: Plain, depth: int) -> spaces.Box:
    shape, name = _shape(data["shape"]), data["dtype"]
    if name not in DTYPES:
        raise ValueError(f"wanted a dtype of {', '.join(DTYPES)}, got {str(name)[:40]!r}")
    dtype = np.dtype(name)
    low, high = (_bound_from_json(data.get(side), shape, dtype, side) for side in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _bound_from_json(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], side: str) -> np.ndarray:
    """A bound `[*shape]`; infinite where none is given, and for whole numbers the last one of the dtype."""
    if dtype.kind == "f":
        missing: Any = -math.inf if side == "low" else math.inf
    elif dtype.kind == "b":
        missing = side == "high"
    else:
        missing = getattr(np.iinfo(dtype), "min" if side == "low" else "max")
    filled = _filled(value, missing)
    array = np.asarray(filled)
    if array.dtype.kind not in "biuf" or array.shape not in ((), shape):
        raise ValueError(f"{side}: wanted a number, null, or numbers of shape {list(shape)}, got {str(value)[:80]}")
    with np.errstate(over="ignore", invalid="ignore"):
        bound = array.astype(dtype)
    # A whole number beyond the dtype wraps around, and a fraction is cut off.
    if dtype.kind != "f" and (bound != array).any():
        raise ValueError(f"{side}: wanted numbers of {dtype}, got {str(value)[:80]}")
    return np.broadcast_to(bound, shape).copy()


def _filled(value: Any, missing: Any) -> Any:
    if isinstance(value, list):
        return [_filled(each, missing) for each in value]
    return missing if value is None else value


def _discrete(data: Plain, depth: int) -> spaces.Discrete:
    count = _whole(data["n"], 1)
    if count > MOST_CHOICES:
        raise ValueError(f"n: wanted at most {MOST_CHOICES:,}, got {count}")
    return spaces.Discrete(count, start=_whole(data.get("start", 0), -(2**62)))


def _multi_discrete(data: Plain, depth: int) -> spaces.MultiDiscrete:
    counts = np.asarray(data["nvec"])
    if counts.dtype.kind not in "iu" or not 0 < counts.size <= MOST_ENTRIES or counts.min() < 1:
        raise ValueError(f"nvec: wanted whole numbers >= 1, got {str(data['nvec'])[:80]}")
    if counts.max() > MOST_CHOICES or counts.sum() > MOST_CHOICES:
        raise ValueError(f"nvec: wanted a sum of at most {MOST_CHOICES:,}, got {str(data['nvec'])[:80]}")
    start = np.asarray(data.get("start", np.zeros_like(counts)))
    if start.dtype.kind not in "iu" or start.shape != counts.shape:
        raise ValueError(f"start: wanted whole numbers of shape {list(counts.shape)}, got {str(data['start'])[:80]}")
    return spaces.MultiDiscrete(counts.astype(np.int64), start=start.astype(np.int64))


def _multi_binary(data: Plain, depth: int) -> spaces.MultiBinary:
    shape = _shape(data["shape"])
    return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)


def _text(data: Plain, depth: int) -> spaces.Text:
    return spaces.Text(_whole(data.get("max_length", 2**16), 1))


def _dict(data: Plain, depth: int) -> spaces.Dict:
    entries = data["spaces"]
    named = isinstance(entries, Mapping) and all(isinstance(key, str) for key in entries)
    if not named or not 0 < len(entries) <= MOST_ENTRIES:
        raise ValueError(f"spaces: wanted an object with 1 to {MOST_ENTRIES} spaces, got {str(entries)[:80]}")
    # A list of pairs keeps the order. A plain dict would be sorted.
    return spaces.Dict([(key, _read(each, depth + 1)) for key, each in entries.items()])


def _tuple(data: Plain, depth: int) -> spaces.Space[Any]:
    entries = data["spaces"]
    if not isinstance(entries, list) or not 0 < len(entries) <= MOST_ENTRIES:
        raise ValueError(f"spaces: wanted an array of 1 to {MOST_ENTRIES} spaces, got {str(entries)[:80]}")
    return spaces.Tuple([_read(each, depth + 1) for each in entries])


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        raise ValueError(f"shape: wanted an array of at most {MOST_DIMENSIONS} whole numbers, got {str(value)[:80]}")
    shape = tuple(_whole(each, 0) for each in value)
    if math.prod(shape) > MOST_NUMBERS:
        raise ValueError(f"shape: wanted at most {MOST_NUMBERS:,} numbers, got {list(shape)}")
    return shape


def _whole(value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**62:
        raise ValueError(f"wanted a whole number >= {least}, got {str(value)[:80]}")
    return value


_READERS: dict[str, Callable[[Plain, int], spaces.Space[Any]]] = {
    "box": _box,
    "discrete": _discrete,
    "multi_discrete": _multi_discrete,
    "multi_binary": _multi_binary,
    "text": _text,
    "tuple": _tuple,
    "dict": _dict,
}
