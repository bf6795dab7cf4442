"""Threads that share the operations of a pass: only as long as that is faster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agents.base import Agent
from agents.engine import sharing
from agents.engine.passes import NetworkPasses
from agents.engine.sharing import LONGEST_ROUND, SHORTEST_ROUND, TIMED, WORTH_SHARING, SharedOperations, threads_worthwhile
from agents.networks.base import make_network
from learner.building import make_agent
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.plan import make_plan
from learner.settings.config import make_config
from learner.settings.schema import default_settings
from tests.builders import network_of

THREADS = 3
LARGE = 10 * WORTH_SHARING


class Clock:
    """A clock on which a pass takes as long as its number of threads says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = {1: 1.0, THREADS: 0.5}
        self.used: list[int] = []

    def perf_counter(self) -> float:
        return self.now

    def run(self, operations: SharedOperations, passes: int, multiplied: int = LARGE) -> list[int]:
        """The threads of each of these passes."""
        self.used = []
        for _ in range(passes):
            with operations.sharing(multiplied):
                self.used.append(torch.get_num_threads())
                self.now += self.seconds[self.used[-1]]
            self.now += 7.0  # between the passes
            operations.end_pass(multiplied)
        return self.used


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(sharing.time, "perf_counter", made.perf_counter)
    yield made
    assert torch.get_num_threads() == 1


def test_the_faster_way_is_used_after_both_were_timed(clock: Clock) -> None:
    operations = SharedOperations(THREADS)
    assert clock.run(operations, 2 * TIMED) == [1] * 2 * TIMED  # to warm up, then timed
    assert clock.run(operations, TIMED + 5) == [THREADS] * (TIMED + 5)
    clock.seconds[THREADS] = 0.95  # not worth it
    operations = SharedOperations(THREADS)
    clock.run(operations, 3 * TIMED)
    assert clock.run(operations, 5) == [1] * 5


def test_shared_operations_end_as_soon_as_they_take_longer(clock: Clock) -> None:
    """As when another program takes a core. They begin again once the core is idle."""
    operations = SharedOperations(THREADS)
    clock.run(operations, 3 * TIMED + 10)
    assert operations.chosen == THREADS
    clock.seconds[THREADS] = 5.0
    used = clock.run(operations, 2 * SHORTEST_ROUND)
    assert used.count(THREADS) <= 3 * TIMED
    assert operations.chosen == 1
    clock.seconds[THREADS] = 0.5
    clock.run(operations, 4 * SHORTEST_ROUND)
    assert operations.chosen == THREADS


def test_comparisons_that_one_thread_wins_become_rare(clock: Clock) -> None:
    operations = SharedOperations(THREADS)
    clock.seconds[THREADS] = 5.0
    clock.run(operations, 10 * LONGEST_ROUND)
    assert clock.run(operations, 4 * LONGEST_ROUND).count(THREADS) <= 4 * TIMED


@pytest.mark.parametrize("delay", [2, 3])
def test_some_passes_may_take_longer(clock: Clock, delay: int) -> None:
    """As with a policy delay, whichever pass comes first: it changes neither the choice nor how rare comparisons are."""
    for first in range(delay):
        operations, count, used = SharedOperations(THREADS), first, []
        for _ in range(3 * TIMED + SHORTEST_ROUND):
            times = 2 if count % delay == 0 else 1
            clock.seconds = {threads: times * seconds for threads, seconds in ((1, 1.0), (THREADS, 0.8))}
            used += clock.run(operations, 1)
            count += 1
        assert used == [1] * 2 * TIMED + [THREADS] * (TIMED + SHORTEST_ROUND)


@pytest.mark.parametrize(("multiplied", "most"), [(WORTH_SHARING // 2, THREADS), (LARGE, 1)])
def test_a_small_pass_and_a_single_thread_are_never_timed(clock: Clock, multiplied: int, most: int) -> None:
    clock.seconds[THREADS] = 0.1
    assert set(clock.run(SharedOperations(most), 5 * SHORTEST_ROUND, multiplied)) == {1}


def test_a_larger_pass_has_more_threads() -> None:
    assert [threads_worthwhile(part * WORTH_SHARING // 2, 4) for part in (0, 1, 2, 4, 100)] == [1, 1, 2, 3, 4]


def test_forward_and_backward_share_their_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leave the thread as it was, with the same gradients."""
    monkeypatch.setattr(sharing, "WORTH_SHARING", 1)
    monkeypatch.setattr(sharing, "FASTER", 1e9)
    network = network_of("mlp", (1, 17), 6, hidden_sizes="64,64")
    passes, seen = NetworkPasses(network, 2, idle_cores=True), []
    network.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    observations, gradients = torch.randn(32, 1, 17), []
    for _ in range(3 * TIMED + 1):
        outputs = passes.forward(observations)
        outputs.policy.register_hook(lambda _: seen.append(torch.get_num_threads()))
        passes.backward([outputs.policy.square().sum() + outputs.values.sum()], outputs)
        gradients.append([parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None])
        assert torch.get_num_threads() == 1
    assert seen[:2] == [1, 1]
    assert seen[-2:] == [2, 2]
    for first, last in zip(gradients[0], gradients[-1], strict=True):
        torch.testing.assert_close(first, last)


@pytest.mark.parametrize(
    ("agent", "env", "reproducible", "most"),
    [
        ("sac", "Pendulum-v1", False, 2),
        ("ppo", "CartPole-v1", False, 2),
        ("dqn", "CartPole-v1", False, 2),
        ("sac", "Pendulum-v1", True, 1),  # its bits may not depend on the time
        ("vtrace", "CartPole-v1", False, 1),  # its workers keep all cores busy
    ],
)
def test_operations_are_shared_where_workers_wait(agent: str, env: str, reproducible: bool, most: int) -> None:
    own = {"agent": agent, "env": env, "network": "mlp", "reproducible": reproducible, "device": "cpu", "learner_threads": 2}
    settled, _ = fit_to_machine({**default_settings(agent), **own}, Machine(cores=2, memory_bytes=8 * 10**9, gpu=None))
    config = make_config(settled)
    made = make_agent(config, make_network(make_plan(config).network), threads=config.training.learner_threads)
    assert isinstance(made, Agent)
    assert made.stepper.passes.operations.most == most
