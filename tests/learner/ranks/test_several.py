"""Rounds: learners begin updates together, count together, and stop together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from agents import Agent
from learner.feeding.feeder import Arrivals
from learner.metrics.statistics import EndedEpisode
from learner.ranks import group as module
from learner.ranks.base import RankError
from learner.ranks.group import LearnerGroup
from learner.ranks.several import SeveralLearners
from tests.learner.ranks.support import together
from workers import Workers


def never() -> bool:
    return False


def always() -> bool:
    return True


def several(group: LearnerGroup, *, whole_updates: bool = False) -> SeveralLearners:
    learners = SeveralLearners(group, whole_updates=whole_updates)
    assert learners.start(never)
    return learners


def wait_for_batch(learners: SeveralLearners, asked: Callable[[], bool], seconds: float) -> bool:
    """Wait so long as a feeder does. Returns whether a batch came, not a stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if learners.stops_waiting(asked):
            return False
        time.sleep(0.02)
    return True


def test_the_flag_of_rank_0_holds_for_all() -> None:
    def learner(group: LearnerGroup) -> list[bool]:
        learners = several(group)
        return [learners.of_first(group.rank == 0), learners.of_first(group.rank > 0)]

    assert together(3, learner) == [[True, False]] * 3


@pytest.mark.parametrize("many", [3, 40])
def test_arrivals_of_all_learners_are_counted_on_each(many: int) -> None:
    episodes = [[EndedEpisode(float(index), 10 + index, {}, index) for index in range(count)] for count in (many, 0, 1)]

    def learner(group: LearnerGroup) -> Arrivals | None:
        return several(group).meet(Arrivals(2 + group.rank, episodes[group.rank]), never)

    assert together(3, learner) == [Arrivals(2 + 3 + 4, [episode for own in episodes for episode in own])] * 3


def test_the_numbers_of_infos_are_those_of_all_learners() -> None:
    own = [
        Arrivals(1, [EndedEpisode(1.0, 5, {"cost": 2.0}), EndedEpisode(2.0, 6)], {"cost": (3.0, 2), "left_out": (0.0, 0)}),
        Arrivals(1, [EndedEpisode(3.0, 7)]),
        Arrivals(1, [], {"cost": (1.5, 1)}),
    ]

    def learner(group: LearnerGroup) -> Arrivals | None:
        return several(group).meet(own[group.rank], never)

    wanted = Arrivals(3, own[0].episodes + own[1].episodes, {"cost": (4.5, 3), "left_out": (0.0, 0)})
    assert together(3, learner) == [wanted] * 3


def test_an_update_begins_when_the_slowest_learner_has_its_batch() -> None:
    def learner(group: LearnerGroup) -> tuple[bool, float]:
        learners, started = several(group), time.monotonic()
        got = group.rank == 0 or wait_for_batch(learners, never, 0.5)
        arrivals = learners.meet(Arrivals(1, []), never)
        seconds = time.monotonic() - started
        learners.meet(Arrivals(1, []), never)  # tells rank 0's wait
        assert seconds > 0.4  # the other learner waits 0.5 s, and may have begun before this one
        return got and arrivals is not None and not learners.stops(never), float(learners.metrics()["ranks/wait_0"])

    first, second = together(2, learner)
    assert first[0]
    assert second[0]
    assert first[1] > 0


def test_a_signal_stops_a_learner_that_waits_and_one_that_has_a_batch() -> None:
    def learner(group: LearnerGroup) -> bool:
        learners = several(group)
        goes_on = wait_for_batch(learners, always, 15.0) if group.rank else learners.meet(Arrivals(1, []), never)
        return not goes_on and learners.stops(never)

    assert together(2, learner) == [True, True]


def test_a_signal_between_two_batches_lets_the_next_update_happen() -> None:
    def learner(group: LearnerGroup) -> tuple[bool, bool]:
        learners = several(group)
        went_on = not learners.stops(always)
        arrivals = learners.meet(Arrivals(1, []), always if group.rank else never)
        return went_on and arrivals is not None, learners.stops(never)

    assert together(2, learner) == [(True, True), (True, True)]


def test_whole_updates_are_finished_once_a_learner_holds_a_batch() -> None:
    def learner(group: LearnerGroup) -> tuple[bool, bool, bool]:
        learners = several(group, whole_updates=True)
        got = group.rank == 0 or wait_for_batch(learners, always, 0.6)
        arrivals = learners.meet(Arrivals(1, []), always)
        return got, arrivals is not None, learners.stops(never)

    assert together(2, learner) == [(True, True, True)] * 2


def test_a_learner_that_is_gone_is_an_error_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)

    def learner(group: LearnerGroup) -> bool:
        learners = several(group)
        if group.rank:
            return True
        with pytest.raises(RankError):
            learners.meet(Arrivals(1, []), never)
        learners.leave()
        assert learners.replay_checksums() == [None]
        return True

    assert together(2, learner) == [True, True]


def test_checksums_of_replays_reach_rank_0() -> None:
    sums = [None, "a" * 64, None, "0123456789abcdef" * 4]

    def learner(group: LearnerGroup) -> Any:
        learners = several(group)
        return learners.share_checksum(sums[group.rank]) if group.rank else learners.replay_checksums()

    assert together(4, learner)[0] == sums[1:]


class Weights:
    """An agent that is nothing but weights."""

    def __init__(self, value: float) -> None:
        self.weights = torch.full((3,), value)
        self.collectives: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"modules": {"network": {"weights": self.weights}}}

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        self.weights.copy_(state["modules"]["network"]["weights"])

    def join(self, collectives: Any) -> None:
        self.collectives = collectives


def test_all_begin_with_the_weights_of_rank_0_and_are_brought_back_to_them(lines: list[str]) -> None:
    def learner(group: LearnerGroup) -> tuple[list[float], list[float]]:
        learners, agent = several(group), Weights(1.0 + group.rank)
        learners.join(cast(Agent, agent), cast(Workers, None))
        assert agent.collectives is group
        before = agent.weights.tolist()
        learners.keep_equal(cast(Agent, agent))
        assert not lines
        agent.weights[1] += group.rank
        group.gather_on_host(torch.zeros(1))  # no line is logged before both have looked
        learners.keep_equal(cast(Agent, agent))
        return before, agent.weights.tolist()

    assert together(2, learner) == [([1.0] * 3, [1.0] * 3)] * 2
    assert lines == ["The weights of rank [1] differ from those of rank 0, and are replaced by them"] * 2
