"""Every preset is a run that could start, and what the command line says comes before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from absl import flags

from learner.evaluation.protocol import apply_protocol
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.runs.loading import merge_settings
from learner.settings.check import check_given
from learner.settings.config import Config, make_config
from learner.settings.help import preset_hints
from learner.settings.presets import PRESETS, apply_preset, describe_presets, load_preset
from learner.settings.schema import default_settings
from option_flags import define_flags, read_settings
from setting import AUTO
from wrappers import EnvConfig, make_spec

SMALL = Machine(cores=2, memory_bytes=8 * 10**9, gpu=None)


def parsed(*arguments: str) -> flags.FlagValues:
    values = flags.FlagValues()
    define_flags(values)
    values(["main.py", *arguments])
    return values


def config_of(*arguments: str) -> Config:
    values = parsed(*arguments)
    given = apply_preset(read_settings(values)[0])
    settings, _ = merge_settings(given, {})
    # Packages of environments may be missing. Their specs decide nothing if the network is named.
    spec = None if settings["network"] == AUTO else make_spec(EnvConfig("Catch-v0", 1))
    return make_config(fit_to_machine(apply_protocol(settings, given), SMALL)[0], spec=spec)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_run_and_is_named_in_its_settings(name: str) -> None:
    config = config_of(f"--preset={name}")
    assert config.settings["preset"] == name
    assert set(load_preset(name)) <= set(default_settings(config.agent))


def test_the_presets_that_users_know_stay() -> None:
    assert {"atari", "atari_lstm", "atari_replay", "cartpole", "lunar_lander", "pendulum", "pong_fast", "quick"} <= set(PRESETS)


def test_flags_come_before_the_preset() -> None:
    config = config_of("--preset=atari", "--lr=0.001", "--protocol=machado")
    assert (config.agent_settings.lr, config.network) == (0.001, "impala_deep")
    assert (config.env.sticky_actions, config.env.episodic_life) == (0.25, False)


def test_a_preset_counts_as_given_so_that_it_overrides_a_checkpoint() -> None:
    given = apply_preset({"preset": "quick", "lr": 0.5})
    assert given == {**load_preset("quick"), "preset": "quick", "lr": 0.5}
    assert apply_preset({}) == {}


def test_a_preset_without_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="^preset: wanted none, .* atari, .*, got 'gone'$"):
        load_preset("gone")


def test_a_preset_may_be_a_file_of_the_user_s(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"settings": {"env": "Catch-v0", "learning_rate": 0.5, "env_args": {"a": 1}}}))
    assert load_preset(str(file)) == {"env": "Catch-v0", "lr": 0.5, "env_args": '{"a": 1}'}
    file.write_text(json.dumps({"settings": {"env": "Catch-v0", "learning_rate": 0.5}}))
    settings = config_of(f"--preset={file}").settings
    assert (settings["preset"], settings["lr"]) == (str(file), 0.5)
    file.write_text('{"settings": 3}')
    with pytest.raises(ValueError, match=r"mine\.json: wanted a preset"):
        load_preset(str(file))
    with pytest.raises(ValueError, match=r"gone\.json: wanted a preset in JSON, got No such file"):
        load_preset("gone.json")


def test_a_file_may_write_replays_as_the_flag_does(tmp_path: Path) -> None:
    replay = {"type": "custom", "CAPACITY": 100, "insert_strategy": "elite_insertion", "alfa_annealing_factor": 2.0}
    replays = [{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {**replay, "sample_ratio": 0.5}]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"settings": {"env": "Catch-v0", "replay_parameters": replays}}))
    flag = config_of("--env=Catch-v0", f"--replay_parameters={json.dumps(replays)}")
    assert config_of(f"--preset={file}").replays == flag.replays
    assert flag.replays[1].annealing_factor == 2.0


def test_a_refusal_names_the_preset_that_gives_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    for settings, line in (
        ({"lrr": 3}, rf"^unknown setting 'lrr' \(of the preset {file}\)$"),
        ({"batch_size": 0}, rf"^batch_size: .*, got 0 \(of the preset {file}\)$"),
        ({"preset": "quick"}, rf"^preset: wanted no preset among the settings of {file}, got 'quick'$"),
    ):
        file.write_text(json.dumps({"settings": settings}))
        with pytest.raises(ValueError, match=line):
            check_given(apply_preset({"preset": str(file)}))
    chosen = {"preset": "ppo_cartpole", "agent": "dqn"}
    for typed, line in (
        ({}, r"^epochs \(of the preset ppo_cartpole\): not a setting of agent dqn"),
        ({"epochs": 3}, "^epochs: not a setting of agent dqn"),
    ):
        given = {name: value for name, value in apply_preset({**chosen, **typed}).items() if name in (*chosen, "epochs")}
        with pytest.raises(ValueError, match=line):
            merge_settings(given, {})


def test_each_preset_is_described_in_a_sentence() -> None:
    described = describe_presets()
    assert list(described) == list(PRESETS)
    assert all(about.endswith(".") for about in described.values())


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("atari", {"lr": 6e-4, "batch_size": 32, "entropy_loss_weight": 0.01, "gradient_clip_by_norm_threshold": 40.0}),
        ("atari_replay", {"use_kl_mask": True, "batch_size": 128}),
        ("atari_small", {"normalise_advantages": True, "entropy_loss_weight": 0.05, "network": "nature", "batch_size": 8}),
        ("atari_small_replay", {"entropy_loss_weight": 0.01, "network": "nature", "batch_size": 8}),
        ("elite_buffer_vtrace", {"lr": 0.0008, "unroll_length": 10, "batch_size": 100, "policy_cloning_loss_weight": 0.05}),
        ("quick", {"env": "Catch-v0"}),
        ("ppo_atari", {"batch_size": 8, "unroll_length": 128, "epochs": 4, "minibatches": 4, "clip": 0.1, "lr": 2.5e-4}),
        ("ppo_hopper", {"batch_size": 1, "unroll_length": 2048, "epochs": 10, "minibatches": 32}),
        ("a3c", {"agent": "a2c", "unroll_length": 5, "lr": 7e-4, "gae_lambda": 1.0}),
        ("impact_atari", {"agent": "impact", "unroll_length": 50, "lr": 5e-4, "clip": 0.4, "target_worker_clip": 2.0}),
    ],
)
def test_published_values_stand_in_the_files(name: str, wanted: dict[str, Any]) -> None:
    assert wanted.items() <= load_preset(name).items()


def test_the_laser_mixture_replays_seven_to_one() -> None:
    shares = {replay["type"]: replay["sample_ratio"] for replay in json.loads(load_preset("atari_replay")["replay_parameters"])}
    assert shares["standard"] == 7 * shares["queue"]


@pytest.mark.parametrize(
    ("agent", "env", "lines"),
    [
        ("ppo", "CartPole-v1", ["--preset=ppo_cartpole has measured settings for CartPole-v1 with agent ppo"]),
        ("sac", "HalfCheetah-v5", ["--preset=sac_halfcheetah has measured settings for HalfCheetah-v5 with agent sac"]),
        ("sac", "CartPole-v1", []),
        ("ppo", "my_module:MyEnv-v0", []),
    ],
)
def test_a_preset_for_the_environment_is_named(agent: str, env: str, lines: list[str]) -> None:
    assert preset_hints(agent, env) == lines
