"""The lists of settings that are computed from what each setting says about itself."""

from __future__ import annotations

from learner.settings.modes import unused_notes
from learner.settings.schema import (
    COMMAND_SETTINGS,
    DEFAULTS,
    MACHINE_SETTINGS,
    MEASURED_SETTINGS,
    SHARED,
    STORED_SETTINGS,
    UNLEARNED_SETTINGS,
)
from serve.settings import ServerConfig
from setting import AUTO, settings_of


def test_machine_settings_are_auto_by_default_and_batch_size_is_none_of_them() -> None:
    automatic = {name for name, field in SHARED.items() if field.setting.auto}
    assert automatic - set(MACHINE_SETTINGS) == {"batch_size", "network"}
    assert set(MACHINE_SETTINGS) < automatic
    assert all(DEFAULTS[name] == AUTO for name in automatic)


def test_command_settings_belong_to_one_command() -> None:
    loading = {"load", "load_optimizer", "resume_in", "resume_if_exists"}
    store = {"checkpoint_store", "store_wait"}
    assert set(COMMAND_SETTINGS) == loading | store | {
        "results_dir",
        "verbosity",
        "render",
        "record_to",
        "estimate_from",
        "preflight",
        "progress_period",
        "profile",
        "log_graph",
        "stop_at_steps",
        "card",
    }


def test_stored_trajectories_depend_on_the_environment_the_network_and_the_replays() -> None:
    environment = {
        name for name in SHARED if name in ("env", "frames_stacked", "max_episode_frames", "core_inputs", "task_input")
    }
    environment |= {name for name, field in SHARED.items() if field.setting.families}
    network = {"network", "hidden_sizes", "activation", "layer_norm", "conv", "separate_value", "core", "core_size", "burn_in"}
    network |= {"width", "adaptive_pool", "spectral_norm"}
    others = network | {"action_distribution", "batch_size", "unroll_length", "replay_parameters", "compress_replay"}
    assert set(STORED_SETTINGS) == environment | others


def test_a_measurement_decides_three_settings() -> None:
    assert set(MEASURED_SETTINGS) == {"worker_count", "envs_per_worker", "learner_threads"}


def test_what_is_written_or_tested_does_not_change_what_is_learned() -> None:
    written = {
        "log_period",
        "checkpoint_period",
        "checkpoint_seconds",
        "checkpoints_kept",
        "save_replay",
        "greedy",
        "ray_address",
        "ray_runtime_env",
        "track",
    }
    written |= {"recording", "more_steps", *settings_of(ServerConfig)}
    assert set(UNLEARNED_SETTINGS) - set(COMMAND_SETTINGS) == written | {"test_episode_count", "test_environments"}


def test_machine_settings_of_training_are_not_said_to_be_unused() -> None:
    assert unused_notes("test", {"worker_count": 3, "lr": 0.1}) == []
    (note,) = unused_notes("train", {"test_environments": 3})
    assert note.startswith("test_environments is not used by --op_mode=train, ")
