"""Every setting is checked at its bounds, and a Config says the same as the flat table it was built from."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from learner import launch
from learner.evaluation.protocol import PROTOCOLS
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.plan import make_plan
from learner.settings.check import find_setting
from learner.settings.config import AUTO, DEFAULTS, check_settings, make_config
from learner.settings.schema import table_of
from tests.support import small_config
from wrappers.spec import parse_resolution

SETTLED, _ = fit_to_machine(DEFAULTS, Machine(cores=2, memory_bytes=8 * 10**9, gpu=None))
TABLE = table_of("vtrace")
WHOLE = sorted(name for name, field in TABLE.items() if field.type is int)
FRACTIONS = sorted(name for name, field in TABLE.items() if field.type is float)
BOUNDS = {name: (TABLE[name].setting.wanted, TABLE[name].setting.low, TABLE[name].setting.high) for name in WHOLE + FRACTIONS}
CHOICES = {name: field.choices() for name, field in TABLE.items() if field.choices()}
SWITCHES = sorted(name for name, field in TABLE.items() if field.type is bool)
TEXTS = (
    *(
        "env",
        "estimate_from",
        "record_to",
        "recording",
        "action_mask",
        "env_args",
        "env_wrappers",
        "ignored_observations",
        "frame_scale_resolution",
        "hidden_sizes",
        "conv",
        "share_experience",
    ),
    *("bind", "spaces", "tls_cert", "tls_key", "token_file"),
    *("load", "ray_runtime_env", "replay_parameters", "results_dir"),
)


def config_with(**settings: Any) -> Any:
    return make_config({**SETTLED, **settings})


def test_every_setting_is_checked_in_one_way() -> None:
    assert sorted([*BOUNDS, *CHOICES, *SWITCHES, *TEXTS]) == sorted(DEFAULTS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_accepted_as_they_are_printed(name: str) -> None:
    value = TABLE[name].parse(str(DEFAULTS[name]))
    assert (type(value), value) == (type(DEFAULTS[name]), DEFAULTS[name])
    find_setting(name).check(value)


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_are_accepted(name: str) -> None:
    for limit in BOUNDS[name][1:]:
        value = TABLE[name].parse(repr(int(limit) if name in WHOLE else float(limit)))
        assert (type(value), value) == (TABLE[name].type, limit)
        find_setting(name).check(value)


NAMED = {
    *("seed", "prepared_batches", "replay_fill_fraction", "gamma", "lr", "lr_end_value", "rmsprop_eps", "vtrace_lambda"),
    *("frames_stacked", "skipped_frames", "noop_threshold", "sticky_actions", "profile", "verbosity", "burn_in", "core_size"),
    *("core_memory", "width", "adaptive_pool"),
    "initial_log_std",
    *("popart_rate", "intrinsic_gamma", "predictor_share", "episodic_count"),
}
"""Settings whose words name the upper bound: it is not said twice."""


@pytest.mark.parametrize("name", BOUNDS)
def test_values_just_outside_are_refused(name: str) -> None:
    wanted, low, high = BOUNDS[name]
    if name in WHOLE:
        outside: tuple[float, ...] = (int(low) - 1, int(high) + 1)
    else:
        outside = (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), low - 1.0)
    for value in outside:
        with pytest.raises(ValueError, match="wanted") as caught:
            find_setting(name).check(value)
        line = str(caught.value)
        assert line.startswith(f"{name}: wanted {wanted}")
        assert line.endswith(f"got {value!r}")
        assert ("at most" in line) is (value > high and name not in NAMED)


@pytest.mark.parametrize("name", BOUNDS)
def test_what_is_no_number_of_a_size_is_refused(name: str) -> None:
    for value in (math.nan, math.inf, -math.inf, True, None, "3", "Auto", [1], 1 + 0j, 10**400):
        with pytest.raises(ValueError, match=f"^{name}: wanted"):
            find_setting(name).check(value)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_wanted_whole(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: wanted"):
        find_setting(name).check(1.0)


@pytest.mark.parametrize("name", FRACTIONS)
def test_a_whole_number_will_do_for_a_fraction(name: str) -> None:
    value = TABLE[name].parse("1")
    assert (type(value), value) == (float, 1.0)
    find_setting(name).check(1)


@pytest.mark.parametrize("name", CHOICES)
def test_only_choices_are_accepted(name: str) -> None:
    for choice in CHOICES[name]:
        find_setting(name).check(choice)
    names = "(,| or) ".join(CHOICES[name])
    for value in ("", "none of them", None, 1, ["cpu"]):
        with pytest.raises(ValueError, match=f"^{name}: wanted {names}( or [^,]+)?, got "):
            find_setting(name).check(value)


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_are_true_or_false(name: str) -> None:
    for value in (0, 1, "True", None):
        with pytest.raises(ValueError, match=f"^{name}: wanted true or false, got "):
            find_setting(name).check(value)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_not_empty(name: str) -> None:
    for value in ("", None, 5):
        with pytest.raises(ValueError, match=f"^{name}: wanted"):
            find_setting(name).check(value)


def test_only_settings_with_an_auto_default_may_be_auto() -> None:
    for name in BOUNDS:
        if DEFAULTS[name] == AUTO:
            find_setting(name).check(AUTO)
        else:
            with pytest.raises(ValueError, match=f"^{name}: wanted .*, got 'auto'"):
                find_setting(name).check(AUTO)


@pytest.mark.parametrize("text", ["84", "84,84,3", "84x84", "0,84", "84,0", "-1,84", "84,", ",", "", "8.4,84", "²,84", "a,b"])
def test_a_resolution_is_two_sizes_in_pixels(text: str) -> None:
    with pytest.raises(ValueError, match=r"^frame_scale_resolution: wanted height,width in pixels such as 84,84, got "):
        parse_resolution(text)


def test_a_resolution_is_height_then_width() -> None:
    assert parse_resolution("42, 84") == (42, 84)
    config = config_with(frame_scale_resolution="42,84")
    assert (config.env.frame_height, config.env.frame_width) == (42, 84)


def test_a_trace_clip_above_the_difference_clip_is_refused() -> None:
    with pytest.raises(ValueError, match="wanted the V-trace clip rho_bar >= c_bar .* got rho_bar 1 and c_bar 1.1"):
        config_with(c_bar=1.1)
    assert config_with(rho_bar=1.1, c_bar=1.1).agent_settings.c_bar == 1.1


def test_reproducible_and_batches_prepared_ahead_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="^reproducible: wanted prepared_batches 0 or auto with it, got 2$"):
        config_with(reproducible=True, worker_kind="serial", prepared_batches=2)
    assert config_with(reproducible=True, worker_kind="serial", prepared_batches=0).training.prepared_batches == 0


def test_reproducible_and_worker_processes_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="^reproducible: wanted worker_kind serial or auto with it, got 'cpu'"):
        config_with(reproducible=True, worker_kind="cpu")
    check_settings({**DEFAULTS, "reproducible": True})
    assert config_with(reproducible=True, worker_kind="serial", prepared_batches=0).training.reproducible


def test_environments_that_take_turns_are_divided_evenly() -> None:
    assert config_with(worker_kind="central", envs_per_worker=6).workers.envs_per_group == 3
    assert config_with(worker_kind="cpu", envs_per_worker=5).workers.envs_per_group == 5
    with pytest.raises(ValueError, match="^envs_per_worker: wanted a multiple of 2 with worker_kind central, .* got 5$"):
        config_with(worker_kind="central", envs_per_worker=5)


def test_a_batch_that_a_replay_cannot_hold_is_refused() -> None:
    text = '[{"type": "standard", "capacity": 7, "sample_ratio": 1.0}]'
    with pytest.raises(ValueError, match="wanted capacity >= 8, got 7"):
        config_with(replay_parameters=text, batch_size=8)


@pytest.mark.parametrize("name", [name for name, field in TABLE.items() if field.setting.auto and name != "network"])
def test_auto_values_must_have_been_settled(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: wanted a value fitted to the machine, got 'auto'"):
        config_with(**{name: AUTO})


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="^unknown setting 'c_const'"):
        config_with(c_const=1.0)


def test_what_is_not_given_has_its_default() -> None:
    machine_made = {name: SETTLED[name] for name, field in TABLE.items() if field.setting.auto}
    assert make_config(machine_made) == make_config(SETTLED)


def test_settings_survive_json() -> None:
    config = config_with(lr=1e-3, env="ALE/Breakout-v5", reproducible=True, worker_kind="serial", prepared_batches=0)
    again = make_config(json.loads(json.dumps(config.settings)))
    assert again == config
    assert again.settings == config.settings


def test_a_checkpoint_may_carry_other_settings_than_the_machine_s_own() -> None:
    usual, asked = make_config(SETTLED), {**SETTLED, "worker_count": AUTO, "batch_size": AUTO}
    config = make_config(SETTLED, asked)
    assert config.settings == {**usual.settings, "worker_count": AUTO}  # the batch size is part of what is learned
    assert config.workers == usual.workers
    fixed = {**SETTLED, "reproducible": True, "worker_kind": "serial", "prepared_batches": 0}
    assert make_config(fixed, {**fixed, "worker_count": AUTO}).settings["worker_count"] == SETTLED["worker_count"]


OTHER: dict[str, Any] = {
    "env": "Catch-v0",
    "device": "cuda",
    "worker_kind": "serial",
    "network": "mlp",
    "hidden_sizes": "64,64",
    "activation": "tanh",
    "core": "lstm",
    "conv": "16x8x4,32x4x2",
    "action_distribution": "beta",
    "frame_scale_resolution": "42,44",
    "action_mask": "legal",
    "ignored_observations": "mission,time",
    "env_args": '{"gravity": -5.0}',
    "env_wrappers": "minigrid.wrappers:OneHotPartialObsWrapper",
    "replay_parameters": '[{"type": "standard", "capacity": 999, "sample_ratio": 1.0}]',
    "entropy_loss_weight_end": 0.005,
    "precision": "bfloat16",
    "preset": "quick",
    "results_dir": "elsewhere",
    "checkpoint_store": "s3://bucket/path",
    "ray_address": "auto",
    "ray_runtime_env": '{"pip": ["minigrid"]}',
    "load": "elsewhere",
    "resume_in": "new",
    "record_to": "elsewhere",
    "estimate_from": "elsewhere",
    "share_experience": "elsewhere",
    "verbosity": 2,
    "bind": "127.0.0.1:7999",
    "spaces": "spaces.json",
    **dict.fromkeys(("tls_cert", "tls_key", "token_file"), "some.pem"),
}
"""A value other than the default, where a number, a switch or a list of choices does not give one by itself."""


def other_value(name: str) -> Any:
    if name in OTHER:
        return OTHER[name]
    if name in SWITCHES:
        return not DEFAULTS[name]
    if choices := TABLE[name].choices():
        return next(choice for choice in choices if choice not in (AUTO, DEFAULTS[name]))
    return 7 if name in WHOLE else 0.625


@pytest.mark.parametrize("name", sorted(set(DEFAULTS) - {"agent", "protocol", "recording"}))
def test_every_setting_arrives_in_its_dataclass(name: str) -> None:
    changes = {name: other_value(name)}
    if name == "reproducible":
        changes |= {"worker_kind": "serial", "prepared_batches": 0}
    before = make_config({**SETTLED, **{other: value for other, value in changes.items() if other != name}, **_with(name)})
    after = make_config({**SETTLED, **_with(name), **changes})

    def built(config: Any) -> dict[str, Any]:
        return {part: getattr(config, part) for part in config.__dataclass_fields__ if part != "settings"}

    assert built(before) != built(after)
    assert after.settings[name] == changes[name]


def _with(name: str) -> dict[str, Any]:
    """Other settings that a changed setting needs for both values to be allowed."""
    beside = {"c_bar": {"rho_bar": 2.0}, "rho_bar": {"c_bar": 0.5}, "normalise_rewards": {"clip_rewards": False}}
    beside |= {"burn_in": {"core": "lstm"}, "popart": {"clip_rewards": False}}
    beside |= {"share_experience": {"replay_parameters": '[{"type": "standard", "capacity": 9, "sample_ratio": 1.0}]'}}
    return beside.get(name, {})


RECORDED = {"recording": "elsewhere", "worker_kind": "recorded", "worker_count": 1}


def test_a_recording_takes_the_place_of_workers() -> None:
    assert config_with(**RECORDED).workers.recording == "elsewhere"
    with pytest.raises(ValueError, match="^recording: wanted the folder of a recording with worker_kind recorded, got none$"):
        config_with(**{**RECORDED, "recording": "none"})
    for name, other in (("worker_kind", "cpu"), ("worker_count", 2)):
        with pytest.raises(
            ValueError, match=f"^{name}: wanted {RECORDED[name]} with a recording in place of environments, got {other}$"
        ):
            config_with(**{**RECORDED, name: other})


@pytest.mark.parametrize("protocol", ["classic", "machado"])
def test_a_protocol_arrives(protocol: str) -> None:
    config = config_with(**{"protocol": protocol, **PROTOCOLS[protocol]})
    assert config.evaluation.protocol == protocol


def test_unclipped_rewards_ignore_the_method() -> None:
    assert config_with(clip_rewards=False).agent_settings.reward_clipping is None
    assert config_with(reward_clipping_method="abs_one_clamp").agent_settings.reward_clipping == "abs_one_clamp"


def test_the_contract_has_the_environment_s_shapes() -> None:
    settings = {"env": "PongNoFrameskip-v4", "frame_scale_resolution": "60,50", "grayscaling_frames": False}
    contract = make_plan(config_with(unroll_length=9, network="nature", frames_stacked=2, **settings)).contract
    assert (contract.unroll_length, contract.frame) == (9, ((60, 50, 3), "uint8"))
    assert (contract.frames_stacked, contract.acting["behaviour_policy"].shape) == (2, (6,))


def test_the_usual_batch_of_an_on_policy_agent_follows_its_environments() -> None:
    given = {"env": "Catch-v0", "agent": "pqn", "worker_count": 1, "envs_per_worker": 4}
    assert launch.prepare("train", given, []).plan.config.training.batch_size == 4
    with pytest.raises(ValueError, match="^batch_size: wanted auto or one trajectory of each environment"):
        launch.prepare("train", {**given, "batch_size": 32}, [])


REPLAYED = '[{"type": "standard", "capacity": 40, "sample_ratio": 1.0}]'
TWO_QUEUES = '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "queue", "capacity": 1, "sample_ratio": 0.5}]'


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"batch_size": 6}, "batch_size: wanted auto or one trajectory of each environment .* make 4, got 6$"),
        ({"worker_count": 3}, "batch_size: wanted auto or one trajectory of each environment .* make 12, got 4$"),
        ({"prepared_batches": 2}, "prepared_batches: wanted 0 .*, got 2$"),
        ({"core": "lstm", "burn_in": 3}, "burn_in: wanted 0 .*, got 3$"),
        ({"replay_parameters": TWO_QUEUES}, "replay_parameters: wanted one queue .*, got 2$"),
        (
            {"replay_parameters": REPLAYED},
            "replay_parameters: wanted only a queue .*, got standard$",
        ),
    ],
)
@pytest.mark.parametrize("agent", ["ppo", "a2c"])
def test_what_would_give_an_on_policy_agent_other_rows_is_refused(agent: str, given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=f"^{wanted}") as refused:
        small_config(agent=agent, **given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("replay", "name"),
    [
        ({"type": "elite"}, "elite"),
        ({"type": "attentive", "dist_function": "kl_policy"}, "attentive"),
        ({"type": "custom", "insert_strategy": "elite_insertion"}, "elite_insertion"),
    ],
)
def test_replays_that_compare_policies_need_an_agent_that_has_one(replay: dict[str, Any], name: str) -> None:
    replays = [{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {**replay, "capacity": 40, "sample_ratio": 0.5}]
    given = {"replay_parameters": json.dumps(replays), "batch_size": 8}
    small_config(agent="vtrace", **given)
    with pytest.raises(ValueError, match=f"^replay_parameters: wanted no replay that .* with agent pqn, .* got {name}$"):
        small_config(agent="pqn", retrace_lambda=1.0, minibatches=1, **given)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"dual_clip": 0.5}, "dual_clip: wanted 0 or a number above 1, got 0.5$"),
        ({"clip_end_value": -0.5}, "clip_end_value: wanted -1 or .*, got -0.5$"),
        (
            {"entropy_loss_weight_end": 0.02},
            "entropy_loss_weight_end: wanted -1 or .* 0 to entropy_loss_weight 0.01, got 0.02$",
        ),
        ({"entropy_loss_weight_end": -0.5}, "entropy_loss_weight_end: wanted -1 or .*, got -0.5$"),
        ({"popart": True, "normalise_rewards": True}, "popart: wanted raw rewards, got normalise_rewards; .*"),
        ({"popart": True, "clip_rewards": True}, "popart: wanted raw rewards, got clip_rewards; .*"),
        ({"policy_objective": "kl"}, "target_kl: wanted a divergence > 0 with policy_objective kl, got 0$"),
        ({"clip": 1.0}, "clip: wanted a number from 0.001 to 0.999, got 1.0$"),
    ],
)
def test_settings_of_ppo_that_do_not_go_together_are_refused(given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=f"^{wanted}"):
        small_config(agent="ppo", **given)
