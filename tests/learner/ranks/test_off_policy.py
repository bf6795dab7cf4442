"""Off-policy agents of several learners, with a part of the windows each, take the step of one learner with all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.acting import BEHAVIOUR_LOG_PROB
from agents.base import Agent
from agents.bcq.agent import BCQAgent
from agents.dqn.agent import DqnAgent
from agents.engine.stepper import Stepper
from agents.networks.base import NetworkConfig, make_network
from agents.networks.settings import NetworkSettings
from agents.pqn.agent import PQNAgent
from agents.r2d2.agent import R2d2Agent
from agents.returns.nstep import Transitions
from agents.sqn.agent import SQNAgent
from learner.ranks.group import LearnerGroup
from replay.batch import Batch
from tests.agents.continuous.support import CONTINUOUS, ROWS, agent_of, windows
from tests.agents.dqn.test_agent import A, batch_of
from tests.learner.ranks.support import numbers_of, together
from tests.support import same
from wrappers.spaces import Discrete

UPDATES = 4
SMOOTH: dict[str, Any] = {"optimizer": "adam", "adam_eps": 0.1, "lr": 0.1, "gradient_clip_by_norm_threshold": 0.05}
"""A step that is no sign of a tiny gradient, so that weights can be compared. Every gradient is clipped."""


def same_noise(stepper: Stepper) -> Callable[..., Tensor]:
    """`take_rows` with noise that follows from the observations: a row has the same in the whole batch and in a part."""
    take_rows = stepper.take_rows

    def taken(losses: Any, part: Transitions, *drawn: Tensor, **options: Any) -> Tensor:
        sums = (37.0 * part.observations.flatten(1).sum(1)).sin()
        noise = (sums.view(-1, *[1] * (each.dim() - 1)).expand_as(each) for each in drawn)
        return take_rows(losses, part, *noise, **options)

    return taken


def continuous(name: str, *, normalise_observations: bool = False, **settings: Any) -> Agent:
    agent = agent_of(name, normalise_observations=normalise_observations, **SMOOTH, **settings)
    agent.stepper.take_rows = same_noise(agent.stepper)  # type: ignore[method-assign]
    return agent


def value_based(agent_class: Any, core: str = "none", **settings: Any) -> Agent:
    config = agent_class.config_class(**SMOOTH, **settings)
    network = NetworkSettings("mlp", hidden_sizes="16", core=core, core_size=8)
    described = NetworkConfig(network, (1, 5), Discrete(A), agent_class.network_class, agent=config)
    agent: Agent = agent_class(config, make_network(described, torch.Generator().manual_seed(1)))
    return agent


def sequences(network: Any) -> Batch:
    return replace(batch_of(steps=4, count=2 * ROWS), recurrent_state=torch.zeros(2 * ROWS, network.state_size))


def acted(network: Any) -> Batch:
    batch = batch_of(steps=3, count=2 * ROWS)
    return replace(batch, acting={BEHAVIOUR_LOG_PROB: -torch.rand(batch.rewards.shape)})


AGENTS_AND_BATCHES: dict[str, tuple[Callable[[], Agent], Callable[[Any], Batch]]] = {
    **{name: (partial(continuous, name), lambda _: windows(rows=2 * ROWS)) for name in CONTINUOUS},
    "sac, moments": (partial(continuous, "sac", normalise_observations=True), lambda _: windows(rows=2 * ROWS)),
    "crossq, renormalised": (partial(continuous, "crossq", renorm_warm_up=1, delay=1), lambda _: windows(rows=2 * ROWS)),
    "bcq": (partial(value_based, BCQAgent, batches_at_once=1), lambda _: batch_of(count=2 * ROWS)),
    "dqn": (partial(value_based, DqnAgent, batches_at_once=1), lambda _: batch_of(count=2 * ROWS)),
    "dqn, bins": (
        partial(value_based, DqnAgent, batches_at_once=1, return_distribution="hl_gauss", atoms=11),
        lambda _: batch_of(count=2 * ROWS),
    ),
    "pqn": (partial(value_based, PQNAgent, epochs=2, minibatches=1), lambda _: batch_of(steps=4, count=2 * ROWS)),
    "pqn, columns": (partial(value_based, PQNAgent, core="gru", minibatches=1, retrace_lambda=0.9), sequences),
    "sqn": (partial(value_based, SQNAgent, batches_at_once=1, learn_temperature=True), lambda _: batch_of(count=2 * ROWS)),
    "sqn, retrace": (partial(value_based, SQNAgent, batches_at_once=1, n_step=3, retrace_lambda=0.9), acted),
    "r2d2": (partial(value_based, R2d2Agent, core="lstm", n_step=2), sequences),
}


@pytest.mark.parametrize("name", AGENTS_AND_BATCHES)
def test_parts_of_the_windows_give_the_step_of_all(name: str) -> None:
    make, batch = AGENTS_AND_BATCHES[name]
    alone, *members = (make() for _ in range(3))
    whole = batch(alone.network)
    before = numbers_of(alone)

    def learner(group: LearnerGroup) -> dict[str, Tensor]:
        agent = members[group.rank]
        agent.join(group)
        part = whole.take_columns(torch.arange(group.rank * ROWS, (group.rank + 1) * ROWS))
        for _ in range(UPDATES):
            agent.learn(part, 0.0)
        return numbers_of(agent)

    first, second = together(2, learner)
    assert same(first, second)
    for _ in range(UPDATES):
        alone.learn(whole, 0.0)
    wanted = numbers_of(alone)
    for key in wanted:
        torch.testing.assert_close(first[key], wanted[key], rtol=2e-5, atol=2e-6, msg=lambda text, key=key: f"{key}: {text}")
    assert any(not torch.allclose(first[key].double(), before[key].double(), atol=1e-3) for key in before if "network." in key)
