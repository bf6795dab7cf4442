"""Targets of sequences, and the priorities that acting gives them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agents.networks.base import NetworkConfig, make_network
from agents.networks.q_network import QNetwork, best_choices, chosen_values
from agents.networks.settings import NetworkSettings
from agents.r2d2.agent import R2d2Agent, R2d2Config, sequence_targets
from agents.values.sequences import sequence_priorities
from agents.values.windows import initial_errors
from tests.agents.support import random_batch
from tests.agents.values.test_q_learning import F64, exact
from tests.agents.values.test_sequences import having
from tests.agents.values.test_windows import flags
from tests.support import same
from wrappers.spaces import Discrete


@having("loss_of_sequence")
def test_targets_are_rescaled_behind_windows_of_the_learned_rows(case: dict[str, Any]) -> None:
    burn_in = case["burn_in"]
    rewards, online, target = (part[burn_in:] for part in exact(case["inputs"], "rewards", "q_online", "q_target"))
    terminated, used = (part[burn_in:] for part in flags(case["inputs"], "terminated", "action_used"))
    counts = (case["A"],)
    values = chosen_values(target, best_choices(online, counts), counts).mean(-1)
    batch = replace(random_batch(), rewards=rewards, terminated=terminated, action_used=used)
    config = R2d2Config(gamma=case["gamma"], n_step=case["n"])
    got = torch.where(used, sequence_targets(batch, values, config), 0.0)
    wanted = torch.where(used, torch.tensor(case["outputs"]["targets"], dtype=F64)[burn_in:], 0.0)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("burn_in", [0, 3])
def test_acting_gives_a_sequence_the_priority_of_its_learned_rows(burn_in: int) -> None:
    generator = np.random.default_rng(1)
    trajectory = {name: generator.normal(size=8).astype(np.float32) for name in ("rewards", "behaviour_q", "behaviour_q_max")}
    trajectory |= {"terminated": np.zeros(8, bool), "action_used": np.array([1, 1, 0, 1, 1, 1, 0, 1], bool)}
    config = R2d2Config(n_step=2)
    settings = NetworkSettings("mlp", core="gru", burn_in=burn_in)
    network = NetworkConfig(settings, (1, 5), Discrete(3), QNetwork, agent=config)
    (got,) = R2d2Agent.initial_errors(config, network)(trajectory)
    names = ("rewards", "terminated", "action_used", "behaviour_q", "behaviour_q_max")
    rows = [torch.from_numpy(trajectory[name][burn_in:, None]) for name in names]
    errors = initial_errors(*rows, steps=2, gamma=config.gamma, rescaling=True)
    known = rows[2].clone()
    known[-1] = False  # the value behind the last row is not stored
    assert got == pytest.approx(float(sequence_priorities(errors, known, 0.9)))
    trajectory["action_used"][:-1] = False
    assert np.isnan(R2d2Agent.initial_errors(config, network)(trajectory)).all()


@pytest.mark.parametrize("stored_state", [True, False])
def test_a_sequence_starts_with_the_stored_state_unless_told_otherwise(stored_state: bool) -> None:
    config = R2d2Config(lr=0.01, n_step=1, stored_state=stored_state)
    settings = NetworkSettings("mlp", hidden_sizes="8", core="gru", core_size=4)
    network = NetworkConfig(settings, (2, 6), Discrete(4), QNetwork, agent=config)
    learned = []
    for state in (torch.zeros(3, 4), torch.ones(3, 4)):
        agent = R2d2Agent(config, make_network(network, torch.Generator().manual_seed(1)))
        agent.learn(replace(random_batch(), recurrent_state=state), 0.0)
        learned.append(agent.network.state_dict())
    assert same(*learned) is not stored_state
