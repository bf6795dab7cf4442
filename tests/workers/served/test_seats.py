"""Seats write the rows that the rollout of a worker writes, whatever their clients do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch

from agents.networks.base import make_network
from learner.early_processes import worker_setup
from learner.plan import make_plan
from replay.trajectory import Arrays
from serve.frames import ProtocolError
from serve.session import Busy, Outcome, Session
from tests.support import small_config
from workers.base import WorkerSetup, allocate_arena
from workers.evaluation_policy import EvaluationPolicy
from workers.infos import INFO_FIELDS, slots_with_infos
from workers.policy import cpu_policy
from workers.rollout import make_rollout
from workers.served.counts import LAYOUT, Counts
from workers.served.policy import SeatPolicy
from workers.served.random_play import RandomSeats
from workers.served.seats import Seats
from workers.weights import SharedWeights, weights_layout
from wrappers import make_vector_env

SEED = 5


class Client:
    """Takes the place of a session: plays CartPole as fast as answers come."""

    def __init__(self) -> None:
        self.env = gymnasium.make("CartPole-v1")
        self.actions: list[tuple[int, Any]] = []
        self.name, self.errors = "CartPole-v1", list[tuple[str, int]]()

    def refuse(self, error: ProtocolError, seat: int) -> None:
        self.errors.append((error.code, seat))
        self.actions = []

    def answer(self, seat: int, action: Any, version: int) -> None:
        self.actions.append((seat, action))

    def begin(self, seats: Seats, seat: int, seed: int | None = None) -> None:
        seats.begin(seat, Outcome(self.env.reset(seed=seed)[0], {}))

    def step(self, seats: Seats) -> None:
        for seat, action in self.actions:
            observation, reward, terminated, truncated, _ = self.env.step(action)
            seats.take(seat, Outcome(observation, {"pole": 1.0}, None, float(reward), terminated, truncated))
            if terminated or truncated:
                self.begin(seats, seat)
        self.actions = []


def make_setup(agent: str, **given: Any) -> WorkerSetup:
    config = small_config(agent=agent, env="CartPole-v1", network="mlp", frames_stacked=2, unroll_length=12, **given)
    config = replace(config, workers=replace(config.workers, worker_kind="served", worker_count=1, envs_per_worker=3))
    return replace(worker_setup(make_plan(config), None), server=config.server)


class Served:
    """Seats with an arena, and the slots that they handed over."""

    def __init__(self, setup: WorkerSetup) -> None:
        network = make_network(setup.network)
        self.shared = allocate_arena(setup, {**weights_layout(network), **LAYOUT})
        self.slots = slots_with_infos(self.shared, setup.contract, poison=True)
        self.weights, self.network = SharedWeights(self.shared), network
        self.weights.publish(network, 0)
        self.counts = Counts(self.shared.arrays)
        self.done: list[int] = []
        greedy = EvaluationPolicy(setup.make_network(), torch.device("cpu"), greedy=True, seed=1)
        self.seats = Seats(setup, SeatPolicy(setup, self.weights, SEED), greedy, self.slots, self.done.append, self.counts)
        for slot in range(setup.config.blocks_per_worker):
            self.seats.free(slot)
        self.seats.refresh()

    def join(self, client: Client, *, exploit: bool = False) -> int:
        (seat,) = self.seats.join(cast(Session, client), 1, exploit=exploit)
        return seat

    def play(self, client: Client, trajectories: int) -> list[Arrays]:
        """Play until so many trajectories are complete. Their slots go back when they have been copied."""
        found: list[Arrays] = []
        for _ in range(1000):
            self.seats.act()
            client.step(self.seats)
            while self.done:
                slot = self.done.pop(0)
                found.append({name: array[slot].copy() for name, array in self.slots.items()})
                self.seats.free(slot)
            if len(found) >= trajectories:
                return found
        raise AssertionError("no trajectory was completed")


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    agent, given = getattr(request, "param", ("vtrace", {}))
    made = Served(make_setup(agent, **given))
    yield made
    made.shared.close()


BURNING = ("r2d2", {"core": "lstm", "burn_in": 4, "seed": 2})


@pytest.mark.parametrize(
    "served", [("vtrace", {}), BURNING, ("ppo", {"batch_size": 4})], indirect=True, ids=lambda each: each[0]
)
def test_a_seat_writes_the_rows_of_a_rollout(served: Served, request: pytest.FixtureRequest) -> None:
    agent, given = request.node.callspec.params["served"]
    setup = make_setup(agent, **given)
    single = replace(setup, config=replace(setup.config, worker_kind="cpu", envs_per_worker=1), server=None)
    policy = cpu_policy(single, served.weights, 0, SEED)
    policy.exploration = policy.network.exploration(torch.arange(1), setup.config.envs_per_worker)
    arena = allocate_arena(single, {})
    slots = slots_with_infos(arena, setup.contract)
    rollout = make_rollout(single, make_vector_env(single.env, 1), policy, slots, np.zeros(7), 0, SEED)
    client = Client()
    seat = served.join(client)
    client.begin(served.seats, seat, seed=SEED)
    ended = 0
    for played in served.play(client, 4):
        rollout.collect(0)
        for name, array in slots.items():
            if name not in INFO_FIELDS:
                np.testing.assert_array_equal(played[name], array[0], err_msg=name)
        ended += int(np.isfinite(played["episode_return"]).sum())
        # The number that the client sends stands in each row of a step, and in no autoreset.
        rows = np.s_[setup.contract.overlap :]
        np.testing.assert_array_equal(np.isnan(played["infos"][rows, 0]), played["reset"][rows])
    assert ended > 0
    arena.close()


def test_an_episode_that_breaks_off_is_truncated_and_the_next_client_continues(served: Served) -> None:
    first, second = Client(), Client()
    seat = served.join(first)
    first.begin(served.seats, seat, seed=1)
    for _ in range(4):
        served.seats.act()
        first.step(served.seats)
    served.seats.leave(seat)  # the observation of row 4 waits for an action
    assert served.join(second) == seat
    second.begin(served.seats, seat, seed=2)
    (played,) = served.play(second, 1)
    assert played["truncated"].tolist() == [row == 3 for row in range(12)]
    assert played["reset"].tolist() == [row == 4 for row in range(12)]
    assert not played["terminated"].any()
    assert np.isnan(played["episode_return"]).all()  # its return would be that of a part
    expected = gymnasium.make("CartPole-v1").reset(seed=2)[0]
    np.testing.assert_array_equal(played["frames"][2 + 4], expected)
    assert served.counts.cut == 1


@pytest.mark.parametrize("served", [("ppo", {"batch_size": 4})], indirect=True)
def test_an_on_policy_batch_has_one_version(served: Served) -> None:
    clients = [Client() for _ in range(3)]
    for number, client in enumerate(clients):
        client.begin(served.seats, served.join(client), seed=number + 1)
    end = monotonic() + 1.0  # longer than a seat waits for the others
    while monotonic() < end:
        served.seats.act()
        for client in clients:
            client.step(served.seats)
    # Each seat has filled one slot, and one of them the fourth, which completes the batch. Then all wait.
    assert len(served.done) == 4
    assert not any(client.actions for client in clients)
    assert served.counts.dropped == 0
    served.weights.publish(served.network, 1)
    assert served.seats.refresh()
    for slot in served.done:
        served.seats.free(slot)
    served.done.clear()
    served.play(clients[0], 1)
    for _ in range(5):  # the other seats are in the middle of their trajectories
        served.seats.act()
        clients[1].step(served.seats)
    served.weights.publish(served.network, 2)
    assert served.seats.refresh()
    assert served.counts.dropped >= 5
    for version in served.play(clients[1], 1)[0]["policy_version"].tolist():
        assert version == 2


def test_a_seat_that_exploits_leaves_no_rows(served: Served) -> None:
    client = Client()
    seat = served.join(client, exploit=True)
    client.begin(served.seats, seat, seed=1)
    for _ in range(400):
        served.seats.act()
        client.step(served.seats)
    assert served.done == []
    assert served.counts.exploit_episodes > 0
    assert served.counts.steps == 0


@pytest.mark.parametrize("served", [("vtrace", {}), BURNING], indirect=True, ids=lambda each: each[0])
@pytest.mark.parametrize("acted", [False, True])
def test_exploiting_play_in_a_seat_that_was_left_is_no_part_of_its_trajectory(served: Served, *, acted: bool) -> None:
    left, others, greedy, following = Client(), Client(), Client(), Client()
    seat = served.join(left)
    served.join(others), served.join(others)  # no other seat is free
    left.begin(served.seats, seat, seed=1)
    for _ in range(7):
        served.seats.act()
        left.step(served.seats)
    if acted:  # the client leaves while it thinks, and otherwise while the server does
        served.seats.act()
    served.seats.leave(seat)
    assert served.join(greedy, exploit=True) == seat
    greedy.begin(served.seats, seat, seed=2)
    for _ in range(30):
        served.seats.act()
        assert greedy.actions or served.counts.exploit_episodes
        greedy.step(served.seats)
    served.seats.leave(seat)
    assert served.join(following) == seat
    following.begin(served.seats, seat, seed=3)
    for played in served.play(following, 3):
        assert not played["truncated"].any()
        # A reset follows each end, and nothing else.
        np.testing.assert_array_equal(played["terminated"][:-1], played["reset"][1:])


@pytest.mark.parametrize("served", [("ppo", {"batch_size": 4})], indirect=True)
def test_rows_of_a_seat_that_waits_are_dropped_once(served: Served) -> None:
    client = Client()
    client.begin(served.seats, served.join(client), seed=1)
    for _ in range(5):
        served.seats.act()
        client.step(served.seats)
    served.seats.act()  # the row is pending from now on
    dropped = []
    for version in range(1, 4):
        served.weights.publish(served.network, version)
        served.seats.refresh()
        dropped.append(served.counts.dropped)
    assert dropped == [5, 5, 5]


@pytest.mark.parametrize("served", [("vtrace", {}), BURNING], indirect=True, ids=lambda each: each[0])
@pytest.mark.parametrize("exploit", [False, True])
def test_outputs_that_are_not_finite_end_only_their_own_session(served: Served, *, exploit: bool) -> None:
    good, bad = Client(), Client()
    good.begin(served.seats, served.join(good), seed=1)
    seat = served.join(bad, exploit=exploit)
    bad.begin(served.seats, seat, seed=2)
    for _ in range(30):
        served.seats.act()
        good.step(served.seats)
        bad.step(served.seats)
    served.seats.act()
    served.seats.take(seat, Outcome(np.full(4, np.nan), {}, None, 1.0))  # any network makes nan of it
    bad.actions = []
    for _ in range(3):  # the first call refuses; the second one acts in the other seat; one more where that one's episode ended
        good.step(served.seats)
        served.seats.act()
        if good.actions and bad.errors:
            break
    assert bad.errors == [("value", seat)]
    assert good.errors == []
    assert good.actions
    served.seats.leave(seat)
    assert served.counts.cut == 1
    # The next client begins a trajectory of its own, and nothing of the bad one is left.
    following = Client()
    assert served.join(following) == seat
    following.begin(served.seats, seat, seed=3)
    for played in served.play(following, 3):
        assert np.abs(played["frames"]).max() < 100
        assert not played["truncated"].any()


def test_more_seats_than_there_are_is_an_error_and_no_matter_of_waiting(served: Served) -> None:
    client = cast(Session, Client())
    for host in (served.seats, RandomSeats(make_setup("vtrace").env, 3, SEED)):
        host.join(client, 1, exploit=False)
        with pytest.raises(Busy):
            host.join(client, 3, exploit=False)
        with pytest.raises(ProtocolError, match="wanted at most 3, got 4") as caught:
            host.join(client, 4, exploit=False)
        assert caught.value.code == "seat"
