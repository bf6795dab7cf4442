"""A short animation of an episode that an evaluation plays anyway: what its policy saw, at the pace of the game."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from learner.evaluation.render import enlarge
from wrappers import Display, Step, VectorEnv

PICTURES_PER_SECOND = 7.5
MOST_PICTURES = 300
MOST_BYTES = 300_000


class EpisodeCamera(VectorEnv):
    """Steps another environment, and keeps pictures of the first episode of its first one: its beginning, if it is long.

    pictures: newest frames, uint8 `[H, W]` or `[H, W, 3]`, one every `every` steps and the last of the episode.
    """

    def __init__(self, env: VectorEnv, display: Display) -> None:
        self.spec = env.spec
        self.num_envs = env.num_envs
        self.display = display
        self.every = max(1, round(display.steps_per_second / PICTURES_PER_SECOND))
        self.pictures: list[np.ndarray] = []
        self._env = env
        self._steps = 0
        self._rolling = False

    def reset(self, seed: int) -> np.ndarray:
        observations = self._env.reset(seed)
        self.pictures = [observations[0, -1].copy()]
        self._steps = 0
        self._rolling = True
        return observations

    def step(self, actions: np.ndarray) -> Step:
        step = self._env.step(actions)
        if self._rolling:
            self._steps += 1
            ended = bool(step.episode_length[0])
            if ended or self._steps % self.every == 0:
                self.pictures.append(step.observations[0, -1].copy())
            self._rolling = not ended and len(self.pictures) < MOST_PICTURES
        return step


def write_animation(path: Path, camera: EpisodeCamera, on_picture: Callable[[], None]) -> None:
    """Write what the camera has as a GIF of at most `MOST_BYTES`, whole or not at all. Raises OSError.

    on_picture: called for each picture, since to encode them takes long in a process of low priority.
    """
    pictures = camera.pictures
    while len(gif := _encode(pictures, camera, on_picture)) > MOST_BYTES and len(pictures) > 1:
        pictures = pictures[: len(pictures) // 2]
    beside = path.with_suffix(".new.gif")
    beside.write_bytes(gif)
    beside.replace(path)


def _encode(pictures: list[np.ndarray], camera: EpisodeCamera, on_picture: Callable[[], None]) -> bytes:
    milliseconds = round(1000 * camera.every / camera.display.steps_per_second)

    def images() -> Iterator[Image.Image]:
        for picture in pictures:
            on_picture()
            yield Image.fromarray(enlarge(picture, camera.display))

    file, shown = io.BytesIO(), images()
    next(shown).save(file, "GIF", save_all=True, append_images=shown, duration=milliseconds, loop=0)
    return file.getvalue()
