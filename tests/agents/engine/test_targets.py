"""A target network lags by whole periods of applied updates, follows nothing else, and comes back with its age."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from agents.engine.targets import TargetNetwork
from agents.networks.actor_critic import ActorCritic
from agents.vtrace.agent import VTraceAgent, VTraceConfig
from replay.batch import Batch
from tests.agents.support import A, B, T, make_network_here, random_batch
from tests.agents.test_recurrent import BURN_IN, new_network, recurrent_batch
from tests.builders import network_of
from tests.support import same

SOUND, REFUSED = torch.tensor(True), torch.tensor(False)


def change(network: ActorCritic) -> None:
    """Change every weight and buffer a little, in place."""
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor += 0.1


def equal(target: TargetNetwork, network: ActorCritic) -> bool:
    weights = network.state_dict()
    return all(torch.equal(tensor, weights[name]) for name, tensor in target.network.state_dict().items())


def policy_of(target: TargetNetwork, network: ActorCritic, batch: Batch, threads: int = 1) -> Tensor:
    """The policies of the copy for rows 0 to T-1, as an agent of the network gets them."""
    stepper = VTraceAgent(VTraceConfig(), network, threads=threads).stepper
    policy: Tensor = stepper.without_gradient(batch.without_overlap(), target.network, last_row=False).policy
    return policy


@pytest.mark.parametrize("on_device", [False, True])
def test_it_is_copied_every_period_of_applied_updates(on_device: bool) -> None:
    network = make_network_here()
    target = TargetNetwork(network, 3, counts="updates")
    target._on_device = on_device  # where the choice is made by the device
    assert equal(target, network)
    copied = []
    for sound in (SOUND, SOUND, REFUSED, SOUND, SOUND, SOUND, REFUSED, SOUND):
        change(network)
        before = copy.deepcopy(target.network.state_dict())
        target.end_update(sound)
        copied.append(equal(target, network))
        assert copied[-1] or same(before, dict(target.network.state_dict()))
    assert copied == [False, False, False, True, False, False, False, True]
    assert int(target.age) == 0


def test_it_comes_back_with_its_age() -> None:
    network = make_network_here()
    target, other = (TargetNetwork(network, 3, counts="updates") for _ in range(2))
    saving, loading = (VTraceAgent(VTraceConfig(), network, target_networks={"lagged": each}) for each in (target, other))
    target.end_update(SOUND)
    change(network)
    loading.load_state_dict(copy.deepcopy(saving.state_dict()), load_optimizer=True)
    assert same(dict(other.network.state_dict()), dict(target.network.state_dict()))
    assert int(other.age) == 1
    assert not equal(other, network)
    other.reset()
    assert equal(other, network)
    assert int(other.age) == 0


def test_its_policy_is_that_of_the_network_when_it_was_copied() -> None:
    network, batch = make_network_here(), random_batch()
    target = TargetNetwork(network, 1, counts="updates")
    with torch.no_grad():
        wanted = network(batch.observations.flatten(0, 1)).policy.unflatten(0, (T + 1, B))[:-1]
    change(network)
    got = policy_of(target, network, batch)
    torch.testing.assert_close(got, wanted)
    assert got.shape == (T, B, A)
    assert not got.requires_grad


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("overlap", [0, BURN_IN])
@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_with_a_core_it_starts_from_the_stored_state(core: str, overlap: int) -> None:
    network = new_network(core)
    batch = recurrent_batch(network, overlap)
    with torch.no_grad():
        wanted = network(batch.observations, batch.recurrent_state, batch.reset, overlap).policy[:-1]
    target = TargetNetwork(network, 1, counts="updates")
    torch.testing.assert_close(policy_of(target, network, batch, threads=2), wanted)


def test_a_torso_that_only_values_read_is_not_copied() -> None:
    network, batch = network_of("mlp", (2, 6), A, separate_value=True), random_batch()
    target = TargetNetwork(network, 1, counts="updates", without=["value_torso"])
    assert not [name for name in target.network.state_dict() if name.startswith("value_torso")]
    with torch.no_grad():
        wanted = network(batch.observations.flatten(0, 1)).policy.unflatten(0, (T + 1, B))[:-1]
    torch.testing.assert_close(policy_of(target, network, batch), wanted)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(("period", "rate"), [(1, 0.25), (3, 1.0), (2, 0.5)])
def test_a_copy_moves_a_part_of_the_way_every_period_of_steps(period: int, rate: float, on_device: bool) -> None:
    network = make_network_here()
    target = TargetNetwork(network, period, rate)
    target._on_device = on_device
    parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())
    wanted = copy.deepcopy(network.state_dict())
    for step in range(1, 8):
        change(network)
        target.after_step()
        if step % period == 0:
            wanted = {name: torch.lerp(wanted[name], parameters[name].detach(), rate) for name in parameters} | {
                name: buffer.clone() for name, buffer in buffers.items()
            }
        for name, tensor in target.network.state_dict().items():
            torch.testing.assert_close(tensor, wanted[name], msg=f"{name} after step {step}")
        assert int(target.age) == step % period


def test_a_reset_copy_is_equal_and_names_every_tensor_that_moves() -> None:
    network = make_network_here()
    target = TargetNetwork(network, 5)
    change(network)
    target.after_step()
    target.reset()
    assert same(dict(target.network.state_dict()), dict(network.state_dict()))
    assert int(target.age) == 0
    moved = {id(tensor) for tensor in target.guarded_tensors}
    assert {id(target.age), *(id(weights) for weights in target.network.parameters())} <= moved
    assert len(moved) == len(target.network.state_dict()) + 1
