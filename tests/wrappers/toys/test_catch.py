"""Catch follows the contract of all environments and can be won."""

from __future__ import annotations

import numpy as np
import pytest

from wrappers import EnvConfig, Step, VectorEnv, make_single_env, make_spec, make_vector_env
from wrappers.spaces import Discrete
from wrappers.toys import base
from wrappers.toys.catch import COLUMNS, EPISODE_STEPS

LEFT, STAY, RIGHT = range(3)


def _config(frames_stacked: int = 1, max_episode_frames: int = 1000) -> EnvConfig:
    return EnvConfig(env="Catch-v0", frames_stacked=frames_stacked, max_episode_frames=max_episode_frames)


def _follow_ball(observations: np.ndarray) -> np.ndarray:
    """Return the optimal actions for observations `[N, S, 10, 5]`."""
    newest = observations[:, -1].astype(int)
    ball, paddle = newest[:, :-1].sum(axis=1).argmax(axis=1), newest[:, -1].argmax(axis=1)
    return np.sign(ball - paddle) + STAY


def _play(env: VectorEnv, seed: int, actions: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Step with actions, int64 `[T, N]`, and return copies of the results."""
    env.reset(seed)
    return [tuple(field.copy() for field in env.step(row) if field is not None) for row in actions]


def test_the_optimal_policy_catches_every_ball() -> None:
    env = make_vector_env(_config(), 8)
    observations = env.reset(1)
    returns: list[float] = []
    for _ in range(200):
        step = env.step(_follow_ball(observations))
        observations = step.observations
        returns.extend(step.episode_return[step.episode_length > 0])
    assert returns == [1.0] * 160


def test_a_missed_ball_costs_one() -> None:
    env = make_vector_env(_config(), 64)
    ball = env.reset(1)[:, 0, 0].argmax(axis=1)
    for _ in range(EPISODE_STEPS):
        step = env.step(np.full(64, LEFT))
    np.testing.assert_array_equal(step.rewards, np.where(ball == 0, 1.0, -1.0))
    np.testing.assert_array_equal(step.episode_return, step.rewards)
    assert len(set(ball)) == COLUMNS


def test_paddle_and_ball_move_by_action_and_gravity() -> None:
    env = make_vector_env(_config(), 1)
    column = int(env.reset(1)[0, 0, 0].argmax())
    wanted = [1, 0, 0, 1, 1, 2, 3, 4]
    for row, (action, paddle) in enumerate(zip([0, 0, 0, 2, 1, 2, 2, 2], wanted, strict=True), start=1):
        frame = np.zeros((10, 5), dtype=np.uint8)
        frame[row, column] = frame[9, paddle] = 255
        np.testing.assert_array_equal(env.step(np.array([action])).observations[0, 0], frame)


def test_the_step_after_an_end_resets_and_ignores_its_action() -> None:
    afters = []
    for action in (LEFT, RIGHT):
        env = make_vector_env(_config(frames_stacked=3), 2)
        env.reset(4)
        for _ in range(EPISODE_STEPS):
            last = env.step(np.full(2, STAY))
        assert last.terminated.all()
        assert not last.reset.any()
        assert last.action_used.all()
        np.testing.assert_array_equal(last.episode_length, [9, 9])
        assert last.observations[:, -1, :-1].sum() == 0  # the last frame shows the ball at the bottom
        after = env.step(np.full(2, action))
        assert after.reset.all()
        assert not (after.action_used | after.terminated | after.truncated).any()
        assert (after.rewards == 0).all()
        assert np.isnan(after.episode_return).all()
        assert after.observations[:, :-1].sum() == 0
        assert (after.observations[:, -1, 0].sum(axis=1) == 255).all()
        assert (after.observations[:, -1, -1].argmax(axis=1) == 2).all()
        second = env.step(np.full(2, STAY))
        assert second.action_used.all()
        afters.append(after.observations.copy())
    np.testing.assert_array_equal(afters[0], afters[1])


def test_a_stack_holds_the_last_frames_newest_last() -> None:
    actions = np.random.default_rng(0).integers(3, size=(40, 3))
    singles = _play(make_vector_env(_config(1), 3), 5, actions)
    stacks = _play(make_vector_env(_config(4), 3), 5, actions)
    history = np.zeros((3, 4, 10, 5), dtype=np.uint8)
    history[:, -1] = make_vector_env(_config(1), 3).reset(5)[:, 0]
    for single, stack in zip(singles, stacks, strict=True):
        history[Step(*single).reset] = 0
        history = np.concatenate([history[:, 1:], single[0]], axis=1)
        np.testing.assert_array_equal(stack[0], history)


def test_an_environment_depends_on_its_own_seed_only() -> None:
    actions = np.random.default_rng(0).integers(3, size=(60, 4))
    together = _play(make_vector_env(_config(2), 4), 7, actions)
    for index in range(4):
        alone = _play(make_vector_env(_config(2), 1, num_threads=2), 7 + index, actions[:, index : index + 1])
        for row, own in zip(together, alone, strict=True):
            for field, own_field in zip(row, own, strict=True):
                np.testing.assert_array_equal(field[index : index + 1], own_field)


def test_a_second_reset_restarts_everything() -> None:
    env = make_vector_env(_config(2), 3)
    actions = np.random.default_rng(0).integers(3, size=(15, 3))
    first, second = _play(env, 3, actions), _play(env, 3, actions)
    for row, again in zip(first, second, strict=True):
        for field, field_again in zip(row, again, strict=True):
            np.testing.assert_array_equal(field, field_again)


def test_balls_fall_in_every_column() -> None:
    env = make_vector_env(_config(), 1)
    columns = {int(env.reset(1)[0, 0, 0].argmax())}
    for _ in range(400):
        step = env.step(np.array([STAY]))
        if step.reset[0]:
            columns.add(int(step.observations[0, 0, 0].argmax()))
    assert columns == set(range(COLUMNS))


def test_a_time_limit_truncates() -> None:
    env = make_vector_env(_config(max_episode_frames=4), 2)
    env.reset(1)
    steps = [env.step(np.full(2, STAY)) for _ in range(5)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2] * 3 + [[True] * 2] + [[False] * 2]
    assert not any(step.terminated.any() for step in steps)
    np.testing.assert_array_equal(steps[3].episode_length, [4, 4])
    np.testing.assert_array_equal(steps[3].episode_return, [0, 0])
    assert steps[4].reset.all()


def test_a_termination_at_the_time_limit_is_no_truncation() -> None:
    env = make_vector_env(_config(max_episode_frames=EPISODE_STEPS), 1)
    env.reset(1)
    steps = [env.step(np.array([STAY])) for _ in range(EPISODE_STEPS)]
    assert (steps[-1].terminated[0], steps[-1].truncated[0]) == (True, False)


def test_the_board_has_its_own_size() -> None:
    spec = make_spec(EnvConfig(env="Catch-v0", frame_scale_resolution="84,84", frames_stacked=2, skipped_frames=4))
    assert spec.observation_shape == (2, 10, 5)
    assert (spec.frames_per_step, spec.action) == (1, Discrete(3, ("LEFT", "STAY", "RIGHT")))
    observations = make_vector_env(_config(2), 3).reset(1)
    assert (observations.shape, observations.dtype) == ((3, *spec.observation_shape), spec.frame_dtype)


def test_a_single_board_is_rendered_and_plays_the_same() -> None:
    actions = np.random.default_rng(0).integers(3, size=(25, 1))
    single = make_single_env(_config(2), "rgb_array")
    for row, own in zip(_play(make_vector_env(_config(2), 1), 6, actions), _play(single, 6, actions), strict=True):
        for field, own_field in zip(row, own, strict=True):
            np.testing.assert_array_equal(field, own_field)
    screen = single.render()
    assert (screen.shape, screen.dtype) == ((160, 80, 3), np.uint8)
    np.testing.assert_array_equal(screen[8::16, 8::16, 1], own[0][0, -1])


def test_human_rendering_prints_the_board(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "SHOWN_SECONDS", 0.0)
    env = make_single_env(_config(), "human")
    env.reset(1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].count("#") == 1
    assert lines[9] == "|  #  |"
    assert env.render().shape == (160, 80, 3)


def test_an_environment_not_made_for_rendering_refuses_to_render() -> None:
    env = make_single_env(_config(), None)
    env.reset(1)
    with pytest.raises(RuntimeError, match="not made for rendering"):
        env.render()


def test_bad_seeds_actions_and_order_are_refused() -> None:
    env = make_vector_env(_config(), 2)
    with pytest.raises(RuntimeError, match="wanted a reset"):
        env.step(np.array([0, 0]))
    with pytest.raises(ValueError, match="seed: wanted"):
        env.reset(0)
    env.reset(1)
    with pytest.raises(ValueError, match="actions: wanted"):
        env.step(np.array([0, 3]))
