"""Measures the speed of Stable-Baselines3's A2C on an environment of Gymnasium, with its own vector of environments.

    python -m benchmarks.sb3 --env=CartPole-v1 --envs=16 --seconds=10

Prints steps per second. `benchmarks.throughput` runs it in a process of its own, where the package is installed. SB3 (Raffin et
al. 2021) is a development tool here: no package of the program imports it. The policy is its MlpPolicy, and all settings are
its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time

from benchmarks.termination import REPOSITORY, end_with

WARM_UP_STEPS = 500


def is_installed() -> bool:
    """Whether Stable-Baselines3 can be imported."""
    return importlib.util.find_spec("stable_baselines3") is not None


def measure_sb3(env: str, envs: int, seconds: float) -> float:
    """Steps per second of A2C in a process of its own. Raises RuntimeError with its last line if it fails."""
    command = [sys.executable, "-m", "benchmarks.sb3", f"--env={env}", f"--envs={envs}", f"--seconds={seconds}"]
    # As in main.py, threads that wait must not spin.
    variables = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        raise RuntimeError(f"Stable-Baselines3 failed on {env}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return float(done.stdout.split()[-1])


def steps_per_second(env: str, envs: int, seconds: float) -> float:
    """Train for about `seconds`, after a warm-up."""
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_util import make_vec_env

    model = A2C("MlpPolicy", make_vec_env(env, n_envs=envs), device="cpu")
    model.learn(WARM_UP_STEPS)
    steps, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        model.learn(WARM_UP_STEPS)
        steps += model.num_timesteps
    return steps / passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="id of an environment of Gymnasium")
    parser.add_argument("--envs", type=int, default=16, help="number of environments")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the measurement")
    arguments = parser.parse_args()
    print(steps_per_second(arguments.env, arguments.envs, arguments.seconds))


if __name__ == "__main__":
    end_with(main)
