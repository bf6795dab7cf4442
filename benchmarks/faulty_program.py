"""The program with a toy environment that fails on demand, for tests and `benchmarks.faults`.

    python -m benchmarks.faulty_program --op_mode=train --env=FaultyCatch-v0 ...

FaultyCatch-v0 is Catch-v0. At every step it looks for a file of a fault's name in the folder that `SPRINGBOK_FAULTS` names; one
worker takes the file away and fails so.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from main import main
from wrappers import ENVIRONMENTS, toy
from wrappers.spec import EnvConfig, EnvSpec, Step, VectorEnv

FAULTY_CATCH = "FaultyCatch-v0"
FOLDER_VARIABLE = "SPRINGBOK_FAULTS"


def raise_error() -> None:
    raise RuntimeError("a fault that was asked for")


def hang() -> None:
    while True:
        time.sleep(1.0)


def spin() -> None:
    while True:
        pass


def exit_silently() -> None:
    os._exit(3)


FAULTS = {"raise": raise_error, "hang": hang, "spin": spin, "exit": exit_silently, "abort": os.abort}


class FaultyCatch(toy.Catch):
    """Catch with a look for faults in every step."""

    def step(self, actions: np.ndarray) -> Step:
        for name, fail in FAULTS.items():
            asked = Path(os.environ[FOLDER_VARIABLE]) / name
            if asked.exists():
                try:
                    asked.unlink()
                except FileNotFoundError:
                    continue  # another worker was faster
                fail()
        return super().step(actions)


class FaultyFamily:
    """The family of FaultyCatch-v0 alone."""

    def known_ids(self) -> Mapping[str, str]:
        return {FAULTY_CATCH: FAULTY_CATCH}

    def matches(self, env_id: str) -> bool:
        return env_id == FAULTY_CATCH

    def make_spec(self, config: EnvConfig) -> EnvSpec:
        return toy.make_spec(config)

    def notes(self, config: EnvConfig, given: Collection[str]) -> list[str]:
        return []

    def make_vector(self, config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
        return FaultyCatch(config, num_envs)

    def make_single(self, config: EnvConfig, render_mode: str | None) -> VectorEnv:
        return FaultyCatch(config, 1, render_mode)


ENVIRONMENTS["faulty"] = FaultyFamily()  # at import: a spawned worker imports this module, but does not run it

if __name__ == "__main__":
    sys.exit(main(sys.argv))
