"""The program with an additional toy environment that fails on demand, for tests and `benchmarks.faults`.

    python -m benchmarks.faulty_program --op_mode=train --env=FaultyCatch-v0 ...

FaultyCatch-v0 is Catch-v0, but at every step it looks for a file with the name of a fault in the folder that the environment
variable `SPRINGBOK_FAULTS` names. One worker removes the file and fails in that way.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from main import main
from wrappers import ENVIRONMENTS
from wrappers.spec import EnvConfig, EnvDescription, EnvSpec, Step, VectorEnv
from wrappers.toys.catch import Catch

FAULTY_CATCH = "FaultyCatch-v0"
FOLDER_VARIABLE = "SPRINGBOK_FAULTS"


def raise_error() -> None:
    raise RuntimeError("a requested fault")


def hang() -> None:
    while True:
        time.sleep(1.0)


def spin() -> None:
    while True:
        pass


def exit_silently() -> None:
    os._exit(3)


FAULTS = {"raise": raise_error, "hang": hang, "spin": spin, "exit": exit_silently, "abort": os.abort}


class FaultyCatch(Catch):
    """Catch that looks for requested faults at every step."""

    def step(self, actions: np.ndarray) -> Step:
        for name, fail in FAULTS.items():
            request = Path(os.environ[FOLDER_VARIABLE]) / name
            if request.exists():
                try:
                    request.unlink()
                except FileNotFoundError:
                    continue  # another worker has taken it
                fail()
        return super().step(actions)


class FaultyFamily:
    """The family of FaultyCatch-v0."""

    def known_ids(self) -> Mapping[str, str]:
        return {FAULTY_CATCH: FAULTY_CATCH}

    def matches(self, env_id: str) -> bool:
        return env_id == FAULTY_CATCH

    def make_spec(self, config: EnvConfig) -> EnvSpec:
        return FaultyCatch.make_spec(config)

    def describe(self, config: EnvConfig) -> EnvDescription:
        return EnvDescription(config)

    def notes(self, config: EnvConfig, given: Collection[str]) -> list[str]:
        return []

    def make_vector(self, config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
        return FaultyCatch(config, num_envs)

    def make_single(self, config: EnvConfig, render_mode: str | None) -> VectorEnv:
        return FaultyCatch(config, 1, render_mode)


ENVIRONMENTS["faulty"] = FaultyFamily()  # at import, because a spawned worker imports this module but does not run it

if __name__ == "__main__":
    sys.exit(main(sys.argv))
