"""Shared parts of the environment families: checks of seeds, and statistics of episodes."""

from __future__ import annotations

import numpy as np

_LARGEST_SEED = 2**31 - 1  # emulators take a signed 32-bit seed


def check_seed(seed: int | np.integer, num_envs: int) -> int:
    """Return the seed of environment 0. Raises ValueError for a seed out of range.

    Zero is out of range, because some emulators take it for no seed.
    """
    largest = _LARGEST_SEED - (num_envs - 1)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 1 <= seed <= largest:
        raise ValueError(f"seed: wanted an integer from 1 to {largest} for {num_envs} environments, got {seed!r}")
    return int(seed)


class EpisodeStatistics:
    """Raw returns and lengths in steps of N running episodes. An autoreset step belongs to no episode."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int32)

    def clear(self) -> None:
        """Forget all running episodes, because all environments were reset."""
        self._returns[:] = 0.0
        self._lengths[:] = 0

    def update(self, rewards: np.ndarray, reset: np.ndarray, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count one step of every environment.

        Returns episode_return, float32 `[N]`, NaN where no episode ended, and episode_length, int32 `[N]`, 0 there.

        Args:
            rewards: float32 `[N]`, raw.
            reset: bool `[N]`, whether the step was an autoreset.
            ended: bool `[N]`, whether the whole episode ended. A lost life alone does not end it.
        """
        self._returns += rewards
        self._lengths += ~reset
        if not ended.any():
            return np.full(len(ended), np.nan, dtype=np.float32), np.zeros(len(ended), dtype=np.int32)
        episode_return = np.where(ended, self._returns, np.nan).astype(np.float32)
        episode_length = np.where(ended, self._lengths, 0).astype(np.int32)
        self._returns[ended] = 0.0
        self._lengths[ended] = 0
        return episode_return, episode_length

    def update_one(self, index: int, reward: float, *, reset: bool, ended: bool) -> tuple[float, int]:
        """Count one step of environment `index`. Returns return and length of an episode that ended, otherwise NaN and 0."""
        self._returns[index] += reward
        self._lengths[index] += not reset
        if not ended:
            return np.nan, 0
        episode = float(self._returns[index]), int(self._lengths[index])
        self.clear_one(index)
        return episode

    def clear_one(self, index: int) -> None:
        """Forget the running episode of environment `index`."""
        self._returns[index] = self._lengths[index] = 0
