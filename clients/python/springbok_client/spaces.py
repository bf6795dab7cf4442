"""Spaces as plain data, and their values on the wire. Gymnasium is not imported: its spaces are known by their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")
KINDS = ("box", "discrete", "multi_discrete", "multi_binary", "text", "tuple", "dict")
ACTION_KINDS = KINDS[:4]
LONGEST_TEXT = 4096
"""Characters of texts whose space names no limit."""

Plain = Mapping[str, Any]
Coder = Callable[[Any], Any]


class SpaceError(ValueError):
    """A space is not one of the protocol, or a value is not one of its space."""


def describe(space: Any, name: str = "space") -> Plain:
    """A space of Gymnasium as plain data in the form of the protocol; plain data stays as it is.

    name: what the space is called in an error. Raises SpaceError for a space that the protocol does not have.
    """
    if isinstance(space, Mapping) and "type" in space:
        if space["type"] not in KINDS:
            raise SpaceError(f"{name}: wanted the type {', '.join(KINDS)}, got {space['type']!r}")
        return space
    names = {kind.__name__ for kind in type(space).__mro__}
    for kind, described in _GYMNASIUM.items():
        if kind in names:
            return described(space, name)
    if hasattr(space, "sample") and isinstance(space.sample(), str):  # the texts of MiniGrid have a class of their own
        return {"type": "text", "max_length": LONGEST_TEXT}
    raise SpaceError(f"{name}: wanted a space of {', '.join(_GYMNASIUM)}, got {' '.join(repr(space).split())}")


def describe_action(space: Any) -> Plain:
    """As `describe`, for actions. Raises SpaceError."""
    plain = describe(space, "action_space")
    if plain["type"] not in ACTION_KINDS:
        raise SpaceError(f"action_space: wanted the type {', '.join(ACTION_KINDS)}, got {plain['type']}")
    return plain


def _box(space: Any, name: str) -> Plain:
    dtype = np.dtype(space.dtype).name
    if dtype not in DTYPES:
        raise SpaceError(f"{name}: wanted a dtype of {', '.join(DTYPES)}, got {dtype}")
    return {
        "type": "box",
        "shape": [int(size) for size in space.shape],
        "dtype": dtype,
        "low": _bound(space.low),
        "high": _bound(space.high),
    }


def _bound(bound: Any) -> Any:
    """One number if all places have the same, otherwise nested lists; None for no bound."""
    values = np.asarray(bound)
    if values.size and (values == values.flat[0]).all():
        values = values.flat[0]
    return _finite(values.tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _multi_discrete(space: Any, name: str) -> Plain:
    start = np.asarray(getattr(space, "start", 0))
    return {"type": "multi_discrete", "nvec": space.nvec.tolist(), **({"start": start.tolist()} if start.any() else {})}


_GYMNASIUM: dict[str, Callable[[Any, str], Plain]] = {
    "Box": _box,
    "Discrete": lambda space, name: {"type": "discrete", "n": int(space.n), "start": int(getattr(space, "start", 0))},
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda space, name: {"type": "multi_binary", "shape": [int(size) for size in space.shape]},
    "Text": lambda space, name: {"type": "text", "max_length": int(space.max_length)},
    "Tuple": lambda space, name: {"type": "tuple", "spaces": [describe(each, name) for each in space.spaces]},
    "Dict": lambda space, name: {
        "type": "dict",
        "spaces": {str(key): describe(each, f"{name}/{key}") for key, each in space.spaces.items()},
    },
}
"""Name of Gymnasium's class -> function that describes it."""


def encoder(space: Plain, *, binary: bool, name: str = "observation") -> Coder:
    """The function that turns a value of a space into plain data for a frame. It raises SpaceError for another shape or dtype.

    binary: whether arrays are bytes; otherwise they are nested lists. name: of the value in an error.
    """
    kind = space["type"]
    if kind == "box":
        return array_encoder(tuple(space["shape"]), space["dtype"], binary=binary, name=name)
    if kind == "discrete":
        return discrete_encoder(name)
    if kind == "multi_discrete":
        return array_encoder(np.shape(space["nvec"]), "int64", binary=binary, name=name)
    if kind == "multi_binary":
        return array_encoder(tuple(space["shape"]), "int8", binary=binary, name=name)
    if kind == "text":
        return str
    parts = space["spaces"]
    if kind == "dict":
        coders = {key: encoder(each, binary=binary, name=f"{name}/{key}") for key, each in parts.items()}
        return dict_encoder(coders, name)
    return tuple_encoder([encoder(each, binary=binary, name=f"{name}/{index}") for index, each in enumerate(parts)], name)


