"""An environment whose spaces are drawn at random: `--env=benchmarks.random_spaces:RandomSpaces-v0 --env_args='{"number": 7}'`.

It checks every action that it gets, so an action that its space does not hold ends the run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Info = dict[str, Any]
Stepped = tuple[Any, float, bool, bool, Info]

MOST_STEPS = 12
NAMES = ("a", "b/c", "the part", "ä", "1")
DEEPEST = 2  # levels of Dict and Tuple


UNUSUAL: dict[str, Callable[[Stepped], Any]] = {
    "none": lambda five: five,
    "reward [1]": lambda five: (five[0], np.array([five[1]]), *five[2:]),
    "reward [2]": lambda five: (five[0], np.array([five[1], 0.0]), *five[2:]),
    "reward None": lambda five: (five[0], None, *five[2:]),
    "reward text": lambda five: (five[0], str(five[1]), *five[2:]),
    "reward complex": lambda five: (five[0], 1j, *five[2:]),
    "reward nan": lambda five: (five[0], np.nan, *five[2:]),
    "reward bool": lambda five: (five[0], five[1] > 0, *five[2:]),
    "ends [1]": lambda five: (*five[:2], np.array([five[2]]), np.array([int(five[3])]), five[4]),
    "ends None": lambda five: (*five[:2], None, *five[3:]),
    "info None": lambda five: (*five[:4], None),
    "six values": lambda five: (*five, 0.5),
    "four values": lambda five: (*five[:2], five[2] or five[3], five[4]),
    "observation None": lambda five: (None, *five[1:]),
    "observation in a batch": lambda five: (np.zeros((2, 9, 2)), *five[1:]),
    "an error": lambda five: five[9],  # type: ignore[misc]
}
"""Name -> what a step returns in place of the usual five values."""


class RandomSpaces(gymnasium.Env[Any, Any]):
    """Observations of a random space, random rewards, and episodes of 1 to 11 steps.

    number: decides the spaces. unusual: a key of `UNUSUAL`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, number: int = 0, render_mode: str | None = None, unusual: str = "none") -> None:
        self.unusual = UNUSUAL[unusual]
        generator = random.Random(number)
        self.render_mode = render_mode
        self.action_space: spaces.Space[Any] = random_actions(generator)
        self.observation_space: spaces.Space[Any] = random_observations(generator, DEEPEST)
        self.reward_scale = generator.choice((0.0, 0.01, 1.0, 1e6))
        self.left = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.left = int(self.np_random.integers(1, MOST_STEPS))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise RuntimeError(f"wanted an action of {self.action_space}, got {action!r} of type {type(action).__name__}")
        self.left -= 1
        truncated = self.left == 0 and bool(self.np_random.integers(2))
        reward = self.reward_scale * float(self.np_random.normal())
        return self.unusual((self.observation_space.sample(), reward, self.left == 0 and not truncated, truncated, {}))

    def render(self) -> Any:
        return np.zeros((16, 24, 3), np.uint8)


def random_actions(generator: random.Random) -> spaces.Space[Any]:
    """Any space of actions. One in ten is an integer Box, or a Tuple or a Dict, which the program refuses."""
    low = generator.choice((-1.0, 0.0, -np.inf, -3.0))
    high = generator.choice((1.0, 5.0, np.inf))
    shape = generator.choice(((1,), (3,), (2, 2), ()))
    makers = (
        lambda: spaces.Discrete(generator.choice((1, 2, 7)), start=generator.choice((0, 0, 5, -2))),
        lambda: spaces.MultiDiscrete(np.array(generator.choice(([2], [3, 2], [1, 4, 2], [[2, 3], [4, 1]])))),
        lambda: spaces.MultiBinary(generator.choice((1, 3))),
        lambda: spaces.Box(low, high, shape, generator.choice((np.float32, np.float64))),
        lambda: spaces.Box(low, high, shape, np.float32),
    )
    refused = (
        lambda: spaces.Box(0, 9, (2,), np.int32),
        lambda: spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]),
        lambda: spaces.Dict(move=spaces.Discrete(2)),
    )
    return generator.choice(refused if generator.random() < 0.1 else makers)()


def random_observations(generator: random.Random, depth: int) -> spaces.Space[Any]:
    """Any space of observations, nested at most `depth` deep; one leaf in 25 is of a kind that the program refuses."""
    if depth and generator.random() < 0.4:
        parts = [random_observations(generator, depth - 1) for _ in range(generator.choice((1, 2, 3)))]
        if generator.random() < 0.3:
            return spaces.Tuple(parts)
        return spaces.Dict(
            {generator.choice(("a", "b/c", "the part", "ä", "1")) + str(i): part for i, part in enumerate(parts)}
        )
    if generator.random() < 0.04:
        return generator.choice((spaces.Text(3), spaces.Sequence(spaces.Discrete(2))))
    makers = (
        lambda: spaces.Discrete(generator.choice((1, 4)), start=generator.choice((0, 3, -1))),
        lambda: spaces.MultiDiscrete(np.array(generator.choice(([2], [3, 2], [[2, 3], [4, 1]])))),
        lambda: spaces.MultiBinary(generator.choice((1, 3, [2, 2]))),
        lambda: _random_box(generator),
        lambda: _random_box(generator),
        lambda: _random_image(generator),
    )
    return generator.choice(makers)()


def _random_box(generator: random.Random) -> spaces.Space[Any]:
    shape = generator.choice(((), (1,), (5,), (2, 3), (2, 2, 2), (0,) if generator.random() < 0.1 else (4,)))
    kind = generator.choice((np.float32, np.float64, np.float16, np.int64, np.int8, np.uint8, np.uint16, bool))
    if kind is bool:
        return spaces.Box(0, 1, shape, np.int8)
    if np.dtype(kind).kind in "iu":
        return spaces.Box(0, generator.choice((1, 9, 100)), shape, kind)
    return spaces.Box(generator.choice((-np.inf, -1.0)), generator.choice((np.inf, 1.0)), shape, kind)


def _random_image(generator: random.Random) -> spaces.Space[Any]:
    height, width = generator.choice(((7, 7), (8, 9), (40, 36), (84, 84)))
    shape = generator.choice(((height, width), (height, width, 3), (3, height, width), (height, width, 1)))
    return spaces.Box(0, 255, shape, np.uint8)


gymnasium.register("RandomSpaces-v0", "benchmarks.random_spaces:RandomSpaces")
