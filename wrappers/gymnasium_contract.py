"""Reads what an environment of Gymnasium returns, and says in one line where that breaks the contract.

A reward or an end of one value is taken as this value, whatever its shape. The first reset and the first step are checked in
full. Later ones are checked only if they cannot be stored, so that stepping stays fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from wrappers.gymnasium_parts import ObservationEntry
from wrappers.gymnasium_spaces import TRUE, ObservationPlan

STEP = "observation, reward, terminated, truncated, info"
COUNTS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
HINTS = {
    4: "; gym's earlier API returned done: return terminated and truncated in its place",
    6: "; a wrapper (--env_wrappers) can subtract a cost from the reward, or put the sixth value into info",
}
"""Number of values that a step returned -> what to do."""

CONVERSIONS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Errors that values against the contract cause where they are unpacked and stored."""


class ContractError(RuntimeError):
    """An environment returned something else than Gymnasium's contract wants."""


Info = Mapping[str, Any]


def read_reset(returned: Any) -> tuple[Any, Info]:
    """The observation and the info that a reset returned. Raises ContractError."""
    if isinstance(returned, tuple) and len(returned) == 2 and (returned[1] is None or isinstance(returned[1], Mapping)):
        return returned[0], returned[1] or {}
    raise ContractError(
        f"reset: wanted an observation and a dict of info, got {_several(returned)}; gym's earlier API returned an observation "
        "alone"
    )


def read_step(returned: Any, plan: ObservationPlan) -> tuple[Any, float, bool, bool, Info]:
    """The five values that a step of one environment returned. Raises ContractError."""
    _check_count(returned)
    observation, reward, terminated, truncated, info = returned
    check_observation(plan, observation)
    if not np.isfinite(number := _number("reward", reward)):
        raise ContractError(f"reward: wanted a finite number, got {number}")
    ends = (_truth("terminated", terminated), _truth("truncated", truncated))
    return observation, number, *ends, info if isinstance(info, Mapping) else {}


def read_vector_step(returned: Any, num_envs: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Info]:
    """The five values that a step of N environments returned, with rewards and ends `[N]`. Raises ContractError."""
    _check_count(returned)
    observations, rewards, terminated, truncated, info = returned
    columns = []
    for name, values in (("reward", rewards), ("terminated", terminated), ("truncated", truncated)):
        array = np.asarray(values)
        if array.shape not in ((num_envs,), (num_envs, 1)):
            raise ContractError(f"{name}: wanted {num_envs} numbers, one of each environment, got {_value(array)}")
        columns.append(array.reshape(num_envs))
    return observations, *columns, info


def check_observation(plan: ObservationPlan, observation: Any, batch: tuple[int, ...] = ()) -> None:
    """Raise ContractError if an observation, or batched ones, do not have the entries, shapes and numbers of their space."""
    for part in (*plan.vectors, *plan.images, *plan.masks):
        name = f"observation {part.name}" if part.path else "observation"
        try:
            value = part.of(observation)
        except CONVERSIONS:
            keys = ", ".join(map(str, observation)) if isinstance(observation, Mapping) else _value(observation)
            raise ContractError(f"{name}: wanted an entry of this name, as its space has, got {keys or 'none'}") from None
        _check_part(name, part, value, (*batch, *part.shape))


def _check_part(name: str, part: ObservationEntry, value: Any, shape: tuple[int, ...]) -> None:
    try:
        array = np.asarray(value)
    except CONVERSIONS:
        raise ContractError(f"{name}: wanted an array of shape {shape}, as its space has, got {_value(value)}") from None
    # Leading dimensions of size 1 change no value. Any other shape would be stretched, or could not be stored.
    is_fitting = array.shape == shape or (shape and _without_ones(array.shape) == _without_ones(shape))
    if array.dtype.kind not in "biuf" or not is_fitting:
        raise ContractError(f"{name}: wanted numbers of shape {shape}, as its space has, got {_value(value)}")
    if not np.isfinite(array).all():
        raise ContractError(f"{name}: wanted finite numbers, got {array[~np.isfinite(array)].flat[0]}")
    if part.is_image:
        highest = 1 if part.is_bool else TRUE
        low, high = array.min(), array.max()
        # Floating-point numbers up to 1 are likely brightness, of which whole numbers would leave nothing.
        is_brightness = array.dtype.kind == "f" and (high <= 1 or (array != np.rint(array)).any())
        if low < 0 or high > highest or is_brightness:
            got = f"{array.dtype} from {low:g} to {high:g}"
            raise ContractError(f"{name}: wanted whole numbers from 0 to {highest}, as its space has, got {got}")


def _check_count(returned: Any) -> None:
    if not isinstance(returned, tuple | list) or len(returned) != len(STEP.split(",")):
        raise ContractError(step_line(len(returned) if isinstance(returned, tuple | list) else None, _several(returned)))


def step_line(count: int | None, got: str) -> str:
    """The line about a step that returned another number of values."""
    return f"step: wanted five values ({STEP}), got {got}{HINTS.get(count or 0, '')}"


def _number(name: str, value: Any) -> float:
    try:
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biufO":
            return float(array.item())
    except CONVERSIONS:
        pass
    many = "; a wrapper (--env_wrappers) must make one number of several objectives" if np.size(value) > 1 else ""
    raise ContractError(f"{name}: wanted a number, got {_value(value)}{many}")


def _truth(name: str, value: Any) -> bool:
    with np.errstate(all="ignore"):
        array = np.asarray(value)
    if array.size == 1 and array.dtype.kind in "biuf" and array.item() in (0, 1):
        return bool(array.item())
    raise ContractError(f"{name}: wanted true or false, got {_value(value)}")


def _several(returned: Any) -> str:
    """The number of values that a method returned, in words."""
    if not isinstance(returned, tuple | list):
        return _value(returned)
    if len(returned) == 2:  # a reset with something else for its info
        return f"{_value(returned[0])} and {_value(returned[1])}"
    return COUNTS.get(len(returned), str(len(returned)))


def _value(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if value is None or isinstance(value, str | int | float | complex | np.generic | np.ndarray):
        return repr(value)[:100]
    return f"a {type(value).__name__}{f' of {len(value)}' if isinstance(value, tuple | list | dict) else ''}"


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its leading dimensions of size 1."""
    first = next((index for index, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def contract_hint(error: BaseException, env: gymnasium.Env[Any, Any]) -> str | None:
    """The line about a step whose values a wrapper could not unpack, or None for another error. It steps the environment."""
    if not isinstance(error, ValueError) or not re.search(r"values to unpack \(expected 5", str(error)):
        return None
    try:
        returned = env.unwrapped.step(env.unwrapped.action_space.sample())
        _check_count(returned)
    except ContractError as broken:
        return str(broken)
    except Exception:  # a step of its own may raise anything
        pass
    return None


def reset_hint(error: BaseException) -> str:
    """The advice about a reset that takes no seed or no options; nothing for another error."""
    is_earlier = isinstance(error, TypeError) and re.search(r"unexpected keyword argument '(seed|options)'", str(error))
    return "; wanted reset(self, *, seed=None, options=None), which gym's earlier API lacked" if is_earlier else ""
