"""What a row of `benchmarks.faults` found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Row:
    """What a row found. faults: how many there were; survived: how many of them did no harm."""

    name: str
    faults: int = 0
    survived: int = 0
    notes: str = ""
