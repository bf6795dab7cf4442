"""The run that a benchmark measures: its flags are read, settled and checked as the program itself does it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from absl import flags

from benchmarks.termination import ENDLESS
from learner.launch import Job
from main import prepare, refusal


def job_of(arguments: Sequence[str]) -> Job:
    """What main.py would do in train mode with these flags and without an end. Where it would refuse them, its one line and its
    exit code are the end."""
    try:
        job = prepare(["main.py", "--op_mode=train", *arguments, ENDLESS])
    except (flags.Error, ValueError) as error:
        refuse(error)
    if job.op_mode != "train":
        refuse(ValueError(f"op_mode: wanted train, which is what is measured, got {job.op_mode}"))
    return job


def refuse(error: Exception) -> NoReturn:
    """End with the one line about bad input, and main.py's exit code for it."""
    print(f"error: {refusal(error)}", file=sys.stderr)
    sys.exit(2)
