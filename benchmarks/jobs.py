"""The run that a benchmark measures. Its flags are read, settled and checked as main.py does it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from absl import flags

from learner.launch import Job
from main import prepare, refusal
from tools.termination import ENDLESS


def job_of(arguments: Sequence[str]) -> Job:
    """Return the job of main.py in train mode with these flags, without an end.

    Ends this process with main.py's error line and exit code if main.py would refuse the flags.
    """
    try:
        job = prepare(["main.py", "--op_mode=train", *arguments, ENDLESS])
    except (flags.Error, ValueError) as error:
        refuse(error)
    if job.op_mode != "train":
        refuse(ValueError(f"op_mode: wanted train, the only mode that is measured, got {job.op_mode}"))
    return job


def refuse(error: Exception) -> NoReturn:
    """End this process with the one line about bad input and main.py's exit code for it."""
    print(f"error: {refusal(error)}", file=sys.stderr)
    sys.exit(2)
