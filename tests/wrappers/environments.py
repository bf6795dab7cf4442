"""Tiny environments of Gymnasium whose observations count, so that each row says which moment it shows."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

LENGTH = 3  # steps of an episode

Info = dict[str, Any]


class Counting(gymnasium.Env[Any, Any]):
    """An observation is [episode, step, last action]. An episode terminates at step `length`; `cut` truncates it instead.

    The reward of a step is 10 * episode + step. Episodes are counted from 1; the seed is kept in `seeds`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, length: int = LENGTH, cut: bool = False, render_mode: str | None = None) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3, start=5)
        self.length, self.cut, self.render_mode = length, cut, render_mode
        self.episode = self.steps = 0
        self.last: Any = 0
        self.seeds: list[int | None] = []
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.seeds.append(seed)
        self.episode = 1 if seed is not None else self.episode + 1
        self.steps, self.last = 0, 0
        return self.observe(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.steps += 1
        self.last = action
        over = self.steps >= self.length
        return self.observe(), 10.0 * self.episode + self.steps, over and not self.cut, over and self.cut, self.info()

    def observe(self) -> Any:
        return np.array([self.episode, self.steps, self.last], np.float64)

    def info(self) -> Info:
        return {}

    def render(self) -> Any:
        return np.full((8, 10, 3), self.steps, np.uint8)

    def close(self) -> None:
        self.closed = True


class CountingVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The same as a vector environment in any autoreset mode. Environment i has episodes of length + i steps."""

    def __init__(self, num_envs: int = 1, length: int = LENGTH, cut: bool = False, mode: str = "NEXT_STEP") -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode[mode]}
        self.mode = AutoresetMode[mode]
        self.envs = [Counting(length + index, cut) for index in range(num_envs)]
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.over = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | list[int | None] | None = None, options: Info | None = None) -> tuple[Any, Info]:
        assert not isinstance(seed, list)
        self.over[:] = False
        return np.stack([env.reset(seed=seed)[0] for env in self.envs]), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Info]:
        observations, rewards = np.zeros((self.num_envs, 3)), np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        final = np.full(self.num_envs, None, object)
        for index, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            if self.over[index]:
                assert self.mode is not AutoresetMode.DISABLED, "stepped after its end"
                observations[index], self.over[index] = env.reset()[0], False
                continue
            observations[index], rewards[index], terminated[index], truncated[index], _ = env.step(action)
            ended = terminated[index] or truncated[index]
            if ended and self.mode is AutoresetMode.SAME_STEP:
                final[index], observations[index] = observations[index].copy(), env.reset()[0]
            else:
                self.over[index] = ended
        info = {"final_obs": final} if self.mode is AutoresetMode.SAME_STEP and (terminated | truncated).any() else {}
        return observations, rewards, terminated, truncated, info


class Mixed(Counting):
    """A nested observation: numbers, one-hots, bits, an image with channels first, and a mask of actions."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.observation_space = spaces.Dict(
            [
                ("action_mask", spaces.MultiBinary(3)),
                ("place", spaces.Tuple([spaces.Discrete(4, start=1), spaces.MultiDiscrete([2, 3])])),
                ("camera", spaces.Box(0, 255, (3, 6, 5), np.uint8)),
                ("numbers", spaces.Dict(speed=spaces.Box(-1, 1, (2, 2), np.float32), bits=spaces.MultiBinary(2))),
                ("text", spaces.Text(5)),
            ]
        )

    def observe(self) -> Any:
        return {
            "action_mask": np.array([1, self.steps % 2, 1], np.int8),
            "place": (1 + self.steps, np.array([self.steps % 2, 2])),
            "camera": np.arange(90, dtype=np.uint8).reshape(3, 6, 5) + self.steps,
            "numbers": {"speed": np.full((2, 2), 0.5 * self.steps, np.float32), "bits": np.array([0, 1], np.int8)},
            "text": "abc",
        }


class Planes(Counting):
    """Truth values on a board with channels last, and pictures of floats, as MinAtar has them."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.observation_space = spaces.Box(0, 1, (10, 10, 6), np.bool_)

    def observe(self) -> Any:
        planes = np.zeros((10, 10, 6), bool)
        planes[2, 7, self.steps] = True
        return planes

    def render(self) -> Any:
        return np.full((10, 10, 3), [0.0, 0.5, 1.0])


class MaskInInfo(Counting):
    """Action 5 is legal at even steps only; the mask is in info, also after resets."""

    def info(self) -> Info:
        return {"action_mask": np.array([self.steps % 2 == 0, True, True])}


class Reporting(Counting):
    """Reports numbers in info, also at a reset, and one at the end of an episode only."""

    def info(self) -> Info:
        over = self.steps == self.length
        numbers = {"is success": over, "cost": np.array([0.5 * self.steps]), **({"late": np.float32(7)} if over else {})}
        return {**numbers, "text": "x", "vector": np.zeros(3), "nested": {"number": 1.0}, "bad": np.nan}


def reporting_vector(num_envs: int, mode: str = "NEXT_STEP") -> SyncVectorEnv:
    """Gymnasium's own vector of `Reporting`."""
    return SyncVectorEnv([Reporting] * num_envs, autoreset_mode=AutoresetMode[mode])


