"""Recall follows the contract of all environments, and only the cue of the first observation wins it."""

from __future__ import annotations

import numpy as np

from wrappers import EnvConfig, make_single_env, make_vector_env
from wrappers.toys.recall import BLANKS, CUES, QUERY


def _config(frames_stacked: int = 1, max_episode_frames: int = 1000) -> EnvConfig:
    return EnvConfig("Recall-v0", frames_stacked=frames_stacked, max_episode_frames=max_episode_frames)


def test_the_cue_of_the_first_observation_is_the_answer() -> None:
    env = make_vector_env(_config(), 32)
    observations, returns, cues = env.reset(1), [], np.zeros(32, int)
    for step in range(5 * (QUERY + 2)):
        place = step % (QUERY + 2)  # the last one is the autoreset
        shown = observations[:, 0].argmax(1)
        if place == 0:
            cues = shown
            assert set(cues) == set(range(CUES))
        assert (observations[:, 0].sum(1) == (255 if place in (0, QUERY) else 0)).all() or place == QUERY + 1
        assert place != QUERY or (shown == CUES).all()
        taken = env.step(cues if place == QUERY else np.full(32, step % CUES))
        assert taken.terminated.all() == (place == QUERY)
        assert taken.reset.all() == (place == QUERY + 1)
        assert (taken.action_used == ~taken.reset).all()
        assert not taken.truncated.any()
        returns.extend(taken.episode_return[taken.episode_length > 0])
        observations = taken.observations
    assert returns == [1.0] * 32 * 5


def test_another_answer_loses() -> None:
    env = make_vector_env(_config(), 8)
    cues = env.reset(3)[:, 0].argmax(1)
    for _ in range(BLANKS + 1):
        assert (env.step(cues).rewards == 0).all()
    assert (env.step((cues + 1) % CUES).rewards == -1).all()


def test_a_game_does_not_depend_on_the_number_of_games() -> None:
    alone, together = make_single_env(_config(frames_stacked=3)), make_vector_env(_config(frames_stacked=3), 3)
    np.testing.assert_array_equal(alone.reset(7)[0], together.reset(6)[1])
    for step in range(30):
        one, all_of_them = alone.step(np.array([step % CUES])), together.step(np.full(3, step % CUES))
        np.testing.assert_array_equal(one.observations[0], all_of_them.observations[1])
        assert one.rewards[0] == all_of_them.rewards[1]


def test_a_time_limit_truncates() -> None:
    env = make_vector_env(_config(max_episode_frames=2), 2)
    env.reset(1)
    steps = [env.step(np.zeros(2, int)) for _ in range(4)]
    assert [step.truncated.all() for step in steps] == [False, True, False, False]
    assert [step.reset.all() for step in steps] == [False, False, True, False]
    assert steps[1].episode_length.tolist() == [2, 2]
