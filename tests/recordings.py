"""Recordings that a test makes by playing an environment itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from replay.recordings.recorder import EpisodeRecorder
from replay.recordings.stream import RecordFields
from replay.trajectory import Field
from wrappers import make_spec, make_vector_env
from wrappers.spec import EnvConfig, VectorEnv

Player = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Actions for observations `[N, S, *frame_shape]`."""


def fields_of(config: EnvConfig, acting: Mapping[str, Field] | None = None) -> RecordFields:
    spec = make_spec(config)
    return RecordFields(spec.frame_shape, spec.frame_dtype, spec.action.shape, spec.action.dtype, acting or {})


def record(
    folder: Path, config: EnvConfig, player: Player, steps: int, *, environments: int = 3, seed: int = 1
) -> list[dict[str, np.ndarray]]:
    """Play so many steps and record the episodes that end in them.

    Returns for each step what an agent would have seen: `observations` `[N, S, *frame_shape]` before it, and the step's fields.
    """
    env: VectorEnv = make_vector_env(config, environments)
    generator, seen, everyone = np.random.default_rng(seed), [], np.arange(environments)
    observations = env.reset(seed)
    with EpisodeRecorder(folder, env.spec.to_json(), fields_of(config), {"player": "a test"}) as recorder:
        for _ in range(steps):
            actions = player(observations, generator)
            shown = observations.copy()
            step = env.step(actions)
            recorder.add(everyone, shown[:, -1], actions, {}, step, np.flatnonzero(step.episode_length > 0))
            row: dict[str, Any] = {
                name: np.copy(value)
                for name, value in step._asdict().items()
                if isinstance(value, np.ndarray) and name != "observations"
            }
            seen.append({"observations": shown, "after": step.observations.copy(), "actions": actions, **row})
            observations = step.observations
    env.close()
    return seen


def catching(observations: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The best play of Catch: the paddle of the last row moves below the ball."""
    frames = observations[:, -1] > 0
    paddle = frames[:, -1].argmax(1)
    ball = frames[:, :-1].any(1).argmax(1)
    return np.where(frames[:, :-1].any((1, 2)), 1 + np.sign(ball - paddle), 1)


def playing_at_random(observations: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Uniform play of Catch."""
    return generator.integers(3, size=len(observations))


def half_catching(observations: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Each environment plays well or at random, by its number, and by chance from step to step."""
    good = catching(observations, generator)
    return np.where(generator.random(len(good)) < 0.4, good, playing_at_random(observations, generator))
