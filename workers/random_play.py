"""Observations of uniformly random play, with which the network's input is calibrated before training."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor

from replay.slot_store import SharedArrays
from replay.trajectory import Field
from workers.base import WorkerError
from workers.finite import float_parts
from workers.policy import LearnerGone
from workers.processes.launcher import start_process
from workers.processes.out_of_memory import describe
from workers.processes.worker import ENDING, ENDING_LAYOUT
from wrappers import close_quietly, describe_env, make_spec, make_vector_env
from wrappers.legal import random_actions
from wrappers.spaces import Packing
from wrappers.spec import FAILURES, EnvConfig

ENVIRONMENTS = 4  # a seventh of a second each to make
STEPS = 800
CLOSE_SECONDS = 10.0  # for the process to close its environments after Ctrl-C; they may hang
EVERY = 4  # steps between two observations that are kept: neighbours look alike


class RandomPlay:
    """`random_observations` in a process of its own, begun when this is made. Raises OSError where that cannot be."""

    def __init__(self, env_config: EnvConfig, seed: int, threads: int) -> None:
        spec = make_spec(env_config)
        shape = (ENVIRONMENTS * STEPS // EVERY, *spec.observation_shape)
        self._shared = SharedArrays({"observations": Field(shape, spec.frame_dtype), **ENDING_LAYOUT})
        self._closes = describe_env(env_config).needs_close
        self._words, words = multiprocessing.Pipe(duplex=False)
        try:
            self._process = start_process(_play, env_config, seed, threads, self._shared, words, name="random play")
        finally:
            # Only the process may hold this end: then its death is an end of file in `observations`.
            words.close()

    def observations(self) -> Tensor:
        """Wait for the observations, `[N, S, *frame_shape]`. Call it once. Raises WorkerError with the cause of a failure."""
        try:
            if error := self._words.recv():
                raise WorkerError(error)
        except EOFError:
            raise WorkerError("random play before training: its process died") from None
        finally:
            seen = self._shared.arrays["observations"]
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


def _play(env_config: EnvConfig, seed: int, threads: int, shared: SharedArrays, words: Connection) -> None:
    """Entry of the process. words: receives the error message, an empty one on success."""
    error = ""
    try:
        ending = shared.arrays[ENDING]
        shared.arrays["observations"][:] = random_observations(env_config, seed, threads, lambda: bool(ending[0])).numpy()
    except WorkerError as failure:
        error = str(failure)
    except FAILURES as failure:  # a process boundary: the waiting process raises it
        error = f"{traceback.format_exc()}random play before training: {describe(failure)}"
    with contextlib.suppress(OSError):
        words.send(error)
    os._exit(0)


def random_observations(
    env_config: EnvConfig, seed: int, threads: int = 1, should_stop: Callable[[], bool] = lambda: False
) -> Tensor:
    """800 observations `[N, S, *frame_shape]` of uniformly random play; about a second on two cores. Raises WorkerError.

    should_stop: asked before each step; LearnerGone is raised once it returns true.
    """
    env = make_vector_env(env_config, ENVIRONMENTS, threads)
    generator = np.random.default_rng(seed)
    seen = []
    try:
        shown = env.reset(seed % 2**30 + 1)  # emulators count up from it, and take no zero
        for index in range(STEPS):
            if should_stop():
                raise LearnerGone
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
