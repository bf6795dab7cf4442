"""Replays learn what the current network makes of stored trajectories; workers store what the acting one made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.distributions import ILLEGAL_LOGIT, Categorical
from agents.networks.base import make_network
from learner.feeding import encoder as module
from learner.feeding.encoder import Encoder, policy_divergence
from learner.plan import make_plan
from tests.builders import fresh_batch, network_of
from tests.support import small_config
from workers import WorkerSetup
from workers.serial import SerialWorkers
from wrappers.spaces import ActionSpace, Box, Discrete, MultiDiscrete

ELITE = '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "elite", "capacity": 9, "sample_ratio": 0.5}]'


@pytest.fixture
def collected() -> tuple[SerialWorkers, torch.nn.Module]:
    return collect()


def collect(**settings: Any) -> tuple[SerialWorkers, torch.nn.Module]:
    """Three blocks of four Catch trajectories, acted by the network that comes along."""
    config = small_config(replay_parameters=ELITE, frames_stacked=3, **settings)
    plan = make_plan(config)
    spec, contract, network = plan.spec, plan.contract, make_network(plan.network)
    three = replace(config.workers, worker_count=3)
    setup = WorkerSetup(config.env, spec, plan.network, contract, three, (1, 11, 21), poison=True)
    workers = SerialWorkers(setup, network)
    workers.weights.publish(network, 0)
    workers.start()
    for _ in range(3):
        workers.poll(0)
    return workers, network


def encode(workers: SerialWorkers, network: torch.nn.Module) -> tuple[dict[str, np.ndarray], module.Encoded]:
    written = [slot for worker in range(3) for slot in range(8 * worker, 8 * worker + 4)]  # each worker's first block
    columns = {name: array[written] for name, array in workers.slots.items()}
    return columns, Encoder(network, workers.weights, 3, torch.device("cpu"))(columns)  # type: ignore[arg-type]


def test_features_and_logits_are_those_of_the_network(
    collected: tuple[SerialWorkers, torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, network = collected
    monkeypatch.setattr(module, "OBSERVATIONS_AT_ONCE", 7)  # a number that divides nothing
    columns, encoded = encode(workers, network)
    batch = fresh_batch(columns, workers.setup.contract)
    for trajectory in (0, 5, 11):
        observations = batch.observations[:-1, trajectory]
        with torch.no_grad():
            features = network.features(observations)  # type: ignore[operator]
            logits = network(observations).policy
        np.testing.assert_allclose(encoded.features[trajectory], features.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(encoded.policy[trajectory], logits.numpy(), rtol=1e-4, atol=1e-5)


def test_behaviour_features_and_logits_are_those_of_the_network_that_acted(
    collected: tuple[SerialWorkers, torch.nn.Module],
) -> None:
    """The learner has not moved yet: what it makes of a trajectory is what the worker stored with it."""
    workers, network = collected
    columns, encoded = encode(workers, network)
    np.testing.assert_allclose(encoded.features, columns["behaviour_features"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(encoded.policy, columns["behaviour_policy"], rtol=1e-4, atol=1e-5)
    assert columns["behaviour_features"].std() > 0


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("burn_in", [0, 4])
def test_a_core_starts_from_the_stored_state(core: str, burn_in: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second blocks begin in the middle of an episode; an autoreset follows in them."""
    monkeypatch.setattr(module, "OBSERVATIONS_AT_ONCE", 31)  # two or three trajectories
    workers, network = collect(core=core, core_size=8, burn_in=burn_in, unroll_length=7)
    for block in range(3):
        workers.release(workers._block(block))
    for _ in range(3):
        workers.poll(0)
    columns, encoded = encode(workers, network)
    assert columns["recurrent_state"].any(-1).all()
    assert columns["reset"].any()
    np.testing.assert_allclose(encoded.features, columns["behaviour_features"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(encoded.policy, columns["behaviour_policy"], rtol=1e-4, atol=1e-5)


def test_weights_are_those_published_last_whatever_becomes_of_the_network_meanwhile(
    collected: tuple[SerialWorkers, torch.nn.Module],
) -> None:
    """Half of an optimiser step must never be seen."""
    workers, network = collected
    columns, before = encode(workers, network)
    encoder = Encoder(network, workers.weights, 3, torch.device("cpu"))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    np.testing.assert_array_equal(encoder(columns).features, before.features)
    workers.weights.publish(network, 1)
    after = encoder(columns)
    np.testing.assert_array_equal(after.features, encode(workers, network)[1].features)
    assert not np.allclose(after.features, before.features)


def test_features_are_stored_only_where_a_replay_compares_them(tmp_path: Path) -> None:
    for parameters, stored in (
        (ELITE, True),
        (ELITE.replace('"elite"', '"elite", "dist_function": "kl_policy"'), False),
        ('[{"type": "queue", "capacity": 1, "sample_ratio": 1.0}]', False),
    ):
        config = small_config(replay_parameters=parameters)
        assert ("behaviour_features" in make_plan(config).contract.fields) is stored


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete((2, 3)), Box((-1.0, 0.0), (1.0, 1.0))])
def test_policies_are_compared_by_the_divergence_of_the_network_s_distribution(space: ActionSpace) -> None:
    """One choice has none of its own: the replays' formula for logits computes it faster and keeps its bits."""
    network = network_of("mlp", (1, 3), space)
    divergence = policy_divergence(network)
    if isinstance(space, Discrete):
        assert divergence is None
        return
    assert divergence is not None
    count = network.distribution.parameter_count
    one, other = np.random.default_rng(0).standard_normal((2, 6, count)).astype(np.float32)
    got = divergence(one[:, None], other[None])
    assert (got.shape, got.dtype) == ((6, 6), np.float64)
    wanted = network.distribution.kl(torch.from_numpy(one), torch.from_numpy(other))
    np.testing.assert_allclose(np.diag(got), wanted, rtol=1e-5, atol=1e-6)


def test_a_forbidden_value_of_several_choices_is_an_unlikely_one() -> None:
    network = network_of("mlp", (1, 3), MultiDiscrete((2, 3)))
    divergence, distribution = policy_divergence(network), network.distribution
    assert divergence is not None
    one, other = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    masked = other.masked_fill(torch.arange(5) == 1, ILLEGAL_LOGIT)
    both = one.masked_fill(torch.arange(5) == 1, ILLEGAL_LOGIT)
    np.testing.assert_array_equal(divergence(both.numpy(), masked.numpy()), distribution.kl(both, masked).numpy())
    p, q = one[:, :2].softmax(-1), torch.tensor([1.0, 0.01])
    wanted = (p * (p / q).log()).sum(-1) + Categorical(3).kl(one[:, 2:], other[:, 2:])
    np.testing.assert_allclose(divergence(one.numpy(), masked.numpy()), wanted.numpy(), rtol=1e-6)
    assert float(distribution.kl(one, masked).min()) > 1e6
