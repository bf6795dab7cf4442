"""The update of an agent whose network has a core: whole columns, resets, and rows of burn-in that count nowhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.engine.passes import NetworkPasses
from agents.networks.actor_critic import ActorCritic
from agents.vtrace.agent import VTraceAgent
from replay.batch import Batch
from tests.agents.support import CONFIG, A, B, T, random_batch
from tests.builders import network_of

CORES = ("lstm", "gru")
BURN_IN = 2


def new_network(core: str = "lstm") -> ActorCritic:
    return network_of("mlp", (2, 6), A, core=core, generator=torch.Generator().manual_seed(1))


def recurrent_batch(network: ActorCritic, overlap: int = 0) -> Batch:
    state = torch.randn(B, network.state_size, generator=torch.Generator().manual_seed(7))
    return replace(random_batch(), recurrent_state=state, overlap=overlap)


def weights_after(batch: Batch, core: str = "lstm", **options: Any) -> dict[str, Tensor]:
    network = new_network(core)
    agent = VTraceAgent(CONFIG, network, **options)
    agent.learn(batch, 0.0)
    assert agent.take_skip_reasons(everything=True) == [None]
    return {name: value.clone() for name, value in network.state_dict().items()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("core", CORES)
def test_outputs_and_gradients_are_those_of_the_steps_one_after_the_other(core: str) -> None:
    """Three threads, each with some of the columns; the loss of one network that takes a step at a time."""
    network, reference = new_network(core), new_network(core)
    batch = recurrent_batch(network)
    assert batch.recurrent_state is not None
    passes = NetworkPasses(network, 3)
    outputs = passes.forward(batch.observations, batch.recurrent_state, batch.reset)
    state, values, policies = batch.recurrent_state, [], []
    for t in range(T + 1):
        if t:
            state = torch.where(batch.reset[t - 1][:, None], 0.0, state)
        policy, value = (inferred := reference.infer(batch.observations[t], state)).output
        assert inferred.state is not None
        state = inferred.state
        values.append(value)
        policies.append(policy)
    torch.testing.assert_close(outputs[0], torch.stack(policies), check_dtype=True)
    torch.testing.assert_close(outputs[1], torch.stack(values))
    weights = torch.randn(T + 1, B, A, generator=torch.Generator().manual_seed(2))
    passes.backward([(weights * outputs[0] * outputs[1][..., None]).sum()], outputs)
    (weights * torch.stack(policies) * torch.stack(values)[..., None]).sum().backward()
    for (name, got), wanted in zip(network.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("threads", [2, 3])
def test_columns_divided_among_threads_are_one_pass(core: str, threads: int) -> None:
    batch = recurrent_batch(new_network(core), BURN_IN)
    one, other = weights_after(batch, core), weights_after(batch, core, threads=threads)
    for name, wanted in one.items():
        torch.testing.assert_close(other[name], wanted, rtol=1e-4, atol=1e-6)
    assert equal(other, weights_after(batch, core, threads=threads))


def test_the_value_of_a_final_observation_keeps_the_memory_of_its_episode() -> None:
    """Column 1 has its autoreset in row 2: row 2 still sees rows 0 and 1, row 3 does not."""
    network = new_network()
    batch = recurrent_batch(network)
    assert batch.recurrent_state is not None

    def values(observations: Tensor) -> Tensor:
        assert batch.recurrent_state is not None
        with torch.no_grad():
            return network.unroll(observations, batch.recurrent_state, batch.reset).output.values[:, 1]

    other = batch.observations.clone()
    other[1, 1] += 3.0
    changed = values(other) != values(batch.observations)
    assert changed.tolist() == [False, True, True, False, False, False]


def test_rows_of_burn_in_make_the_state_and_nothing_else() -> None:
    batch = recurrent_batch(new_network(), BURN_IN)
    plain = weights_after(batch)
    for name in ("actions", "rewards", "terminated", "action_used"):
        other = getattr(batch, name).clone()
        other[:BURN_IN] = (
            (other[:BURN_IN] + 1) % A if name == "actions" else ~other[:BURN_IN] if other.dtype == torch.bool else 9
        )
        assert equal(weights_after(replace(batch, **{name: other})), plain), name
    acting = {name: field.clone() for name, field in batch.acting.items()}
    for field in acting.values():
        field[:BURN_IN] += 1.0
    assert equal(weights_after(replace(batch, acting=acting)), plain)
    observations = batch.observations.clone()
    observations[0] += 1.0
    assert not equal(weights_after(replace(batch, observations=observations)), plain)


def test_burn_in_has_no_gradient_and_no_part_in_the_metrics() -> None:
    """The update is that of a batch which begins behind the burn-in, with the state that burn-in makes."""
    network = new_network()
    batch = recurrent_batch(network, BURN_IN)
    reset = batch.reset.clone()
    reset[BURN_IN - 1, 0] = True  # row 2 of column 0 is an episode's first
    batch = replace(batch, reset=reset)
    assert batch.recurrent_state is not None
    with torch.no_grad():
        state = network.unroll(batch.observations[:BURN_IN], batch.recurrent_state, reset[: BURN_IN - 1]).state
    assert state is not None
    state[0] = 0.0
    short = replace(batch.without_overlap(), recurrent_state=state)
    torch.testing.assert_close(weights_after(batch), weights_after(short), rtol=0, atol=1e-6)
    scalars = [VTraceAgent(CONFIG, new_network()).learn(each, 0.0).scalars for each in (batch, short)]
    for name, wanted in scalars[1].items():
        torch.testing.assert_close(scalars[0][name], wanted, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)


def test_a_stored_state_that_is_not_finite_is_refused() -> None:
    agent = VTraceAgent(CONFIG, new_network())
    batch = recurrent_batch(agent.network)  # type: ignore[arg-type]
    assert batch.recurrent_state is not None
    batch.recurrent_state[1, 3] = float("nan")
    agent.learn(batch, 0.0)
    (reason,) = agent.take_skip_reasons(everything=True)
    assert reason == "recurrent_state"


def test_a_core_changes_no_other_weight_name() -> None:
    plain = network_of("mlp", (2, 6), A).state_dict()
    recurrent = new_network().state_dict()
    core = {f"core.{name}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    assert recurrent.keys() == {*plain, *core}
    assert recurrent["core.weight_hh"].shape == (32, 8)


@pytest.mark.parametrize("core", CORES)
def test_a_core_computes_in_float32_behind_a_bfloat16_torso(core: str) -> None:
    network = network_of("mlp", (2, 6), A, precision="bfloat16", core=core).only_act()
    observations, state = torch.randn(3, 2, 6), torch.zeros(3, network.state_size)
    inferred = network.infer(observations, state)
    assert inferred.state is not None
    assert {inferred.features.dtype, inferred.state.dtype, inferred.output[0].dtype} == {torch.float32}
    assert {parameter.dtype for parameter in network.core.parameters()} == {torch.float32}  # type: ignore[union-attr]
    assert {parameter.dtype for parameter in network.torso.parameters()} == {torch.bfloat16}
