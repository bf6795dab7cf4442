"""The runs of a search on a Ray cluster, whose machines see the program and the results under the same paths.

An actor on a machine with free CPUs starts a run there, as `tools.programs` does here. Everything else goes through files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import ray

from setting import AUTO
from tools.plan import PlannedRun
from tools.programs import CONSOLE, Program, RunningProgram, wait_until_free
from tools.termination import REPOSITORY
from workers.base import WorkerError
from workers.cluster.connection import disconnect, join

POLL_SECONDS = 1.0
"""Of an actor's call that waits for the end of its run."""
END_SECONDS = 10.0
MOST_LOSSES = 3
"""Times that a run continues elsewhere because its machine was lost."""


class CoresTaken:
    """Cores of this machine that no other run of a search has, as long as this process lives.

    cores: their numbers; none if all have been taken, and then the run chooses.
    """

    def __init__(self, count: int) -> None:
        usable = sorted(os.sched_getaffinity(0))
        self.cores: Sequence[int] = []
        self._lock: IO[str] | None = None
        for first in range(0, len(usable) - count + 1, count):
            lock = (Path(tempfile.gettempdir()) / f"springbok_{os.getuid()}_cores_{count}_{first}").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            self.cores, self._lock = usable[first : first + count], lock
            return


class RunStarter:
    """An actor that makes one run on its machine. count: CPUs of the run."""

    def __init__(self, count: int) -> None:
        self._taken = CoresTaken(count)
        self._program: RunningProgram | None = None

    def start(self, arguments: Sequence[str], console: Path, here: Path) -> None:
        """Start it; see `RunningProgram`."""
        self._program = RunningProgram(arguments, console, here, self._taken.cores)

    def wait(self) -> int | None:
        """Wait a moment for its end. Returns its exit code, or None if it still runs."""
        return self._program.wait(POLL_SECONDS) if self._program else 1

    def stop(self) -> None:
        """Let it save and end."""
        if self._program:
            self._program.stop()

    def kill(self) -> None:
        """End it at once."""
        if self._program:
            self._program.kill()


class RemoteProgram:
    """A run on a machine of the cluster. If the machine is lost, it continues on another from its newest checkpoint.

    count: its CPUs.
    """

    def __init__(self, plan: PlannedRun, count: int) -> None:
        self._plan, self._count = plan, count
        self._losses, self._code = 0, None
        self._begin()

    def _begin(self) -> None:
        wait_until_free(self._plan)
        here = Path.cwd()
        actor: Any = ray.remote(RunStarter)
        self._starter = actor.options(num_cpus=self._count, max_concurrency=2).remote(self._count)
        self._started = self._starter.start.remote(self._plan.arguments(here), (here / self._plan.folder / CONSOLE), here)
        self._answer = self._started

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None if the run waits for a machine or still runs after so long."""
        if self._code is None and ray.wait([self._answer], timeout=seconds)[0]:
            try:
                code = ray.get(self._answer)
            except ray.exceptions.RayActorError:
                self._losses += 1
                if self._losses <= MOST_LOSSES:
                    self._begin()
                    return None
                code = self._failed(f"wanted a machine that keeps the run, got {self._losses} that were lost")
            except ray.exceptions.RayTaskError as error:
                code = self._failed(f"wanted a machine that sees {Path.cwd()} and {self._plan.folder}, got {error.cause}")
            else:
                if code is None:
                    self._answer = self._starter.wait.remote()
                    return None
            self._code = code
            ray.kill(self._starter)  # its CPUs are free for the next run
        return self._code

    def _failed(self, why: str) -> int:
        """Add the reason to the output of the run. Returns an exit code."""
        with (self._plan.folder / CONSOLE).open("a") as console:
            console.write(f"error: trials_on: {why}\n")
        return 1

    def stop(self) -> None:
        """Let the run save and end."""
        if self._code is None:
            self._starter.stop.remote()

    def kill(self) -> None:
        """End the run at once."""
        if self._code is None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self._starter.kill.remote(), timeout=END_SECONDS)


class Cluster:
    """A cluster that was joined, or started on this machine. A context manager that leaves it.

    parts: an entry for each run at the same time. Raises ValueError with one line.

    Args:
        address: see the setting `ray_address`.
        asked: runs at once, or auto for one on every two CPUs.
    """

    def __init__(self, address: str, asked: int | str) -> None:
        try:
            join(address, include_dashboard=False) if address == "local" else join(address, runtime_env=_SAME_PATHS)
        except WorkerError as error:
            raise ValueError(str(error)) from None
        cpus = int(ray.cluster_resources().get("CPU", 0))
        runs = max(1, cpus // 2) if asked == AUTO else int(asked)
        self.parts: list[list[int]] = [[] for _ in range(runs)]
        self._cpus = max(1, cpus // runs)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        disconnect()

    def start(self, plan: PlannedRun, _: Sequence[int]) -> Program:
        """Start a run where CPUs are free."""
        return RemoteProgram(plan, self._cpus)


_SAME_PATHS = {"env_vars": {"PYTHONPATH": str(REPOSITORY)}}
