"""The rollout of environments that clients play: each seat writes trajectories of its own, at its own pace.

A row is written in two parts, as in `workers/rollout.py`: what the policy chose, and later what came of it. Seats that have an
observation act together. A seat that ended an episode acts once more, on the final observation; this row is the autoreset, and
it waits for the `reset` of the seat's client, or of the next client that gets the seat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

import numpy as np

from replay.trajectory import Arrays
from serve.frames import ProtocolError
from serve.session import NO_ACTION, Busy, Host, Outcome, Session, check_seats
from workers.base import WorkerSetup
from workers.evaluation_policy import EvaluationPolicy
from workers.finite import NotFiniteError
from workers.served.counts import Counts
from workers.served.policy import SeatPolicy
from workers.served.rows import SlotRows
from wrappers.episodes import EpisodeStatistics
from wrappers.gymnasium_spaces import FrameBuffer
from wrappers.gymnasium_vector import Translation
from wrappers.infos import InfoCollector
from wrappers.served import spaces_of, translation_of

log = logging.getLogger("springbok")

RETRY_SECONDS = 2.0


class SeatStacks:
    """The newest observations of C seats.

    stacks: `[C, S, *frame_shape]`. translation: of values of the environment's spaces into frames.
    """

    def __init__(self, translation: Translation, count: int) -> None:
        self._mask_name = translation.plan.mask_in_info
        self._buffer = FrameBuffer(translation.plan, count)
        self.stacks = np.zeros((count, *translation.spec.observation_shape), translation.spec.frame_dtype)

    def put(self, seat: int, outcome: Outcome, *, first: bool) -> None:
        """Take an observation into the stack of its seat. first: of an episode."""
        info = outcome.info
        if outcome.mask is not None and self._mask_name:
            info = {**info, self._mask_name: outcome.mask}
        self._buffer.put(seat, outcome.observation, info, ended=outcome.ended)
        stack = self.stacks[seat]
        if first:
            stack[:] = 0
        else:
            stack[:-1] = stack[1:].copy()
        stack[-1] = self._buffer.frame(seat)


class Seats(Host):
    """All seats of a server that trains. Arrays have a row for each seat, C in all.

    Args:
        setup: of the run.
        policy: acts in the seats that are learned from.
        greedy: acts in the seats that exploit.
        slots: the arena's arrays, `[slot_count, *shape]` each field.
        hand_over: called with the number of a slot that is complete.
        counts: what the learner records of the server.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        policy: SeatPolicy,
        greedy: EvaluationPolicy,
        slots: Arrays,
        hand_over: Callable[[int], None],
        counts: Counts,
    ) -> None:
        super().__init__(setup.agent, spaces_of(setup.env))
        self._translation = translation_of(setup.env)
        self._policy, self._greedy, self._counts = policy, greedy, counts
        count = setup.config.envs_per_worker
        self._observed = SeatStacks(self._translation, count)
        self._stacks = self._observed.stacks
        self._rows = SlotRows(setup, slots, count, hand_over)
        self._statistics = EpisodeStatistics(count)
        self._infos = InfoCollector(count)
        self._sessions: list[Session | None] = [None] * count
        self._exploits = np.zeros(count, bool)
        self._first = np.ones(count, bool)
        self._ready = np.zeros(count, bool)  # has an observation that no action was chosen for
        self._pending = np.zeros(count, bool)  # has an action whose result is not there
        self._ended = np.zeros(count, bool)  # the observation is an episode's last
        self._next_episodes: dict[int, Outcome] = {}  # resets of seats whose last observation waits for an action
        self._metrics: dict[int, dict[str, float]] = {}
        self._asked_at = np.zeros(count)
        self.wake: Callable[[], None] = lambda: None  # called when there is something to do

    # The side of the clients

    def join(self, session: Session, count: int, *, exploit: bool) -> list[int]:
        check_seats(count, len(self._sessions))
        free = [seat for seat, taken in enumerate(self._sessions) if taken is None]
        # A trajectory that another client began is continued first, but last by one that exploits, whose rows are not written.
        begun = self._pending | self._ready
        free.sort(key=lambda seat: bool(begun[seat]) == exploit)
        if count > len(free):
            raise Busy(RETRY_SECONDS)
        for seat in free[:count]:
            if exploit and begun[seat]:
                self._begin_anew(seat)
            self._sessions[seat] = session
            self._exploits[seat] = exploit
        return free[:count]

    def begin(self, seat: int, outcome: Outcome) -> None:
        if self._pending[seat] and not self._ended[seat]:
            self._cut(seat)  # the client begins anew in the middle of an episode
        if self._ready[seat] and not self._exploits[seat]:
            self._next_episodes[seat] = outcome  # the row of the final observation comes first
            return
        reset = bool(self._pending[seat])
        self._observe(seat, outcome, first=True)
        if reset:
            self._result(seat, 0.0, (False, False, True))
        self._ended[seat] = False

    def take(self, seat: int, outcome: Outcome) -> None:
        self._observe(seat, outcome, first=False)
        terminated = outcome.terminated
        self._result(seat, outcome.reward, (terminated, outcome.truncated and not terminated, False))
        self._ended[seat] = outcome.ended
        if outcome.ended and self._exploits[seat]:
            self._ready[seat] = False  # no row is written, so nothing is chosen for the last observation

    def leave(self, seat: int) -> None:
        self._sessions[seat] = None
        self._next_episodes.pop(seat, None)
        if not self._ended[seat] and (self._pending[seat] or self._ready[seat]):
            self._cut(seat)

    def metric(self, seat: int, name: str, values: list[float]) -> None:
        """A number comes with the next row of the seat; of several numbers the mean, the smallest and the largest."""
        found = {name: sum(values) / len(values)}
        if len(values) > 1:
            found |= {f"{name}_min": min(values), f"{name}_max": max(values)}
        self._metrics.setdefault(seat, {}).update(found)
        self._counts.histograms.add(name, values)

    # The side of the policy

    @property
    def waiting(self) -> int:
        """Seats that wait for an action."""
        return int(np.count_nonzero(self._ready))

    def free(self, slot: int) -> None:
        """A slot came back from the learner."""
        self._rows.free.append(slot)

    def refresh(self) -> bool:
        """Take the newest weights. Returns whether there were new ones."""
        if not self._policy.is_old():
            return False
        self._policy.refresh()
        self._rows.begin_version(self._pending)
        self._counts.dropped = self._rows.dropped
        return True

    def act(self) -> bool:
        """Act in all seats that wait for an action, as far as there are slots. Returns whether there were any."""
        exploiting = np.flatnonzero(self._ready & self._exploits)
        self._exploit(exploiting)
        waiting = np.flatnonzero(self._ready & ~self._exploits).tolist()
        seats = np.array([seat for seat in waiting if self._rows.has_room(seat)], np.int64)
        if not len(seats):
            return len(exploiting) > 0
        self._rows.begin(seats, self._stacks)
        try:
            acted = self._policy.act(seats, self._stacks[seats], self._first[seats])
        except NotFiniteError as error:
            self._refuse(seats, error)
            return True  # the other seats still wait, and act in the next call
        self._rows.write_action(seats, acted, self._policy.version, self._stacks)
        self._ready[seats], self._pending[seats] = False, True
        self._answer(seats, acted.actions, self._policy.version)
        for seat in [seat for seat in self._next_episodes if not self._ready[seat]]:
            self.begin(seat, self._next_episodes.pop(seat))
        return True

    def _exploit(self, seats: np.ndarray) -> None:
        if not len(seats):
            return
        try:
            chosen = self._greedy.choose(self._stacks[seats], self._first[seats], seats)
        except NotFiniteError as error:
            self._refuse(seats, error)
            return
        self._ready[seats], self._pending[seats] = False, True
        self._answer(seats, chosen.actions.numpy(), self._policy.version)

    def _refuse(self, seats: np.ndarray, error: NotFiniteError) -> None:
        """End the sessions of those seats for which the policy's outputs are not finite."""
        for seat in seats[error.wrong_rows].tolist():
            session = self._sessions[seat]
            log.warning("client %s: %s", session.name if session else "that has left", NO_ACTION)
            self._counts.cut += not self._ended[seat]
            self._begin_anew(seat)
            if session is not None:
                session.refuse(ProtocolError("value", NO_ACTION), seat)

    def _begin_anew(self, seat: int) -> None:
        """Make a seat as before its first client, so that the next one begins a trajectory."""
        if not self._exploits[seat]:
            self._rows.discard(seat)
        self._statistics.clear_one(seat)
        self._next_episodes.pop(seat, None)
        self._counts.dropped = self._rows.dropped
        self._ready[seat] = self._pending[seat] = False
        self._ended[seat] = True

    def _answer(self, seats: np.ndarray, actions: np.ndarray, version: int) -> None:
        now = perf_counter()
        decoded = self._translation.decode(self._translation.spec.action.check(actions, len(seats)))
        for index, seat in enumerate(seats.tolist()):
            session = self._sessions[seat]
            if session is not None and not self._ended[seat]:
                self._counts.add_latency(now - self._asked_at[seat])
                session.answer(seat, decoded[index], version)

    # Rows

    def _observe(self, seat: int, outcome: Outcome, *, first: bool) -> None:
        self._observed.put(seat, outcome, first=first)
        if given := {**outcome.info, **self._metrics.pop(seat, {})}:
            self._infos.put(seat, given)
        self._first[seat], self._ready[seat] = first, True
        self._asked_at[seat] = perf_counter()
        self.wake()

    def _result(self, seat: int, reward: float, ends: tuple[bool, bool, bool]) -> None:
        """Complete the row of a seat's last action with what came of it. ends: terminated, truncated, autoreset."""
        episode = self._statistics.update_one(seat, reward, reset=ends[2], ended=ends[0] or ends[1])
        infos = self._infos.take_one(seat)
        self._pending[seat] = False
        if self._exploits[seat]:
            self._counts.exploited(*episode)
            return
        self._counts.steps += not ends[2]
        if episode[1]:
            self._counts.ended(episode[0])
        self._rows.write_result(seat, reward, ends, episode, self._stacks[seat][-1], infos)

    def _cut(self, seat: int) -> None:
        """The running episode of a seat breaks off. Its last complete row is truncated."""
        self._counts.cut += 1
        self._ended[seat] = True
        self._statistics.clear_one(seat)
        if self._exploits[seat]:
            self._ready[seat] = self._pending[seat] = False
        else:
            self._rows.truncate(seat)
