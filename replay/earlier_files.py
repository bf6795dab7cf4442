"""The forms in which earlier versions saved trajectories and replays, and their translation into the present form."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, TypeVar

from replay.trajectory import Signature

FORMER_NAMES = {"behaviour_logits": "behaviour_policy"}
"""Fields that files of earlier versions hold under another name: former name -> name."""

Value = TypeVar("Value")


def with_present_names(fields: Mapping[str, Value]) -> dict[str, Value]:
    """Returns saved fields, each under the name that it has now."""
    return {FORMER_NAMES.get(name, name): value for name, value in fields.items()}


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


def present_settings(saved: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Returns the saved settings of a mixture in the form in which they are saved now.

    Earlier versions saved the text of each value, and the type `custom` for a standard, elite or attentive replay.
    wanted: those of the run's mixture.
    """
    values = {
        name: ast.literal_eval(value) if isinstance(value, str) and name != "contract" else value
        for name, value in saved.items()
    }
    # The saved settings of a custom replay do not say how it sampled. Nothing that is stored depends on it. Mixtures
    # of different lengths differ in their sample ratios, which are compared before the replays.
    own_types = [replay["type"] for replay in wanted["replays"]]
    values["replays"] = [
        {**replay, "type": own} if replay["type"] == "custom" and own != "queue" else replay
        for replay, own in zip(values["replays"], own_types, strict=False)
    ]
    return values
