"""Tests whether every combination of environment, agent, network and replay works or is refused in one line.

    python -m benchmarks.fuzz_environments                    # 40 random combinations, several minutes on two cores
    python -m benchmarks.fuzz_environments --count=200 --seed=2

Each case trains for 200 steps, resumes for 200 more, and plays one episode in test mode, all in this process. A case is bad if
it raises anything but one line of refusal, or if it is refused only after it was trained. The exit code is 1 if any case was
bad. Environments whose package is missing are refused, which is no fault.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from agents import AGENTS
from benchmarks.fuzz import Row
from benchmarks.output import write_json
from benchmarks.rows import read_command_line, run_rows
from benchmarks.termination import end_with
from learner import launch
from learner.settings.schema import agent_settings, table_of
from main import prepare
from replay import REPLAYS
from setting import SettingField
from wrappers import family_of

STEPS = 200
EPISODE_STEPS = 40

ENVIRONMENTS = (
    *("Catch-v0", "PongNoFrameskip-v4", "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"),
    *("MountainCarContinuous-v0", "Blackjack-v1", "FrozenLake-v1", "Taxi-v4", "CliffWalking-v1"),
    *("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "CarRacing-v3", "Hopper-v5", "Ant-v5"),
    *("minigrid:MiniGrid-Empty-5x5-v0", "envpool:CartPole-v1", "envpool:Pendulum-v1", "envpool:Ant-v5", "envpool:Taxi-v3"),
    *(f"tests.wrappers.environments:Test{name}-v1" for name in ("Counting", "Mixed", "MaskInInfo", "Vector", "Limited")),
)
IGNORED = {"minigrid:MiniGrid-Empty-5x5-v0": "mission", "tests.wrappers.environments:TestMixed-v1": "text"}
"""Environment -> entries of its observation that are text."""

FIXED = {
    *("env", "agent", "network", "device", "compile", "preset", "protocol", "results_dir", "load", "resume_in", "render"),
    *("verbosity", "preflight", "profile", "environment_max_steps", "max_episode_steps", "max_episode_frames", "env_args"),
    *("ignored_observations", "frame_scale_resolution", "skipped_frames", "noop_threshold", "worker_count", "envs_per_worker"),
    *("batch_size", "unroll_length", "replay_parameters", "learner_threads", "worker_kind", "prepared_batches"),
    *("checkpoint_period", "eval_period", "test_episode_count", "test_environments", "worker_timeout", "max_skipped_updates"),
}
"""Settings that a case sets by a rule of its own, or leaves alone because they decide how long it takes."""


def fuzzed_case(generator: random.Random) -> list[str]:
    """Flags of a short run: an environment, an agent, a network and a replay, and up to four other settings."""
    env, agent = generator.choice(ENVIRONMENTS), generator.choice(sorted(AGENTS))
    table = table_of(agent)
    networks = table["network"].choices()
    network = generator.choice(networks) if family_of(env) == "atari" or generator.random() < 0.2 else "mlp"
    given: dict[str, object] = {"env": env, "agent": agent, "network": network}
    given |= {"environment_max_steps": STEPS, "batch_size": 2, "unroll_length": generator.choice((3, 10))}
    given |= {"worker_count": 1, "envs_per_worker": 2, "learner_threads": 1, "worker_kind": generator.choice(("serial", "cpu"))}
    if family_of(env) in ("gymnasium", "envpool"):
        given["max_episode_steps"] = EPISODE_STEPS
    else:
        given["max_episode_frames"] = 4 * EPISODE_STEPS
    if env in IGNORED and generator.random() < 0.9:
        given["ignored_observations"] = IGNORED[env]
    given["replay_parameters"] = fuzzed_replays(generator)
    others = [name for name in table if name not in FIXED]
    own = [name for name in agent_settings(agent) if name not in FIXED]
    for name in generator.sample(others, 2) + generator.sample(own, min(2, len(own))):
        if (value := other_value(table[name], generator)) is not None:
            given[name] = value
    return [f"--{name}={value}" for name, value in given.items()]


def fuzzed_replays(generator: random.Random) -> str:
    """A queue alone, another kind alone, or both."""
    kinds = sorted(set(REPLAYS) - {"queue"})
    other = {"type": generator.choice(kinds), "capacity": 4}
    shares = generator.choice(((1.0, 0.0), (1.0, 0.0), (0.5, 0.5), (0.0, 1.0)))
    replays = [{"type": "queue", "capacity": 1, "sample_ratio": shares[0]}, {**other, "sample_ratio": shares[1]}]
    return json.dumps([replay for replay in replays if replay["sample_ratio"]])


def other_value(field: SettingField, generator: random.Random) -> object | None:
    """A value that the setting accepts by itself; None for a text, of which nothing is known."""
    if choices := field.choices():
        return generator.choice(choices)
    if field.type is bool:
        return generator.choice(("true", "false"))
    if field.type is int:
        return generator.choice([value for value in (0, 1, 2, 3, 8) if field.setting.low <= value <= field.setting.high] or [1])
    if field.type is float:
        values = [value for value in (0.0, 0.1, 0.5, 1.0, 2.0) if field.setting.low <= value <= field.setting.high]
        return generator.choice(values) if values else None
    return None


def fuzz_environments(count: int, generator: random.Random, folder: Path) -> Row:
    """Try combinations. One that is accepted must train, resume and play."""
    row = Row("environments")
    for index in range(count):
        given = fuzzed_case(generator)
        results = folder / str(index)
        case = " ".join(given)
        if row.try_case(case, partial(run, ("train", *given), results)) or not (results / "latest").exists():
            continue
        for mode, extra in (
            ("train_w_load", (f"--environment_max_steps={2 * STEPS}",)),
            ("test", ("--test_episode_count=1", "--test_environments=1")),
        ):
            if row.try_case(f"{mode} of {case}", partial(run, (mode, "--load=latest", *extra), results)):
                row.complain(f"{mode} of {case}", "it was refused after it was trained")
    return row


def run(given: Sequence[str], results: Path) -> None:
    """Do what the flags say, in this process. Raises ValueError with one line, or RuntimeError for a failure."""
    mode, *flags = given
    job = prepare(["main.py", f"--op_mode={mode}", *flags, f"--results_dir={results}", "--verbosity=0", "--nopreflight"])
    if code := launch.run(job):
        raise RuntimeError(f"wanted exit code 0, got {code}")


ROWS = {"environments": (fuzz_environments, 40)}


def main() -> int:
    arguments = read_command_line(__doc__, ROWS, "cases")
    rows = list(run_rows(ROWS, arguments))
    for row in rows:
        print(f"{row.cases:,} steps of cases: {row.refused:,} refused in one line, {row.taken:,} done, {len(row.bad):,} bad")
        for complaint in row.bad:
            print(f"BAD {complaint}")
    write_json(arguments.json, [asdict(row) for row in rows])
    return int(any(row.bad for row in rows))


if __name__ == "__main__":
    end_with(main)
