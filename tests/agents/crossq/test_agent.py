"""CrossQ: one pass over both halves, and running statistics that follow applied steps."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from agents.networks.batch_renorm import renorms_of, statistics_of_batch
from agents.returns.nstep import transitions
from tests.agents.continuous.support import agent_of, learn, windows
from tests.support import same


@pytest.mark.parametrize("name", ["crossq", "sac"])
def test_running_statistics_follow_applied_steps_alone(name: str) -> None:
    agent = agent_of(name, delay=2)
    norms = [(which, each) for which in ("network", "critics") for each in renorms_of(agent.stepper.modules[which])]
    learn(agent, windows(), 3)
    assert len(norms) == (6 if name == "crossq" else 0)
    assert [int(each.steps) for _, each in norms] == [{"network": 1, "critics": 3}[which] for which, _ in norms]
    before = deepcopy(agent.state_dict()["modules"])
    bad = windows()
    bad.rewards[0, 1] = float("nan")
    learn(agent, bad)
    assert same(before, agent.state_dict()["modules"])


def test_both_halves_of_crossq_go_through_its_critics_in_one_pass() -> None:
    """Targets are those of the critics that learn, and change with them; the actor's step sees the running statistics."""
    agent = agent_of("crossq", delay=1)
    learn(agent, windows(), 3)
    part = next(transitions(windows(), 0.99).split(1))
    observations, following = (agent.network.encode(each) for each in (part.observations, part.next_observations))
    q, next_q = agent.values(observations, part.actions, following, part.actions)
    with statistics_of_batch(agent.critics, agent.stepper.collectives):
        both = agent.critics(torch.cat([observations, following]), torch.cat([part.actions] * 2))
        apart = agent.critics(observations, part.actions)
    torch.testing.assert_close(torch.cat([q, next_q], 1), both)
    assert not torch.allclose(q, apart)
    assert q.requires_grad
    assert not next_q.requires_grad
    acting = agent.network.policy(part.observations, observations)
    with statistics_of_batch(agent.network, agent.stepper.collectives):
        assert not torch.allclose(acting, agent.network.policy(part.observations, observations))
