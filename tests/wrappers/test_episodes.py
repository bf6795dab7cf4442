"""Statistics of episodes against counts by hand, and the check of seeds."""

from __future__ import annotations

import numpy as np
import pytest

from wrappers.episodes import EpisodeStatistics, check_seed


def _update(statistics: EpisodeStatistics, rewards: list[float], reset: list[bool], ended: list[bool]) -> tuple:
    arrays = np.array(rewards, dtype=np.float32), np.array(reset), np.array(ended)
    episode_return, episode_length = statistics.update(*arrays)
    assert (episode_return.dtype, episode_length.dtype) == (np.float32, np.int32)
    return episode_return.tolist(), episode_length.tolist()


def test_statistics_equal_a_count_by_hand() -> None:
    statistics = EpisodeStatistics(2)
    returns, lengths = _update(statistics, [1.0, 2.0], [False, False], [False, False])
    assert np.isnan(returns).all()
    assert lengths == [0, 0]
    returns, lengths = _update(statistics, [10.0, 20.0], [False, False], [True, False])
    assert returns[0] == 11.0
    assert np.isnan(returns[1])
    assert lengths == [2, 0]
    _update(statistics, [0.0, 200.0], [True, False], [False, False])  # the reset step of environment 0 is no step
    returns, lengths = _update(statistics, [5.0, 0.0], [False, False], [True, True])
    assert (returns, lengths) == ([5.0, 222.0], [1, 4])


def test_clear_forgets_running_episodes() -> None:
    statistics = EpisodeStatistics(1)
    _update(statistics, [7.0], [False], [False])
    statistics.clear()
    assert _update(statistics, [1.0], [False], [True]) == ([1.0], [1])


def test_returns_of_long_episodes_keep_small_rewards() -> None:
    statistics = EpisodeStatistics(1)
    _update(statistics, [2.0**24], [False], [False])
    for _ in range(3):
        _update(statistics, [1.0], [False], [False])
    assert _update(statistics, [1.0], [False], [True])[0] == [2.0**24 + 4]


@pytest.mark.parametrize("seed", [0, -1, 2**31 - 1, 1.0, True])
def test_a_bad_seed_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed: wanted an integer from 1 to 2147483646 for 2 environments"):
        check_seed(seed, num_envs=2)


def test_the_largest_seed_is_accepted() -> None:
    assert check_seed(np.int64(2**31 - 2), num_envs=2) == 2**31 - 2
