"""Every drawn transition is compared with a record of the episodes that knows nothing of trajectories, slots and pages."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from replay import REPLAYS, GoalAccess, ReplayConfig
from replay.base import Replay
from replay.trajectory import Arrays, TrajectoryContract
from tests.builders import trajectory_contract
from tests.replay.support import context, ring_of

ROWS = 4
NUMBERS = 6
"""Numbers of a frame: environment, number of the observation, achieved goal of two numbers, desired goal of two."""

LEAD = 4  # bytes before the vector in a frame of bytes, as a leaf of an image would take


def reward_of(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    return achieved[:, 0] - 3 * desired[:, 0] + 5 * desired[:, 1]


def terminated_of(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    return (achieved[:, 1] + desired[:, 1]) % 5 == 0


def achieved_of(number: int) -> list[float]:
    return [number + 1000.0, number * 7 % 11 + 1.0]


@dataclass
class Record:
    """The episodes: their observations in order, and what the step before each observation gave."""

    episodes: list[list[int]] = field(default_factory=list)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)  # observation -> its episode and its place there
    steps: dict[int, tuple[float, bool]] = field(default_factory=dict)  # observation -> reward and termination before it

    def begin(self) -> None:
        self.episodes.append([])

    def add(self, number: int) -> None:
        self.places[number] = len(self.episodes) - 1, len(self.episodes[-1])
        self.episodes[-1].append(number)


class Player:
    """One environment whose episodes last 1 to 11 steps. `die` begins an episode although none has ended."""

    observations = 0  # of all environments

    def __init__(
        self, number: int, contract: TrajectoryContract, generator: np.random.Generator, records: list[Record]
    ) -> None:
        self.number, self.contract, self.generator = number, contract, generator
        self.record = Record()
        records.append(self.record)
        self.die()

    def die(self) -> None:
        self.record.begin()
        self.left = int(self.generator.integers(1, 12))  # steps of the episode
        black = np.zeros(self.contract.frame.shape, self.contract.frame.dtype)
        self.stack = [*[black] * (self.contract.frames_stacked - 1), self.frame()]

    def frame(self) -> np.ndarray:
        """The next observation of the episode."""
        Player.observations += 1
        number, episode = Player.observations, len(self.record.episodes)
        self.record.add(number)
        numbers = np.array([self.number, number, *achieved_of(number), -episode, -2.0 * episode], np.float32)
        packed = self.contract.frame.dtype == "uint8"
        return np.concatenate([np.full(LEAD, 9, np.uint8), numbers.view(np.uint8)]) if packed else numbers

    def next(self) -> Arrays:
        fields = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.contract.fields.items()}
        frames = list(self.stack)
        for row in range(ROWS):
            if not self.left:
                fields["reset"][row] = True
                self.die()
                frames.append(self.stack[-1])
                continue
            frames.append(self.frame())
            self.left -= 1
            number, ended, terminal = Player.observations, not self.left, bool(self.generator.random() < 0.5)
            fields["action_used"][row] = True
            fields["rewards"][row] = -number
            fields["terminated"][row], fields["truncated"][row] = ended and terminal, ended and not terminal
            self.record.steps[number] = -float(number), ended and terminal
            self.stack = [*self.stack[1:], frames[-1]]
        return {**fields, "frames": np.stack(frames), "environment_id": np.array(self.number, np.int32)}


def trajectories_of(contract: TrajectoryContract, count: int) -> Iterator[tuple[Arrays, list[Record]]]:
    """Trajectories of three environments, whose workers are replaced now and then, with the records so far."""
    generator, records = np.random.default_rng(3), list[Record]()
    players = [Player(number, contract, generator, records) for number in range(3)]
    for _ in range(count):
        player = players[generator.integers(3)]
        if generator.random() < 0.1:
            player.die()
        yield player.next(), records


def contract_of(stack: int, packed: bool) -> TrajectoryContract:
    shape, dtype = ((LEAD + 4 * NUMBERS,), "uint8") if packed else ((NUMBERS,), "float32")
    return replace(trajectory_contract(ROWS, shape, dtype, stack, 2), window=1)


def replay_of(kind: str, contract: TrajectoryContract, *, terminated: bool = True, **settings: Any) -> Replay:
    lead = LEAD if contract.frame.dtype == "uint8" else 0
    places = slice(lead + 8, lead + 16), slice(lead + 16, lead + 24)
    goals = GoalAccess(*places, reward_of, terminated_of if terminated else None)
    made_in = replace(context(contract=contract), goals=goals)
    return REPLAYS[kind](ReplayConfig(kind, **{"capacity": 30, "hindsight": 4, **settings}), made_in)


def drawn(replay: Replay, contract: TrajectoryContract, count: int) -> Arrays:
    out = contract.allocate_batch(count)
    replay.sample(count, out)
    return out


def vectors(frames: np.ndarray) -> np.ndarray:
    """The numbers of frames, float32 `[..., NUMBERS]`."""
    return np.ascontiguousarray(frames[..., LEAD:]).view(np.float32) if frames.dtype == np.uint8 else frames


def check(out: Arrays, records: list[Record], *, terminated: bool = True) -> list[tuple[int, int, int]]:
    """Check each window. Returns, for each with another goal, its observation, the place of the goal among those that were
    possible, and their number."""
    found = []
    for column, frames in enumerate(vectors(out["frames"])):
        environment, number, following = int(frames[-2, 0]), int(frames[-2, 1]), int(frames[-1, 1])
        record = records[environment]
        episode, place = record.places[number]
        later = record.episodes[episode][place + 1 :]
        assert later[0] == following
        np.testing.assert_array_equal(frames[-1, 2:4], achieved_of(following))
        own, goal = (-episode - 1.0, -2.0 * (episode + 1)), tuple(frames[-1, 4:].tolist())
        stack = len(frames) - 1
        shown = record.episodes[episode][max(0, place - stack + 1) : place + 2]
        assert frames[:, 1].tolist() == [0] * (len(frames) - len(shown)) + shown
        assert all(tuple(row[4:].tolist()) == (goal if row[1] else (0, 0)) for row in frames)
        reward, ended = record.steps[following]
        if goal != own:
            possible = [tuple(achieved_of(each)) for each in later]
            found.append((number, possible.index(goal), len(possible)))
            achieved, desired = np.array([achieved_of(following)]), np.array([goal])
            reward = reward_of(achieved, desired)[0]
            ended = bool(terminated_of(achieved, desired)[0]) if terminated else ended
        assert (out["rewards"][column, 0], out["terminated"][column, 0]) == (reward, ended)
    return found


def played(replay: Replay, contract: TrajectoryContract, count: int) -> list[Record]:
    """Insert trajectories. Returns the records of their environments."""
    made = list(trajectories_of(contract, count))
    for trajectory, _ in made:
        replay.insert(trajectory)
    return made[-1][1]


FORMS: dict[str, dict[str, Any]] = {"capacity": {}, "memory": {"capacity": 0, "memory": 20_000}}


@pytest.mark.parametrize("kind", ["standard", "prioritised"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("stack", "packed"), [(1, False), (3, False), (1, True), (3, True)])
def test_every_transition_is_one_of_its_episode_with_a_goal_that_was_achieved_later(
    kind: str, form: str, stack: int, packed: bool
) -> None:
    contract = contract_of(stack, packed)
    replay = replay_of(kind, contract, **FORMS[form])
    for trajectory, records in trajectories_of(contract, 60):
        replay.insert(trajectory)
        if form == "memory" and ring_of(replay).size > 15:  # as where shared frames make room for several trajectories
            ring_of(replay)._evict(ring_of(replay)._retention.slot_to_evict(ring_of(replay)) or 0)
            ring_of(replay)._close_holes()
        check(drawn(replay, contract, 20), records)
    found = check(drawn(replay, contract, 3000), records)
    assert abs(len(found) / 3000 - 4 / 5) < 0.04
    assert max(possible for *_, possible in found) > 2 * ROWS, "wanted goals beyond the next trajectory"


def test_each_later_step_of_the_episode_is_equally_probable() -> None:
    contract = contract_of(1, False)
    replay = replay_of("standard", contract)
    records = played(replay, contract, 30)
    counts: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for number, place, possible in check(drawn(replay, contract, 20_000), records):
        counts[number, possible][place] += 1
    statistic, freedom = 0.0, 0
    for (_, possible), places in counts.items():
        expected = sum(places.values()) / possible
        statistic += sum((places[place] - expected) ** 2 / expected for place in range(possible))
        freedom += possible - 1
    assert freedom > 200
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5  # a chi-square variable


def test_the_stored_termination_stays_where_it_does_not_depend_on_the_goal() -> None:
    contract = contract_of(1, False)
    replay = replay_of("standard", contract, terminated=False)
    records = played(replay, contract, 30)
    assert check(drawn(replay, contract, 1000), records, terminated=False)


def test_without_hindsight_the_same_windows_are_drawn_as_they_are_stored() -> None:
    contract = contract_of(1, False)
    replay = replay_of("standard", contract, hindsight=0)
    records = played(replay, contract, 30)
    assert not check(drawn(replay, contract, 1000), records)


@pytest.mark.parametrize("kind", ["standard", "prioritised"])
@pytest.mark.parametrize("form", FORMS)
def test_a_saved_replay_goes_on_with_the_same_bits(kind: str, form: str) -> None:
    contract = contract_of(3, True)
    replay, other = (replay_of(kind, contract, **FORMS[form]) for _ in range(2))
    for number, (trajectory, records) in enumerate(trajectories_of(contract, 90)):
        replay.insert(trajectory)
        out = drawn(replay, contract, 30)
        check(out, records)
        if number > 50:
            other.insert(trajectory)
            assert all(array.tobytes() == out[name].tobytes() for name, array in drawn(other, contract, 30).items())
        if number == 50:
            file = io.BytesIO()
            torch.save(replay.state_dict(), file)
            other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))


def test_windows_of_several_rows_and_unknown_goals_are_refused() -> None:
    contract = contract_of(1, False)
    with pytest.raises(ValueError, match="windows of 2"):
        replay_of("standard", replace(contract, window=2))
    with pytest.raises(ValueError, match="no goals"):
        REPLAYS["standard"](ReplayConfig("standard", 9, hindsight=4), context(contract=contract))
