"""Whether saved trajectories fit a run: files identify a contract by the names, shapes and dtypes of its fields.

A signature is plain data, so that a change of the class that declares the fields makes no file unreadable.
"""

from __future__ import annotations

import ast
from typing import Any

from replay.trajectory import Signature, TrajectoryContract, with_present_names


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


def signature_of_repr(text: str) -> Signature:
    """Signature of a contract of which only the `repr` was saved, as runs of format 2 and earlier did.

    The fields stand here as they were then: files that exist do not change when the contract does. Raises ValueError if the
    text is no such `repr`.
    """
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        numbers = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        steps, actions, features = (numbers[name] for name in ("unroll_length", "action_count", "feature_count"))
        frames = [steps + numbers["frames_stacked"], *numbers["frame_shape"]]
    except (AssertionError, KeyError, SyntaxError, TypeError, ValueError):
        raise ValueError(f"saved trajectories: wanted a contract, got {' '.join(text.split())[:100]}") from None
    return {
        "frames": [frames, numbers["frame_dtype"]],
        "actions": [[steps], "int64"],
        "rewards": [[steps], "float32"],
        "terminated": [[steps], "bool"],
        "truncated": [[steps], "bool"],
        "reset": [[steps], "bool"],
        "action_used": [[steps], "bool"],
        "behaviour_logits": [[steps, actions], "float32"],
        "behaviour_values": [[steps], "float32"],
        **({"behaviour_features": [[steps, features], "float32"]} if features else {}),
        "policy_version": [[steps], "int64"],
        "episode_return": [[steps], "float32"],
        "episode_length": [[steps], "int32"],
        "environment_id": [[], "int32"],
    }


def _described(field: list[Any] | None) -> str:
    return "none" if field is None else f"of shape {tuple(field[0])} and dtype {field[1]}"
