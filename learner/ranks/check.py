"""Checks `--learner_count` against the machine and the checkpoint, before anything starts."""

from __future__ import annotations

from learner.machine.detect import Machine
from learner.runs.checkpoint import Checkpoint
from learner.settings.config import AUTO, Settings


def check_learner_count(settings: Settings, machine: Machine, checkpoint: Checkpoint | None) -> None:
    """Raise ValueError for more learners than GPUs or cores, or for another number than a bit-identical resume needs."""
    count = settings["learner_count"]
    if count == 1 and not checkpoint:
        return
    on_gpus = settings["device"] == "cuda" or (settings["device"] == AUTO and machine.gpu and not settings["reproducible"])
    most, what = (machine.gpus, "GPU") if on_gpus else (machine.cores, "core")
    if count > max(1, most):
        hint = f"; --device=cpu has room for {machine.cores}" if on_gpus and count <= machine.cores else ""
        wanted = f"at most {most}, one learner for each {what} of this machine"
        raise ValueError(f"learner_count: wanted {wanted}, got {count}{hint}")
    saved = checkpoint.settings if checkpoint else settings
    before = saved.get("learner_count", 1)
    if settings["reproducible"] and saved.get("reproducible") and before != count:
        raise ValueError(
            f"learner_count: wanted {before} as in the checkpoint, to resume with the same bits, got {count}; "
            "--noreproducible resumes with another number"
        )


def part_of_learner(settings: Settings, machine: Machine, checkpoint: Checkpoint | None) -> Machine:
    """The part of the machine that each learner of the run has. Raises ValueError, see `check_learner_count`."""
    check_learner_count(settings, machine, checkpoint)
    return machine.part_of(settings["learner_count"])
