"""A number that is not finite changes nothing and is named; sound updates are the same to the bit, wherever it is decided."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.engine.guard import Guard
from agents.vtrace import agent as vtrace_agent
from agents.vtrace.agent import VTraceAgent, VTraceConfig
from replay.batch import Batch
from tests.agents.support import CLEAR, RATE, make_network_here, random_batch
from tests.support import same

INPUTS = ("observations", "rewards", "behaviour_policy", "behaviour_values")
LOSSES = {
    "policy_loss": "policy_gradient_loss",
    "value_loss": "value_loss",
    "entropy_loss": "entropy_loss",
    "policy_cloning_loss": "policy_cloning_loss",
    "value_cloning_loss": "value_cloning_loss",
}
ADAM = replace(CLEAR, optimizer="adam")
DECIDED = pytest.mark.parametrize("on_device", [False, True], ids=["looks first", "undone on the device"])
BAD = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])


def make_agent(config: VTraceConfig = CLEAR, *, on_device: bool) -> VTraceAgent:
    """One that has made an update. on_device: decides as on a GPU."""
    agent = VTraceAgent(config, make_network_here())
    agent.stepper.guard.reads_late = on_device
    agent.learn(random_batch(1), 0.0)
    return agent


def state_of(agent: VTraceAgent) -> dict[str, Any]:
    return copy.deepcopy(agent.state_dict())


def skip_reasons_of(agent: VTraceAgent) -> list[str | None]:
    return agent.take_skip_reasons(everything=True)


def spoil_input(name: str, bad: float) -> Batch:
    batch = random_batch(2)
    tensor = batch.acting[name] if name in batch.acting else getattr(batch, name)
    tensor[2, 0] = bad
    return batch


def times(function: Callable[..., Tensor], factor: float) -> Callable[..., Tensor]:
    return lambda *arguments: function(*arguments) * factor


def check_skipped(agent: VTraceAgent, batch: Batch, name: str) -> None:
    """Nothing has changed, the quantity is named, and the next update is the one that had come without this one."""
    skip_reasons_of(agent)
    before = state_of(agent)
    agent.learn(batch, 0.0)
    before["optimizers"]["network"]["param_groups"][0]["lr"] = RATE  # settings of the optimiser count as no change
    assert same(state_of(agent), before)
    assert skip_reasons_of(agent) == [name]


@DECIDED
@BAD
@pytest.mark.parametrize("name", INPUTS)
def test_a_bad_input_is_named_before_what_follows_from_it(name: str, bad: float, on_device: bool) -> None:
    check_skipped(make_agent(on_device=on_device), spoil_input(name, bad), name)


@DECIDED
@BAD
@pytest.mark.parametrize("name", LOSSES)
def test_a_bad_loss_part_is_named(name: str, bad: float, on_device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(on_device=on_device)
    monkeypatch.setattr(vtrace_agent, LOSSES[name], times(getattr(vtrace_agent, LOSSES[name]), bad))
    check_skipped(agent, random_batch(2), name)


@DECIDED
@BAD
@pytest.mark.parametrize("config", [CLEAR, ADAM], ids=["rmsprop", "adam"])
def test_a_bad_gradient_is_named(config: VTraceConfig, bad: float, on_device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(config, on_device=on_device)
    spoil_gradient(agent, bad, monkeypatch)
    check_skipped(agent, random_batch(2), "gradient")


def spoil_gradient(agent: VTraceAgent, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = agent.stepper.passes.backward

    def spoilt(*arguments: Any) -> None:
        backward(*arguments)
        gradient = agent.network.get_submodule("policy_head").weight.grad
        assert gradient is not None
        gradient[0, 0] = bad

    monkeypatch.setattr(agent.stepper.passes, "backward", spoilt)


@DECIDED
def test_a_bad_first_update_starts_no_moments(on_device: bool) -> None:
    agent = VTraceAgent(CLEAR, make_network_here())
    agent.stepper.guard.reads_late = on_device
    check_skipped(agent, spoil_input("rewards", math.nan), "rewards")
    assert not agent.stepper.optimizer.state


@pytest.mark.parametrize("config", [CLEAR, ADAM], ids=["rmsprop", "adam"])
def test_it_is_decided_on_the_device_to_the_bit(config: VTraceConfig) -> None:
    """Sound updates and skipped ones, in any order."""
    agents = [make_agent(config, on_device=on_device) for on_device in (False, True)]
    batches = [random_batch(3), spoil_input("rewards", math.nan), random_batch(4), random_batch(5)]
    for agent in agents:
        for batch in batches:
            agent.learn(batch, 0.0)
            if config is ADAM:
                agent.stepper.guard.settle()  # its next step follows from how many there were
    assert same(state_of(agents[0]), state_of(agents[1]))
    assert skip_reasons_of(agents[0]) == skip_reasons_of(agents[1]) == [None, None, "rewards", None, None]


def test_a_gpu_is_asked_one_update_late() -> None:
    agent = make_agent(on_device=True)
    assert agent.take_skip_reasons() == []
    agent.learn(spoil_input("rewards", math.nan), 0.0)
    assert agent.take_skip_reasons() == [None]
    assert agent.take_skip_reasons(everything=True) == ["rewards"]
    assert agent.take_skip_reasons(everything=True) == []


def test_what_a_checkpoint_waits_for_is_still_told() -> None:
    agent = make_agent(on_device=True)
    agent.learn(spoil_input("rewards", math.nan), 0.0)
    agent.state_dict()
    assert agent.take_skip_reasons() == [None, "rewards"]


def test_observations_of_whole_numbers_are_not_looked_at() -> None:
    batch = random_batch(2)
    frames = replace(batch, observations=batch.observations.to(torch.uint8))
    agent = make_agent(on_device=False)
    agent.learn(frames, 0.0)
    assert skip_reasons_of(agent) == [None, None]


def test_a_large_number_is_no_fault() -> None:
    """Its square would not be finite."""
    batch = random_batch(2)
    batch.rewards[2, 0] = 1e30  # which is clipped
    agent = make_agent(on_device=False)
    agent.learn(batch, 0.0)
    assert skip_reasons_of(agent) == [None, None]


@DECIDED
@pytest.mark.parametrize(
    ("steps", "reason", "taken"),
    [([1.0, math.nan, 1.0], None, 2), ([math.nan, math.inf], "loss", 0), ([], None, 0), ([1.0, 1.0], None, 2)],
)
def test_an_update_of_several_steps_is_skipped_if_all_were_refused(
    steps: list[float], reason: str | None, taken: int, on_device: bool
) -> None:
    weights = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weights], lr=1.0)
    guard = Guard(optimizer, torch.device("cpu"))
    guard.reads_late = on_device
    weights.grad = torch.ones(2)
    for loss in steps:
        guard.step({"loss": torch.tensor(loss)}, optimizer.step)
    guard.end_update()
    assert guard.take_skip_reasons(everything=True) == [reason]
    assert guard.steps == taken
    assert weights.tolist() == [-float(taken)] * 2


def test_moments_that_fade_away_become_zero() -> None:
    """Below the smallest normal number they would slow every later step."""
    agent = make_agent(ADAM, on_device=False)
    moments = [agent.stepper.optimizer.state[weights]["exp_avg"].fill_(1e-38) for weights in agent.network.parameters()]
    for weights in agent.network.parameters():
        weights.grad = torch.zeros_like(weights)
    agent.stepper.step_optimizer()
    assert not any(moment.any() for moment in moments)
    assert torch.tensor(1e-38) * 0.5 > 0  # environments in the same thread keep theirs
