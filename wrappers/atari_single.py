"""One Atari game as a chain of Gymnasium wrappers, for rendering and as an independent check of the native environment.

For the same config, seed and actions it gives the same bytes as `wrappers.atari`, autoresets included. That takes three
properties of the native environment (ale-py 0.12.1):

- One Mersenne twister draws the number of no-ops at every start. It is seeded at a reset with a seed and not between
  episodes. The draw is that of GCC's standard library, with which ale-py's Linux wheels are built.
- The FIRE of a start comes before the no-ops and counts as one of them.
- The emulator frame in which an episode ends is left out of the last observation, which shows the frames before it.
"""

from __future__ import annotations

from typing import Any, SupportsFloat, cast

import cv2
import gymnasium
import numpy as np
from ale_py import Action, ALEInterface
from ale_py.env import AtariEnv
from gymnasium.wrappers import FrameStackObservation, OrderEnforcing

from wrappers.atari import fire_action, make_spec, rom_of
from wrappers.episodes import EpisodeStatistics, check_seed
from wrappers.spec import EnvConfig, Step, VectorEnv

AtariReset = tuple[np.ndarray, dict[str, Any]]
AtariStep = tuple[np.ndarray, float, bool, bool, dict[str, Any]]
AtariWrapper = gymnasium.Wrapper[np.ndarray, int, np.ndarray, int]


class RandomStart(AtariWrapper):
    """Starts an episode with FIRE (if `press_fire`) and a random number of no-ops below `noop_threshold`.

    `reset(seed=...)` seeds the emulator and loads the game again, so that sticky actions are reproducible too.
    """

    def __init__(self, env: AtariEnv, noop_threshold: int, press_fire: bool) -> None:
        super().__init__(env)
        self._atari = env
        self._noop_threshold = noop_threshold
        self._press_fire = press_fire
        self._generator = np.random.RandomState()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> AtariReset:
        ale = self._atari.ale
        if seed is not None:
            self._generator = np.random.RandomState(seed)
            ale.setInt("random_seed", seed)
            self._atari.load_game()
        screen, info = self._atari.reset(options=options)
        frames = draw_below(self._noop_threshold, self._generator)
        if self._press_fire:
            ale.act(Action.FIRE)
        for _ in range(frames - self._press_fire):  # FIRE counts as one of the no-ops
            ale.act(Action.NOOP)
            if ale.game_over():  # a few games end during the no-ops
                ale.reset_game()
        screen = ale.getScreenGrayscale() if screen.ndim == 2 else ale.getScreenRGB()
        return screen, {**info, "lives": ale.lives()}


class LastScreens(AtariWrapper):
    """Keeps the last two emulator frames in colour, because many games draw an object only in every other frame."""

    def __init__(self, env: AtariWrapper, ale: ALEInterface) -> None:
        super().__init__(env)
        self._ale = ale
        self._screens: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> AtariReset:
        started = self.env.reset(seed=seed, options=options)
        self._screens = [self._ale.getScreenRGB()]
        return started

    def step(self, action: int) -> AtariStep:
        stepped = self.env.step(action)
        self._screens = [*self._screens[-1:], self._ale.getScreenRGB()]
        return cast(AtariStep, stepped)

    def screen(self) -> np.ndarray:
        """Return the pixel-wise maximum of both frames, uint8 `[H, W, 3]`. The policy sees the same maximum."""
        screen: np.ndarray = np.maximum(self._screens[0], self._screens[-1])
        return screen


class SkipPoolResize(AtariWrapper):
    """Repeats an action for `skipped_frames` emulator frames. The observation is the maximum of the last two, resized by area.

    Truncates after `max_episode_frames` emulator frames, also in the middle of a step. Frames of the start do not count.
    """

    def __init__(self, env: AtariWrapper, config: EnvConfig) -> None:
        super().__init__(env)
        self._skipped_frames = config.skipped_frames
        self._max_episode_frames = config.max_episode_frames
        self._size = (config.frame_width, config.frame_height)
        shape = (config.frame_height, config.frame_width) + (() if config.grayscaling_frames else (3,))
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        assert env.observation_space.shape is not None
        self._screens = np.zeros((2, *env.observation_space.shape), dtype=np.uint8)
        self._frames = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> AtariReset:
        screen, info = self.env.reset(seed=seed, options=options)
        self._screens[0] = screen
        # One frame is known after a reset, and zeros do not change the maximum.
        self._screens[1] = 0
        self._frames = 0
        return self._observation(), info

    def step(self, action: int) -> AtariStep:
        total = 0.0
        for frames_left in reversed(range(self._skipped_frames)):
            screen, reward, terminated, _, info = self.env.step(action)
            total += float(reward)
            self._frames += 1
            truncated = self._frames >= self._max_episode_frames
            if terminated or truncated:
                break  # before the frame is stored: the native environment does not draw the last frame of an episode
            if frames_left < len(self._screens):
                self._screens[frames_left] = screen
        return self._observation(), total, terminated, truncated, info

    def _observation(self) -> np.ndarray:
        np.maximum(self._screens[0], self._screens[1], out=self._screens[0])
        return np.asarray(cv2.resize(self._screens[0], self._size, interpolation=cv2.INTER_AREA))


