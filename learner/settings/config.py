"""All settings of a run: one flat table of names and defaults, and the frozen Config that is built from it.

The flat form is what the command line sets, what config.json shows and what a checkpoint carries; `make_config` turns it into
the dataclasses that sit beside what they configure. Bad values raise ValueError with one line: what was wanted, what came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agents import VTraceConfig
from agents.compute import PRECISIONS
from agents.networks.torsos import TORSOS
from agents.rewards import REWARD_CLIPPING
from agents.vtrace.laser import RELEVANCES
from learner.evaluation.protocol import AS_SET, PROTOCOLS, check_protocol
from learner.settings.presets import NO_PRESET, PRESETS
from replay import ReplayConfig, check_replays, parse_replay_parameters
from workers import WORKERS, WorkerConfig, groups_of
from wrappers.spec import EnvConfig

AUTO = "auto"

Settings = dict[str, Any]

DEFAULTS: Settings = {
    "preset": NO_PRESET,
    # what to run on
    "env": "PongNoFrameskip-v4",
    "environment_max_steps": 2_000_000,
    "seed": 1,
    "reproducible": False,
    "device": AUTO,
    "learner_threads": AUTO,
    "precision": AUTO,
    "compile": False,
    # who collects
    "worker_kind": AUTO,
    "worker_count": AUTO,
    "envs_per_worker": AUTO,
    "worker_timeout": 3.0,
    "max_worker_restarts": 10,
    "prepared_batches": AUTO,
    "preflight": True,
    # what one update sees
    "batch_size": AUTO,
    "unroll_length": 20,
    "replay_parameters": '[{"type": "queue", "capacity": 1, "sample_ratio": 1.0}]',
    "training_fill_in_factor": 0.2,
    "use_replay_compression": False,
    # algorithm
    "network": "nature",
    "calibrate_input": True,
    "gamma": 0.99,
    "lr": 6e-4,
    "lr_end_value": 0.0,
    "optimizer": "rmsprop",
    "rmsprop_eps": 0.01,
    "gradient_clip_by_norm_threshold": 40.0,
    "max_skipped_updates": 10,
    "rho_bar": 1.0,
    "c_bar": 1.0,
    "pg_rho_bar": 1.0,
    "vtrace_lambda": 1.0,
    "policy_gradient_loss_weight": 1.0,
    "value_loss_weight": 0.5,
    "entropy_loss_weight": 0.01,
    "use_policy_cloning_loss": False,
    "use_value_cloning_loss": False,
    "policy_cloning_loss_weight": 0.01,
    "value_cloning_loss_weight": 0.005,
    "use_kl_mask": False,
    "kl_div_threshold": 0.3,
    "relevance": "implied",
    "clip_rewards": True,
    "reward_clipping_method": "abs_one_sign",
    # Atari: what decides a score, and how frames are made
    "protocol": AS_SET,
    "frame_scale_resolution": "84,84",
    "frames_stacked": 4,
    "skipped_frames": 4,
    "noop_threshold": 30,
    "grayscaling_frames": True,
    "episodic_life": True,
    "fire_reset": True,
    "sticky_actions": 0.0,
    "full_action_space": False,
    "max_episode_frames": 108_000,
    # output
    "results_dir": "results",
    "eval_period": 0,
    "eval_episodes": 10,
    "save_model_period": 1000,
    "checkpoints_kept": 3,
    "save_replay": False,
    "log_period": 10.0,
    "profile": 0,
    "avg_buff_size": 100,
    "verbosity": 1,
    # test mode
    "test_episode_count": 100,
    "test_environments": AUTO,
    "greedy": False,
    "render": False,
    # loading
    "load_model_url": "latest",
    "load_optimizer_save": True,
    "resume_in": "same",
}
"""Every setting but op_mode, with its default."""


@dataclass(frozen=True)
class TrainingConfig:
    """The learner's loop. environment_max_steps: fresh agent steps. save_model_period, profile: updates. log_period: seconds.
    eval_period: updates between evaluations beside training; 0: none.

    prepared_batches: the most that are prepared ahead in the background; 0: none, all in the learner's own thread.
    max_skipped_updates: in a row, before the last good weights return; see `learner.skipping`.
    """

    environment_max_steps: int
    batch_size: int
    unroll_length: int
    training_fill_in_factor: float
    seed: int
    reproducible: bool
    device: str
    learner_threads: int
    precision: str
    compile: bool
    prepared_batches: int
    calibrate_input: bool
    max_skipped_updates: int
    eval_period: int
    eval_episodes: int
    save_model_period: int
    checkpoints_kept: int
    save_replay: bool
    log_period: float
    profile: int
    avg_buff_size: int

    @property
    def saves_replay(self) -> bool:
        """Whether the replays' contents go beside each checkpoint; a reproducible run goes on with them."""
        return self.save_replay or self.reproducible


@dataclass(frozen=True)
class TestConfig:
    """Test mode. test_environments: games played at once. greedy: take the most probable action instead of sampling one."""

    __test__ = False  # not a test case, whatever pytest thinks of its name

    test_episode_count: int
    test_environments: int
    greedy: bool
    render: bool


