"""Commands of elite_buffer_vtrace and names of other libraries mean the same here, or a line says that they mean nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from absl import flags

from learner.settings.other_names import CONVOLUTIONS, FOREIGN, WITHOUT_EFFECT, rename_replays, rename_settings
from learner.settings.schema import Settings, every_setting
from option_flags import define_flags, op_mode, parse, read_settings
from replay import ReplayConfig, parse_replay_parameters
from setting import AUTO
from tests.support import run_main

HALF_REPLAYED = (
    '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "standard", "capacity": 1000, "sample_ratio": 0.5}]'
)

THEIRS: dict[str, tuple[str, Settings]] = {
    "op_mode": ("train", {}),
    "load_model_url": ("results/pong_23min/model_save_.pt", {"load": "results/pong_23min/model_save_.pt"}),
    "load_optimizer_save": ("True", {"load_optimizer": True}),
    "save_model_period": ("1000", {"checkpoint_period": 1000}),
    "debug": ("False", {}),
    "lr": ("0.0008", {"lr": 0.0008}),
    "batch_size": ("100", {"batch_size": 100}),
    "r_f_steps": ("10", {"unroll_length": 10}),
    "gradient_clip_by_norm_threshold": ("40", {"gradient_clip_by_norm_threshold": 40.0}),
    "gamma": ("0.99", {"gamma": 0.99}),
    "seed": ("14372685", {"seed": 14372685}),
    "reproducible": ("False", {"reproducible": False}),
    "env": ("AtlantisNoFrameskip-v4", {"env": "AtlantisNoFrameskip-v4"}),
    "clip_rewards": ("True", {"clip_rewards": True}),
    "reward_clipping_method": ("abs_one_sign", {"reward_clipping_method": "abs_one_sign"}),
    "skipped_frames": ("4", {"skipped_frames": 4}),
    "frames_stacked": ("4", {"frames_stacked": 4}),
    "noop_threshold": ("30", {"noop_threshold": 30}),
    "grayscaling_frames": ("True", {"grayscaling_frames": True}),
    "episodic_life": ("True", {"episodic_life": True}),
    "frame_scale_resolution": ("84,84", {"frame_scale_resolution": "84,84"}),
    "actions_count": ("4", {}),
    "observation_shape": ("(4, 84, 84)", {}),
    "learner_thread_count": ("1", {"learner_threads": 1}),
    "worker_count": ("7", {"worker_count": 7}),
    "envs_per_worker": ("5", {"envs_per_worker": 5}),
    "multiprocessing_backend": ("ray", {"worker_kind": "ray"}),
    "shared_queue_size": ("4", {}),
    "environment_max_steps": ("15000000", {"environment_max_steps": 15000000}),
    "replay_writer_queue_size": ("1", {}),
    "discarding_strategy": ("keep_latest", {}),
    "use_replay_compression": ("True", {"compress_replay": True}),
    "lz4_compression_level": ("0", {}),
    "caching": ("True", {}),
    "caching_threads": ("1", {}),
    "cache_sample_size": ("1", {}),
    "cache_output_buffer_size": ("3", {"prepared_batches": 3}),
    "avg_buff_size": ("100", {"return_window": 100}),
    "verbose_worker_out_int": ("50", {}),
    "verbose_learner_out_int": ("250", {}),
    "basic_verbose": ("True", {"verbosity": 1}),
    "worker_verbose": ("False", {}),
    "background_save": ("False", {}),
    "test_episode_count": ("1000", {"test_episode_count": 1000}),
    "render": ("True", {"render": True}),
    "feature_out_layer_size": ("512", {}),
    "use_additional_scaling_FC_layer": ("True", {}),
    "lr_scheduler_steps": ("10000", {}),
    "optimizer": ("rmsprop", {"optimizer": "rmsprop"}),
    "rmsprop_eps": ("0.01", {"rmsprop_eps": 0.01}),
    "lr_end_value": ("0.00001", {"lr_end_value": 0.00001}),
    "replay_parameters": (HALF_REPLAYED, {"replay_parameters": HALF_REPLAYED}),
    "training_fill_in_factor": ("0.2", {"replay_fill_fraction": 0.2}),
    "policy_gradient_loss_weight": ("1", {"policy_gradient_loss_weight": 1.0}),
    "value_loss_weight": ("0.5", {"value_loss_weight": 0.5}),
    "entropy_loss_weight": ("0.01", {"entropy_loss_weight": 0.01}),
    "c-const": ("1.0", {"pg_rho_bar": 1.0}),
    "rho-const": ("1.0", {"rho_bar": 1.0}),
    "use_policy_cloning_loss": ("True", {"use_policy_cloning_loss": True}),
    "use_value_cloning_loss": ("True", {"use_value_cloning_loss": True}),
    "policy_cloning_loss_weight": ("0.05", {"policy_cloning_loss_weight": 0.05}),
    "value_cloning_loss_weight": ("0.005", {"value_cloning_loss_weight": 0.005}),
    "use_kl_mask": ("False", {"use_kl_mask": False}),
    "kl_div_threshold": ("0.3", {"kl_div_threshold": 0.3}),
}
"""Flag of elite_buffer_vtrace -> its default there (of `seed` one that it draws) and the settings that it gives here."""


@pytest.fixture(autouse=True)
def _with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.settings.other_names.find_spec", lambda name: name == "ray")


def read(*arguments: str) -> tuple[Settings, list[str]]:
    values = flags.FlagValues()
    define_flags(values)
    parse(values, ["main.py", *arguments])
    return read_settings(values)


def mode(*arguments: str) -> str:
    values = flags.FlagValues()
    define_flags(values)
    parse(values, ["main.py", *arguments])
    return op_mode(values)


def refused(*arguments: str) -> str:
    with pytest.raises((flags.Error, ValueError)) as caught:
        read(*arguments)
    assert str(caught.value).splitlines() == [str(caught.value)]
    return str(caught.value)


def replays(*entries: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    text, notes = rename_replays(json.dumps(entries))
    return json.loads(text), notes


def test_the_earlier_platform_has_64_flags() -> None:
    assert len(THEIRS) == 64
    assert {name.replace("-", "_") for name in THEIRS} >= FOREIGN.keys()
    assert all(str(field.default) == THEIRS[name][0] for name, field in FOREIGN.items())


@pytest.mark.parametrize("name", THEIRS)
def test_each_of_its_flags_is_taken_with_its_default(name: str) -> None:
    text, settings = THEIRS[name]
    plain = name.replace("-", "_")
    for arguments in (
        (f"--{name}={text}",),
        (f"--{name}", text),
        (f"--{plain}", text),
        (f"--{plain.replace('_', '-')}={text}",),
    ):
        given, notes = read(*arguments)
        assert given == settings
        assert [note.split()[0] for note in notes] == [name] * (name in FOREIGN and not settings and name != "caching")
        assert set(given) <= every_setting().keys()


def test_all_of_its_flags_are_taken_together() -> None:
    given, notes = read(*(f"--{name}={text}" for name, (text, _) in THEIRS.items()))
    assert given == {name: value for _, settings in THEIRS.values() for name, value in settings.items()}
    assert len(notes) == len(WITHOUT_EFFECT) + 2


@pytest.mark.parametrize(
    ("arguments", "settings", "about"),
    [
        (("--caching=False",), {"prepared_batches": 0}, []),
        (("--caching", "False", "--cache_output_buffer_size=7"), {"prepared_batches": 0}, []),
        (("--basic_verbose=False",), {"verbosity": 0}, []),
        (("--nobasic_verbose", "--verbosity=2"), {"verbosity": 2}, []),
        (("--multiprocessing_backend=python_native",), {"worker_kind": AUTO}, []),
        (("--multiprocessing_backend=ray", "--worker_kind=cpu"), {"worker_kind": "cpu"}, []),
        (
            ("--multiprocessing_backend=ray", "--cache_output_buffer_size=7", "--reproducible=True"),
            {"reproducible": True},
            ["multiprocessing_backend", "cache_output_buffer_size"],
        ),
        (("--feature_out_layer_size=128",), {}, ["feature_out_layer_size"]),
        (
            ("--feature_out_layer_size=128", "--use_additional_scaling_FC_layer=False"),
            {"network": "conv", "conv": CONVOLUTIONS, "hidden_sizes": "128"},
            [],
        ),
        (("--max_grad_norm=0.5", "--env_id=Catch-v0"), {"gradient_clip_by_norm_threshold": 0.5, "env": "Catch-v0"}, []),
        (("--learning-rate", "1e-3", "--total-timesteps=7"), {"lr": 1e-3, "environment_max_steps": 7}, []),
    ],
)
def test_other_values_mean_what_they_meant(arguments: tuple[str, ...], settings: Settings, about: list[str]) -> None:
    given, notes = read(*arguments)
    assert given == settings
    assert [note.split()[0] for note in notes] == about


def test_without_ray_its_backend_is_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.settings.other_names.find_spec", lambda _: None)
    given, (note,) = read("--multiprocessing_backend=ray")
    assert given == {}
    assert "requirements-ray.txt" in note


@pytest.mark.parametrize(
    "argument",
    [
        *(f"--{name}=x" for name, field in FOREIGN.items() if field.type is not str or field.choices()),
        *("--learner_thread_count=0.5", "--cache_output_buffer_size=65"),
        *("--render=yes", "--use_replay_compression=", "--no_such-flag=1", "--learner_thread_count"),
        "--replay_parameters=[{'type': 'queue'}",
        "--replay_parameters={'type': 'queue', 'capacity': 1, 'sample_ratio': 1.0}",
        "--replay_parameters=[{'type': open, 'capacity': 1, 'sample_ratio': 1.0}]",
        "--replay_parameters=" + "-" * 10_000 + "1",
    ],
)
def test_wrong_values_are_refused_in_one_line(argument: str) -> None:
    assert refused(argument)


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("--c-const=x", "pg_rho_bar"),
        ("--rho-const=0", "rho_bar"),
        ("--max-grad-norm=-1", "gradient"),
        ("--clip_rewards=", "clip_"),
    ],
)
def test_wrong_values_of_an_agent_s_settings_are_refused_in_one_line(argument: str, name: str) -> None:
    done = run_main(argument)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(f"error: {name}")


def test_a_value_of_its_own_may_follow_a_switch() -> None:
    assert read("--render", "True", "--clip_rewards", "0", "--episodic_life", "--seed", "3", "--nodebug")[0] == {
        "render": True,
        "clip_rewards": False,
        "episodic_life": True,
        "seed": 3,
    }
    assert refused("--render", "train").startswith("render: wanted true or false, got 'train'")


def test_only_names_lose_their_dashes() -> None:
    assert read("--load", "--my-run", "--results-dir=a-b", "--env-args", '{"a-b": 1}')[0] == {
        "load": "--my-run",
        "results_dir": "a-b",
        "env_args": '{"a-b": 1}',
    }


def test_resume_names_a_run_and_the_mode() -> None:
    assert read("--resume=latest")[0] == {"load": "latest"}
    assert mode("--resume=latest") == mode("--resume=latest", "--op_mode=train_w_load") == "train_w_load"
    with pytest.raises(ValueError, match="^op_mode: wanted train_w_load with --resume, got test$"):
        mode("--resume=latest", "--op_mode=test")


def test_a_line_of_the_earlier_platform_parses() -> None:
    text = (
        '[{"type": "custom", "capacity": 1000, "sample_ratio": 0.5, "dist_function":"ln_norm", '
        '"sample_strategy":"elite_sampling", "lambda_batch_multiplier":6, "alfa_annealing_factor":2.0} ,'
        '{"type": "queue", "capacity": 1, "sample_ratio": 0.5}]'
    )
    renamed, notes = rename_replays(text)
    elite, queue = parse_replay_parameters(renamed)
    assert elite == ReplayConfig("elite", 1000, 0.5, lambda_batch_multiplier=6.0, annealing_factor=2.0)
    assert queue == ReplayConfig("queue", 1, 0.5)
    assert notes == []
    assert rename_settings({"replay_parameters": text}) == {"replay_parameters": renamed}


@pytest.mark.parametrize("text", [HALF_REPLAYED, "", "[", "[1]", "{}", "null", "[{}]", '[{"p": NaN, "p": 1}]', "7" * 9999])
def test_a_text_without_other_names_stays_as_it_is(text: str) -> None:
    assert rename_replays(text) == (text, [])


def test_python_s_literals_and_capitals_are_read() -> None:
    queue = "{'Type': 'QUEUE', 'CAPACITY': '1', 'sample_ratio': '0.5',}"
    renamed, notes = rename_replays(f"({queue}, {{'type': 'standard', 'memory': '2GB', 'sample_ratio': .5}})")
    assert [replay.type for replay in parse_replay_parameters(renamed)] == ["queue", "standard"]
    assert (json.loads(renamed)[0]["capacity"], json.loads(renamed)[1]["memory"], notes) == (1, "2GB", [])


CUSTOM = {"type": "custom", "capacity": 9, "sample_ratio": 1.0, "dist_function": "LN_NORM", "p": 2}


def test_a_custom_replay_without_a_strategy_is_a_standard_one() -> None:
    (replay,), notes = replays({**CUSTOM, "alfa_annealing_factor": 2.0})
    assert replay == {"type": "standard", "capacity": 9, "sample_ratio": 1.0}
    assert [note.split()[1] for note in notes] == ["dist_function", "p", "annealing_factor"]


def test_keys_that_a_custom_replay_does_not_read_are_left_out() -> None:
    (replay,), notes = replays(
        {**CUSTOM, "dist_function": "cos_dist", "sample_strategy": "Attentive_Sampling", "elite_batch_size": 20.0}
    )
    assert set(replay) == {"type", "capacity", "sample_ratio", "dist_function", "sample_strategy"}
    assert [note.split()[1] for note in notes] == ["p", "elite_batch_size"]
    assert parse_replay_parameters(json.dumps([replay]))[0].type == "attentive"
    (replay,), notes = replays({**CUSTOM, "insert_strategy": "elite_insertion", "elite_batch_size": 20.0, "unknown": 1})
    assert (replay["elite_batch_size"], replay["p"], replay["unknown"], notes) == (20, 2, 1, [])


def test_a_key_by_two_names_is_refused() -> None:
    for other in ("annealing_factor", "ALFA_annealing_factor"):
        with pytest.raises(ValueError, match=rf"^replay_parameters\[0\]: .*annealing_factor.*alfa_annealing_factor.*{other}$"):
            replays({**CUSTOM, "alfa_annealing_factor": 0.5, other: 0.5})
