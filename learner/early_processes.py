"""Starts processes as soon as the settings are checked, because that takes seconds. `learner/parts.py` takes them over."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor

from agents.networks.base import FeatureNetwork
from learner.building import make_network_shapes
from learner.machine.detect import available_cores
from learner.machine.fit import acting_precision
from learner.metrics.hardware import family_of
from learner.plan import Plan
from learner.runs.checkpoint import Checkpoint
from learner.settings.config import Config
from learner.waiting import Progress, announced
from workers import WORKERS, RandomPlay, Workers, WorkerSetup, first_seeds, random_observations
from workers.base import RECORDED, SERVED
from workers.failures import failures_of
from workers.random_play import CALLS, PLAY_SECONDS, STEPS
from workers.recorded import recorded_observations
from wrappers.answering import STEP_SECONDS

CLOSE_SECONDS = 5.0  # for unused workers to close their environments; a constructor that still runs may take minutes


class EarlyProcesses:
    """Processes that build environments or play at random while the program measures the machine.

    A context manager: on exit it ends the processes that were not taken over. resumed: the checkpoint that the run continues.
    random_play: whether this learner calibrates the network's input, if the run's settings ask for that.

    Raises OSError or WorkerError if no process can be started.
    """

    def __init__(self, plan: Plan, resumed: Checkpoint | None, *, random_play: bool = True) -> None:
        config, self._plan = plan.config, plan
        self._resumed = resumed
        self._random_play: RandomPlay | None = None
        self._observations: Tensor | None = None  # of clients
        self._workers: Workers | None = None
        random_play = random_play and config.wants_random_play and not resumed
        if config.is_remote and random_play:
            self._observations = self._play_with_clients()  # before the workers listen at the same address
        elif config.workers.worker_kind not in ("serial", RECORDED) and random_play:
            timeout, whole = max(STEP_SECONDS, config.workers.worker_timeout), config.training.reproducible
            self._random_play = RandomPlay(
                config.env, plan.spec, config.training.seed, available_cores(), timeout=timeout, whole=whole
            )
        if (kind := config.workers.worker_kind) in ("cpu", "ray", SERVED):  # others need the learner's network
            self._workers = WORKERS[kind](worker_setup(plan, resumed), make_network_shapes(plan.network))
            self._workers.prepare()

    def __enter__(self) -> EarlyProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        if self._random_play:
            self._random_play.stop()
        self._end_workers()

    def take_workers(self, plan: Plan, network: FeatureNetwork) -> Workers:
        """The workers of the run, with running processes. plan: the final one, after the measurements."""
        setup = worker_setup(plan, self._resumed)
        # The measurement has changed settings that these processes were started with.
        if self._workers and self._workers.setup != setup:
            self._end_workers()
        workers, self._workers = self._workers, None
        if not workers:
            workers = WORKERS[plan.config.workers.worker_kind](setup, network)
            workers.prepare()
        return workers

    def random_observations(self) -> Tensor:
        """Observations of random play, or of the run's recording. May be called once. Raises WorkerError."""
        config, env, training = self._plan.config, self._plan.config.env, self._plan.config.training
        if config.workers.worker_kind == RECORDED:
            return recorded_observations(config.workers.recording, self._plan.spec, training.seed)
        if self._observations is not None:
            return self._observations
        on_call = _progress(env.env, math.inf if training.reproducible else PLAY_SECONDS)
        with announced(f"Waiting for random play in {env.env}, which calibrates the network's input"):
            if self._random_play:
                play, self._random_play = self._random_play, None  # it ends with its observations
                return play.observations(on_call)
            with failures_of("random play before training"):
                return random_observations(env, training.seed, available_cores(), on_call, whole=training.reproducible)

    def _play_with_clients(self) -> Tensor:
        from workers.served.random_play import random_observations_of_clients  # a server has packages of its own

        config = self._plan.config
        with announced(f"Waiting for clients at {config.server.url}, whose random play sets the scale of the network's input"):
            return random_observations_of_clients(
                config.env,
                config.server,
                config.workers.envs_per_worker,
                config.training.seed,
                _progress(config.env.env, PLAY_SECONDS),
            )

    def _end_workers(self) -> None:
        workers, self._workers = self._workers, None
        if workers:
            timer = threading.Timer(CLOSE_SECONDS, _kill, (workers,))
            timer.start()
            try:
                workers.stop()
            finally:
                timer.cancel()


def _progress(env: str, seconds: float) -> Callable[[int], None]:
    """A function that logs how far random play has come, by the number of its call. seconds: the most that it takes."""
    progress = Progress(f"Random play in {env}", STEPS, seconds)

    def on_call(call: int) -> None:
        progress(call - CALLS.index("step"))

    return on_call


def _kill(workers: Workers) -> None:
    """End workers at once, and the processes that their environments have started."""
    started = [process for pid in workers.pids for process in family_of(pid)[1:]]
    workers.kill()
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def run_seeds(config: Config, resumed: Checkpoint | None) -> tuple[np.random.SeedSequence, np.random.SeedSequence]:
    """The seeds of the workers and of the replays' draws. They differ after every resume."""
    # The count of updates is part of the seed, so that a resumed run does not repeat its first episodes and draws.
    seeds = np.random.SeedSequence(config.training.seed, spawn_key=(resumed.counters.updates,) if resumed else ())
    workers, sampling = seeds.spawn(2)
    return workers, sampling


def worker_setup(plan: Plan, resumed: Checkpoint | None) -> WorkerSetup:
    """The settings, contract and seeds that the workers of a run are built from."""
    config, settings = plan.config, plan.config.training
    seeds = first_seeds(run_seeds(config, resumed)[0], config.workers.worker_count)
    precision = settings.precision if config.workers.worker_kind == "central" else acting_precision(settings)
    network = replace(plan.network, precision=precision)
    return WorkerSetup(
        config.env,
        plan.spec,
        network,
        plan.contract,
        config.workers,
        seeds,
        device=settings.device,
        compiled=settings.compile,
        agent=config.agent,
        server=config.server if config.workers.worker_kind == SERVED else None,
        first_step=resumed.counters.steps if resumed else 0,
    )
