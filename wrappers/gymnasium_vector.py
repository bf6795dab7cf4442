"""N environments of Gymnasium behind our interface, with exact next-step autoreset in all three autoreset modes of Gymnasium.

`GymnasiumLoop` steps N single environments in a loop. Environment i is seeded with `seed + i`. `NativeVector` steps one vector
environment whose own autoreset is next-step. It has one generator of random numbers, so environment i also depends on N.
`OneOfVector` makes a single environment of a vector environment with `num_envs` 1. The other autoreset modes need it, because
one environment of a vector cannot skip a step that the others take.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from wrappers.episodes import EpisodeStatistics, check_seed
from wrappers.gymnasium_contract import (
    CONVERSIONS,
    check_observation,
    contract_hint,
    read_reset,
    read_step,
    read_vector_step,
)
from wrappers.gymnasium_spaces import Decoder, FrameBuffer, ObservationPlan
from wrappers.infos import InfoCollector, is_mask
from wrappers.spec import FAILURES, EnvSpec, Step, VectorEnv

Info = Mapping[str, Any]
FINAL_OBSERVATIONS = ("final_obs", "final_observation")
"""Entries of info in which a same-step vector environment returns an episode's last observation. The second is the old name."""

SingleEnv = gymnasium.Env[Any, Any]


@contextmanager
def closed_on_failure(envs: Sequence[SingleEnv]) -> Iterator[None]:
    """A context that closes the environments, those included that it adds, if it raises. They may hold processes."""
    try:
        yield
    except BaseException:
        for env in envs:
            with suppress(*FAILURES):  # it must not hide the first failure
                env.close()
        raise


class Translation(NamedTuple):
    """How observations and actions are translated. spec: the result."""

    spec: EnvSpec
    plan: ObservationPlan
    decode: Decoder


class FrameStack:
    """The last S frames of N environments, newest last, with zeros before an episode's first frame."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._stack = np.zeros((num_envs, *spec.observation_shape), spec.frame_dtype)

    def push(self, frames: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Append frames `[N, *frame_shape]`. Returns a copy of the stacks, `[N, S, *frame_shape]`.

        first: bool `[N]`, whether the frame is its episode's first.
        """
        if self._stack.shape[1] > 1:
            self._stack[:, :-1] = self._stack[:, 1:].copy()
            self._stack[first] = 0
        self._stack[:, -1] = frames
        return self._stack.copy()


class TranslatedEnv(VectorEnv):
    """Translation, stacks and statistics, which both kinds of vectors share."""

    needs_close = True
    ignored_infos: Collection[str] = ()
    """Entries of info that are no metrics."""

    def __init__(self, translation: Translation, num_envs: int) -> None:
        self.spec = translation.spec
        self.translation = translation
        self.num_envs = num_envs
        self._decode = translation.decode
        self._plan = translation.plan
        self._buffer = FrameBuffer(translation.plan, num_envs)
        self._stack = FrameStack(self.spec, num_envs)
        self._statistics = EpisodeStatistics(num_envs)
        self._infos = InfoCollector(num_envs, self.ignored_infos)
        self._ended = np.zeros(num_envs, dtype=bool)

    def lines(self) -> tuple[str, ...]:
        """Lines on how images and other arrays of the observation are read."""
        return self._plan.lines()

    @property
    def has_mask_in_info(self) -> bool:
        """Whether infos hold the mask of legal actions."""
        return self._plan.mask_in_info is not None

    def _begin(self) -> np.ndarray:
        """The observations after a reset of all environments."""
        self._statistics.clear()
        self._ended = np.zeros(self.num_envs, dtype=bool)
        return self._stack.push(self._buffer.frames(), np.ones(self.num_envs, dtype=bool))

    def _finish(self, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, reset: np.ndarray) -> Step:
        """The result of a step whose observations are in the buffer."""
        self._ended = terminated | truncated
        statistics = self._statistics.update(rewards, reset, self._ended)
        observations = self._stack.push(self._buffer.frames(), reset)
        # An episode that terminates at its time limit has no value to bootstrap from.
        return Step(observations, rewards, terminated, truncated & ~terminated, reset, ~reset, *statistics, self._infos.take())


