"""The process that plays the current policy beside training, at the lowest priority: one evaluation whenever it is asked."""

from __future__ import annotations

import contextlib
import os
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import perf_counter

import numpy as np
import torch

from agents.compute import prepare_torch
from agents.networks import make_network
from learner.play import EpisodeResult, EvaluationPolicy, divide_episodes, play
from replay.slot_store import SharedArrays
from workers.weights import SharedWeights
from wrappers import EnvConfig, make_spec, make_vector_env

SEED_STREAM = 8  # sets these random numbers apart from those of training and of test mode
LOWEST_PRIORITY = 19
CLOCK = "seconds"  # spent in steps, float64 [1]: how the learner sees that it lives
MOST_WORDS = 30_000


@dataclass(frozen=True)
class EvaluatorSetup:
    """All that the process needs. environments: games played at once; env: that of the protocol, whole games."""

    env: EnvConfig
    network: str
    episodes: int
    environments: int
    greedy: bool
    seed: int


def run_evaluator(setup: EvaluatorSetup, shared: SharedArrays, asked: Connection, answers: Connection) -> None:
    """Entry of the spawned process. `asked` brings updates; `answers` takes (update, returns), or what went wrong as text."""
    try:
        _answer(setup, shared, asked, answers)
    except EOFError:  # the learner is gone
        pass
    except BaseException:  # a process boundary: the learner says it
        with contextlib.suppress(OSError):
            answers.send(traceback.format_exc()[-MOST_WORDS:])
    os._exit(0)  # at once: to take PyTorch down takes long


def _answer(setup: EvaluatorSetup, shared: SharedArrays, asked: Connection, answers: Connection) -> None:
    prepare_torch(threads=1)
    spec = make_spec(setup.env)
    network = make_network(setup.network, spec.observation_shape, spec.action_count).only_act()
    env = make_vector_env(setup.env, setup.environments)
    weights, clock = SharedWeights(shared), shared.arrays[CLOCK]
    os.nice(LOWEST_PRIORITY)
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
        play(env, policy, quotas, seed, on_episode=episodes.append, on_step=count_time, stop=asked.poll)
        answers.send((update, [episode.episode_return for episode in episodes]))