class Failing(Counting):
    """Raises where it is asked to."""

    def __init__(self, where: str = "init") -> None:
        super().__init__()
        self.where = where
        if where == "init":
            raise RuntimeError("no licence")
        if where == "exit":
            raise SystemExit(7)
        if where == "import":
            raise ModuleNotFoundError("No module named 'Box2D'", name="Box2D")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        if self.where == "reset":
            raise KeyError("level 9")
        if self.where == "exit in reset":
            raise SystemExit(8)
        return super().reset(seed=seed, options=options)

    def observe(self) -> Any:
        return super().observe() * (np.nan if self.where == "nan" and self.steps == 2 else 1.0)


class Closing(Counting):
    """Appends the name of its process to a file when it is closed.

    pause: seconds of a step. fails: `make`, so that the third environment cannot be made, or `reset`, with a seed above 1.
    """

    made = 0

    def __init__(self, path: str, pause: float = 0.0, fails: str = "") -> None:
        super().__init__()
        self.path, self.pause, self.fails = path, pause, fails
        type(self).made += 1
        if self.fails == "make" and self.made == 3:
            raise RuntimeError("no licence for a third one")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        if self.fails == "reset" and (seed or 1) > 1:
            raise RuntimeError("no display for this seed")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        time.sleep(self.pause)
        return super().step(action)

    def close(self) -> None:
        with open("/proc/self/comm") as name, open(self.path, "a") as file:
            file.write(name.read())


class Leaving(Counting):
    """Leaves a process behind that has its standard streams. Writes its id to a file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        Path(path).write_text(str(subprocess.Popen(["sleep", "600"]).pid))


class Slow(Counting):
    """Takes `seconds` for a reset."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        time.sleep(self.seconds)
        return super().reset(seed=seed, options=options)


class Hanging(Counting):
    """Never answers in `where`: constructor, reset, step, render or close.

    how: `sleep`, `swallow` (every exception), `native` (code that keeps Python from running). probed: whether it hangs when it
    is tried out, instead of later. child: a file for the id of a process that it starts. made, pause: seconds of the
    constructor and of a step. noisy: whether each step prints from native code.
    """

    def __init__(
        self,
        where: str = "",
        how: str = "sleep",
        probed: bool = False,
        child: str = "",
        made: float = 0.0,
        pause: float = 0.0,
        noisy: bool = False,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(length=1000, render_mode=render_mode)
        self.where, self.how, self.pause, self.noisy = where, how, pause, noisy
        self.hangs = probed == sys.argv[0].endswith("probe.py")
        if child and self.hangs:
            Path(child).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(made)
        self.hang_in("constructor")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.hang_in("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        time.sleep(self.pause)
        if self.noisy:
            os.write(1, b"pybullet build 7\n")
            os.write(2, f"INFO {time.time()} no sound card\n".encode())
        if self.steps >= 30 or sys.argv[0].endswith("probe.py"):
            self.hang_in("step")
        return super().step(action)

    def render(self) -> Any:
        self.hang_in("render")
        return super().render()

    def close(self) -> None:
        self.hang_in("close")
        super().close()

    def hang_in(self, where: str) -> None:
        while self.hangs and where == self.where:
            with contextlib.suppress(*((BaseException,) if self.how == "swallow" else ())):
                (ctypes.PyDLL(None) if self.how == "native" else time).sleep(600)


class Moving(Counting):
    """Changes the current folder to `path`, and reads a file there at each reset."""

    def __init__(self, path: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        os.chdir(path)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        Path("level").read_text()
        return super().reset(seed=seed, options=options)


HERE = "tests.wrappers.environments"


def _register(name: str, single: Any = None, vector: Any = None, **settings: Any) -> None:
    gymnasium.register(f"{name}-v1", single, vector_entry_point=vector, **settings)


_register("TestCounting", Counting)
_register("TestLimited", Counting, max_episode_steps=2)
_register("TestMixed", Mixed)
_register("TestPlanes", Planes)
_register("TestMaskInInfo", MaskInInfo)
_register("TestFailing", Failing)
_register("TestLeaving", Leaving)
_register("TestSlow", Slow)
_register("TestHanging", Hanging)
_register("TestMoving", Moving)
_register("TestClosing", Closing)
_register("TestVector", None, CountingVector)
_register("TestBoth", Counting, CountingVector)
_register("TestReporting", Reporting)
_register("TestReportingBoth", Reporting, reporting_vector)
_register("TestReportingVector", None, reporting_vector)


class Doubled(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows twice the observation."""

    def observation(self, observation: Any) -> Any:
        return 2 * observation


class PlusOne(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows one more than the observation."""

    def observation(self, observation: Any) -> Any:
        return observation + 1


class Unwrappable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wraps nothing."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        raise RuntimeError(f"wall 9 around {env}")
