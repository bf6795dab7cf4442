"""The process that plays the current policy beside training, at the lowest priority: one evaluation whenever it is asked."""

from __future__ import annotations

import contextlib
import math
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, perf_counter

import numpy as np
import torch

from agents.compute import prepare_torch
from agents.networks.actor_critic import make_network
from learner.evaluation.animation import EpisodeCamera, write_animation
from learner.evaluation.play import EpisodeResult, EvaluationPolicy, divide_episodes, play
from replay.slot_store import SharedArrays
from workers.weights import SharedWeights
from wrappers import EnvConfig, describe_env, make_spec, make_vector_env

SEED_STREAM = 8  # sets these random numbers apart from those of training and of test mode
LOWEST_PRIORITY = 19
CLOCK = "seconds"  # spent in steps, float64 [1]: how the learner sees that it lives
MOST_WORDS = 30_000
ANIMATION_PERIOD = 120.0  # seconds between two animations: they are for the eye, and a long run makes many


@dataclass(frozen=True)
class EvaluatorSetup:
    """All that the process needs. environments: games played at once; env: that of the protocol, whole games.

    animation: the GIF that is replaced now and then by the beginning of an episode.
    """

    env: EnvConfig
    network: str
    episodes: int
    environments: int
    greedy: bool
    seed: int
    animation: Path


def run_evaluator(setup: EvaluatorSetup, shared: SharedArrays, asked: Connection, answers: Connection) -> None:
    """Entry of the spawned process.

    `asked` brings updates; `answers` takes (update, returns, whether the animation is new), or what
    went wrong as text.
    """
    try:
        _answer(setup, shared, asked, answers)
    except EOFError:  # the learner is gone
        pass
    except BaseException:  # a process boundary: the learner says it
        with contextlib.suppress(OSError):
            answers.send(traceback.format_exc()[-MOST_WORDS:])
    os._exit(0)  # at once: to take PyTorch down takes long


def _give_way_to_all() -> None:
    os.nice(LOWEST_PRIORITY)
    if hasattr(os, "SCHED_IDLE"):  # Linux: far behind workers too, which give way to the learner
        with contextlib.suppress(OSError):  # a sandbox may know one kind of scheduling only (gVisor)
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _answer(setup: EvaluatorSetup, shared: SharedArrays, asked: Connection, answers: Connection) -> None:
    _give_way_to_all()  # first: a thread has the priority of the one that starts it, and ale-py steps in its own
    prepare_torch(threads=1)
    spec = make_spec(setup.env)
    network = make_network(setup.network, spec.observation_shape, spec.action_count).only_act()
    env = make_vector_env(setup.env, setup.environments)
    weights, clock = SharedWeights(shared), shared.arrays[CLOCK]
    animated = -math.inf
    while True:
        update = asked.recv()
        weights.read(network)
        first_seed, action_seed = np.random.SeedSequence((setup.seed, SEED_STREAM, update)).generate_state(2)
        policy = EvaluationPolicy(network, torch.device("cpu"), greedy=setup.greedy, seed=int(action_seed))
        episodes: list[EpisodeResult] = []
        before = perf_counter()

        def count_time(steps: int) -> None:
            nonlocal before
            now = perf_counter()
            clock[0] += now - before
            before = now

        quotas = divide_episodes(setup.episodes, setup.environments)
        seed = int(first_seed) % 2**30 + 1
        camera = EpisodeCamera(env, describe_env(setup.env).display) if monotonic() - animated >= ANIMATION_PERIOD else None
        play(camera or env, policy, quotas, seed, on_episode=episodes.append, on_step=count_time, stop=asked.poll)
        is_new = camera is not None and _animate(setup.animation, camera, lambda: count_time(0))
        if is_new:
            animated = monotonic()
        answers.send((update, [episode.episode_return for episode in episodes], is_new))


def _animate(path: Path, camera: EpisodeCamera, on_picture: Callable[[], None]) -> bool:
    """Whether the animation was written: a full disk costs it, and the run's other files say that the disk is full."""
    try:
        write_animation(path, camera, on_picture)
    except OSError:
        return False
    return True
