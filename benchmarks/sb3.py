"""Measures the speed of an agent of Stable-Baselines3 on an environment of Gymnasium, with its own vector of environments.

    python -m benchmarks.sb3 '{"algorithm": "A2C", "env": "CartPole-v1", "envs": 16}' --seconds=10

Prints steps per second. `benchmarks.throughput` and `benchmarks.against_sb3` run it in a process of its own, where the package
is installed. SB3 (Raffin et al. 2021) is a development tool here: no package of the program imports it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.termination import REPOSITORY, end_with

WARM_UP_STEPS = 500
ENDLESS_STEPS = 10**9
ATARI_STACK = 4


@dataclass(frozen=True)
class Sb3Job:
    """One run of the other package.

    Args:
        algorithm: name of a class of the package, such as PPO.
        env: id of an environment of Gymnasium.
        envs: number of environments, stepped one after another in the process that learns, which is its default.
        options: arguments of the class as plain data. `activation` is the name of a class of torch.nn.
        atari: whether the environment gets the package's wrappers of Atari, 4 stacked frames and the CnnPolicy.
        normalised: whether observations and rewards are normalised.
    """

    algorithm: str
    env: str
    envs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    atari: bool = False
    normalised: bool = False


def is_installed() -> bool:
    """Whether Stable-Baselines3 can be imported."""
    return importlib.util.find_spec("stable_baselines3") is not None


def measure_sb3(job: Sb3Job, seconds: float) -> float:
    """Steps per second in a process of its own. Raises RuntimeError with its last line if it fails."""
    command = [sys.executable, "-m", "benchmarks.sb3", json.dumps(asdict(job)), f"--seconds={seconds}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Stable-Baselines3 failed on {job.env}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return float(done.stdout.split()[-1])


def steps_per_second(job: Sb3Job, seconds: float) -> float:
    """Train for at least `seconds` after a warm-up, in whole rounds of collecting and learning. Returns steps per second."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Stopwatch(BaseCallback):
        """Notes when rounds begin, and ends the training after `seconds`."""

        def __init__(self) -> None:
            super().__init__()
            self.marks: list[tuple[float, int]] = []

        def _on_rollout_start(self) -> None:
            if self.num_timesteps >= WARM_UP_STEPS:
                self.marks.append((time.perf_counter(), self.num_timesteps))

        def _on_step(self) -> bool:
            return len(self.marks) < 2 or self.marks[-1][0] - self.marks[0][0] < seconds

    stopwatch = Stopwatch()
    _model(job).learn(ENDLESS_STEPS, callback=stopwatch)
    (begin, first), (end, last) = stopwatch.marks[0], stopwatch.marks[-1]
    return (last - first) / (end - begin)


def _model(job: Sb3Job) -> Any:
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    options = dict(job.options)
    policy: dict[str, Any] = dict(options.pop("policy_kwargs", {}))
    if activation := options.pop("activation", None):
        policy["activation_fn"] = getattr(torch.nn, activation)
    if job.atari:
        import ale_py  # registers the games

        assert ale_py
        vector: Any = VecFrameStack(make_atari_env(job.env, n_envs=job.envs), ATARI_STACK)
    else:
        vector = make_vec_env(job.env, n_envs=job.envs)
    if job.normalised:
        vector = VecNormalize(vector)
    make = getattr(stable_baselines3, job.algorithm)
    return make("CnnPolicy" if job.atari else "MlpPolicy", vector, device="cpu", policy_kwargs=policy, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help="fields of Sb3Job in JSON")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the measurement")
    arguments = parser.parse_args()
    print(steps_per_second(Sb3Job(**json.loads(arguments.job)), arguments.seconds))


if __name__ == "__main__":
    end_with(main)