@dataclass(frozen=True)
class Config:
    """One run. settings: the flat table that its checkpoints carry."""

    env: EnvConfig
    network: str
    agent: VTraceConfig
    replays: tuple[ReplayConfig, ...]
    workers: WorkerConfig
    training: TrainingConfig
    test: TestConfig
    settings: Settings


def make_config(settings: Mapping[str, Any], portable: Settings | None = None) -> Config:
    """Build and check a Config. `auto` values must have been settled (see `learner.machine.fit`). Raises ValueError.

    portable: the settings as a checkpoint should carry them to another machine; by default as they are.
    """
    flat = {**DEFAULTS, **settings}
    if unknown := sorted(set(settings) - set(DEFAULTS)):
        raise ValueError(f"unknown setting {unknown[0]!r}")
    check_settings(flat)
    if unsettled := [name for name, default in DEFAULTS.items() if default == AUTO and flat[name] == AUTO]:
        raise ValueError(f"{unsettled[0]}: wanted a value fitted to the machine, got {AUTO!r}")
    height, width = parse_resolution(flat["frame_scale_resolution"])
    parsed = parse_replay_parameters(flat["replay_parameters"])
    replays = tuple(replace(replay, compress=flat["use_replay_compression"]) for replay in parsed)
    check_replays(replays, flat["batch_size"])
    return Config(
        env=EnvConfig(
            env=flat["env"],
            frame_height=height,
            frame_width=width,
            **_pick(flat, "frames_stacked", "skipped_frames", "noop_threshold", "grayscaling_frames", "episodic_life"),
            **_pick(flat, "fire_reset", "sticky_actions", "full_action_space", "max_episode_frames"),
        ),
        network=flat["network"],
        agent=_agent_config(flat),
        replays=replays,
        workers=WorkerConfig(
            kind=flat["worker_kind"],
            worker_count=flat["worker_count"],
            envs_per_worker=flat["envs_per_worker"],
            timeout=flat["worker_timeout"],
            max_restarts=flat["max_worker_restarts"],
        ),
        training=TrainingConfig(**_pick(flat, *TrainingConfig.__dataclass_fields__)),
        test=TestConfig(**_pick(flat, *TestConfig.__dataclass_fields__)),
        settings=portable or flat,
    )


def _agent_config(flat: Mapping[str, Any]) -> VTraceConfig:
    same = ("gamma", "rho_bar", "c_bar", "pg_rho_bar", "policy_gradient_loss_weight", "value_loss_weight")
    also = ("lr", "lr_end_value", "entropy_loss_weight", "optimizer", "rmsprop_eps", "gradient_clip_by_norm_threshold")
    replay = ("use_policy_cloning_loss", "use_value_cloning_loss", "policy_cloning_loss_weight")
    replay_too = ("value_cloning_loss_weight", "use_kl_mask", "kl_div_threshold", "relevance")
    return VTraceConfig(
        **_pick(flat, *same, *also, *replay, *replay_too),
        lambda_=flat["vtrace_lambda"],
        reward_clipping=flat["reward_clipping_method"] if flat["clip_rewards"] else None,
    )


def _pick(flat: Mapping[str, Any], *names: str) -> Settings:
    return {name: flat[name] for name in names}


def parse_resolution(text: str) -> tuple[int, int]:
    """`height,width` in pixels. Raises ValueError."""
    parts = str(text).split(",")
    if len(parts) != 2 or not all(part.isascii() and part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"frame_scale_resolution: wanted height,width in pixels such as 84,84, got {text!r}")
    return int(parts[0]), int(parts[1])


Bound = tuple[str, float, float]
NUMBER = re.compile(r"\d+(?:\.\d+)?")

