"""Compares the program's speed with that of Stable-Baselines3 at the same settings, in turns.

    python -m benchmarks.against_sb3 -- --preset=ppo_cartpole
    python -m benchmarks.against_sb3 --turns=3 --window=30 -- --preset=ppo_atari --env=BreakoutNoFrameskip-v4
    python -m benchmarks.against_sb3 -- --agent=sac --env=HalfCheetah-v5 --learner_threads=1

In each turn the program (`main.py --op_mode=train` with the flags after `--`) runs for a window, and is suspended while the
other package trains for as long with the same network. PPO has as many environments, steps an update, minibatches and epochs in
both. SAC, TD3, DDPG and DQN have the same batches and updates for each step, so that the ratio of steps is that of updates.
Each package uses the cores as its own defaults say. Prints the median ratio of steps per second, all single ones, and the
packages' versions. Needs `pip install stable-baselines3`, and a system with SIGSTOP.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import sys
from typing import Any

from agents.networks.torsos import parse_hidden_sizes
from benchmarks.jobs import job_of, refuse
from benchmarks.measured_program import MeasuredProgram
from benchmarks.output import show_windows
from benchmarks.sb3 import Sb3Job, is_installed, measure_sb3
from learner.settings.config import Config
from tools.termination import end_with, training_command
from wrappers import family_of

WARM_UP_SECONDS = 10.0
SETTLE_SECONDS = 2.0
ACTIVATIONS = {"relu": "ReLU", "tanh": "Tanh", "elu": "ELU", "silu": "SiLU", "gelu": "GELU"}
ATARI_NETWORK = "nature"  # that of the package's CnnPolicy
ALGORITHMS = ("ppo", "sac", "td3", "ddpg", "dqn")
STORED_STEPS, LEARNING_STARTS = 100_000, 100  # of the other package's replay; neither decides how fast it learns


def sb3_job(config: Config) -> Sb3Job:
    """The other package's run with the same settings. Raises ValueError in one line if it has none."""
    if config.agent not in ALGORITHMS:
        raise ValueError(f"agent: wanted {', '.join(ALGORITHMS)}, which both packages have, got {config.agent}")
    atari = family_of(config.env.env) == "atari"
    on_policy = config.workers.on_policy
    return Sb3Job(
        algorithm=config.agent.upper(),
        env=config.env.env,
        envs=config.workers.environments if on_policy else 1,
        options={**(_on_policy(config) if on_policy else _off_policy(config)), **_network(config, atari=atari)},
        atari=atari,
        normalised=config.network_settings.normalise_observations,
    )


def _on_policy(config: Config) -> dict[str, Any]:
    rows = config.training.unroll_length * config.training.batch_size
    settings = config.agent_settings
    return {
        "n_steps": config.training.unroll_length,
        "n_epochs": settings.epochs,
        "batch_size": rows // settings.minibatches,
    }


def _off_policy(config: Config) -> dict[str, Any]:
    """The same updates for each step, in one environment, so that the ratio of steps is that of updates."""
    pace = config.agent_settings.updates_per_step
    return {
        "batch_size": config.training.batch_size,
        "buffer_size": STORED_STEPS,
        "learning_starts": LEARNING_STARTS,
        "train_freq": max(1, round(1 / pace)),
        "gradient_steps": max(1, round(pace)),
    }


def _network(config: Config, *, atari: bool) -> dict[str, Any]:
    """Arguments that give the other package's policy the same network."""
    network = config.network_settings
    if atari:
        if network.network != ATARI_NETWORK:
            raise ValueError(f"network: wanted {ATARI_NETWORK}, the one that both packages have, got {network.network}")
        return {}
    if network.network != "mlp" or network.core != "none":
        raise ValueError(f"network: wanted mlp without a core, which both packages have, got {network.network}, {network.core}")
    sizes = list(parse_hidden_sizes(network.hidden_sizes))
    net_arch = {"pi": sizes, "vf": sizes} if network.separate_value else sizes
    return {"policy_kwargs": {"net_arch": net_arch}, "activation": ACTIVATIONS[network.activation]}


def compare(arguments: list[str], turns: int, window: float) -> dict[str, Any]:
    """All measurements of one setting. Ends this process with one line if the flags do not allow a comparison."""
    job = job_of(arguments)
    try:
        other = sb3_job(job.config)
    except ValueError as error:
        refuse(error)
    if not is_installed():
        refuse(ValueError("stable-baselines3: wanted the package, got none; install it with pip install stable-baselines3"))
    ours, theirs = [], []
    with MeasuredProgram(training_command(*arguments)) as program:
        program.warm_up(WARM_UP_SECONDS)
        for turn in range(turns):
            ours.append(program.steps_per_second(window, SETTLE_SECONDS))
            program.suspend()
            theirs.append(measure_sb3(other, window))
            line = (
                f"Turn {turn + 1} of {turns}: {ours[-1]:,.0f} and {theirs[-1]:,.0f} steps/s, ratio {ours[-1] / theirs[-1]:.2f}"
            )
            print(line, file=sys.stderr, flush=True)
    versions = {name: importlib.metadata.version(name) for name in ("stable-baselines3", "torch", "gymnasium")}
    return {
        "steps_per_second": statistics.median(ours),
        "sb3_steps_per_second": statistics.median(theirs),
        "ratio": statistics.median(mine / its for mine, its in zip(ours, theirs, strict=True)),
        "ratios": [round(mine / its, 2) for mine, its in zip(ours, theirs, strict=True)],
        "sb3": vars(other),
        **versions,
    }


def main() -> None:
    show_windows(__doc__, compare, "turns", 3, 20.0)


if __name__ == "__main__":
    end_with(main)
