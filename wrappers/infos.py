"""The numbers in the infos of N environments, such as `is_success` or `cost`: one column for each name.

Truth values are 0 and 1. Arrays of shape `()` or `(1,)` count as numbers; texts, dicts and other arrays are left out. A name
gets its column when it is first seen, which may be at the end of an episode.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

MOST_NAMES = 16
"""Names that are recorded. More of them would hide the other metrics."""
MOST_LEFT_OUT = 16
"""Further names that are remembered, so that a line can say what is missing."""
LONGEST_NAME = 64
NUMBERS = (float, int)


class Infos(NamedTuple):
    """The numbers in the infos of one step.

    names: those of the columns; from `MOST_NAMES` on, names without a column. values: float64 `[N, MOST_NAMES]`, NaN where an
    environment gave no such number. An autoreset belongs to no episode, so its row is NaN.
    """

    names: tuple[str, ...]
    values: np.ndarray


def number_of(value: Any) -> float | None:
    """A value of info as a number; None for anything else."""
    try:
        if not isinstance(value, NUMBERS):
            shape = getattr(value, "shape", None)
            value = value.item() if isinstance(shape, tuple) and shape in ((), (1,)) else None
        return float(value) if isinstance(value, NUMBERS) else None
    except (ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError):
        return None  # an integer beyond the largest float, or an object of the user that only looks like an array


def is_mask(key: Any, info: Mapping[Any, Any]) -> bool:
    """Whether an entry of a vector environment's info is the mask that goes with another entry."""
    return isinstance(key, str) and key.startswith("_") and key[1:] in info


class InfoCollector:
    """Takes the infos of N environments in each step. ignored: entries that are not recorded."""

    def __init__(self, num_envs: int, ignored: Collection[str] = ()) -> None:
        self._names: tuple[str, ...] = ()
        self._columns: dict[Any, int | None] = dict.fromkeys(ignored)  # entry -> its column, None for an entry without one
        self._values = np.full((num_envs, MOST_NAMES), np.nan)

    def put(self, index: int, info: Mapping[str, Any]) -> None:
        """Take the info of environment `index`."""
        row, columns = self._values[index], self._columns
        for key, value in info.items():
            # Most numbers need no call: this runs in each step of each environment.
            number = value if type(value) in (float, bool, np.float64) else number_of(value)
            if number is not None:
                column = columns[key] if key in columns else self._add(key)
                if column is not None:
                    row[column] = number

    def put_all(self, info: Mapping[str, Any], used: np.ndarray) -> None:
        """Take the info of a vector environment: arrays `[N]`. A mask `_name` says which environments gave the entry `name`.

        used: bool `[N]`, false for environments whose numbers are left out.
        """
        for key, value in info.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf" or is_mask(key, info):
                continue
            if value.shape not in ((len(used),), (len(used), 1)):
                continue
            given = used & np.ravel(info.get(f"_{key}", True))
            if given.any():
                column = self._columns[key] if key in self._columns else self._add(key)
                if column is not None:
                    self._values[given, column] = value.reshape(-1)[given]

    def take(self) -> Infos | None:
        """The numbers of this step; None as long as no info has held a number."""
        if not self._names:
            return None
        values, self._values = self._values, np.full_like(self._values, np.nan)
        return Infos(self._names, values)

    def take_one(self, index: int) -> Infos | None:
        """The numbers of environment `index` alone, float64 `[MOST_NAMES]`; None as long as no info has held a number."""
        if not self._names:
            return None
        values = self._values[index].copy()
        self._values[index] = np.nan
        return Infos(self._names, values)

    def _add(self, key: Any) -> int | None:
        """The column of an entry that is seen for the first time; None if all are taken."""
        name = re.sub(r"[^A-Za-z0-9_./-]", "_", str(key))[:LONGEST_NAME] or "_"
        if name not in self._names:
            if len(self._names) == MOST_NAMES + MOST_LEFT_OUT:
                return None
            self._names = (*self._names, name)
        column = self._names.index(name)
        return self._columns.setdefault(key, column if column < MOST_NAMES else None)
