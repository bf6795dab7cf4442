"""Trajectories of networks with a core: the learner's unroll from the stored state is what acting has computed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from agents.networks.base import FeatureNetwork
from replay.slot_store import SharedArrays
from tests.builders import fresh_batch, network_of
from tests.workers.support import STEPS, TRAJECTORIES, collect, make_setup, rows, running
from workers import WorkerSetup
from workers.policy import CpuPolicy
from workers.serial import SerialWorkers
from workers.weights import SharedWeights, weights_layout


def attentive_network(setup: WorkerSetup) -> FeatureNetwork:
    """A network whose memory decides its output."""
    torch.manual_seed(1)
    network = setup.make_network()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith(("core.weight", "value_head.weight")):
                parameter.mul_(3.0)
    return network


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("kind", ["serial", "cpu", "central"])
@pytest.mark.parametrize("burn_in", [0, 3, 2 * STEPS + 1])
def test_learning_sees_the_values_that_acting_saw(kind: str, core: str, burn_in: int) -> None:
    """In every row of every trajectory of every group of environments, whether episodes end in it or not."""
    setup = make_setup(kind, core=core, burn_in=burn_in)
    network = attentive_network(setup)
    with running(setup, network) as workers:
        found = collect(workers)
    for trajectories in found.values():
        columns = {name: np.stack([each[name] for each in trajectories]) for name in trajectories[0]}
        batch = fresh_batch(columns, setup.contract)
        assert batch.recurrent_state is not None
        assert not batch.recurrent_state[0].any()  # an environment's first trajectory begins an episode
        assert batch.recurrent_state[1:].any(-1).sum() >= TRAJECTORIES - 2  # where row 0 is first, it is zero
        with torch.no_grad():
            learned = network.unroll(batch.observations, batch.recurrent_state, batch.reset).output
            forgetful = network.unroll(batch.observations, 0 * batch.recurrent_state, batch.reset).output
        torch.testing.assert_close(learned.values[:-1], batch.acting["behaviour_values"], rtol=1e-4, atol=1e-5)
        assert (forgetful.values[:-1] - learned.values[:-1]).abs().max() > 0.01
        assert batch.reset.any()


def test_a_trajectory_repeats_the_end_of_the_one_before_it() -> None:
    """All but the counted episodes, which are counted once."""
    setup = make_setup("serial", burn_in=3, frames_stacked=3)
    with running(setup, attentive_network(setup)) as workers:
        found = collect(workers)
    for trajectories in found.values():
        for before, after in pairwise(trajectories):
            for name in setup.contract.fields.keys() - {"recurrent_state", "environment_id", "frames"}:
                wanted = before[name][STEPS:]
                if name.startswith("episode"):
                    wanted = np.full_like(wanted, np.nan if name == "episode_return" else 0)
                np.testing.assert_array_equal(after[name][:3], wanted, err_msg=name)
            np.testing.assert_array_equal(after["frames"][3:6], before["frames"][STEPS + 3 :])
        lengths = np.concatenate([trajectory["episode_length"] for trajectory in trajectories])
        steps = STEPS * len(trajectories) + 3
        assert (lengths > 0).sum() == steps // 10 + (steps % 10 == 9)


@pytest.mark.parametrize("burn_in", [0, 3, 2 * STEPS + 1])
def test_saved_workers_continue_with_the_same_bits(burn_in: int) -> None:
    """The state of the core, the rows to repeat, and whether an observation is its episode's first."""
    setup = make_setup("serial", burn_in=burn_in, worker_count=1, envs_per_worker=3, frames_stacked=2)
    network = attentive_network(setup)

    for before in range(11):  # at some of them an episode is about to begin
        with running(setup, network) as one, running(setup, network) as other:
            assert isinstance(one, SerialWorkers)
            assert isinstance(other, SerialWorkers)
            rows(one, before)
            other.load_state_dict(one.state_dict())
            for wanted, got in zip(rows(one, 3), rows(other, 3), strict=True):
                for name in wanted:
                    np.testing.assert_array_equal(got[name], wanted[name], err_msg=f"{name} after {before}")


def test_without_a_core_nothing_is_added() -> None:
    setup = make_setup("serial", core="none")
    with running(setup, setup.make_network()) as workers:
        assert isinstance(workers, SerialWorkers)
        assert "recurrent" not in workers.state_dict()
        assert "recurrent_state" not in workers.slots


def test_the_policy_gives_the_state_before_its_observations_and_only_when_asked() -> None:
    network = network_of("mlp", (1, 5), 3, core="gru").only_act()
    policy = CpuPolicy(network, SharedWeights(SharedArrays(weights_layout(network))), seed=1)
    observations, states = np.random.default_rng(0).normal(size=(3, 2, 1, 5)).astype(np.float32), []
    for index, first in enumerate(([True, True], [False, False], [False, True])):
        policy.ask(observations[index], np.array(first), with_state=True)
        states.append(policy.answer().state)
        assert states[-1] is not None
    assert not states[0].any()
    assert states[1].all()
    assert states[2][0].all()
    assert not states[2][1].any()
    policy.ask(observations[0], np.array([False, False]))
    assert policy.answer().state is None
    with torch.no_grad():
        features = network.features(torch.from_numpy(observations[0]))
        assert network.core is not None
        torch.testing.assert_close(torch.from_numpy(states[1]), network.core(features, torch.zeros(2, 8))[1])
