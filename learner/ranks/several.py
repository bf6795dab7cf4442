"""Several learners in step: in rounds they agree on when the next update begins, and on when the run stops.

A round is one small exchange on the host. A learner with a batch makes rounds until every learner has one. A learner without a
batch makes a few rounds a second while it waits for trajectories. So a signal stops all learners soon, whatever one of them
waits for. All learners see the same reports, so they decide alike, and the counters of all are equal.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic, process_time
from typing import NamedTuple

import torch
from torch import Tensor

from agents import Agent
from learner.feeding.feeder import Arrivals
from learner.metrics.infos import Ends, Sums, added
from learner.metrics.statistics import EndedEpisode
from learner.ranks.base import Asked, Learners
from learner.ranks.group import LearnerGroup
from workers import InProcessWorkers, Workers
from workers.clocks import cpu_seconds

log = logging.getLogger("springbok")

ROUND_PERIOD = 0.2
"""Seconds between two rounds of a learner that waits for a batch."""
LISTED = 16
"""Episodes for which a round has room. More of them take one exchange more."""
CHECKSUM_BYTES = 64


class RoundReport(NamedTuple):
    """One learner's message in a round.

    Args:
        ready: whether it has a batch, 0 or 1.
        stop: whether a signal has asked it to stop, 0 or 1.
        trajectories: that arrived for its batch.
        episodes: number of episodes that ended in them.
        infos: bytes of the message with the numbers of infos; 0 if the environments report none.
        workers: CPU seconds of its workers so far.
        learner: CPU seconds of its own process so far, without workers.
        waited: seconds that it has waited for the batches of others so far.
        restarts: of its workers so far.
    """

    ready: float
    stop: float
    trajectories: float = 0.0
    episodes: float = 0.0
    infos: float = 0.0
    workers: float = 0.0
    learner: float = 0.0
    waited: float = 0.0
    restarts: float = 0.0


class SeveralLearners(Learners):
    """This learner among several. Its functions raise RankError if another learner is gone.

    Args:
        group: connects the learners.
        whole_updates: whether no batch may be lost. The run then stops only when no learner holds one, as a reproducible run
            must in order to resume with the same bits.
    """

    def __init__(self, group: LearnerGroup, *, whole_updates: bool) -> None:
        self.rank = group.rank
        self.count = group.count
        self._group = group
        self._whole_updates = whole_updates
        self._workers: Workers | None = None
        self._reports = [RoundReport(0.0, 0.0)] * group.count
        self._started = self._stopping = self._left = False
        self._last_round = 0.0
        self._waited = 0.0
        self._before = _Reading(monotonic(), 0, 0.0, [0.0] * group.count)

    def join(self, agent: Agent, workers: Workers) -> None:
        self._workers = workers
        self._take_first(agent)
        agent.join(self._group)

    def _take_first(self, agent: Agent) -> None:
        agent.load_state_dict(self._group.from_first(agent.state_dict()), load_optimizer=True)

    def keep_equal(self, agent: Agent) -> None:
        if self._left:
            return
        tensors = [tensor for module in agent.state_dict()["modules"].values() for tensor in module.values()]
        # Sums are enough to notice a difference, and take a few numbers instead of all weights.
        own = torch.stack([tensor.double().sum() for tensor in tensors]).cpu()
        of_all = self._group.gather_on_host(own)
        if different := [rank for rank in range(self.count) if not torch.equal(of_all[rank], of_all[0])]:
            log.warning("The weights of rank %s differ from those of rank 0, and are replaced by them", different)
            self._take_first(agent)

    def start(self, asked: Asked) -> bool:
        goes_on = self.meet(Arrivals(0, []), asked) is not None
        self._started = True
        self._waited = 0.0  # the start of the others is no wait for batches
        return goes_on and not self._stopping

    def stops(self, asked: Asked) -> bool:
        # The last exchange has decided, so that all learners leave the loop after the same update.
        return self._stopping

    def stops_waiting(self, asked: Asked) -> bool:
        if monotonic() - self._last_round < ROUND_PERIOD:
            return False
        self._round(asked)
        return self._halts()

    def meet(self, arrivals: Arrivals, asked: Asked) -> Arrivals | None:
        started = monotonic()
        try:
            while True:
                listed = self._round(asked, arrivals)
                if all(report.ready for report in self._reports):
                    self._stopping = any(report.stop for report in self._reports)
                    return self._all_arrivals(arrivals, listed)
                if self._halts():
                    return None
        finally:
            self._waited += monotonic() - started

    def _halts(self) -> bool:
        """Whether the run stops now, before every learner has a batch."""
        # In `start` a learner reports to be ready without a batch, so stopping there loses nothing.
        is_held = self._whole_updates and self._started and any(report.ready for report in self._reports)
        self._stopping = any(report.stop for report in self._reports) and not is_held
        return self._stopping

    def _round(self, asked: Asked, arrivals: Arrivals | None = None) -> Tensor:
        """Exchange reports. arrivals: those for this learner's batch, None without one.

        Returns the first episodes of each learner, float64 `[count, LISTED, 3]`.
        """
        # In float32 the differences of large totals, such as CPU seconds, would be inexact.
        row = torch.zeros(len(RoundReport._fields) + 3 * LISTED, dtype=torch.float64)
        own = self._report(asked, arrivals)
        row[: len(own)] = torch.tensor(own, dtype=torch.float64)
        if arrivals and arrivals.episodes:
            row[len(own) :] = _padded(arrivals.episodes, LISTED).flatten()
        rows = self._group.gather_on_host(row)
        self._reports = [RoundReport(*numbers[: len(own)]) for numbers in rows.tolist()]
        self._last_round = monotonic()
        listed: Tensor = rows[:, len(own) :].unflatten(1, (LISTED, 3))
        return listed

    def _report(self, asked: Asked, arrivals: Arrivals | None) -> RoundReport:
        workers = self._workers
        seconds = cpu_seconds(workers.seconds) if workers else 0.0
        return RoundReport(
            ready=arrivals is not None,
            stop=asked(),
            trajectories=arrivals.trajectories if arrivals else 0,
            episodes=len(arrivals.episodes) if arrivals else 0,
            infos=len(_infos_as_text(arrivals)) if arrivals else 0,
            workers=seconds,
            learner=process_time() - (seconds if isinstance(workers, InProcessWorkers) else 0.0),
            waited=self._waited,
            restarts=workers.restarts if workers else 0,
        )

    def _all_arrivals(self, arrivals: Arrivals, listed: Tensor) -> Arrivals:
        """The arrivals of all learners. listed: see `_round`."""
        most = max(int(report.episodes) for report in self._reports)
        if most > LISTED:
            listed = self._group.gather_on_host(_padded(arrivals.episodes, most))
        sums, ends = self._all_infos(arrivals)
        episodes = [
            EndedEpisode(episode_return, int(length), infos, int(environment))
            for report, rows, of_rank in zip(self._reports, listed.tolist(), ends, strict=True)
            for (episode_return, length, environment), infos in zip(rows[: int(report.episodes)], of_rank, strict=True)
        ]
        return Arrivals(sum(int(report.trajectories) for report in self._reports), episodes, sums)

    def _all_infos(self, arrivals: Arrivals) -> tuple[Sums, list[list[Ends]]]:
        """The numbers of infos of all learners: sums over steps, and those of each learner's episodes."""
        if not (longest := max(int(report.infos) for report in self._reports)):
            return {}, [[{}] * int(report.episodes) for report in self._reports]
        row = torch.zeros(longest, dtype=torch.uint8)
        own = _infos_as_text(arrivals)
        row[: len(own)] = torch.tensor(list(own), dtype=torch.uint8)
        texts = [bytes(part).rstrip(b"\0") for part in self._group.gather_on_host(row).tolist()]
        sent = [
            json.loads(text) if text else ({}, [{}] * int(report.episodes))
            for text, report in zip(texts, self._reports, strict=True)
        ]
        return added(sums for sums, _ in sent), [ends for _, ends in sent]

    def of_first(self, flag: bool) -> bool:
        return bool(self._group.gather_on_host(torch.tensor([flag], dtype=torch.uint8))[0].item())

    def replay_checksums(self) -> Sequence[str | None]:
        return self.share_checksum(None)[1:]

    def share_checksum(self, own: str | None) -> list[str | None]:
        """The checksums of the replay files of all learners, None for one without. own: that of this learner's."""
        if self._left:
            return [None] * self.count
        row = torch.zeros(CHECKSUM_BYTES, dtype=torch.uint8)
        if own:
            row[:] = torch.tensor(list(own.encode()))
        return [bytes(sent).decode() if any(sent) else None for sent in self._group.gather_on_host(row).tolist()]

    @property
    def cpu_seconds(self) -> tuple[float, float]:
        others = list(self._others())
        return sum(report.workers for report in others), sum(report.learner for report in others)

    @property
    def restarts(self) -> int:
        return sum(int(report.restarts) for report in self._others())

    def _others(self) -> Iterator[RoundReport]:
        return (report for rank, report in enumerate(self._reports) if rank != self.rank)

    def metrics(self) -> Mapping[str, float]:
        """Seconds of one exchange of gradients, and the fraction of its time that each learner waits for others' batches."""
        before = self._before
        now = _Reading(monotonic(), self._group.exchanges, self._group.seconds, [report.waited for report in self._reports])
        self._before = now
        passed, exchanges = max(now.at - before.at, 1e-9), now.exchanges - before.exchanges
        waited = {
            f"ranks/wait_{rank}": (late - early) / passed
            for rank, (late, early) in enumerate(zip(now.waited, before.waited, strict=True))
        }
        return {**({"ranks/allreduce_seconds": (now.seconds - before.seconds) / exchanges} if exchanges else {}), **waited}

    def leave(self) -> None:
        self._left = True


class _Reading(NamedTuple):
    """Totals at the last call of `metrics`: time, exchanges of gradients, their seconds, and seconds waited by each."""

    at: float
    exchanges: int
    seconds: float
    waited: list[float]


def _infos_as_text(arrivals: Arrivals) -> bytes:
    """The numbers of infos as JSON; nothing if there are none at all."""
    if not arrivals.infos and not any(episode.infos for episode in arrivals.episodes):
        return b""
    return json.dumps([arrivals.infos, [episode.infos for episode in arrivals.episodes]]).encode()


def _padded(episodes: Sequence[EndedEpisode], count: int) -> Tensor:
    """The first `count` episodes, float64 `[count, 3]`, with zeros behind the last."""
    rows = torch.zeros(count, 3, dtype=torch.float64)
    if shown := episodes[:count]:
        rows[: len(shown)] = torch.tensor([(*episode[:2], episode.environment) for episode in shown], dtype=torch.float64)
    return rows
