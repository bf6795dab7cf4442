"""Animates an episode of an evaluation as a GIF at the pace of the environment.

It shows the policy's own observations if they are images. Otherwise another environment renders one more episode.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from wrappers import Display, EnvSpec, Step, VectorEnv

PICTURES_PER_SECOND = 7.5
MAX_PICTURES = 300
MAX_BYTES = 300_000
RENDERED_HEIGHT = 240  # most pixels of a rendered picture
USUAL_HEIGHT = 480  # pixels of an enlarged picture if its environment prescribes no enlargement


def has_pictures(spec: EnvSpec) -> bool:
    """Whether a frame is an image that a GIF can hold: uint8 `[H, W]` or `[H, W, 3]`. Vectors cannot be shown."""
    shape = spec.frame_shape
    return spec.frame_dtype == "uint8" and (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3))


class EpisodeCamera(VectorEnv):
    """Steps another environment and records the first episode of its environment 0, up to `MAX_PICTURES` pictures.

    pictures: the newest frame, uint8 `[H, W]` or `[H, W, 3]`, after every `period` steps and at the end of the episode.

    Args:
        env: an environment whose spec satisfies `has_pictures`.
        display: how the animation is shown.
    """

    def __init__(self, env: VectorEnv, display: Display) -> None:
        self.spec = env.spec
        self.num_envs = env.num_envs
        self.display = display
        self.period = max(1, round(display.steps_per_second / PICTURES_PER_SECOND))
        self.pictures: list[np.ndarray] = []
        self._env = env
        self._steps = 0
        self._recording = False

    def reset(self, seed: int) -> np.ndarray:
        observations = self._env.reset(seed)
        self.pictures = [self._take(observations)]
        self._steps = 0
        self._recording = True
        return observations

    def step(self, actions: np.ndarray) -> Step:
        step = self._env.step(actions)
        if self._recording:
            self._steps += 1
            ended = bool(step.episode_length[0])
            if ended or self._steps % self.period == 0:
                self.pictures.append(self._take(step.observations))
            self._recording = not ended and len(self.pictures) < MAX_PICTURES
        return step

    def _take(self, observations: np.ndarray) -> np.ndarray:
        # A copy, because the environment may reuse its arrays at the next step.
        newest: np.ndarray = observations[0, -1].copy()
        return newest


class RenderingCamera(EpisodeCamera):
    """Records what one environment renders, in at most `RENDERED_HEIGHT` pixels.

    env: made by `make_single_env` with the mode rgb_array.
    """

    def __init__(self, env: VectorEnv, display: Display) -> None:
        super().__init__(env, replace(display, enlargement=1))

    def _take(self, observations: np.ndarray) -> np.ndarray:
        picture = self._env.render()
        every = -(-picture.shape[0] // RENDERED_HEIGHT)
        return picture[::every, ::every].copy()


def write_animation(path: Path, camera: EpisodeCamera, on_picture: Callable[[], None]) -> None:
    """Replace the GIF at `path` by the recorded pictures. Raises OSError, and then the old file is unchanged.

    A GIF larger than `MAX_BYTES` is encoded again with the first half of its pictures.

    Args:
        on_picture: is called for each encoded picture, because encoding takes long in a process of low priority.
    """
    pictures = camera.pictures
    while len(gif := _encode(pictures, camera, on_picture)) > MAX_BYTES and len(pictures) > 1:
        pictures = pictures[: len(pictures) // 2]
    partial = path.with_suffix(".new.gif")
    partial.write_bytes(gif)
    partial.replace(path)  # TensorBoard or a browser may be reading the old one


def _encode(pictures: list[np.ndarray], camera: EpisodeCamera, on_picture: Callable[[], None]) -> bytes:
    milliseconds = round(1000 * camera.period / camera.display.steps_per_second)
    shape = enlarge(pictures[0], camera.display).shape

    def images() -> Iterator[Image.Image]:
        for picture in pictures:
            on_picture()
            yield Image.fromarray(fit(enlarge(picture, camera.display), shape))

    file, frames = io.BytesIO(), images()
    next(frames).save(file, "GIF", save_all=True, append_images=frames, duration=milliseconds, loop=0)
    return file.getvalue()


def enlarge(picture: np.ndarray, display: Display) -> np.ndarray:
    """The picture uint8 `[H, W, 3]` or `[H, W]`, enlarged by repeating pixels. Its height and width become even numbers.

    Video codecs accept even sizes only.
    """
    height, width = picture.shape[:2]
    factor = display.enlargement or max(1, USUAL_HEIGHT // height)
    tall = _even(height * factor)
    wide = _even(width * factor if display.aspect is None else tall * display.aspect)
    rows = np.arange(tall) * height // tall
    columns = np.arange(wide) * width // wide
    enlarged: np.ndarray = picture[rows[:, None], columns]
    return enlarged


def fit(picture: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The picture `[H, W]` or `[H, W, 3]` in another height and width, cut or filled with black at its right and lower edge.

    Some environments render pictures of another size in each episode. A video has one size.
    """
    if picture.shape == shape:
        return picture
    fitted = np.zeros(shape, picture.dtype)
    part = picture[: shape[0], : shape[1]]
    fitted[: part.shape[0], : part.shape[1]] = part
    return fitted


def _even(size: float) -> int:
    return max(2, 2 * round(size / 2))
