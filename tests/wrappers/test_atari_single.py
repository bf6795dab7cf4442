"""The Gymnasium chain equals the native environment byte for byte, and can be rendered."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest

from wrappers import EnvConfig, Step, VectorEnv, make_single_env, make_vector_env
from wrappers.atari_single import AtariSingle, draw_below

SMALL: dict[str, Any] = {"frame_scale_resolution": "42,42"}


def _actions(env: VectorEnv, seed: int, steps: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(env.spec.action.mask_size, size=(steps, 1))


def _compare(config: EnvConfig, seed: int, steps: int) -> Counter[str]:
    """Play both with the same random actions. Returns counts of events, so that a case can check its coverage."""
    native, single = make_vector_env(config, 1), make_single_env(config)
    assert native.spec == single.spec
    np.testing.assert_array_equal(native.reset(seed), single.reset(seed))
    seen: Counter[str] = Counter()
    for action in _actions(native, seed, steps):
        wanted, got = native.step(action), single.step(action)
        assert wanted.infos is got.infos is None  # lives and frame numbers are no metrics
        for name in Step._fields[:8]:
            field, own = getattr(wanted, name), getattr(got, name)
            np.testing.assert_array_equal(own, field, err_msg=name)
            assert own.dtype == field.dtype, name
        over = bool(wanted.episode_length[0])
        seen["lives"] += bool(wanted.terminated[0]) and not over
        seen["game_overs"] += bool(wanted.terminated[0]) and over
        seen["truncations"] += bool(wanted.truncated[0])
        seen["fires"] += not (wanted.action_used[0] or wanted.reset[0])
        seen["rewards"] += bool(wanted.rewards[0])
    return seen


@pytest.mark.parametrize(
    ("game", "settings", "steps", "covers"),
    [
        ("Pong", {"max_episode_frames": 401}, 320, ["truncations", "rewards"]),
        ("Breakout", {}, 450, ["lives", "game_overs", "fires", "rewards"]),
        ("Breakout", {**SMALL, "episodic_life": False, "max_episode_frames": 403}, 250, ["truncations", "fires"]),
        ("Breakout", {**SMALL, "fire_reset": False, "sticky_actions": 0.25}, 450, ["lives", "game_overs"]),
        ("Seaquest", {"sticky_actions": 0.25, "max_episode_frames": 402}, 220, ["truncations"]),
        ("SpaceInvaders", {"grayscaling_frames": False, "max_episode_frames": 700}, 220, ["truncations", "rewards"]),
        ("Qbert", {**SMALL, "noop_threshold": 0, "max_episode_frames": 1001}, 300, ["lives", "rewards"]),
        ("MsPacman", {**SMALL, "full_action_space": True, "skipped_frames": 3, "frames_stacked": 2}, 650, ["lives"]),
        ("BankHeist", SMALL, 700, ["lives", "game_overs"]),
        ("BeamRider", {"frames_stacked": 1, "skipped_frames": 1, "max_episode_frames": 70}, 150, ["truncations"]),
        ("Tennis", {**SMALL, "frame_scale_resolution": "42,160", "max_episode_frames": 202}, 110, ["truncations"]),
        ("Enduro", {"frame_scale_resolution": "210,160", "max_episode_frames": 99}, 60, ["truncations"]),
    ],
)
def test_the_chain_equals_the_native_environment(game: str, settings: dict[str, Any], steps: int, covers: list[str]) -> None:
    seen = _compare(EnvConfig(env=f"{game}NoFrameskip-v4", **settings), seed=7, steps=steps)
    assert [event for event in covers if not seen[event]] == []


@pytest.mark.parametrize("game", ["Backgammon", "VideoCheckers", "AirRaid"])
def test_odd_games_are_equal_too(game: str) -> None:
    """Action 0 of Backgammon and Video Checkers is not a no-op, and the screen of Air Raid has 250 lines."""
    config = EnvConfig(env=f"ALE/{game}-v5", fire_reset=False, max_episode_frames=101)
    assert _compare(config, seed=2, steps=60)["truncations"] >= 2


@pytest.mark.parametrize("seed", [1, 12345])
def test_many_starts_are_equal(seed: int) -> None:
    """Every start has another number of no-ops, because the generator is not seeded again between episodes."""
    assert _compare(EnvConfig(env="BreakoutNoFrameskip-v4", max_episode_frames=1), seed, steps=60)["truncations"] == 30


@pytest.mark.parametrize(("seed", "frames"), [(1, 12), (2, 13), (3, 16), (12345, 27)])
@pytest.mark.parametrize("fire_reset", [True, False])
def test_a_start_lasts_as_many_frames_as_were_drawn(seed: int, frames: int, fire_reset: bool) -> None:
    env = AtariSingle(EnvConfig(env="Breakout-v4", fire_reset=fire_reset), None)
    env.reset(seed)
    assert env._atari.ale.getEpisodeFrameNumber() == frames


def test_a_life_lost_at_the_time_limit_is_equal_too() -> None:
    config, seed = EnvConfig(env="BreakoutNoFrameskip-v4", **SMALL), 7
    native = make_vector_env(config, 1)
    native.reset(seed)
    lost = 1
    for action in _actions(native, seed, 100):
        if native.step(action).terminated[0]:
            break
        lost += 1
    seen = _compare(dataclasses.replace(config, max_episode_frames=4 * lost), seed, steps=lost + 1)
    assert (seen["game_overs"], seen["truncations"]) == (1, 0)


class _Words(np.random.RandomState):
    """Returns the words that it was made with."""

    def __init__(self, *words: int) -> None:
        super().__init__(0)
        self.words = list(words)

    def randint(self, *_: Any, **__: Any) -> Any:
        return self.words.pop(0)


def test_a_draw_is_the_one_of_the_c_library() -> None:
    generator = np.random.RandomState(1)
    assert [draw_below(30, generator) for _ in range(3)] == [12, 29, 21]
    assert draw_below(30, _Words(2**32 - 1)) == 29
    assert draw_below(30, _Words(0, 2**31 + 1)) == 15  # 2**32 is no multiple of 30, so a word of 0 is one too many
    assert draw_below(32, _Words(0)) == 0
    assert (draw_below(0, _Words()), draw_below(1, _Words())) == (0, 0)


def test_a_second_reset_restarts_everything() -> None:
    """The pass before stops in the middle of an episode (24 steps) or at its end (16)."""
    env = make_single_env(EnvConfig(env="SeaquestNoFrameskip-v4", sticky_actions=0.25, max_episode_frames=64))

    def play(steps: int) -> list[np.ndarray]:
        played = [env.reset(4)]
        for action in range(steps):
            played.extend(env.step(np.array([action % 18])))
        return played

    first = play(24)
    for steps in (16, 24):
        for field, field_before in zip(play(steps), first, strict=steps == 24):
            np.testing.assert_array_equal(field, field_before)


def test_a_reset_forgets_the_fire_that_was_due() -> None:
    env = make_single_env(EnvConfig(env="BreakoutNoFrameskip-v4", **SMALL))
    env.reset(1)
    while not env.step(np.array([0])).terminated[0]:
        pass
    env.reset(1)
    assert env.step(np.array([0])).action_used[0]


def test_the_screen_is_rendered_in_colour() -> None:
    env = make_single_env(EnvConfig(), "rgb_array")
    env.reset(1)
    before = env.render()
    for _ in range(15):
        env.step(np.array([2]))
    after = env.render()
    assert (after.shape, after.dtype) == ((210, 160, 3), np.uint8)
    assert not np.array_equal(before, after)
    assert not np.array_equal(after[..., 0], after[..., 1])
    env.close()


def test_an_environment_not_made_for_rendering_refuses_to_render() -> None:
    env = make_single_env(EnvConfig())
    env.reset(1)
    with pytest.raises(RuntimeError, match="not made for rendering"):
        env.render()


def test_bad_seeds_actions_and_order_are_refused() -> None:
    env = make_single_env(EnvConfig())
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.array([0]))
    with pytest.raises(ValueError, match="seed: wanted"):
        env.reset(0)
    env.reset(1)
    with pytest.raises(ValueError, match="actions: wanted values from 0 to 5"):
        env.step(np.array([6]))


def test_the_rendered_screen_shows_what_the_policy_sees() -> None:
    """Many games draw an object only in every other emulator frame, so single frames would hide it."""
    config = EnvConfig(env="AsteroidsNoFrameskip-v4", frame_scale_resolution="210,160", noop_threshold=0)
    env = make_single_env(config, "rgb_array")
    env.reset(5)
    for _ in range(12):
        observation = env.step(np.zeros(1, dtype=np.int64)).observations[0, -1]
        np.testing.assert_array_equal(env.render().max(axis=2) > 0, observation > 0)
    env.close()
