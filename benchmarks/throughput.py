"""How fast the whole system is against what its parts cost alone, measured in one run.

    python -m benchmarks.throughput --seconds=60 -- --network=nature --batch_size=32

Measures, with the settings given after `--` (those of main.py): stepping, acting and learning alone on one core, the native
vector environment alone on all cores, then the program itself (`main.py --op_mode=train`) in steady state. Prints the limit
n / (c_env + c_act + c_learn), the achieved speed, and both ratios; `--json=FILE` writes them too.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from absl import flags

from agents import AGENTS
from agents.compute import prepare_torch
from agents.networks import make_network
from learner.config import Config, make_config, make_contract
from learner.machine import detect_machine, fit_to_machine
from learner.metrics import read_metrics
from option_flags import all_settings, define_flags
from replay import replay_names
from replay.slot_store import SharedArrays
from replay.trajectory import make_batch
from workers.policy import CpuPolicy
from workers.weights import SharedWeights, weights_layout
from wrappers import make_spec, make_vector_env

REPOSITORY = Path(__file__).resolve().parent.parent
WARM_UP_SECONDS = 20.0
WINDOW_SECONDS = 5.0
PART_SECONDS = 4.0


def seconds_a_call(function: Callable[[], object], budget: float = PART_SECONDS) -> float:
    """Median time of one call over a time budget; the first two calls are warm-up."""
    function()
    function()
    times: list[float] = []
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 3:
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def environment_seconds(config: Config, num_envs: int, threads: int) -> float:
    """Seconds of one agent step of one environment, stepped natively with random actions."""
    env = make_vector_env(config.env, num_envs, threads)
    env.reset(1)
    generator = np.random.default_rng(0)
    call = seconds_a_call(lambda: env.step(generator.integers(env.spec.action_count, size=num_envs)))
    env.close()
    return call / num_envs


def acting_seconds(config: Config) -> float:
    """Seconds of inference for one agent step, at a worker's batch, on one core."""
    spec = make_spec(config.env)
    network = make_network(config.network, spec.observation_shape, spec.action_count, precision=config.training.precision)
    weights = SharedWeights(SharedArrays(weights_layout(network)))
    policy = CpuPolicy(network.only_act(), weights, seed=1)
    num_envs = config.workers.envs_per_worker
    observations = np.random.default_rng(0).integers(0, 256, (num_envs, *spec.observation_shape), dtype=np.uint8)
    return seconds_a_call(lambda: policy.act(observations)) / num_envs


def learning_seconds(config: Config) -> float:
    """Seconds of batch making and one update for one FRESH agent step, on one core."""
    spec = make_spec(config.env)
    contract = make_contract(config, spec)
    training = config.training
    network = make_network(config.network, spec.observation_shape, spec.action_count, precision=training.precision)
    agent = AGENTS["vtrace"](config.agent, network, replay_names(config.replays))
    columns = {name: np.zeros_like(array) for name, array in contract.allocate(training.batch_size).items()}
    columns["frames"][:] = np.random.default_rng(0).integers(0, 256, columns["frames"].shape)
    columns["action_used"][:] = True
    nothing = np.zeros(training.batch_size, np.int64)

    def update() -> None:
        batch = make_batch(columns, nothing.astype(bool), nothing, spec.frames_stacked, torch.device("cpu"))
        agent.update(batch, 1e-6)

    fresh = sum(replay.sample_ratio for replay in config.replays if replay.type == "queue")
    if not fresh:
        raise SystemExit("error: replay_parameters: wanted a queue among the replays, got none: no step would be fresh")
    return seconds_a_call(update) / (training.batch_size * training.unroll_length * fresh)


def program_steps_per_second(arguments: list[str], seconds: float) -> float:
    """Median agent steps/s of the program over windows, warm-up left out."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "main.py", "--op_mode=train", *arguments]
        process = subprocess.Popen(
            [
                *command,
                f"--results_dir={folder}",
                f"--log_period={WINDOW_SECONDS}",
                "--environment_max_steps=1000000000",
            ],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
        )
        try:
            process.wait(WARM_UP_SECONDS + seconds)
            raise RuntimeError(f"the program ended by itself with code {process.returncode}: {' '.join(command)}")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        metrics = read_metrics(next(Path(folder).glob("*_*/metrics.csv")))
    # The last row is written while the run stops.
    steady = metrics["charts/SPS"][(metrics["seconds"] > WARM_UP_SECONDS)][:-1]
    return float(np.median(steady))


def measure(arguments: list[str], seconds: float) -> dict[str, Any]:
    """All measurements of one setting, one after another."""
    values = flags.FlagValues()
    define_flags(values)
    values([sys.argv[0], *arguments])
    machine = detect_machine()
    settled, _ = fit_to_machine({**all_settings(values), "device": "cpu"}, machine)
    config = make_config(settled)
    spec = make_spec(config.env)
    prepare_torch(threads=1)
    parts = {
        "c_env": environment_seconds(config, config.workers.envs_per_worker, 1),
        "c_act": acting_seconds(config),
        "c_learn": learning_seconds(config),
    }
    native = 1 / environment_seconds(config, 32 * machine.cores, machine.cores)
    achieved = program_steps_per_second(arguments, seconds)
    limit = machine.cores / sum(parts.values())
    return {
        "cores": machine.cores,
        **{f"{name}_microseconds": 1e6 * value for name, value in parts.items()},
        "native_frames_per_second": native * spec.frames_per_step,
        "limit_frames_per_second": limit * spec.frames_per_step,
        "achieved_frames_per_second": achieved * spec.frames_per_step,
        "achieved_steps_per_second": achieved,
        "ratio_to_limit": achieved / limit,
        "ratio_to_native": achieved / native,
        "settings": arguments,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="steady-state seconds of the whole system")
    parser.add_argument("--json", type=Path, help="write the result here too")
    parser.add_argument("settings", nargs="*", help="flags of main.py, after --")
    arguments = parser.parse_args()
    result = measure(arguments.settings, arguments.seconds)
    for name, value in result.items():
        print(f"{name:28s} {value:,.3f}" if isinstance(value, float) else f"{name:28s} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
