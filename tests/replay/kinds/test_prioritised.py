"""Prioritised replay draws trajectories or windows by their errors, in every form of storage, and resumes to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from replay import Mixture, ReplayConfig, make_mixture
from replay.batch import HostBatch
from replay.kinds.prioritised import PrioritisedReplay
from replay.trajectory import Arrays, TrajectoryContract
from tests.builders import trajectory_contract
from tests.replay.support import through_a_file
from tests.support import same

ROWS = 4
CONTRACT = trajectory_contract(unroll_length=ROWS, frame_shape=(600,), frames_stacked=2, action_count=1)
WINDOWS = replace(CONTRACT, window=2)
BATCH = 6
FORMS: dict[str, dict[str, Any]] = {
    "capacity": {"capacity": 8},
    "memory": {"capacity": 0, "memory": 60_000},
    "compressed": {"capacity": 8, "compress": True},
    "compressed_memory": {"capacity": 0, "memory": 30_000, "compress": True},
}


def mixture_of(contract: TrajectoryContract = WINDOWS, seed: int = 1, **settings: Any) -> Mixture:
    config = ReplayConfig(
        "prioritised", sample_ratio=1.0, **{"capacity": 8, "alpha": 1.0, "priority_epsilon": 1e-9, **settings}
    )
    return make_mixture([config], contract, BATCH, 0.0, np.random.default_rng(seed), initial_errors=stored_errors)


def stored_errors(trajectory: Arrays) -> np.ndarray:
    """The errors that a test writes into the values of acting; those of a whole trajectory are their maximum."""
    errors = trajectory["behaviour_values"]
    return errors.copy() if trajectory["rewards"].max() < 0.5 else errors.max(keepdims=True)


class Source:
    """Trajectories whose actions tell trajectory and row. Incompressible frames and those of one value alternate."""

    def __init__(self, contract: TrajectoryContract, seed: int = 0) -> None:
        self.contract, self.count = contract, 0
        self.generator = np.random.default_rng(seed)

    def next(self, errors: Any = 1.0) -> Arrays:
        trajectory = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.contract.fields.items()}
        trajectory["actions"][:] = 10 * self.count + np.arange(ROWS)
        trajectory["rewards"][:] = 0.0 if self.contract.window else 1.0
        trajectory["action_used"][:] = np.asarray(errors) != 0
        trajectory["behaviour_values"][:] = errors
        random = self.generator.integers(0, 256, trajectory["frames"].shape)
        trajectory["frames"][:] = random if self.count % 3 else 7
        self.count += 1
        return trajectory


def drawn(mixture: Mixture, batches: int) -> tuple[np.ndarray, list[HostBatch]]:
    """The first actions of all columns of some batches, and the batches."""
    found = [mixture.sample() for _ in range(batches)]
    return np.concatenate([host.columns["actions"][:, 0] for host in found]), found


def test_windows_start_at_rows_in_proportion_to_their_errors() -> None:
    mixture, source = mixture_of(beta=1.0), Source(WINDOWS)
    errors = {0: [1.0, 0.0, 3.0, 1.0], 1: [0.0, 0.0, 0.0, 5.0]}
    for row in errors.values():
        mixture.insert(source.next(row))
    actions, hosts = drawn(mixture, 1500)
    for number, row in errors.items():
        for t, error in enumerate(row):
            assert (actions == 10 * number + t).mean() == pytest.approx(error / 10, abs=0.02)
    for host in hosts[:20]:
        own = np.array([errors[action // 10][action % 10] for action in host.columns["actions"][:, 0]])
        assert host.weights is not None
        np.testing.assert_allclose(host.weights, own.min() / own, rtol=1e-6)


def test_beyond_its_trajectory_a_window_has_unused_rows_in_every_form() -> None:
    for form in FORMS.values():
        mixture, source = mixture_of(**form), Source(WINDOWS)
        source.next()  # whose frames are all equal
        frames = source.next([0.0, 0.0, 0.0, 5.0])
        mixture.insert(frames)
        host = mixture.sample()
        assert host.columns["actions"][:, 0].tolist() == BATCH * [13]
        assert host.columns["action_used"].tolist() == BATCH * [[True, False]]
        for column in host.columns["frames"]:
            np.testing.assert_array_equal(column, np.concatenate([frames["frames"][3:], frames["frames"][-1:]])[: len(column)])


@pytest.mark.parametrize("contract", [CONTRACT, WINDOWS], ids=["sequences", "windows"])
def test_updates_change_what_is_drawn(contract: TrajectoryContract) -> None:
    mixture, source = mixture_of(contract), Source(contract)
    for _ in range(3):
        mixture.insert(source.next())
    host = mixture.sample()
    wanted = host.columns["actions"][0, 0]
    for _ in range(40):
        host = mixture.sample()
        mixture.update_priorities(host.tickets, np.where(host.columns["actions"][:, 0] == wanted, 100.0, 1e-9))
    actions, _ = drawn(mixture, 20)
    assert (actions == wanted).mean() > 0.95


def test_a_sequence_has_one_priority() -> None:
    mixture, source = mixture_of(CONTRACT), Source(CONTRACT)
    for largest in (1.0, 3.0):
        mixture.insert(source.next([0.5, largest, 0.0, 0.25]))
    actions, _ = drawn(mixture, 1000)
    assert set(actions.tolist()) == {0, 10}
    assert (actions == 10).mean() == pytest.approx(0.75, abs=0.03)


def test_beta_moves_over_the_run_and_shares_of_other_replays_weigh_fully() -> None:
    progress = [0.0]
    configs = [ReplayConfig("prioritised", 8, 0.5, beta=0.0, beta_end=1.0), ReplayConfig("standard", 8, 0.5)]
    mixture = make_mixture(
        configs, WINDOWS, 8, 0.0, np.random.default_rng(1), progress=lambda: progress[0], initial_errors=stored_errors
    )
    source = Source(WINDOWS)
    mixture.insert(source.next([1.0, 2.0, 4.0, 8.0]))
    host = mixture.sample()
    assert host.weights is not None
    assert (host.weights == 1).all()
    progress[0] = 1.0
    host = mixture.sample()
    assert host.weights is not None
    uniform, prioritised = host.weights[host.source == 1], host.weights[host.source == 0]
    assert len(set(uniform.tolist())) == 1
    assert prioritised.min() < uniform[0]  # rows with large errors are drawn more often than uniformly
    assert host.weights.max() == 1.0


@pytest.mark.parametrize("contract", [CONTRACT, WINDOWS], ids=["sequences", "windows"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_stored_rows_whatever_was_evicted_moved_and_updated(
    form: str, contract: TrajectoryContract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tickets are late by some inserts, as with batches that are prepared ahead."""
    mixture, source, generator = mixture_of(contract, **FORMS[form]), Source(contract), np.random.default_rng(2)
    (replay,) = mixture.replays
    assert isinstance(replay, PrioritisedReplay)
    late: list[HostBatch] = []
    moves: list[int] = []
    move = replay.priorities.move
    monkeypatch.setattr(replay.priorities, "move", lambda slots, used: (moves.append(len(slots)), move(slots, used)))
    for _ in range(150):
        mixture.insert(source.next(generator.random(ROWS) * generator.integers(0, 2, ROWS)))
        if not mixture.can_sample():
            continue
        host = mixture.sample()
        late.append(host)
        actions, used = host.columns["actions"], host.columns["action_used"]
        stored = replay.ring.storage.columns["actions"][replay.ring.slots]
        assert np.isin(actions[:, 0], stored if contract.window else stored[:, 0]).all()
        assert used[:, 0].all() if contract.window else used.any(1).all()
        if len(late) > 2:
            mixture.update_priorities(late.pop(0).tickets, generator.random(BATCH))
        check(replay)
    assert (sum(moves) > 0) == (form == "compressed_memory")  # only there trajectories differ in size


