"""Measures without a GPU what fraction of time workers step if one central policy acts for all of them.

    python -m benchmarks.central --workers=16 --group=16 --env=220 --answer=1.0 --answer-each=5

The workers, their pipes and the inference thread are the program's own. The policy and the environments only sleep for
the time that they would compute. All times are stretched, so that a machine with few cores can run many workers. Linux
only, because the processes must be forked.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.output import print_values
from learner.machine.detect import detect_machine
from learner.machine.fit import fit_to_machine
from learner.plan import make_plan
from learner.settings.config import DEFAULTS, Config, make_config
from tools.termination import end_with
from workers import WorkerSetup, first_seeds
from workers.central import inference
from workers.central.device_policy import DevicePolicy
from workers.central.workers import CentralWorkers
from workers.clocks import CLOCKS
from workers.policy import Acted
from workers.processes import launcher
from wrappers import ENVIRONMENTS, EnvConfig, EnvDescription, EnvSpec, Step, VectorEnv
from wrappers.spaces import Discrete

NAME = "Sleeping-v0"
STEADY_SECONDS = 2.0  # until all workers step
SPREAD, SELDOM, LONGER = 0.15, 0.1, 0.5
"""Steps vary by up to 15 %, and one in ten takes 50 % longer. The standard deviation is then a sixth of the mean, near that of
16 games of Pong."""


@dataclass(frozen=True)
class Times:
    """Seconds of one environment's step, of an answer, of each environment in an answer, and of the wait for other requests."""

    env: float
    answer: float
    answer_each: float
    linger: float

    def stretched(self, slow: float) -> Times:
        """Return all times multiplied by `slow`."""
        return Times(*(slow * seconds for seconds in vars(self).values()))


class Sleeping(VectorEnv):
    """Environments whose steps sleep and change nothing. Their episodes never end."""

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
    """The family of `Sleeping-v0`, as `wrappers.Family` describes it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def known_ids(self) -> Mapping[str, str]:
        return {NAME: NAME}

    def matches(self, env_id: str) -> bool:
        return env_id == NAME

    def make_spec(self, config: EnvConfig) -> EnvSpec:
        return EnvSpec(NAME, (10, 5), "uint8", config.frames_stacked, Discrete(6, ("NOOP",) * 6))

    def describe(self, config: EnvConfig) -> EnvDescription:
        return EnvDescription(config)

    def notes(self, config: EnvConfig, given: Collection[str]) -> list[str]:
        return []

    def make_vector(self, config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
        return Sleeping(self.make_spec(config), num_envs, self._seconds)

    def make_single(self, config: EnvConfig, render_mode: str | None) -> VectorEnv:
        return self.make_vector(config, 1, 1)


class SleepingWorkers(CentralWorkers):
    """Central workers whose policy takes the given time, however small its network is."""

    def __init__(self, setup: WorkerSetup, times: Times) -> None:
        batches: list[int] = []

        class SleepingPolicy(DevicePolicy):
            def act(self, *arguments: Any, **named: Any) -> Acted:
                begin = time.perf_counter()
                acted = super().act(*arguments, **named)
                batches.append(len(acted.actions))
                wanted = times.answer + batches[-1] * times.answer_each
                time.sleep(max(0.0, begin + wanted - time.perf_counter()))
                return acted

        self.policy_class = SleepingPolicy
        self.batches = batches
        network = setup.make_network()
        super().__init__(setup, network)
        self.weights.publish(network, 1)


def measure(workers: int, group: int, times: Times, slow: float, seconds: float) -> dict[str, float]:
    """Return fractions of the workers' time, the size of answers, and their rate without stretching.

    Args:
        workers: number of workers.
        group: environments in each of a worker's two groups.
        times: seconds of everything that is slept through.
        slow: factor by which all times are stretched.
        seconds: duration of the measurement.
    """
    stretched = times.stretched(slow)
    ENVIRONMENTS["sleeping"] = SleepingFamily(stretched.env)
    launcher.start_fork_server()  # before there is any thread: what is forked knows the environment
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
    seeds = first_seeds(np.random.SeedSequence(1), config.workers.worker_count)
    plan = make_plan(config)
    return WorkerSetup(config.env, plan.spec, plan.network, plan.contract, config.workers, seeds)


def _take_for(workers: CentralWorkers, seconds: float) -> None:
    """Take finished trajectories for `seconds` and release them unread."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for block in workers.poll(left):
            workers.release(block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16, help="number of workers")
    parser.add_argument("--group", type=int, default=16, help="environments in each of a worker's two groups")
    parser.add_argument("--env", type=float, default=220.0, help="microseconds per step of one environment")
    parser.add_argument("--answer", type=float, default=1.0, help="milliseconds per answer of the policy")
    parser.add_argument("--answer-each", type=float, default=5.0, help="additional microseconds per environment in an answer")
    linger = 1e3 * inference.LINGER_SECONDS
    parser.add_argument("--linger", type=float, default=linger, help="milliseconds of the wait for more requests")
    parser.add_argument("--slow", type=float, default=4.0, help="factor by which all times are stretched")
    parser.add_argument("--seconds", type=float, default=12.0, help="duration of the measurement in seconds")
    arguments = parser.parse_args()
    if sys.platform != "linux":
        parser.error(f"wanted Linux, where processes are forked, got {sys.platform}")
    times = Times(1e-6 * arguments.env, 1e-3 * arguments.answer, 1e-6 * arguments.answer_each, 1e-3 * arguments.linger)
    print_values(measure(arguments.workers, arguments.group, times, arguments.slow, arguments.seconds))


if __name__ == "__main__":
    end_with(main)
