"""Plays several environments of Gymnasium in one process with one connection."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from springbok_client.agent import RemoteAgent, reset_message, step_message
from springbok_client.spaces import Plain, describe

ACTION_MASK = "action_mask"
PERIOD = 10.0  # seconds between two lines of progress, after a first one
FIRST = 2.0
RECENT = 100  # episodes of the mean return


@dataclass(frozen=True)
class Limits:
    """When to end; None for never."""

    steps: int | None = None
    episodes: int | None = None


class Printer:
    """Prints the progress. as_json: an object a line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def __call__(self, values: Mapping[str, Any]) -> None:
        if self._as_json:
            print(json.dumps(values), flush=True)
        else:
            print(" ".join(f"{name}={_shown(value)}" for name, value in values.items()), flush=True)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Player:
    """Environments, and what they have played.

    Args:
        environments: of Gymnasium, one a seat.
        seed: of the first environment's first episode; None for none.
    """

    def __init__(self, environments: Sequence[Any], seed: int | None) -> None:
        self._environments = environments
        self._seeds = [None if seed is None else seed + index for index in range(len(environments))]
        first = self._reset(0)  # an entry of info shows whether there are masks
        self._began: list[tuple[Any, Mapping[str, Any]] | None] = [first, *[None] * (len(environments) - 1)]
        self.observation_space: Plain = describe(environments[0].observation_space, "observation_space")
        # The server finds a mask in the observation by itself, as it does in an environment of its own.
        in_observation = self.observation_space["type"] == "dict" and ACTION_MASK in self.observation_space["spaces"]
        self.has_mask = not in_observation and ACTION_MASK in first[1]
        self._returns = [0.0] * len(environments)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._steps = self._episodes = 0

    def play(self, agent: RemoteAgent, limits: Limits, report: Printer) -> None:
        """Play until a limit, and report the progress now and then and at the end."""
        began = time.monotonic()
        next_line, last_time, last_steps = began + FIRST, began, 0
        try:
            agent.send([self._begin(seat) for seat in range(len(self._environments))])
            while not self._is_done(limits):
                messages: list[dict[str, Any]] = []
                for seat, action, _ in agent.receive():
                    messages += [self._begin(seat)] if action is None else self._step(seat, action)
                agent.send(messages)
                now = time.monotonic()
                if now >= next_line:
                    report(self._progress(agent, self._steps - last_steps, now - last_time))
                    next_line, last_time, last_steps = now + PERIOD, now, self._steps
        finally:
            if self._steps:
                report(self._progress(agent, self._steps, time.monotonic() - began))

    def _is_done(self, limits: Limits) -> bool:
        return self._steps >= (limits.steps or math.inf) or self._episodes >= (limits.episodes or math.inf)

    def _progress(self, agent: RemoteAgent, steps: int, seconds: float) -> dict[str, Any]:
        mean = {"return_mean": round(sum(self._recent) / len(self._recent), 4)} if self._recent else {}
        speed = {"steps_per_second": round(steps / max(seconds, 1e-9), 1)}
        return {"steps": self._steps, **speed, "episodes": self._episodes, **mean, "given_up": agent.given_up}

    def _reset(self, seat: int) -> tuple[Any, Mapping[str, Any]]:
        seed, self._seeds[seat] = self._seeds[seat], None
        began: tuple[Any, Mapping[str, Any]] = self._environments[seat].reset(seed=seed)
        return began

    def _begin(self, seat: int) -> dict[str, Any]:
        """Begin an episode. Returns its message."""
        waiting, self._began[seat] = self._began[seat], None
        observation, info = waiting or self._reset(seat)
        self._returns[seat] = 0.0
        return reset_message(seat, observation, self._mask(info))

    def _step(self, seat: int, action: Any) -> list[dict[str, Any]]:
        """Take an action. Returns its message, and that of the next episode if this one has ended."""
        observation, reward, terminated, truncated, info = self._environments[seat].step(action)
        self._steps += 1
        self._returns[seat] += float(reward)
        message = step_message(seat, observation, reward, terminated, truncated, self._mask(info), info)
        if not (terminated or truncated):
            return [message]
        self._episodes += 1
        self._recent.append(self._returns[seat])
        return [message, self._begin(seat)]

    def _mask(self, info: Mapping[str, Any]) -> Any:
        return info.get(ACTION_MASK) if self.has_mask else None