class GymnasiumLoop(TranslatedEnv):
    """N single environments that are stepped one after the other."""

    def __init__(self, envs: Sequence[SingleEnv], translation: Translation) -> None:
        super().__init__(translation, len(envs))
        self._envs = envs
        self._checked = False  # whether the first step was checked

    def reset(self, seed: int) -> np.ndarray:
        seed = check_seed(seed, self.num_envs)
        for index, env in enumerate(self._envs):
            observation, info = read_reset(env.reset(seed=seed + index))
            check_observation(self._plan, observation)
            self._buffer.put(index, observation, info)
        return self._begin()

    def step(self, actions: np.ndarray) -> Step:
        decoded = self._decode(self.spec.action.check(actions, self.num_envs))
        reset = self._ended  # next-step autoreset: these environments ignore their actions and start an episode
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=bool)
        for index, env in enumerate(self._envs):
            if reset[index]:
                self._put_first(index, *read_reset(env.reset()))
                continue
            returned = env.step(decoded[index])
            try:
                self._put(index, returned if self._checked else read_step(returned, self._plan), rewards, terminated, truncated)
            except CONVERSIONS:
                self._put(index, read_step(returned, self._plan), rewards, terminated, truncated)
        self._checked = True
        return self._finish(rewards, terminated, truncated, reset)

    def _put_first(self, index: int, observation: Any, info: Info) -> None:
        """Take what an environment returned for the reset of an autoreset. Raises ContractError."""
        try:
            self._buffer.put(index, observation, info)
        except CONVERSIONS:
            check_observation(self._plan, observation)
            raise

    def _put(self, index: int, returned: Any, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """Take what an environment returned for a step: five values. Writes to row `index` of the arrays `[N]`."""
        observation, reward, terminal, cut, info = returned
        rewards[index], terminated[index], truncated[index] = reward, terminal, cut
        self._buffer.put(index, observation, info, ended=bool(terminal or cut))
        if isinstance(info, dict) and info:
            self._infos.put(index, info)

    def explain(self, error: BaseException) -> str | None:
        """The line about a first step that broke the contract in a way that only wrappers noticed; None for another error."""
        return contract_hint(error, self._envs[0])

    def goal_function(self, name: str) -> Callable[..., Any] | None:
        env = self._envs[0]
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None

    def render(self) -> np.ndarray:
        return picture_of(self._envs[0].render(), self.spec.env)

    def close(self) -> None:
        for env in self._envs:
            env.close()


class NativeVector(TranslatedEnv):
    """A vector environment whose own autoreset is next-step."""

    def __init__(self, vector: Any, translation: Translation, num_envs: int) -> None:
        super().__init__(translation, num_envs)
        self._vector = vector

    def reset(self, seed: int) -> np.ndarray:
        observations, info = self._vector.reset(seed=check_seed(seed, self.num_envs))
        self._buffer.put(slice(None), observations, info)
        return self._begin()

    def step(self, actions: np.ndarray) -> Step:
        decoded = np.asarray(self._decode(self.spec.action.check(actions, self.num_envs)))
        reset = self._ended
        returned = read_vector_step(self._vector.step(decoded), self.num_envs)
        observations, rewards, terminated, truncated, info = returned
        self._buffer.put(slice(None), observations, info, ended=np.logical_or(terminated, truncated))
        if info:
            self._infos.put_all(info, ~reset)
        # The step of an autoreset belongs to no episode, whatever the environment returns for it.
        rewards = np.where(reset, 0, rewards).astype(np.float32)
        return self._finish(rewards, np.array(terminated, bool) & ~reset, np.array(truncated, bool) & ~reset, reset)

    def close(self) -> None:
        self._vector.close()


class OneOfVector(SingleEnv):
    """A vector environment with `num_envs` 1 as a single environment. Its autoreset mode may be any.

    A same-step environment returns the next episode's first observation together with an episode's end. It is held until
    `reset` asks for it. A next-step environment starts the next episode in a further step, whose action it ignores.
    """

    def __init__(self, vector: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self._vector = vector
        self._mode = vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._held: tuple[Any, dict[str, Any]] | None = None
        self._last_action: Any = None
        self.action_space = vector.single_action_space
        self.observation_space = vector.single_observation_space
        self.metadata = vector.metadata
        self.render_mode = vector.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        held, self._held = self._held, None
        # A reset with a seed begins anew, so it drops an observation that is held.
        if held and seed is None:
            return held
        if self._mode == AutoresetMode.NEXT_STEP and seed is None and self._last_action is not None:
            observations, _, _, _, info = self._vector.step(self._last_action)
        else:
            observations, info = self._vector.reset(seed=seed, options=options)
        return first_of(observations), first_info(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._last_action = np.array([action], self._vector.single_action_space.dtype)
        observations, rewards, terminated, truncated, info = self._vector.step(self._last_action)
        observation, one = first_of(observations), first_info(info)
        ended = bool(terminated[0] or truncated[0])
        if ended and self._mode == AutoresetMode.SAME_STEP:
            self._held = observation, one
            observation = first_of(next((info[name] for name in FINAL_OBSERVATIONS if name in info), None))
            if observation is None:
                raise RuntimeError("wanted the entry final_obs of info from a same-step vector environment, got none")
            one = first_info(info.get("final_info", {}))
        return observation, rewards[0], bool(terminated[0]), bool(truncated[0]), one

    def render(self) -> Any:
        return self._vector.render()

    def close(self) -> None:
        self._vector.close()


def picture_of(rendered: Any, env_id: str) -> np.ndarray:
    """The picture uint8 `[H, W, 3]` of what an environment, or the first of a vector, has rendered. Raises RuntimeError."""
    several = isinstance(rendered, list | tuple) or (isinstance(rendered, np.ndarray) and rendered.ndim == 4)
    picture = rendered[0] if several and len(rendered) else rendered
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
        got = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise RuntimeError(f"render: wanted an RGB picture [H, W, 3] of {env_id}, got {got}")
    if picture.dtype.kind == "f" and picture.max(initial=0) <= 1:  # as Matplotlib writes colours, and MinAtar
        picture = np.rint(255 * picture)
    return np.asarray(picture, np.uint8)


def first_of(observations: Any) -> Any:
    """The observation of environment 0 of batched ones, as copies."""
    if isinstance(observations, Mapping):
        return {key: first_of(each) for key, each in observations.items()}
    if isinstance(observations, tuple):
        return tuple(first_of(each) for each in observations)
    if observations is None:
        return None
    # Last observations lie in an array of objects, which may be dicts or tuples.
    return deepcopy(observations[0]) if isinstance(observations[0], Mapping | tuple) else np.copy(observations[0])


def first_info(info: Info) -> dict[str, Any]:
    """The info of environment 0. Gymnasium batches it as arrays; the array `_name` marks the environments with an entry."""
    return {
        name: value[0]
        for name, value in info.items()
        if isinstance(value, np.ndarray) and value.ndim and not is_mask(name, info)
        if f"_{name}" not in info or np.ravel(info[f"_{name}"])[0]
    }
