"""Keeps the current folder of environments apart from the program's.

Some simulators change the current folder when they are made, to find their files there. The program's own paths, such as that
of the run directory, may be relative. Both must hold in one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from wrappers.spec import Step, VectorEnv


def in_own_folder(make: Callable[[], VectorEnv]) -> VectorEnv:
    """Make environments. If that changes the current folder, they stay in theirs, and it changes back."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # it was deleted, so nothing can be found in it
        return make()
    try:
        env = make()
        their_folder = os.getcwd()
    finally:
        os.chdir(folder)
    return env if their_folder == folder else FolderEnv(env, their_folder)


class FolderEnv(VectorEnv):
    """Environments whose current folder is another one than the program's. They may change it again."""

    def __init__(self, env: VectorEnv, folder: str) -> None:
        self.env = env
        self.spec = env.spec
        self.num_envs = env.num_envs
        self.needs_close = env.needs_close
        self._folder = folder

    def reset(self, seed: int) -> np.ndarray:
        with self._in_folder():
            return self.env.reset(seed)

    def step(self, actions: np.ndarray) -> Step:
        with self._in_folder():
            return self.env.step(actions)

    def goal_function(self, name: str) -> Callable[..., object] | None:
        return self.env.goal_function(name)

    def render(self) -> np.ndarray:
        with self._in_folder():
            return self.env.render()

    def close(self) -> None:
        with self._in_folder():
            self.env.close()

    @contextmanager
    def _in_folder(self) -> Iterator[None]:
        folder = os.getcwd()
        os.chdir(self._folder)
        try:
            yield
            self._folder = os.getcwd()
        finally:
            os.chdir(folder)
