"""Whether saved trajectories fit a run: files identify a contract by the names, shapes and dtypes of its fields.

A signature is plain data, so that a change of the class that declares the fields makes no file unreadable.
"""

from __future__ import annotations

from typing import Any

from replay.earlier_files import signature_of_repr, with_present_names
from replay.trajectory import Signature, TrajectoryContract


def check_contract(saved: Signature | str, contract: TrajectoryContract) -> None:
    """Raises ValueError naming the first field that differs, in one line with both shapes and dtypes.

    saved: a signature, or the text that files of earlier versions hold instead (see `signature_of_repr`).
    """
    got = with_present_names(signature_of_repr(saved) if isinstance(saved, str) else saved)
    wanted = contract.signature()
    for name in (*wanted, *(name for name in got if name not in wanted)):
        if wanted.get(name) != got.get(name):
            raise ValueError(
                f"saved trajectories: wanted field {name} {_described(wanted.get(name))}, got {_described(got.get(name))}"
            )


def check_saved_mixture(state: dict[str, Any], contract: TrajectoryContract) -> None:
    """Check the contract of a mixture's saved state before anything is built. Raises ValueError in one line."""
    try:
        saved = state["settings"]["contract"]
    except (KeyError, TypeError):
        raise ValueError("saved trajectories: wanted the state of a mixture, got something else") from None
    check_contract(saved, contract)


def _described(field: list[Any] | None) -> str:
    return "none" if field is None else f"of shape {tuple(field[0])} and dtype {field[1]}"
