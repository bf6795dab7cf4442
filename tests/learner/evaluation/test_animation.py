"""An animation shows one played episode at its pace, and its size is bounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from learner.evaluation import animation as module
from learner.evaluation.animation import EpisodeCamera, write_animation
from wrappers import Display, EnvConfig, EnvSpec, Step, VectorEnv, describe_env, make_vector_env

PONG = EnvSpec("PongNoFrameskip-v4", (84, 84), "uint8", 2, 6, ("NOOP",), 4)


class NumberedFrames(VectorEnv):
    """Every frame of environment 0 has the brightness of its step number mod 250. Its first episode has `length` steps."""

    def __init__(self, length: int, spec: EnvSpec = PONG, noise: bool = False) -> None:
        self.spec = spec
        self.num_envs = 2
        self._length = length
        self._generator = np.random.default_rng(1) if noise else None
        self._step = 0

    def reset(self, seed: int) -> np.ndarray:
        self._step = 0
        return self._observations()

    def step(self, actions: np.ndarray) -> Step:
        self._step += 1
        none, ended = np.zeros(2, dtype=bool), np.array([self._step == self._length, True])
        lengths = (ended * self._step).astype(np.int32)
        return Step(self._observations(), np.zeros(2), ended, none, none, ~none, lengths.astype(np.float32), lengths)

    def _observations(self) -> np.ndarray:
        observations = np.full((2, *self.spec.observation_shape), 255, dtype=np.uint8)
        frame = self._generator.integers(256, size=self.spec.frame_shape) if self._generator else self._step % 250
        observations[0, -1] = frame
        return observations


def played(env: VectorEnv, steps: int) -> EpisodeCamera:
    camera = EpisodeCamera(env, describe_env(EnvConfig(env=PONG.env)).display)
    camera.reset(1)
    for _ in range(steps):
        camera.step(np.zeros(env.num_envs, dtype=np.int64))
    return camera


def frames_of(path: Path) -> list[tuple[np.ndarray, int]]:
    """The pictures as RGB, each with its duration in milliseconds."""
    with Image.open(path) as gif:
        frames = []
        for index in range(gif.n_frames):
            gif.seek(index)
            frames.append((np.asarray(gif.convert("RGB")).copy(), gif.info["duration"]))
    return frames


def test_every_second_step_is_shown_at_the_pace_of_the_game(tmp_path: Path) -> None:
    """A step of Pong is four frames, of which there are sixty per second."""
    camera = played(NumberedFrames(length=21), steps=30)
    ticks: list[None] = []
    write_animation(tmp_path / "one.gif", camera, lambda: ticks.append(None))
    frames = frames_of(tmp_path / "one.gif")
    assert [int(picture.mean()) for picture, _ in frames] == [*range(0, 21, 2), 21]
    assert all(duration == pytest.approx(2 * 4000 / 60, abs=5) for _, duration in frames)
    assert {picture.shape for picture, _ in frames} == {(252, 336, 3)}, "wanted the width of a television picture"
    assert len(ticks) == len(frames)
    assert [path.name for path in tmp_path.iterdir()] == ["one.gif"]


def test_pictures_of_another_size_leave_nothing_of_those_before(tmp_path: Path) -> None:
    camera = EpisodeCamera(NumberedFrames(length=3), Display(steps_per_second=10.0, enlargement=1))
    camera.pictures = [np.full((size, size, 3), light, np.uint8) for size, light in ((64, 80), (48, 160), (80, 240))]
    write_animation(tmp_path / "one.gif", camera, lambda: None)
    first, second, third = (picture[:, :, 0] for picture, _ in frames_of(tmp_path / "one.gif"))
    assert (first.shape, np.unique(first).tolist()) == ((64, 64), [80])
    assert (np.unique(second[:48, :48]).tolist(), second[48:].any()) == ([160], False)
    assert (third.shape, np.unique(third).tolist()) == ((64, 64), [240])


def test_only_the_beginning_of_a_long_episode_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PICTURES", 40)
    camera = played(NumberedFrames(length=200), steps=210)
    assert [int(picture[0, 0]) for picture in camera.pictures] == list(range(0, 80, 2))


def test_an_animation_that_is_too_large_loses_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture of noise takes at least 20 kB."""
    monkeypatch.setattr(module, "MAX_BYTES", 100_000)
    write_animation(tmp_path / "one.gif", played(NumberedFrames(99, noise=True), steps=40), lambda: None)
    assert (tmp_path / "one.gif").stat().st_size <= 100_000
    assert 1 <= len(frames_of(tmp_path / "one.gif")) < 21


def test_colours_are_kept(tmp_path: Path) -> None:
    env = make_vector_env(EnvConfig(env=PONG.env, grayscaling_frames=False), 1)
    camera = played(env, steps=20)
    env.close()
    write_animation(tmp_path / "one.gif", camera, lambda: None)
    shown = frames_of(tmp_path / "one.gif")[-1][0][::3, ::4]
    assert np.abs(shown.astype(int) - camera.pictures[-1]).mean() < 5
    assert np.ptp(shown.mean((0, 1))) > 20, "wanted the brown and green of Pong, got grey"


def test_a_reset_starts_a_new_animation() -> None:
    camera = played(NumberedFrames(length=5), steps=9)
    camera.reset(2)
    assert [picture.mean() for picture in camera.pictures] == [0]
