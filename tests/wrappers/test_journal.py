"""A journal restores environments bit for bit: their observations and everything that follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wrappers import EnvConfig, Step, make_vector_env
from wrappers.journal import JournaledEnv, ReplayStopped

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "Catch-v0": {},
    "BreakoutNoFrameskip-v4": {"frame_scale_resolution": "20,20", "sticky_actions": 0.25, "max_episode_frames": 120},
}


def make(name: str, num_envs: int = 3) -> JournaledEnv:
    return JournaledEnv(make_vector_env(EnvConfig(env=name, **ENVIRONMENTS[name]), num_envs))


def play(env: JournaledEnv, seed: int, steps: int) -> list[Step]:
    generator = np.random.default_rng(seed)
    actions = generator.integers(env.spec.action.mask_size, size=(steps, env.num_envs))
    return [Step(*(np.array(part) for part in env.step(action)[:8])) for action in actions]


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("steps", [0, 47])
def test_a_restored_environment_continues_bit_for_bit(name: str, steps: int) -> None:
    env, other = make(name), make(name)
    first = env.reset(5)
    played = play(env, 1, steps)
    other.reset(99)
    play(other, 2, 13)  # steps that the restored state must replace
    np.testing.assert_array_equal(other.load_state_dict(env.state_dict()), played[-1].observations if steps else first)
    for wanted, got in zip(play(env, 3, 60), play(other, 3, 60), strict=True):
        for field, own in zip(wanted, got, strict=True):
            np.testing.assert_array_equal(own, field)


def test_a_restored_journal_can_be_saved_again() -> None:
    env, other = make("Catch-v0"), make("Catch-v0")
    env.reset(4)
    play(env, 1, 20)
    env.reset(5)
    play(env, 1, 20)
    other.load_state_dict(env.state_dict())
    for one in (env, other):
        play(one, 2, 20)
    states = [one.state_dict() for one in (env, other)]
    assert states[0]["seed"] == states[1]["seed"] == 5
    assert states[0]["actions"].shape == (40, 3)
    assert states[0]["actions"].equal(states[1]["actions"])


def test_a_replay_ends_before_the_next_step_when_asked_to() -> None:
    env, other = make("Catch-v0"), make("Catch-v0")
    env.reset(4)
    play(env, 1, 20)
    asked: list[bool] = []

    def should_stop() -> bool:
        asked.append(len(asked) == 7)
        return asked[-1]

    with pytest.raises(ReplayStopped):
        other.load_state_dict(env.state_dict(), should_stop)
    assert len(asked) == 8
    assert other.state_dict()["actions"].shape == (7, 3)


def test_a_saved_state_does_not_change_with_later_steps() -> None:
    env = make("Catch-v0")
    env.reset(5)
    play(env, 1, 10)
    state = env.state_dict()
    before = state["actions"].clone()
    play(env, 1, 10)
    env.reset(6)
    assert state["actions"].equal(before)
