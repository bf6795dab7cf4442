"""The package finds the family of an id, and refuses wrong arguments in one line."""

from __future__ import annotations

import json

import pytest

from wrappers import EnvConfig, describe_env, make_single_env, make_spec, make_vector_env
from wrappers.atari import AtariVector
from wrappers.toy import Catch


def test_an_id_finds_its_family() -> None:
    assert isinstance(make_vector_env(EnvConfig(env="PongNoFrameskip-v4"), 1), AtariVector)
    assert isinstance(make_vector_env(EnvConfig(env="Catch-v0"), 1), Catch)


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("BreakoutNoFramskip-v4", "BreakoutNoFrameskip-v4"),
        ("Pong", r"did you mean PongNoFrameskip-v4\?"),
        ("pong-v4", "did you mean PongNoFrameskip-v4, "),
        ("ALE/Braekout-v5", "did you mean BreakoutNoFrameskip-v4"),
        ("ms_pacman", r"did you mean MsPacmanNoFrameskip-v4"),
        ("Catch", "Catch-v0"),
        ("zzz", "PongNoFrameskip-v4, .*minigrid:MiniGrid"),
    ],
)
def test_an_unknown_environment_is_one_line_with_a_hint(env_id: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"wanted .*got '{env_id}'.*{hint}") as error:
        make_spec(EnvConfig(env=env_id))
    assert "\n" not in str(error.value)


def test_every_function_refuses_an_unknown_environment() -> None:
    with pytest.raises(ValueError, match="did you mean"):
        make_vector_env(EnvConfig(env="Pong"), 1)
    with pytest.raises(ValueError, match="did you mean"):
        make_single_env(EnvConfig(env="Pong"))


def test_counts_and_render_modes_are_checked() -> None:
    config = EnvConfig(env="Catch-v0")
    with pytest.raises(ValueError, match="num_envs: wanted an integer >= 1, got 0"):
        make_vector_env(config, 0)
    with pytest.raises(ValueError, match="num_threads: wanted an integer >= 1, got 0"):
        make_vector_env(config, 1, num_threads=0)
    with pytest.raises(ValueError, match="render_mode: wanted .* got 'ansi'"):
        make_single_env(config, "ansi")


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "Catch-v0"])
def test_a_family_describes_its_environments_for_evaluation(env_id: str) -> None:
    described = describe_env(EnvConfig(env=env_id))
    assert described.evaluation_config.env == env_id
    assert described.protocol_settings == json.loads(json.dumps(described.protocol_settings))
    assert bool(described.protocol_text) is bool(described.protocol_settings)
    prescribed = {name for settings in described.protocols.values() for name in settings}
    assert prescribed <= set(EnvConfig.__dataclass_fields__)
