"""Random command lines of short runs: environment, spaces, network, core, replay, agent and workers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch

from agents import AGENTS
from benchmarks.random_spaces import UNUSUAL
from learner.settings.schema import agent_settings, table_of
from replay import REPLAYS
from replay.kinds.distances import DISTANCES
from setting import SettingField
from wrappers import family_of

STEPS = 200
EPISODE_STEPS = 40
VECTOR = "tests.wrappers.environments:TestVector-v1"
RANDOM_SPACES = "benchmarks.random_spaces:RandomSpaces-v0"

QUICK = (
    *(
        "Catch-v0",
        "Reach-v0",
        "Locks-v0",
        "Masked-v0",
        "Recall-v0",
        "CartPole-v1",
        "Acrobot-v1",
        "MountainCar-v0",
        "Pendulum-v1",
    ),
    *("MountainCarContinuous-v0", "Blackjack-v1", "FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "LunarLander-v3"),
    *("LunarLanderContinuous-v3", "BipedalWalker-v3", "Hopper-v5", "Ant-v5", "HalfCheetah-v5", "InvertedPendulum-v5"),
    *("minigrid:MiniGrid-Empty-5x5-v0", "minigrid:MiniGrid-MemoryS9-v0"),
    *("envpool:CartPole-v1", "envpool:Pendulum-v1", "envpool:Ant-v5", "envpool:Taxi-v3"),
    *(
        f"tests.wrappers.environments:Test{name}-v1"
        for name in ("Counting", "Mixed", "MaskInInfo", "Vector", "Limited", "Both")
    ),
)
SLOW = ("PongNoFrameskip-v4", "ALE/Breakout-v5", "CarRacing-v3")
ENVIRONMENTS = (*QUICK, *SLOW, RANDOM_SPACES)

IGNORED = {
    "minigrid:MiniGrid-Empty-5x5-v0": "mission",
    "minigrid:MiniGrid-MemoryS9-v0": "mission",
    "tests.wrappers.environments:TestMixed-v1": "text",
}
"""Environment -> entries of its observation that are text."""

QUEUE = {"type": "queue", "capacity": 1, "sample_ratio": 1.0}
STANDARD = {"type": "standard", "capacity": 9, "sample_ratio": 1.0}

FIXED = {
    *("env", "agent", "network", "device", "compile", "preset", "protocol", "results_dir", "load", "resume_in", "render"),
    *("recording", "record_to", "estimate_from"),
    *("verbosity", "preflight", "profile", "environment_max_steps", "max_episode_steps", "max_episode_frames", "env_args"),
    *(
        "ignored_observations",
        "observation_layout",
        "frame_scale_resolution",
        "skipped_frames",
        "noop_threshold",
        "worker_count",
        "envs_per_worker",
    ),
    *("batch_size", "unroll_length", "replay_parameters", "learner_threads", "worker_kind", "prepared_batches"),
    *("checkpoint_period", "eval_period", "test_episode_count", "test_environments", "worker_timeout", "max_skipped_updates"),
    *("hidden_sizes", "core", "core_size", "core_inputs", "burn_in", "conv", "lr", "lr_end_value"),
    *("calibrate_input", "learning_starts", "updates_per_step", "eval_seconds"),
}
"""Settings that a case sets by a rule of its own, or leaves alone because they decide how long it takes or let it diverge."""
FROM_RECORDINGS = [name for name, agent in sorted(AGENTS.items()) if agent.needs(agent.config_class()).recorded]
"""Agents that learn from recordings alone."""
PLAYING = sorted(AGENTS.keys() - set(FROM_RECORDINGS))
"""Agents that learn from what they play themselves."""
OF_AGENT = ("agent", "worker_kind", "worker_count", "replay_parameters", "prepared_batches", "eval_period")
"""Flags of a case that its second agent, which learns from a recording, does not share."""


def fuzzed_case(generator: random.Random) -> list[str]:
    """Flags of a short run: an environment, an agent, a network, a core and a replay, and up to four other settings."""
    env, agent = _environment(generator), generator.choice(PLAYING)
    table = table_of(agent)
    given: dict[str, object] = {"env": env, "agent": agent}
    given |= {"environment_max_steps": STEPS, "batch_size": 2, "unroll_length": generator.choice((1, 3, 10))}
    given |= _of_environment(env, generator) | _of_network(env, table, generator) | _of_workers(generator)
    given["replay_parameters"] = fuzzed_replays(generator)
    likely = ("normalise_observations", "normalise_rewards", "separate_value", "action_distribution", "log_std")
    losses = ("use_policy_cloning_loss", "use_value_cloning_loss", "use_kl_mask", "relevance", "clip_rewards", "precision")
    names = [name for name in (*likely, *losses) if name in table and generator.random() < 0.25]
    family = family_of(env)
    others = [name for name, field in table.items() if name not in FIXED and family in (field.setting.families or (family,))]
    own = [name for name in agent_settings(agent) if name not in FIXED]
    for name in names + generator.sample(others, generator.choice((0, 1, 2))) + generator.sample(own, min(2, len(own))):
        if (value := other_value(table[name], generator)) is not None:
            given[name] = value
    if "c_bar" in given:
        given["rho_bar"] = given["c_bar"]  # which may not be larger
    needs = AGENTS[agent].needs(AGENTS[agent].config_class())
    if needs.updates_per_step is not None and generator.random() < 0.9:
        given |= {"replay_parameters": json.dumps([STANDARD]), "learning_starts": generator.choice((0, 7, 20))}
        given |= {"compress_replay": "false", "core": "none", "burn_in": 0, "compile": "false"}
    if needs.on_policy and generator.random() < 0.9:
        given |= {"replay_parameters": json.dumps([QUEUE]), "prepared_batches": 0, "burn_in": 0}
    if given.get("normalise_rewards") == "true" and generator.random() < 0.8:
        given["clip_rewards"] = "false"
    return [f"--{name}={value}" for name, value in given.items()]


def fuzzed_learner(given: list[str], recording: Path, generator: random.Random) -> list[str]:
    """Flags of an agent that learns from a recording of a case. given: the case's."""
    agent = generator.choice(FROM_RECORDINGS if generator.random() < 0.4 else sorted(AGENTS))
    table, needs = table_of(agent), AGENTS[agent].needs(AGENTS[agent].config_class())
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in given)
    shared = {name: flags[name] for name in flags if name in table and name not in OF_AGENT}
    learner: dict[str, object] = {"agent": agent, "recording": recording, **shared}
    windows = needs.updates_per_step is not None
    if windows:
        learner |= {"core": "none", "burn_in": 0, "learning_starts": 7}
    queue = json.dumps([QUEUE]) if generator.random() < 0.6 else fuzzed_replays(generator)
    learner["replay_parameters"] = json.dumps([STANDARD]) if windows else queue
    return [f"--{name}={value}" for name, value in learner.items()]


