"""An agent of a user's with a learned multiplier and a target network, which the stepper trains, protects and saves."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from agents.a2c.agent import A2CAgent, A2CConfig
from agents.engine import passes
from agents.engine.stepper import Stepper
from agents.engine.targets import TargetNetwork
from agents.losses import Losses, Term
from replay.batch import Batch
from tests.agents.support import A, random_batch
from tests.builders import network_of
from tests.support import same

SLOPE = 3.0  # of the multiplier's loss


class Multiplier(nn.Module):
    """One learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.tensor(1.0))


class MultiplierAgent(A2CAgent):
    """A2C with a multiplier that one loss reads, and a copy of the network that follows it."""

    def __init__(self, config: A2CConfig, network: Any, *arguments: Any, **options: Any) -> None:
        self.multiplier = Multiplier()
        self.lagged = TargetNetwork(network, rate=0.5)
        self.sound: list[bool] = []
        parts: dict[str, Any] = {"modules": {"multiplier": self.multiplier}, "target_networks": {"lagged": self.lagged}}
        super().__init__(config, network, *arguments, **parts, **options)

    def update(self, batch: Batch, step: Stepper) -> None:
        super().update(batch, step)
        self.sound.append(bool(step.applied))

    def losses(self, batch: Batch, outputs: Any) -> Losses:
        terms, metrics, _ = super().losses(batch, outputs)
        return Losses({**terms, "multiplier_loss": Term(SLOPE * self.multiplier.raw)}, metrics)


def agent_of(threads: int) -> MultiplierAgent:
    config = A2CConfig(gradient_clip_by_norm_threshold=1e6, popart=True)
    network = network_of("mlp", (2, 6), A, generator=torch.Generator().manual_seed(1), agent=config)
    return MultiplierAgent(config, network, threads=threads)


@pytest.fixture(params=[1, 2])
def agent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MultiplierAgent:
    """In one thread, and in two that divide every pass."""
    monkeypatch.setattr(passes, "WORTH_DIVIDING", 1)
    return agent_of(request.param)


def test_a_module_beside_the_network_learns(agent: MultiplierAgent) -> None:
    raw = agent.multiplier.raw
    for _ in range(3):
        before = raw.item()
        agent.learn(random_batch(), 0.0)
        assert raw.grad is not None
        assert raw.grad.item() == pytest.approx(SLOPE)  # anew in each update
        assert raw.item() < before
    assert agent.sound == [True] * 3


def test_target_networks_follow_each_step_that_is_taken(agent: MultiplierAgent) -> None:
    old, network = deepcopy(agent.lagged.network), agent.network
    agent.learn(random_batch(), 0.0)
    for was, lagged, learned in zip(old.parameters(), agent.lagged.network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(lagged, (was + learned) / 2)


def test_a_refused_step_changes_nothing(agent: MultiplierAgent) -> None:
    agent.learn(random_batch(), 0.0)
    before = deepcopy(agent.state_dict())
    bad = random_batch()
    bad.rewards[0, 0] = torch.nan
    agent.learn(bad, 0.0)
    assert agent.sound == [True, False]
    assert same(before, agent.state_dict())


def test_a_saved_agent_goes_on_as_it_would_have(agent: MultiplierAgent) -> None:
    agent.learn(random_batch(), 0.0)
    other = agent_of(1)
    saved = deepcopy(agent.state_dict())
    other.check_state_dict(saved, load_optimizer=True)
    other.load_state_dict(saved, load_optimizer=True)
    agent.learn(random_batch(1), 0.5)
    other.learn(random_batch(1), 0.5)
    torch.testing.assert_close(agent.state_dict(), other.state_dict())


def test_calibration_reaches_the_target_network(agent: MultiplierAgent) -> None:
    agent.calibrate(torch.randn(64, 2, 6))
    assert same(agent.network.state_dict(), agent.lagged.network.state_dict())