BOUNDS: dict[str, Bound] = {
    "environment_max_steps": ("a whole number of steps >= 1", 1, 1e15),
    "seed": ("a whole number from 0 to 2147483647", 0, 2**31 - 1),
    "learner_threads": ("auto or a whole number of threads >= 1", 1, 1024),
    "worker_count": ("auto or a whole number of processes >= 1", 1, 1024),
    "envs_per_worker": ("auto or a whole number of environments >= 1", 1, 4096),
    "worker_timeout": ("a number of seconds >= 0.5", 0.5, 1e6),
    "max_worker_restarts": ("a whole number of restarts >= 0", 0, 1e6),
    "prepared_batches": ("auto or a whole number of batches from 0 to 64", 0, 64),
    "batch_size": ("auto or a whole number of trajectories >= 1", 1, 65536),
    "unroll_length": ("a whole number of steps >= 1", 1, 10000),
    "training_fill_in_factor": ("a part of the replay's capacity in [0, 1]", 0, 1),
    "gamma": ("a discount in [0, 1]", 0, 1),
    "lr": ("a learning rate in [0, 10]", 0, 10),
    "lr_end_value": ("a learning rate in [0, 10]", 0, 10),
    "rmsprop_eps": ("a number in (0, 10]", 1e-12, 10),
    "gradient_clip_by_norm_threshold": ("a gradient norm > 0", 1e-9, 1e9),
    "max_skipped_updates": ("a whole number of updates >= 1", 1, 1e6),
    "rho_bar": ("an importance ratio > 0", 1e-9, 1e9),
    "c_bar": ("an importance ratio > 0", 1e-9, 1e9),
    "pg_rho_bar": ("an importance ratio > 0", 1e-9, 1e9),
    "vtrace_lambda": ("a number in [0, 1]", 0, 1),
    "policy_gradient_loss_weight": ("a weight >= 0", 0, 1e9),
    "value_loss_weight": ("a weight >= 0", 0, 1e9),
    "entropy_loss_weight": ("a weight >= 0", 0, 1e9),
    "policy_cloning_loss_weight": ("a weight >= 0", 0, 1e9),
    "value_cloning_loss_weight": ("a weight >= 0", 0, 1e9),
    "kl_div_threshold": ("a divergence in nats > 0", 1e-9, 1e9),
    "frames_stacked": ("a whole number of frames from 1 to 64", 1, 64),
    "skipped_frames": ("a whole number of frames from 1 to 64", 1, 64),
    "noop_threshold": ("a whole number of frames from 0 to 1000", 0, 1000),
    "sticky_actions": ("a probability in [0, 1]", 0, 1),
    "max_episode_frames": ("a whole number of frames >= 1", 1, 1e9),
    "eval_period": ("a whole number of updates >= 0", 0, 1e12),
    "eval_episodes": ("a whole number of episodes >= 1", 1, 1e6),
    "save_model_period": ("a whole number of updates >= 1", 1, 1e12),
    "checkpoints_kept": ("a whole number of checkpoints >= 1", 1, 1e6),
    "log_period": ("a number of seconds > 0", 1e-3, 1e6),
    "profile": ("a whole number of updates from 0 to 1000", 0, 1000),
    "avg_buff_size": ("a whole number of episodes >= 1", 1, 1e6),
    "verbosity": ("0 (silent), 1 (normal) or 2 (every detail)", 0, 2),
    "test_episode_count": ("a whole number of episodes >= 1", 1, 1e9),
    "test_environments": ("auto or a whole number of environments >= 1", 1, 4096),
}
"""Name -> what is wanted, in words with its unit, and the closed range."""

CHOICES: dict[str, tuple[str, ...]] = {
    "worker_kind": (AUTO, *sorted(WORKERS)),
    "network": tuple(sorted(TORSOS)),
    "preset": (NO_PRESET, *PRESETS),
    "protocol": (AS_SET, *PROTOCOLS),
    "optimizer": ("adam", "rmsprop"),
    "relevance": RELEVANCES,
    "reward_clipping_method": tuple(sorted(REWARD_CLIPPING)),
    "device": (AUTO, "cpu", "cuda"),
    "resume_in": ("same", "new"),
    "precision": (AUTO, *sorted(PRECISIONS)),
}


def check_setting(name: str, value: Any) -> None:
    """Check one setting's type and range. Raises ValueError."""
    default = DEFAULTS[name]
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise ValueError(f"{name}: wanted {' or '.join(CHOICES[name])}, got {value!r}")
    elif isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{name}: wanted true or false, got {value!r}")
    elif name in BOUNDS:
        _check_number(name, value, default)
    elif not isinstance(value, str) or not value:
        raise ValueError(f"{name}: wanted text, got {value!r}")
    elif name == "frame_scale_resolution":
        parse_resolution(value)
    elif name == "replay_parameters":
        parse_replay_parameters(value)


def _check_number(name: str, value: Any, default: Any) -> None:
    wanted, low, high = BOUNDS[name]
    if default == AUTO and value == AUTO:
        return
    whole = not isinstance(default, float)
    right_type = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right_type or not low <= value <= high:
        named = high in map(float, NUMBER.findall(wanted))
        most = f", at most {high:g}" if right_type and value > high and not named else ""
        raise ValueError(f"{name}: wanted {wanted}{most}, got {value!r}")


def check_settings(flat: Mapping[str, Any]) -> None:
    """Check every setting and the combinations that cannot be. Raises ValueError."""
    for name, value in flat.items():
        check_setting(name, value)
    check_protocol(flat)
    if flat["reproducible"] and flat["worker_kind"] not in (AUTO, "serial"):
        raise ValueError(f"reproducible: wanted worker_kind serial or auto with it, got {flat['worker_kind']!r}")
    groups, envs = groups_of(flat["worker_kind"]), flat["envs_per_worker"]
    if envs != AUTO and envs % groups:
        wanted = f"a multiple of {groups} with worker_kind {flat['worker_kind']}, whose environments take turns"
        raise ValueError(f"envs_per_worker: wanted {wanted}, got {envs}")
    if flat["reproducible"] and flat["prepared_batches"] not in (AUTO, 0):
        raise ValueError(f"reproducible: wanted prepared_batches 0 or auto with it, got {flat['prepared_batches']!r}")
