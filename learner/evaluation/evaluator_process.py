"""The evaluation process: plays whole episodes of the requested policy, at the lowest priority."""

from __future__ import annotations

import contextlib
import math
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, perf_counter
from typing import NamedTuple

import numpy as np
import torch

from agents.compute import prepare_torch
from agents.networks.base import NetworkConfig, make_network
from learner.evaluation.animation import EpisodeCamera, RenderingCamera, has_pictures, write_animation
from learner.evaluation.play import EpisodeResult, divide_episodes, play
from learner.metrics.infos import added, means
from replay.slot_store import SharedArrays
from workers.evaluation_policy import EvaluationPolicy
from workers.finite import NotFiniteError
from workers.processes.out_of_memory import describe
from workers.weights import SharedWeights
from wrappers import EnvConfig, VectorEnv, close_if_needed, describe_env, make_single_env, make_vector_env

SEED_STREAM = 8  # separates these random numbers from those of training and of test mode
LOWEST_PRIORITY = 19
CLOCK = "seconds"  # name of the shared array float64 [1] with the seconds spent in steps, which is the heartbeat
MAX_MESSAGE_LENGTH = 30_000
ANIMATION_PERIOD = 120.0  # seconds between two animations


@dataclass(frozen=True)
class EvaluatorSetup:
    """The settings of the process.

    Args:
        env: the evaluation environment, whose episodes are whole games.
        network: all that is needed to build the network of the policy.
        episodes: number of episodes in one evaluation, of all tasks together.
        environments: number of environments that are stepped together, equally many of each task.
        greedy: whether the policy takes the most probable action instead of sampling.
        seed: seed of the run.
        animation: path of the GIF that some evaluations replace.
        epsilon: probability of a random action, for networks that explore by epsilon.
    """

    env: EnvConfig
    network: NetworkConfig
    episodes: int
    environments: int
    greedy: bool
    seed: int
    animation: Path
    epsilon: float = 0.0


class Answer(NamedTuple):
    """The result of one request.

    Args:
        returns: raw returns in the order in which the episodes ended. Empty if the evaluation failed.
        animated: whether the GIF is new.
        problem: one line for the user about what failed; empty if nothing did.
        infos: `NAME_at_end` and `NAME_mean`, see `learner.metrics.infos`.
        task_means: mean return of each task, if there are several.
    """

    returns: tuple[float, ...]
    animated: bool = False
    problem: str = ""
    infos: Mapping[str, float] = {}
    task_means: tuple[float, ...] = ()


def run_evaluator(setup: EvaluatorSetup, shared: SharedArrays, requests: Connection, answers: Connection) -> None:
    """Entry point of the process. It runs until the learner closes `requests`.

    Args:
        shared: the weights to evaluate (see `workers.weights`) and the clock `CLOCK`.
        requests: receives the number of updates of the policy in `shared`.
        answers: is sent an `Answer` for each request, or a traceback as text if the process fails.
    """
    loop = None
    try:
        # The priority comes first: threads inherit it when they start, and ale-py steps environments in its own threads.
        _take_lowest_priority()
        prepare_torch(threads=1)
        loop = EvaluationLoop(setup, shared)
        while True:
            update = requests.recv()
            # The learner sends the next request only after an answer. `poll` is therefore true only if the pipe was closed.
            answers.send(loop.evaluate(update, stop=requests.poll))
    except EOFError:  # the learner has closed the pipe or has died
        pass
    except BaseException:  # a process boundary: the learner reports the error
        with contextlib.suppress(OSError):
            answers.send(traceback.format_exc()[-MAX_MESSAGE_LENGTH:])
    if loop:
        loop.close()
    os._exit(0)  # an orderly exit of PyTorch takes long