class Lives(AtariWrapper):
    """Adds "life_lost" and "action_used" to info. After a lost life `fire`, if given, replaces the next action."""

    def __init__(self, env: AtariWrapper, fire: int | None) -> None:
        super().__init__(env)
        self._fire = fire
        self._lives = 0
        self._life_lost = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> AtariReset:
        observation, info = self.env.reset(seed=seed, options=options)
        self._lives = info["lives"]
        self._life_lost = False
        return observation, info

    def step(self, action: int) -> AtariStep:
        action_used = self._fire is None or not self._life_lost
        if self._fire is not None and self._life_lost:
            action = self._fire
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._life_lost = 0 < info["lives"] < self._lives  # zero lives is no loss: some games play their last life at zero
        self._lives = info["lives"]
        info = {**info, "life_lost": self._life_lost, "action_used": action_used}
        return observation, float(reward), terminated, truncated, info


class AtariSingle(VectorEnv):
    """The chain of wrappers behind our interface: one environment with next-step autoreset."""

    num_envs = 1

    def __init__(self, config: EnvConfig, render_mode: str | None) -> None:
        self.spec = make_spec(config)
        self._episodic_life = config.episodic_life
        self._last: LastScreens | None = None
        self._atari = AtariEnv(
            rom_of(config.env),
            obs_type="grayscale" if config.grayscaling_frames else "rgb",
            frameskip=1,
            repeat_action_probability=config.sticky_actions,
            full_action_space=config.full_action_space,
            render_mode=cast("Any", render_mode),
        )
        fire = fire_action(self.spec, config)
        env: AtariWrapper = RandomStart(self._atari, config.noop_threshold, press_fire=fire is not None)
        if render_mode is not None:
            env = self._last = LastScreens(env, self._atari.ale)
        env = Lives(SkipPoolResize(env, config), fire)
        self._chain = OrderEnforcing(FrameStackObservation(env, config.frames_stacked, padding_type="zero"))
        self._statistics = EpisodeStatistics(self.num_envs)
        self._ended = False

    def reset(self, seed: int) -> np.ndarray:
        observation, _ = self._chain.reset(seed=check_seed(seed, self.num_envs))
        self._statistics.clear()
        self._ended = False
        return np.asarray(observation)[None]

    def step(self, actions: np.ndarray) -> Step:
        action = int(self.spec.action.check(actions, self.num_envs)[0])
        reset = self._ended
        reward: SupportsFloat = 0.0
        if reset:  # next-step autoreset: the action is ignored
            observation, _ = self._chain.reset()
            terminated, truncated, info = False, False, {"life_lost": False, "action_used": False}
        else:
            observation, reward, terminated, truncated, info = self._chain.step(action)
        self._ended = terminated or truncated
        terminated = terminated or (self._episodic_life and info["life_lost"])
        rewards = np.array([float(reward)], dtype=np.float32)
        episode_return, episode_length = self._statistics.update(rewards, np.array([reset]), np.array([self._ended]))
        return Step(
            np.asarray(observation)[None],
            rewards,
            np.array([terminated]),
            np.array([truncated and not terminated]),
            np.array([reset]),
            np.array([info["action_used"]]),
            episode_return,
            episode_length,
        )

    def render(self) -> np.ndarray:
        return super().render() if self._last is None else self._last.screen()

    def close(self) -> None:
        self._chain.close()


def draw_below(bound: int, generator: np.random.RandomState) -> int:
    """Return the value that `std::uniform_int_distribution(0, bound - 1)` draws from `std::mt19937` in the generator's state.

    A bound of 0 or 1 gives 0. The draw is a multiplication and a shift; values that would make the distribution uneven are
    rejected (Lemire, arXiv 1805.10941, algorithm 5).
    """
    if bound <= 1:
        return 0
    uneven = 2**32 % bound
    while True:
        product = int(generator.randint(0, 2**32, dtype=np.uint32)) * bound
        if product % 2**32 >= uneven:
            return product >> 32
