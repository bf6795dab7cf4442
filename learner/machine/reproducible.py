"""Settings of reproducible runs. None depends on the machine: the same bits come on any machine with the same type of CPU."""

from __future__ import annotations

from typing import Any

from learner.runs.directory import RunDirectory
from learner.settings.config import AUTO, Settings

REPRODUCIBLE: dict[str, tuple[Any, str]] = {
    "device": ("cpu", "the bits of a GPU depend on its type"),
    "worker_kind": ("serial", "one process, a fixed order"),
    "worker_count": (1, "one process"),
    "envs_per_worker": (16, "the same on every machine"),
    "prepared_batches": (0, "one thread draws batches in a fixed order"),
    "learner_threads": (1, "several threads sum gradients in parts, so the bits depend on their number"),
    "precision": ("float32", "not every CPU computes bfloat16 in hardware"),
    "batch_size": (8, "the same on every machine"),
    "test_environments": (16, "the same on every machine"),
}
"""Setting -> the value that `auto` takes in a reproducible run, and why."""

ONCE_FITTED = ("device", "learner_threads", "precision")
"""Settings that earlier versions fitted to the machine in reproducible runs too, while checkpoints kept `auto`."""


def settle_as_before(
    settings: Settings, saved: Settings, given: Settings, run: RunDirectory | None
) -> tuple[Settings, list[str]]:
    """The settings with which a run resumes from a reproducible one, and a line for each that needs one.

    A reproducible run keeps the values that it had. A run that is no longer reproducible is fitted to its machine again.

    Args:
        settings: of the checkpoint, with those of the command line on top.
        saved: of the checkpoint.
        given: of the command line.
        run: that the checkpoint belongs to, None if it belongs to none.
    """
    if not saved.get("reproducible"):
        return settings, []
    if not settings["reproducible"]:
        fixed = {name for name, (value, _) in REPRODUCIBLE.items() if name not in given and settings[name] == value}
        # The batch size is part of what is learned, so it stays.
        return {**settings, **dict.fromkeys(fixed - {"batch_size"}, AUTO)}, []
    unsettled = [name for name in ONCE_FITTED if name not in given and saved.get(name, AUTO) == AUTO]
    before = run.settings if run else {}
    known = {name: before[name] for name in unsettled if before.get(name, AUTO) != AUTO}
    lines = [
        f"{name}={value} (as this run began, by its config.json)"
        for name, value in known.items()
        if value != REPRODUCIBLE[name][0]
    ]
    if unknown := [name for name in unsettled if name not in known]:
        lines.append(f"The checkpoint does not say {', '.join(unknown)}: the resumed run may not be bit-identical")
    return {**settings, **known}, lines