class EvaluationLoop:
    """Evaluates the policy in shared memory whenever it is asked to. shared: as in `run_evaluator`."""

    def __init__(self, setup: EvaluatorSetup, shared: SharedArrays) -> None:
        self._setup = setup
        self._network = make_network(setup.network).only_act()
        self._env = make_vector_env(setup.env, setup.environments)
        self._display = describe_env(setup.env).display
        self._rendered = None if has_pictures(self._env.spec) else make_rendered_env(setup.env)
        self._weights = SharedWeights(shared)
        self._clock = shared.arrays[CLOCK]
        self._last_tick = perf_counter()
        self._last_animation = -math.inf

    def evaluate(self, update: int, stop: Callable[[], bool]) -> Answer:
        """Play all episodes of one evaluation, or fewer if `stop` returns true.

        update: number of updates of the policy. It seeds the games, so every evaluation plays other games.
        """
        setup = self._setup
        self._weights.read(self._network)
        first_seed, action_seed = np.random.SeedSequence((setup.seed, SEED_STREAM, update)).generate_state(2)
        policy = EvaluationPolicy(
            self._network, torch.device("cpu"), greedy=setup.greedy, seed=int(action_seed), epsilon=setup.epsilon
        )
        quotas = divide_episodes(setup.episodes, setup.environments)
        # Environment i gets seed + i, and emulators take seeds from 1 to 2^31 - 1.
        seed = int(first_seed) % 2**30 + 1
        camera = self._make_camera()
        episodes: list[EpisodeResult] = []
        # The wait for this request is no step, so the heartbeat's clock leaves it out.
        self._last_tick = perf_counter()
        try:
            play(camera or self._env, policy, quotas, seed, on_episode=episodes.append, on_step=self._tick, stop=stop)
        except NotFiniteError as error:  # the process is sound, and its next evaluation plays other games
            return Answer((), problem=f"The evaluation of update {update:,} has no result: {error}")
        animated, problem = False, ""
        try:
            if self._rendered and self._animation_is_due() and not stop():
                camera = self._render_episode(self._rendered, policy, seed, stop)
            animated = camera is not None and self._write_animation(camera)
        except Exception as error:  # drivers and users' code may raise anything; the returns still count
            problem = f"Evaluations are no longer animated: {describe(error)}"
            self._last_animation = math.inf  # no other one becomes due
        infos = means((episode.infos for episode in episodes), added(episode.sums for episode in episodes))
        returns, count = tuple(episode.episode_return for episode in episodes), len(setup.network.tasks)
        of_tasks = [[each.episode_return for each in episodes if each.environment % count == task] for task in range(count)]
        task_means = tuple(float(np.mean(own)) for own in of_tasks) if all(of_tasks) else ()
        return Answer(returns, animated, problem, infos, task_means)

    def close(self) -> None:
        """Release environments that need it."""
        for env in filter(None, (self._env, self._rendered)):
            close_if_needed(env)

    def _make_camera(self) -> EpisodeCamera | None:
        return EpisodeCamera(self._env, self._display) if has_pictures(self._env.spec) and self._animation_is_due() else None

    def _render_episode(self, env: VectorEnv, policy: EvaluationPolicy, seed: int, stop: Callable[[], bool]) -> RenderingCamera:
        """The pictures of one more episode, which an environment made for rendering plays."""
        camera, one = RenderingCamera(env, self._display), np.ones(1, dtype=np.int64)
        play(camera, policy, one, seed, on_episode=lambda _: None, on_step=self._tick, stop=stop)
        return camera

    def _animation_is_due(self) -> bool:
        return monotonic() - self._last_animation >= ANIMATION_PERIOD

    def _write_animation(self, camera: EpisodeCamera) -> bool:
        """Return whether the GIF was written. A full disk is no failure here: writing checkpoints reports it."""
        try:
            write_animation(self._setup.animation, camera, on_picture=self._tick)
        except OSError:
            return False
        self._last_animation = monotonic()
        return True

    def _tick(self, _: int = 0) -> None:
        """Add the time since the last call to the clock that the learner watches."""
        now = perf_counter()
        self._clock[0] += now - self._last_tick
        self._last_tick = now


def make_rendered_env(config: EnvConfig) -> VectorEnv | None:
    """An environment that renders pictures; None if this machine cannot render it. It is made before the first step is due."""
    try:
        return make_single_env(config, "rgb_array")
    except ValueError:
        return None


def _take_lowest_priority() -> None:
    """Run only when no other process wants the core, so that evaluation does not slow training down."""
    os.nice(LOWEST_PRIORITY)
    if hasattr(os, "SCHED_IDLE"):  # Linux: below the workers too, which are themselves nicer than the learner
        with contextlib.suppress(OSError):  # some sandboxes, such as gVisor, have only one scheduling policy
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