def discrete_encoder(name: str) -> Coder:
    """As `encoder`, for whole numbers."""

    def encode(value: Any) -> int:
        try:
            number = int(value)
            if number == value:
                return number
        except (TypeError, ValueError, OverflowError):
            pass
        raise SpaceError(f"{name}: wanted a whole number, got {str(value)!r:.80}")

    return encode


def dict_encoder(coders: Mapping[str, Coder], name: str) -> Coder:
    """As `encoder`, for dicts with these entries; further entries are left out."""

    def encode(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise SpaceError(f"{name}: wanted a dict, got {type(value).__name__}")
        if missing := coders.keys() - value.keys():
            raise SpaceError(f"{name}: wanted the entry {min(missing)!r}, got {', '.join(map(repr, value)) or 'none'}")
        return {key: coder(value[key]) for key, coder in coders.items()}

    return encode


def tuple_encoder(coders: Sequence[Coder], name: str) -> Coder:
    """As `encoder`, for tuples and lists of as many values."""

    def encode(value: Any) -> list[Any]:
        if not isinstance(value, (tuple, list, np.ndarray)) or len(value) != len(coders):
            got = f"{len(value)} values" if hasattr(value, "__len__") else type(value).__name__
            raise SpaceError(f"{name}: wanted a tuple of {len(coders)} values, got {got}")
        return [coder(each) for coder, each in zip(coders, value)]

    return encode


def array_encoder(shape: tuple[int, ...], dtype: str, *, binary: bool, name: str) -> Coder:
    """As `encoder`, for arrays `[*shape]`."""
    wanted = np.dtype(dtype)
    wire, shape_list = wanted.newbyteorder("<"), list(shape)

    def encode(value: Any) -> Any:
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:  # such as rows of several lengths
            raise SpaceError(f"{name}: wanted an array of {dtype}, got none ({' '.join(str(error).split())})") from None
        if array.dtype is not wanted:
            array = _cast(array, wanted, name)
        if array.shape != shape:
            raise SpaceError(f"{name}: wanted shape {shape}, got {array.shape}")
        if binary:
            return {"dtype": dtype, "shape": shape_list, "data": array.astype(wire, copy=False).tobytes()}
        return array.tolist()

    return encode


def _cast(array: Any, dtype: np.dtype[Any], name: str) -> Any:
    if array.dtype.kind not in "biuf":
        raise SpaceError(f"{name}: wanted numbers of {dtype}, got {array.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):  # the comparison below finds such numbers
        cast = array.astype(dtype)
    if dtype.kind == "f":  # which may round, but not make a number infinite
        is_same = np.count_nonzero(np.isinf(cast)) == np.count_nonzero(np.isinf(array))
    else:
        is_same = np.array_equal(cast, array)
    if not is_same:
        raise SpaceError(f"{name}: wanted numbers of {dtype}, got {array.dtype} with other ones")
    return cast


def plain_mask(mask: Any) -> list[int]:
    """A mask as a list of 0 and 1, as frames have it. That of several choices may be a tuple with an array for each.

    Raises SpaceError for other numbers.
    """
    values = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, (tuple, list)) and mask else np.ravel(mask)
    if not np.isin(values, (0, 1)).all():
        raise SpaceError(f"mask: wanted numbers 0 and 1, got {values.tolist()}")
    plain: list[int] = values.astype(int).tolist()
    return plain


def decoder(space: Plain) -> Coder:
    """The function that turns an action of a frame into one as the space has them: a number, or an array of its dtype."""
    kind = space["type"]
    if kind == "discrete":
        return int
    shape = np.shape(space["nvec"]) if kind == "multi_discrete" else tuple(space["shape"])
    dtype = {"multi_discrete": "int64", "multi_binary": "int8"}.get(kind) or space["dtype"]
    return lambda value: np.array(value, dtype).reshape(shape)


def numbers_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `info` that the protocol takes: finite numbers and truth values."""
    found: dict[str, Any] = {}
    for name, value in info.items():
        plain = value.item() if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0) else value
        if isinstance(plain, int) and not -(2**63) <= plain < 2**63:  # more than a frame's integer
            plain = float(plain) if abs(plain) < 2**1023 else None
        if isinstance(plain, (bool, int)) or (isinstance(plain, float) and math.isfinite(plain)):
            found[str(name)] = plain
    return found
