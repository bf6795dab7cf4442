"""Random play of the clients of a server, whose observations scale the network's input before training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import numpy as np
import torch
from torch import Tensor

from serve.app import ClientServer
from serve.run import listen, run, serve
from serve.session import Busy, Host, Outcome, Session, check_seats
from serve.settings import ServerConfig
from workers.random_play import CALLS, ENVIRONMENTS, EVERY, FEWEST, PLAY_SECONDS, STEPS
from workers.served.seats import SeatStacks
from wrappers.legal import random_actions
from wrappers.served import spaces_of, translation_of
from wrappers.spec import EnvConfig

RETRY_SECONDS = 2.0
LOOK_SECONDS = 0.2


class RandomSeats(Host):
    """Acts at random in C seats.

    Args:
        env: the environment that clients play.
        count: C.
        seed: of the actions.

    Attributes:
        seen: every `EVERY`th observation, `[S, *frame_shape]` each.
        steps: of all seats.
    """

    def __init__(self, env: EnvConfig, count: int, seed: int) -> None:
        super().__init__("random", spaces_of(env))
        self._translation = translation_of(env)
        self._observed = SeatStacks(self._translation, count)
        self._sessions: list[Session | None] = [None] * count
        self._ready: set[int] = set()
        self._generator = np.random.default_rng(seed)
        self.seen: list[np.ndarray] = []
        self.steps = 0
        self.came = asyncio.Event()

    def join(self, session: Session, count: int, *, exploit: bool) -> list[int]:
        check_seats(count, len(self._sessions))
        free = [seat for seat, taken in enumerate(self._sessions) if taken is None][:count]
        if len(free) < count or exploit:  # there is no best action yet
            raise Busy(RETRY_SECONDS)
        for seat in free:
            self._sessions[seat] = session
        return free

    def begin(self, seat: int, outcome: Outcome) -> None:
        self._observed.put(seat, outcome, first=True)
        self._ready.add(seat)
        self.came.set()

    def take(self, seat: int, outcome: Outcome) -> None:
        self._observed.put(seat, outcome, first=False)
        if self.steps % EVERY == 0:
            self.seen.append(self._observed.stacks[seat].copy())
        self.steps += 1
        if not outcome.ended:
            self._ready.add(seat)
            self.came.set()

    def leave(self, seat: int) -> None:
        self._sessions[seat] = None
        self._ready.discard(seat)

    def act(self) -> None:
        """Act in all seats that wait for an action."""
        seats, spec = sorted(self._ready), self._translation.spec
        self._ready.clear()
        if not seats:
            return
        actions = random_actions(spec, self._observed.stacks[seats], self._generator)
        for seat, action in zip(seats, self._translation.decode(spec.action.check(actions, len(seats))), strict=True):
            if session := self._sessions[seat]:
                session.answer(seat, action, 0)


def random_observations_of_clients(
    env: EnvConfig, server: ServerConfig, seats: int, seed: int, on_call: Callable[[int], None]
) -> Tensor:
    """800 observations `[N, S, *frame_shape]` of uniformly random play; fewer if the clients are slow.

    It waits for clients, and listens where the training will, so they find the training by connecting again.

    Args:
        env, seats, seed: of the clients' environment.
        server: where clients connect.
        on_call: called several times a second, as by `workers.random_play.random_observations`.

    Raises ValueError in one line if the address cannot be used.
    """
    host = RandomSeats(env, seats, seed)

    async def play() -> None:
        end = np.inf
        while host.steps < ENVIRONMENTS * STEPS and not (len(host.seen) >= FEWEST and monotonic() > end):
            host.came.clear()
            host.act()
            on_call(CALLS.index("step") + host.steps // ENVIRONMENTS)
            if host.steps:
                end = min(end, monotonic() + PLAY_SECONDS)
            try:
                await asyncio.wait_for(host.came.wait(), LOOK_SECONDS)
            except TimeoutError:
                continue
            await asyncio.sleep(0)  # messages that came at the same time are read

    run(serve(ClientServer(host, server, lambda: {"waiting": False}), listen(server), play()), fast=False)
    return torch.from_numpy(np.stack(host.seen))
