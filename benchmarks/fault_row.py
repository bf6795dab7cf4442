"""The result of a row of `benchmarks.faults`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Row:
    """The result of a row. faults: number of faults made. survived: number of faults that did no harm."""

    name: str
    faults: int = 0
    survived: int = 0
    notes: str = ""