def check(replay: PrioritisedReplay) -> None:
    """Exactly the used rows of stored trajectories have a priority."""
    ring, priorities = replay.ring, replay.priorities
    used = np.zeros((ring.storage.capacity, ROWS), bool)
    used[ring.slots] = ring.storage.columns["action_used"][ring.slots]
    drawable = priorities.tree.leaves > 0
    np.testing.assert_array_equal(drawable, used.ravel() if replay.windows else used.any(1))
    assert priorities.count == drawable.sum()
    assert priorities.tree.total == pytest.approx(priorities.tree.leaves.sum(), rel=1e-9)


@pytest.mark.parametrize("contract", [CONTRACT, WINDOWS], ids=["sequences", "windows"])
@pytest.mark.parametrize("form", FORMS)
def test_a_saved_mixture_continues_to_the_bit(form: str, contract: TrajectoryContract) -> None:
    original, copy, source = mixture_of(contract, **FORMS[form]), mixture_of(contract, seed=9, **FORMS[form]), Source(contract)
    generator = np.random.default_rng(3)
    for _ in range(30):
        original.insert(source.next(generator.random(ROWS)))
        original.update_priorities((host := original.sample()).tickets, generator.random(BATCH))
    copy.insert(source.next())
    copy.load_state_dict(through_a_file(original.state_dict()))
    for _ in range(15):
        trajectory, errors, updated = source.next(generator.random(ROWS)), generator.random(BATCH), host
        pair = []
        for mixture in (original, copy):
            mixture.insert(trajectory)
            mixture.update_priorities(updated.tickets, errors)  # tickets of before are as good in the copy
            pair.append(mixture.sample())
        host = pair[0]
        assert all((pair[0].columns[name] == pair[1].columns[name]).all() for name in ("actions", "rewards"))
        np.testing.assert_array_equal(pair[0].weights, pair[1].weights)
    assert same(through_a_file(original.state_dict()), through_a_file(copy.state_dict()))


def test_metrics_tell_of_beta_and_of_updates_that_came_too_late() -> None:
    mixture, source = mixture_of(capacity=2, beta=0.25), Source(WINDOWS)
    for _ in range(2):
        mixture.insert(source.next())
    host = mixture.sample()
    for _ in range(2):
        mixture.insert(source.next())
    mixture.update_priorities(host.tickets, np.full(BATCH, 9.0))
    (metrics,) = mixture.metrics()
    assert (metrics["beta"], metrics["void_updates"], metrics["largest_priority"]) == (0.25, BATCH, pytest.approx(1.0))
    assert mixture.metrics()[0]["void_updates"] == 0
