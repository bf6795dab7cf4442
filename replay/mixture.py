"""The mixture: every trajectory goes into every replay, and every batch takes each replay's share.

Shares are whole numbers, and credit carries the rest over to the next batch. With ratios 0.7/0.2/0.1 and batches of 8, the
shares of single batches differ by one trajectory, and over time the ratios are exact.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from replay.base import Replay
from replay.batch import BatchTickets, HostBatch
from replay.earlier_files import present_settings
from replay.exchange import Exchange
from replay.pace import Pace
from replay.priorities.priorities import normalised
from replay.signature import check_contract
from replay.trajectory import Arrays, TrajectoryContract

WHOLE = 1e-6  # how near a share must be to a whole number: ratios such as 0.1 are not exact
MANY_PLACES = 1024
"""Batch size from which most columns are assigned at once, because one by one takes longer than drawing the batch."""


def next_shares(ratios: np.ndarray, batch_size: int, credit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the shares of a batch (int64 `[R]`, with sum batch_size) and the credit left for the next one (`[R]`).

    For each place of the batch, every replay earns its ratio. The replay with the most credit takes the place and pays 1.
    Among equals, the earlier replay takes it.

    Args:
        ratios: `[R]`, with sum 1.
        batch_size: Number of places.
        credit: `[R]`, zeros before the first batch. It always sums to 0.
    """
    shares = np.zeros(len(ratios), np.int64)
    credit = credit.copy()
    if len(ratios) == 1:
        return shares + batch_size, credit
    if batch_size >= MANY_PLACES:
        # Enough places remain for the loop, which evens out the credit that rounding down leaves.
        shares = np.floor(ratios * (batch_size - MANY_PLACES // 2)).astype(np.int64)
        credit += ratios * shares.sum() - shares
    for _ in range(batch_size - int(shares.sum())):
        credit += ratios
        # Sums of 0.1 differ in the last digit, which must not decide between equal credits.
        chosen = int(np.argmax(np.round(credit, 9)))
        credit[chosen] -= 1  # credits sum to 0 again: the ratios add up to 1
        shares[chosen] += 1
    # A share that is whole but for the digits of its ratio, such as 0.3333333 of 12, stays the same for ever.
    credit[np.abs(credit) < WHOLE] = 0
    return shares, credit


def largest_share(ratio: float, batch_size: int) -> int:
    """Returns a bound on a replay's share of one batch: ratio * batch_size rounded up, and one carried over."""
    return min(batch_size, math.ceil(ratio * batch_size) + 1)


class Mixture:
    """Several replays that make one batch together.

    One thread may insert while another samples. A call has the replays to itself and copies what it gives. A thread that
    holds `lock` has them to itself over several calls.

    Args:
        contract: Of the trajectories.
        replays: R replays.
        ratios: R sample ratios; they are divided by their sum.
        batch_size: Columns that are drawn together: trajectories, or windows of several batches.
        pace: Batches for each fresh step; None if the replays alone decide.
        exchange: With other runs, whose trajectories replays take too; None without one.
    """

    def __init__(
        self,
        contract: TrajectoryContract,
        replays: Sequence[Replay],
        ratios: Sequence[float],
        batch_size: int,
        pace: Pace | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        total = float(sum(ratios))
        self.contract = contract
        self.replays = list(replays)
        self.ratios = np.asarray(ratios, np.float64) / total  # [R], with sum 1
        self.batch_size = batch_size
        self.pace = pace
        self.exchange = exchange
        self._shares, self._credit = next_shares(self.ratios, batch_size, np.zeros(len(self.replays)))
        # The lock is reentrant, because `can_insert` calls `can_sample`, and a save holds it around `state_dict`.
        self.lock = threading.RLock()

    def can_insert(self) -> bool:
        """Returns whether to take a trajectory now: every replay has room and no batch is owed, or none can be drawn yet."""
        # While a replay still fills, a full queue must take more: waiting for it to drain would block the run forever.
        with self.lock:
            waits = self.pace is not None and self.pace.owes
            return (not waits and all(replay.has_room() for replay in self.replays)) or not self.can_sample()

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        with self.lock:
            for replay in self.replays:
                replay.insert(trajectory)
            if self.pace:
                self.pace.insert()
            if self.exchange:
                self.exchange.publish(trajectory)
                # Others' trajectories neither earn batches nor count as steps.
                for other in self.exchange.take():
                    for replay in self.replays:
                        if replay.takes_others:
                            replay.insert(other)

    def can_sample(self) -> bool:
        with self.lock:
            owed = self.pace is None or self.pace.owes
            return owed and all(replay.can_sample(int(share)) for replay, share in zip(self.replays, self._shares, strict=True))

    def sample(self, out: Arrays | None = None) -> HostBatch:
        """Returns the next batch. Ask `can_sample` first. out: memory for its columns, `[B, *shape]` each field."""
        columns = self.contract.allocate_batch(self.batch_size) if out is None else out
        device_frames = []
        with self.lock:
            shares = self._shares
            first = 0
            for replay, share in zip(self.replays, shares, strict=True):
                if share:  # a small ratio may have no place in this batch
                    part = {name: array[first : first + share] for name, array in columns.items()}
                    if (frames := replay.sample(int(share), part)) is not None:
                        device_frames.append((first, frames))
                first += int(share)
            # The next batch's shares are fixed in advance, because `can_sample` asks each replay for exactly these.
            self._shares, self._credit = next_shares(self.ratios, self.batch_size, self._credit)
            if self.pace:
                self.pace.spend()
            gives_replayed = np.array([replay.gives_replayed for replay in self.replays])  # of this sample
            weights, tickets = self._drawn(shares)
        source = np.repeat(np.arange(len(self.replays)), shares)  # int [B]: columns of a replay stand together
        is_replay = gives_replayed[source]  # [R] -> [B]
        return HostBatch(columns, is_replay, source, device_frames, weights, tickets)

    def update_priorities(self, tickets: BatchTickets, errors: np.ndarray) -> None:
        """Replace the priorities of a batch's columns. errors: `[B]`, sizes of temporal differences; NaN changes nothing."""
        with self.lock:
            for index, first, of_replay in tickets:
                self.replays[index].update_priorities(of_replay, errors[first : first + len(of_replay.slots)])

    def _drawn(self, shares: np.ndarray) -> tuple[np.ndarray | None, BatchTickets]:
        """The weights of the last sample's columns, float32 `[B]`, and their tickets; None and none without priorities.

        Weights are divided by their maximum over the batch. A column that was drawn uniformly has the weight 1 before that.
        """
        weights, tickets, first = np.ones(int(shares.sum())), [], 0  # [B]
        for index, (replay, share) in enumerate(zip(self.replays, shares.tolist(), strict=True)):
            if share and replay.drawn:
                weights[first : first + share] = replay.drawn.weights
                tickets.append((index, first, replay.drawn.tickets))
            first += share
        return (normalised(weights).astype(np.float32), tickets) if tickets else (None, ())

    def metrics(self) -> list[dict[str, float]]:
        """Returns for every replay, in order, numbers about what it gave since the last call."""
        with self.lock:
            return [replay.metrics() for replay in self.replays]

    def state_dict(self) -> dict[str, Any]:
        """Returns all that a mixture with the same settings needs to continue with the same bits: tensors, numbers and text.

        Tensors may share the replays' own memory: hold `lock` until they are saved.
        """
        with self.lock:
            return {
                "settings": self._settings(),
                "shares": torch.from_numpy(self._shares),
                "credit": torch.from_numpy(self._credit),
                "replays": [replay.state_dict() for replay in self.replays],
                **({"pace": self.pace.state_dict()} if self.pace else {}),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`; all present content is dropped. Raises ValueError if settings differ."""
        wanted = self._settings()
        saved = present_settings(state["settings"], wanted)
        check_contract(saved["contract"], self.contract)
        # Any number of windows comes out of what is stored, so their number may change.
        equally_many = saved["batch_size"] == wanted["batch_size"]
        for name in (*(() if self.contract.window else ("batch_size",)), "sample_ratio", "replays"):
            if saved[name] != wanted[name]:
                raise ValueError(f"replay state: wanted {name} {wanted[name]}, got {saved[name]}")
        with self.lock:
            if equally_many:
                self._shares, self._credit = state["shares"].numpy().copy(), state["credit"].numpy().copy()
            for replay, one in zip(self.replays, state["replays"], strict=True):
                replay.load_state_dict(one)
            if self.pace:
                self.pace.load_state_dict(state["pace"])

    def _settings(self) -> dict[str, Any]:
        return {
            "contract": self.contract.signature(),
            "batch_size": self.batch_size,
            "sample_ratio": self.ratios.tolist(),
            "replays": [replay.settings for replay in self.replays],
        }
