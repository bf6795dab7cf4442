"""Observations of uniformly random play, with which the network's input is calibrated before training."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from time import monotonic

import numpy as np
import torch
from torch import Tensor

from replay.slot_store import SharedArrays
from replay.trajectory import Field
from workers.base import WorkerError
from workers.finite import float_parts
from workers.policy import LearnerGone
from workers.processes.heartbeat import Heartbeat, start_timeout
from workers.processes.launcher import start_process
from workers.processes.out_of_memory import describe
from workers.processes.worker import ENDING, ENDING_LAYOUT
from wrappers import close_quietly, describe_env, make_vector_env
from wrappers.legal import random_actions
from wrappers.spaces import Packing
from wrappers.spec import FAILURES, EnvConfig, EnvSpec

ENVIRONMENTS = 4  # a seventh of a second each to make; one for each task if there are more of them
STEPS = 800  # of each environment, or fewer if there are more of them
EVERY = 4  # steps between two observations that are kept: neighbours look alike
FEWEST = 2  # times at which observations are kept, however long that takes
PLAY_SECONDS = 20.0
"""Random play ends after so many seconds of steps; fewer observations then calibrate the input."""
MAKE_SECONDS = 60.0
"""Fewer environments play if making them in turn would take longer on a busy machine."""
CHECK_SECONDS = 0.2
CLOSE_SECONDS = 3.0  # for the process to close its environments after Ctrl-C; they may hang
CALLS = ("constructor or first reset", "reset", "step")
CALL, KEPT, SECONDS = range(3)
"""Numbers of the process: its present call (2 + index for a step), the observations it kept, and its seconds in steps."""
PLAYED = "played"
LAYOUT = {PLAYED: Field((3,), "float64"), **ENDING_LAYOUT}


def _nothing(_: int) -> None:
    return


class RandomPlay:
    """`random_observations` in a process of its own, begun when this is made. Raises OSError where that cannot be.

    timeout: seconds that a step may take. whole: as in `random_observations`.
    """

    def __init__(
        self, env_config: EnvConfig, spec: EnvSpec, seed: int, threads: int, *, timeout: float, whole: bool = False
    ) -> None:
        description = describe_env(env_config)
        most = most_environments(env_config)
        shape = (most * -(-steps_of(most) // EVERY), *spec.observation_shape)
        self._shared = SharedArrays({"observations": Field(shape, spec.frame_dtype), **LAYOUT})
        self._env, self._closes = env_config.env, description.needs_close
        start = start_timeout(most, description.start_seconds)
        timeout = max(timeout, most * description.reset_seconds)
        self._heartbeat = Heartbeat(0.0, monotonic(), timeout=timeout, start_timeout=start)
        count = environments_to_play(env_config, whole=whole)  # the process would have to try the environment out again
        self._words, words = multiprocessing.Pipe(duplex=False)
        try:
            self._process = start_process(
                _play, self._shared, words, env_config, seed, threads, count, whole, name="random play"
            )
        finally:
            # Only the process may hold this end: then its death is an end of file in `observations`.
            words.close()

    def observations(self, on_call: Callable[[int], None] = _nothing) -> Tensor:
        """Wait for the observations, `[N, S, *frame_shape]`. Call it once. Raises WorkerError with the cause of a failure.

        on_call: called several times a second, see `random_observations`.
        """
        played = self._shared.arrays[PLAYED]
        try:
            while not self._words.poll(CHECK_SECONDS):
                on_call(call := int(played[CALL]))
                if self._heartbeat.hangs(float(played[SECONDS]), has_work=True, now=monotonic()):
                    self._process.kill()  # it would not close its environments
                    raise WorkerError(
                        f"random play before training: {self._env} has not answered for {self._heartbeat.limit:.0f} s: its "
                        f"{CALLS[min(call, 2)]} hangs (see worker_timeout)"
                    )
            if error := self._words.recv():
                raise WorkerError(error)
        except EOFError:
            raise WorkerError("random play before training: its process died") from None
        finally:
            seen = self._shared.arrays["observations"][: int(played[KEPT])]
            self.stop()
        return torch.from_numpy(seen)

    def stop(self) -> None:
        """End the process, at once unless its environments must be closed."""
        self._shared.arrays[ENDING][0] = True
        if self._closes:
            self._process.join(CLOSE_SECONDS)
        self._words.close()
        self._shared.close()
        self._process.kill()  # after Ctrl-C its environments may hang, and it ignores the signal
        self._process.join()
        self._process.close()


def _play(
    shared: SharedArrays, words: Connection, env_config: EnvConfig, seed: int, threads: int, count: int, whole: bool
) -> None:
    """Entry of the process. words: receives the error message, an empty one on success. Others: see `_observations`."""
    error, played, started = "", shared.arrays[PLAYED], 0.0

    def show(call: int) -> None:
        nonlocal started
        if shared.arrays[ENDING][0]:
            raise LearnerGone
        played[CALL] = call
        if call <= CALLS.index("step"):
            started = monotonic()
        else:
            played[SECONDS] = monotonic() - started

    try:
        seen = _observations(env_config, seed, threads, count, show, whole=whole).numpy()
        shared.arrays["observations"][: len(seen)] = seen
        played[KEPT] = len(seen)
    except WorkerError as failure:
        error = str(failure)
    except FAILURES as failure:  # a process boundary: the waiting process raises it
        error = f"{traceback.format_exc()}random play before training: {describe(failure)}"
    with contextlib.suppress(OSError):
        words.send(error)
    os._exit(0)


def random_observations(
    env_config: EnvConfig, seed: int, threads: int = 1, on_call: Callable[[int], None] = _nothing, *, whole: bool = False
) -> Tensor:
    """800 observations `[N, S, *frame_shape]` of uniformly random play; about a second on two cores. Raises WorkerError.

    A slow environment gives fewer, unless `whole` is true: `PLAY_SECONDS` and `MAKE_SECONDS` limit its time.

    Args:
        env_config, seed, threads: of the environments.
        on_call: called before each call of the environments: with 0 before they are made, 1 before the reset, 2 and up before
            the steps.
        whole: whether the observations must not depend on the time that they take.
    """
    return _observations(env_config, seed, threads, environments_to_play(env_config, whole=whole), on_call, whole=whole)


def environments_to_play(env_config: EnvConfig, *, whole: bool) -> int:
    """How many environments play. whole: see `random_observations`."""
    most = most_environments(env_config)
    return most if whole else max(1, min(most, int(MAKE_SECONDS / describe_env(env_config).start_seconds)))


def most_environments(env_config: EnvConfig) -> int:
    """How many environments play if their making is fast."""
    return max(ENVIRONMENTS, len(env_config.tasks))


def steps_of(environments: int) -> int:
    """Steps of each of so many environments, at least `ENVIRONMENTS`: together they play as many as those would."""
    return STEPS * ENVIRONMENTS // environments


def _observations(
    env_config: EnvConfig, seed: int, threads: int, count: int, on_call: Callable[[int], None], *, whole: bool
) -> Tensor:
    """The observations of `count` environments. The other arguments: see `random_observations`."""
    on_call(0)
    env = make_vector_env(env_config, count, threads)
    generator = np.random.default_rng(seed)
    seen: list[Tensor] = []
    try:
        on_call(1)
        shown = env.reset(seed % 2**30 + 1)  # emulators count up from it, and take no zero
        end = math.inf if whole else monotonic() + PLAY_SECONDS
        for index in range(steps_of(most_environments(env_config))):
            if len(seen) >= FEWEST and monotonic() > end:
                break
            on_call(CALLS.index("step") + index)
            step = env.step(random_actions(env.spec, shown, generator))
            shown = step.observations
            if index % EVERY == 0:
                seen.append(torch.from_numpy(step.observations.copy()))
    finally:
        close_quietly(env)
    observations = torch.cat(seen)
    packing = Packing(env.spec.leaves) if env.spec.leaves else None
    floats = float_parts(packing, observations.numpy())
    if wrong := next((name for name, values in floats if not np.isfinite(values).all()), None):
        raise WorkerError(f"random play before training: wanted finite {wrong}, got others")
    return observations