def _environment(generator: random.Random) -> str:
    roll = generator.random()
    return RANDOM_SPACES if roll < 0.4 else generator.choice(SLOW if roll < 0.45 else QUICK)


def _of_environment(env: str, generator: random.Random) -> dict[str, object]:
    given: dict[str, object] = {}
    if family_of(env) in ("gymnasium", "envpool") and env != VECTOR:  # which does not take a limit
        given["max_episode_steps"] = EPISODE_STEPS
    elif env != VECTOR:
        given["max_episode_frames"] = 4 * EPISODE_STEPS
    if env in IGNORED and generator.random() < 0.9:
        given["ignored_observations"] = IGNORED[env]
    if env == RANDOM_SPACES:
        unusual = generator.choice(sorted(UNUSUAL)) if generator.random() < 0.2 else "none"
        given["env_args"] = json.dumps({"number": generator.randrange(10**6), "unusual": unusual})
        if generator.random() < 0.1:
            given["observation_layout"] = generator.choice(("channels_first", "channels_last", "by_colours"))
    if env in SLOW or generator.random() < 0.2:
        given["calibrate_input"] = "false"  # it takes a thousand steps
    if generator.random() < 0.3:
        given["core_inputs"] = "true"
    return given


def _of_network(env: str, table: dict[str, SettingField], generator: random.Random) -> dict[str, object]:
    is_image = family_of(env) == "atari" or env == "CarRacing-v3"
    usual = "auto" if is_image or env == RANDOM_SPACES else "mlp"
    given: dict[str, object] = {"network": usual if generator.random() < 0.7 else generator.choice(table["network"].choices())}
    if given["network"] in ("mlp", "conv"):
        given["hidden_sizes"] = generator.choice(("8", "8,8", "1", "16,4,8"))
    if given["network"] == "conv":
        given["conv"] = generator.choice(("4x8x4,4x4x2", "2x3x1"))
    if generator.random() < 0.5:
        given |= {"core": generator.choice(("lstm", "gru")), "core_size": generator.choice((1, 8))}
    if generator.random() < (0.4 if "core" in given else 0.02):
        given["burn_in"] = generator.choice((1, 2, 12))
    return given


def _of_workers(generator: random.Random) -> dict[str, object]:
    """Most cases run in this process, which takes the least time."""
    kind = generator.choice(("serial", "serial", "serial", "cpu", "central"))
    given: dict[str, object] = {"worker_count": 1, "envs_per_worker": 2, "learner_threads": 1, "worker_kind": kind}
    given["prepared_batches"] = generator.choice((0, 0, 2))
    if generator.random() < 0.1:
        given["eval_period"] = 20
    return given


def fuzzed_replays(generator: random.Random) -> str:
    """A queue alone, another kind alone, or both."""
    kind = generator.choice(sorted(set(REPLAYS) - {"queue"}))
    other: dict[str, object] = {"type": kind}
    if kind == "circular":
        other |= {"slots": generator.choice((1, 2, 3)), "uses": generator.choice((1, 2, 3))}
    else:
        other["capacity"] = generator.choice((4, 4, 9))
    if kind in ("elite", "attentive"):
        other["dist_function"] = generator.choice(sorted(DISTANCES))
    if kind == "standard" and generator.random() < 0.3:
        other["retention"] = "reservoir"
    if kind in ("elite", "attentive") and generator.random() < 0.3:
        other["insert_strategy"] = "elite_insertion"
    if torch.cuda.is_available() and generator.random() < 0.5:
        other["device"] = "cuda"
    shares = generator.choice(((1.0, 0.0), (0.5, 0.5), (0.5, 0.5), (0.0, 1.0)))
    replays = [{**QUEUE, "sample_ratio": shares[0]}, {**other, "sample_ratio": shares[1]}]
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
