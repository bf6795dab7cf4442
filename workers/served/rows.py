"""The slots that seats write their trajectories into, one slot for each seat that plays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

import numpy as np

from replay.trajectory import RECURRENT_STATE, RETURN_FIELDS, WITHOUT_ROWS, Arrays, discount_returns
from workers.base import WorkerSetup
from workers.infos import INFO_FIELDS, INFOS, InfoWriter
from workers.policy import Acted
from workers.rollout import Start
from wrappers.infos import Infos

NO_SLOT = -1
PATIENCE = 0.2
"""Seconds for which a seat waits for others, whose trajectories may complete an on-policy batch."""

Episode = tuple[float, int]
"""Return and length of an episode that ended; NaN and 0 where none did."""


class SlotRows:
    """The trajectories of C seats.

    Args:
        setup: of the run.
        slots: the arena's arrays, `[slot_count, *shape]` each field.
        count: C.
        hand_over: called with the number of a slot that is complete.

    Attributes:
        free: numbers of slots that no seat and no learner has.
        dropped: rows that no learner gets, because their on-policy batch was complete or their client was refused.
    """

    def __init__(self, setup: WorkerSetup, slots: Arrays, count: int, hand_over: Callable[[int], None]) -> None:
        contract = setup.contract
        self.free: deque[int] = deque()
        self.dropped = 0
        self._hand_over = hand_over
        self._rows = {name: array for name, array in slots.items() if name not in INFO_FIELDS}
        self._infos, self._info_writer = slots[INFOS], InfoWriter(slots)
        self._length, self._stack = contract.unroll_length, contract.frames_stacked
        self._overlap, self._discount = contract.overlap, contract.return_discount
        self._keeps_episodes = contract.episodes
        self._recurrent = RECURRENT_STATE in slots
        # An on-policy batch takes as many trajectories of one version; then all seats wait for the next version.
        self._batch = setup.config.batch if setup.config.on_policy else 0
        self._handed = 0
        self._slot = np.full(count, NO_SLOT)
        self._t = np.zeros(count, np.int64)
        self._begun = np.zeros(count, bool)
        self._discards = np.zeros(count, bool)  # the pending row was acted by an older version
        self._waits_since = np.full(count, np.inf)
        self._returns = np.zeros(count)  # discounted rewards of each seat's episode so far
        self._starts: list[deque[Start]] = [deque() for _ in range(count)]
        self._tails: list[Arrays] = [{} for _ in range(count)]
        self._carried: deque[Episode] = deque()  # episodes that ended in rows that were dropped

    def has_room(self, seat: int) -> bool:
        """Whether a seat may act now. Gives it a slot if it has none and one is free."""
        if self._batch and self._handed >= self._batch:
            return False
        if self._slot[seat] == NO_SLOT and self.free and self._is_wanted(seat):
            self._slot[seat], self._begun[seat] = self.free.popleft(), False
        return bool(self._slot[seat] != NO_SLOT)

    def _is_wanted(self, seat: int) -> bool:
        """Whether a seat may begin a trajectory.

        Those that others play may complete the batch, and one more would be of no use then. But a slow client must not slow
        the others, so a seat waits for them only for a moment.
        """
        if not self._batch or self._handed + (self._slot != NO_SLOT).sum() < self._batch:
            self._waits_since[seat] = np.inf
            return True
        self._waits_since[seat] = min(self._waits_since[seat], monotonic())
        return bool(monotonic() - self._waits_since[seat] > PATIENCE)

    def begin(self, seats: np.ndarray, stacks: np.ndarray) -> None:
        """Write what is known before the first step of those trajectories that begin. stacks: `[C, S, *frame_shape]`."""
        for seat in seats[~self._begun[seats]].tolist():
            slot, tail = self._slot[seat], self._tails[seat]
            self._rows["environment_id"][slot] = seat
            self._infos[slot] = np.nan
            self._begun[seat], self._t[seat] = True, 0
            if not tail:
                self._rows["frames"][slot, : self._stack] = stacks[seat]
                continue
            # As in workers/rollout.py: with burn-in a trajectory begins with the last rows of the one before.
            self._rows[RECURRENT_STATE][slot], self._rows["frames"][slot, : self._stack] = self._starts[seat].popleft()
            for name, values in tail.items():
                start = self._stack if name == "frames" else 0
                self._rows[name][slot, start : start + self._overlap] = values
            self._rows["episode_return"][slot, : self._overlap] = np.nan
            self._rows["episode_length"][slot, : self._overlap] = 0
            self._t[seat] = self._overlap

    def write_action(self, seats: np.ndarray, acted: Acted, version: int, stacks: np.ndarray) -> None:
        """Write what a policy chose for M seats into the row of each. stacks: `[C, S, *frame_shape]`, what it saw."""
        slot, t = self._slot[seats], self._t[seats]
        self._rows["actions"][slot, t] = acted.actions
        for name, values in acted.fields.items():
            self._rows[name][slot, t] = values
        self._rows["policy_version"][slot, t] = version
        if not self._recurrent:
            return
        assert acted.state is not None
        for index in np.flatnonzero(t % (self._length - self._overlap) == 0).tolist():
            seat, state = int(seats[index]), acted.state[index].copy()
            if t[index] == 0:
                self._rows[RECURRENT_STATE][slot[index]] = state
            else:
                self._starts[seat].append(Start(state, stacks[seat].copy()))

    def write_result(
        self,
        seat: int,
        reward: float,
        ends: tuple[bool, bool, bool],
        episode: Episode,
        frame: np.ndarray,
        infos: Infos | None,
    ) -> None:
        """Complete the row of a seat's action.

        Args:
            ends: terminated, truncated, and whether the row was an autoreset.
            frame: `[*frame_shape]`, the newest frame of the observation that followed.
            infos: numbers of the step, with values `[MOST_NAMES]`.
        """
        if self._discards[seat]:
            self._discards[seat] = self._begun[seat] = False
            self._carry(episode)
            return
        slot, t, rows = int(self._slot[seat]), int(self._t[seat]), self._rows
        if np.isnan(episode[0]) and self._carried:
            episode = self._carried.popleft()
        rows["rewards"][slot, t] = reward
        rows["terminated"][slot, t], rows["truncated"][slot, t], rows["reset"][slot, t] = ends
        rows["action_used"][slot, t] = not ends[2]
        rows["episode_return"][slot, t], rows["episode_length"][slot, t] = episode
        rows["frames"][slot, self._stack + t] = frame
        if infos is not None:
            self._info_writer.write(slice(slot, slot + 1), t, infos)
        self._t[seat] += 1
        if self._t[seat] == self._length:
            self._finish(seat, slot)

    def truncate(self, seat: int) -> None:
        """Mark the last complete row of a seat as truncated, because its episode broke off."""
        slot, last = self._slot[seat], self._t[seat] - 1
        if slot == NO_SLOT or not self._begun[seat] or last < 0 or self._discards[seat]:
            return  # the next trajectory begins with the autoreset
        # Behind an autoreset no step of the new episode was made.
        if not (self._rows["reset"][slot, last] or self._rows["terminated"][slot, last]):
            self._rows["truncated"][slot, last] = True

    def begin_version(self, pending: np.ndarray) -> None:
        """The policy has new weights. An on-policy batch may not mix versions, so incomplete trajectories begin anew.

        pending: bool `[C]`, seats whose last action has no result yet.
        """
        if not self._batch:
            return
        self._handed = 0
        incomplete = np.flatnonzero((self._slot != NO_SLOT) & self._begun & ~self._discards)
        for seat in incomplete.tolist():
            self._drop(seat)
        self._discards[incomplete] = pending[incomplete]
        self._begun[incomplete] = pending[incomplete]  # a pending row keeps its place until its result comes

    def discard(self, seat: int) -> None:
        """Let the trajectory of a seat begin anew, because its newest row may not be learned from."""
        if self._begun[seat] and not self._discards[seat]:  # those of an older version are counted already
            self._drop(seat)
        self._begun[seat] = self._discards[seat] = False
        self._tails[seat], self._returns[seat] = {}, 0.0
        self._starts[seat].clear()

    def _drop(self, seat: int) -> None:
        """Count the rows of a seat's trajectory that nothing is learned from."""
        slot, t = self._slot[seat], int(self._t[seat])
        for episode in zip(self._rows["episode_return"][slot, :t], self._rows["episode_length"][slot, :t], strict=True):
            self._carry((float(episode[0]), int(episode[1])))
        self.dropped += t

    def _carry(self, episode: Episode) -> None:
        """Keep an episode for the metrics. An agent that learns from the returns of episodes plays it again."""
        if not np.isnan(episode[0]) and not self._keeps_episodes:
            self._carried.append(episode)

    def _finish(self, seat: int, slot: int) -> None:
        if self._batch and self._handed >= self._batch:  # others were faster
            self._drop(seat)
            self.free.append(slot)
            self._slot[seat], self._begun[seat] = NO_SLOT, False
            return
        block, start = slice(slot, slot + 1), self._overlap if self._tails[seat] else 0
        if self._discount is not None:
            played = {name: self._rows[name][block, start:] for name in RETURN_FIELDS}
            self._returns[seat : seat + 1] = discount_returns(played, self._returns[seat : seat + 1], self._discount)
        if self._overlap:
            rows = self._rows
            self._tails[seat] = {name: rows[name][slot, -self._overlap :].copy() for name in rows if name not in WITHOUT_ROWS}
        self._info_writer.end(block)
        self._slot[seat], self._begun[seat] = NO_SLOT, False
        self._handed += 1
        self._hand_over(slot)
