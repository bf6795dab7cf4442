"""How much of their time workers step where one policy acts for all of them, found out without a GPU: what it would compute is
slept through, and so is what environments do.

    python -m benchmarks.central --workers=16 --group=16 --env=220 --answer=1.0 --answer-each=5

The workers, their pipes and the thread that answers are the program's own. All times are stretched, so that a machine with few
cores can run many workers that sleep; Linux only, as processes must be forked.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agents.networks.actor_critic import make_network
from benchmarks.termination import end_with
from learner.machine.detect import detect_machine
from learner.machine.fit import fit_to_machine
from learner.settings.config import DEFAULTS, Config, make_config, make_contract
from workers import WorkerSetup, first_seeds
from workers.central import inference
from workers.central.device_policy import DevicePolicy
from workers.central.workers import CentralWorkers
from workers.policy import Acted
from workers.processes import launcher as children
from workers.rollout import CLOCKS
from wrappers import ENVIRONMENTS, EnvConfig, EnvSpec, Step, VectorEnv, make_spec

NAME = "Sleeping-v0"
STEADY_SECONDS = 2.0  # until all workers are at work
SPREAD, SELDOM, LONGER = 0.15, 0.1, 0.5
"""Steps differ by up to 15 %, and one in ten is longer by half: about as much as those of 16 games of Pong do (standard
deviation a fifth of the mean)."""


@dataclass(frozen=True)
class Times:
    """Seconds: one environment's step; an answer, and what each environment adds to it; the wait for others who ask."""

    env: float
    answer: float
    answer_each: float
    linger: float

    def stretched(self, slow: float) -> Times:
        return Times(*(slow * seconds for seconds in vars(self).values()))


class Sleeping(VectorEnv):
    """Environments without end in which nothing happens."""

    def __init__(self, spec: EnvSpec, num_envs: int, seconds: float) -> None:
        self.spec, self.num_envs, self._seconds = spec, num_envs, seconds * num_envs
        self._generator = np.random.default_rng()
        self._observations = np.zeros((num_envs, *spec.observation_shape), spec.frame_dtype)
        nothing, never = np.zeros(num_envs, np.float32), np.zeros(num_envs, bool)
        no_return, no_length = np.full(num_envs, np.nan, np.float32), np.zeros(num_envs, np.int32)
        self._step = Step(self._observations, nothing, never, never, never, ~never, no_return, no_length)

    def reset(self, seed: int) -> np.ndarray:
        self._generator = np.random.default_rng(seed)
        return self._observations

    def step(self, actions: np.ndarray) -> Step:
        seldom = LONGER * (self._generator.random() < SELDOM)
        time.sleep(self._seconds * (self._generator.uniform(1 - SPREAD, 1 + SPREAD) + seldom) / (1 + SELDOM * LONGER))
        return self._step


class SleepingFamily:
    """What `wrappers.Family` asks for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def known_ids(self) -> Mapping[str, str]:
        return {NAME: NAME}

    def matches(self, env_id: str) -> bool:
        return env_id == NAME

    def make_spec(self, config: EnvConfig) -> EnvSpec:
        return EnvSpec(NAME, (10, 5), "uint8", config.frames_stacked, 6, ("NOOP",) * 6, 1)

    def make_vector(self, config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
        return Sleeping(self.make_spec(config), num_envs, self._seconds)

    def make_single(self, config: EnvConfig, render_mode: str | None) -> VectorEnv:
        return self.make_vector(config, 1, 1)


class SleepingWorkers(CentralWorkers):
    """With a policy that takes so long, whatever its very small network needs."""

    def __init__(self, setup: WorkerSetup, times: Times) -> None:
        batches: list[int] = []

        class SleepingPolicy(DevicePolicy):
            def act(
                self, frames: Sequence[np.ndarray], first: Sequence[np.ndarray], environments: Sequence[np.ndarray]
            ) -> Acted:
                begin = time.perf_counter()
                batches.append(sum(map(len, environments)))
                acted = super().act(frames, first, environments)
                wanted = times.answer + batches[-1] * times.answer_each
                time.sleep(max(0.0, begin + wanted - time.perf_counter()))
                return acted

        self.policy_class = SleepingPolicy
        self.batches = batches
        network = make_network(setup.network, setup.spec.observation_shape, setup.spec.action_count)
        super().__init__(setup, network)
        self.weights.publish(network, 1)


def measure(workers: int, group: int, times: Times, slow: float, seconds: float) -> dict[str, float]:
    """Shares of the workers' time, and the answers as they would be were they not stretched `slow` times."""
    stretched = times.stretched(slow)
    ENVIRONMENTS["sleeping"] = SleepingFamily(stretched.env)
    children.prepare()  # before there is any thread: what is forked knows the environment
    inference.LINGER_SECONDS = stretched.linger
    torch.set_num_threads(1)
    running = SleepingWorkers(_setup(_config(workers, 2 * group)), stretched)
    try:
        running.start()
        _take_for(running, STEADY_SECONDS)
        clocks, begin, answers = running.seconds.copy(), time.perf_counter(), len(running.batches)
        _take_for(running, seconds)
        passed = time.perf_counter() - begin
        shares = (running.seconds - clocks).mean(0) / passed
        batches = running.batches[answers:]
    finally:
        running.stop()
    return {
        "stepping": float(shares[CLOCKS.index("env")]),
        "waiting_for_answers": float(shares[CLOCKS.index("act")]),
        "environments_an_answer": float(np.mean(batches)),
        "answers_a_second": slow * len(batches) / passed,
    }


def _config(workers: int, environments: int) -> Config:
    given = {"env": NAME, "network": "mlp", "device": "cpu", "worker_kind": "central", "worker_timeout": 60.0}
    counts = {"worker_count": workers, "envs_per_worker": environments}
    return make_config(fit_to_machine({**DEFAULTS, **given, **counts}, detect_machine())[0])


def _setup(config: Config) -> WorkerSetup:
    spec = make_spec(config.env)
    seeds = first_seeds(np.random.SeedSequence(1), config.workers.worker_count)
    return WorkerSetup(config.env, spec, config.network, make_contract(config, spec), config.workers, seeds)


def _take_for(workers: CentralWorkers, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for block in workers.poll(left):
            workers.release(block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--group", type=int, default=16, help="environments of each of a worker's two groups")
    parser.add_argument("--env", type=float, default=220.0, help="microseconds of one environment's step")
    parser.add_argument("--answer", type=float, default=1.0, help="milliseconds of an answer")
    parser.add_argument("--answer-each", type=float, default=5.0, help="microseconds more for each environment in it")
    linger = 1e3 * inference.LINGER_SECONDS
    parser.add_argument("--linger", type=float, default=linger, help="milliseconds after the first that asks")
    parser.add_argument("--slow", type=float, default=4.0, help="times are stretched by this")
    parser.add_argument("--seconds", type=float, default=12.0, help="of measurement")
    arguments = parser.parse_args()
    if sys.platform != "linux":
        parser.error(f"wanted Linux, where processes are forked, got {sys.platform}")
    times = Times(1e-6 * arguments.env, 1e-3 * arguments.answer, 1e-6 * arguments.answer_each, 1e-3 * arguments.linger)
    for name, value in measure(arguments.workers, arguments.group, times, arguments.slow, arguments.seconds).items():
        print(f"{name:24s} {value:.3f}")


if __name__ == "__main__":
    end_with(main)
