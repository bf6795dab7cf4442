"""Every kind of workers gives each environment its own exploration, and keeps the exploration's state as long as an episode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.acting import Acting
from agents.networks.actor_critic import ActorCritic
from agents.networks.base import NetworkConfig, NetworkOutput, SampledActions
from replay.trajectory import Arrays, Field
from tests.workers.support import collect, make_setup, rows, running
from workers import WorkerSetup
from workers.serial import SerialWorkers

EPISODE = 9  # steps of an episode of Catch; the tenth row is the autoreset


class Counting(ActorCritic):
    """Explores with the number of the environment, divided by their total, and with a count of the episode's steps."""

    noise_size = 1

    def exploration(self, environments: Tensor, total: int) -> Tensor:
        return torch.stack([environments / total, torch.zeros(len(environments), device=environments.device)], 1)

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        return Acting({**super().acting(config).fields, "explored": Field((2,), "float32")})

    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        chosen = super().choose(inferred, generator, greedy=greedy)
        assert exploration is not None
        counted = exploration + torch.tensor([0.0, 1.0])
        return SampledActions(chosen.actions, {**chosen.fields, "explored": counted}, counted)


def setup_of(kind: str, core: str = "none") -> WorkerSetup:
    setup = make_setup(kind, core=core, burn_in=0)
    network = replace(setup.network, network_class=Counting)
    return replace(setup, network=network, contract=replace(setup.contract, acting=Counting.acting(network).fields))


@pytest.mark.parametrize("kind", ["serial", "cpu", "central"])
def test_each_environment_has_its_own_exploration_in_each_of_its_episodes(kind: str) -> None:
    setup = setup_of(kind)
    with running(setup, setup.make_network()) as workers:
        found = collect(workers)
    total = setup.config.environments
    assert sorted(found) == list(range(total))
    for environment, trajectories in found.items():
        explored = np.concatenate([trajectory["explored"] for trajectory in trajectories])
        np.testing.assert_allclose(explored[:, 0], environment / total, rtol=1e-6)
        np.testing.assert_array_equal(explored[:, 1], 1 + np.arange(len(explored)) % (EPISODE + 1))


@pytest.mark.parametrize("core", ["none", "gru"])
def test_saved_workers_continue_with_the_state_of_their_exploration(core: str) -> None:
    setup = setup_of("serial", core)
    network = setup.make_network()
    with running(setup, network) as one, running(setup, network) as other:
        assert isinstance(one, SerialWorkers)
        assert isinstance(other, SerialWorkers)
        rows(one, 3)
        other.load_state_dict(one.state_dict())
        for wanted, got in zip(rows(one, 4), rows(other, 4), strict=True):
            assert_equal(got, wanted)


def test_a_resumed_run_has_constants_of_its_own_settings() -> None:
    setup = setup_of("serial", "none")
    with running(setup, setup.make_network()) as one:
        assert isinstance(one, SerialWorkers)
        rows(one, 3)
        saved = one.state_dict()
        before = one._policies[0].exploration
        one._policies[0].exploration = before + torch.tensor([1.0, 5.0])
        one.load_state_dict(saved)
        np.testing.assert_array_equal(one._policies[0].exploration - before, [[1.0, 0.0]] * len(before))


def assert_equal(got: Arrays, wanted: Arrays) -> None:
    assert got.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
