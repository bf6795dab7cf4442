"""PQN: its targets and loss against recorded values, minibatches, epsilon, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.networks.base import NetworkConfig, make_network
from agents.networks.q_network import QNetwork, QOutput
from agents.networks.settings import NetworkSettings
from agents.pqn.agent import PQNAgent, PQNConfig, QMinibatch, Steps
from agents.values.acting import move_epsilon
from replay.batch import Batch
from tests.agents.support import random_batch, with_other_unused_rows
from tests.support import golden, same
from wrappers.spaces import ActionSpace, Box, Discrete, MultiDiscrete

Q_LAMBDA = [case for case in golden("pqn.json") if "lambda" in case]
GREEDY = [case for case in golden("retrace.json") if case.get("greedy")]


def agent_of(action: ActionSpace | None = None, core: str = "none", **settings: Any) -> PQNAgent:
    config = PQNConfig(**{"epochs": 1, "minibatches": 1, **settings})
    network = NetworkSettings("mlp", hidden_sizes="16", core=core, core_size=8, layer_norm=True)
    described = NetworkConfig(network, (2, 6), action or Discrete(4), QNetwork, agent=config)
    PQNAgent.check(config, described)
    return PQNAgent(config, make_network(described, torch.Generator().manual_seed(1)))


def batch_of(case: dict[str, Any]) -> tuple[Batch, dict[str, Tensor]]:
    inputs = {name: torch.tensor(value) for name, value in case["inputs"].items()}
    rows = {"actions": inputs["actions"], "rewards": inputs["rewards"], "terminated": inputs["terminated"].bool()}
    return replace(random_batch(), **rows, action_used=inputs["action_used"].bool()), inputs


@pytest.mark.parametrize("case", Q_LAMBDA, ids=itemgetter("name"))
def test_targets_loss_and_gradient_are_the_recorded_ones(case: dict[str, Any]) -> None:
    agent = agent_of(Discrete(case["A"]), gamma=case["gamma"], q_lambda=case["lambda"])
    batch, inputs = batch_of(case)
    q, wanted = inputs["q"].requires_grad_(), case["outputs"]
    targets = agent.targets(batch, q.detach())
    torch.testing.assert_close(targets, torch.tensor(wanted["targets"]), rtol=2e-6, atol=2e-6)
    part = QMinibatch(batch, batch.actions.unsqueeze(-1), targets, batch.action_used)
    found = agent.losses(part, QOutput(q[:-1]))
    loss = found.terms["value_loss"].value
    torch.testing.assert_close(loss, torch.tensor(wanted["half_mse_mean"]), rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(loss, [q])
    torch.testing.assert_close(gradient, torch.tensor(wanted["grad_half_mse_mean_wrt_q"]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", GREEDY, ids=itemgetter("name"))
def test_targets_of_old_columns_are_those_of_retrace_with_the_greedy_policy(case: dict[str, Any]) -> None:
    agent = agent_of(Discrete(case["A"]), gamma=case["gamma"], retrace_lambda=case["lambda"])
    batch, inputs = batch_of(case)
    targets = agent.targets(batch, inputs["q_target"])
    torch.testing.assert_close(targets, torch.tensor(case["outputs"]["targets"]), rtol=2e-6, atol=2e-6)


def test_epsilon_is_the_recorded_one() -> None:
    (case,) = (case for case in golden("pqn.json") if case["name"] == "epsilon_schedule")
    settings = {"epsilon_start": case["start"], "epsilon_end": case["end"], "epsilon_fraction": case["fraction"]}
    agent = agent_of(**settings)
    for steps, epsilon in zip(case["inputs"]["steps"], case["outputs"]["epsilon"], strict=True):
        progress = torch.tensor(steps / case["total_steps"], dtype=torch.float64)
        move_epsilon(agent.config, agent.network, SimpleNamespace(progress_on_device=progress, applied=torch.tensor(True)))  # type: ignore[arg-type]
        assert float(agent.network.epsilon) == pytest.approx(epsilon, abs=1e-7)


def test_layer_norm_of_images_takes_the_whole_image() -> None:
    (case,) = (case for case in golden("pqn.json") if case["name"] == "layer_norm_of_images")
    images = torch.tensor(case["inputs"]["x"])
    network = NetworkSettings("conv", conv="3x1x1", hidden_sizes="4", layer_norm=True)
    torso = make_network(NetworkConfig(network, (3, 2, 2), Discrete(2), QNetwork, agent=PQNConfig())).torso
    norm = next(layer for layer in torso.modules() if isinstance(layer, torch.nn.LayerNorm))
    wanted = torch.tensor(case["outputs"]["over_channels_and_pixels_no_affine"])
    torch.testing.assert_close(norm(images), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("unit", ["auto", "columns"])
def test_minibatches_hold_each_used_step_once_an_epoch(core: str, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(core=core, epochs=2, minibatches=2, minibatch_unit=unit)
    batch = random_batch()
    if core != "none":
        batch = replace(batch, recurrent_state=torch.zeros(batch.actions.shape[1], agent.network.state_size))
    batch = replace(batch, rewards=torch.arange(batch.rewards.numel()).view_as(batch.rewards).float())
    monkeypatch.setattr(agent, "targets", lambda batch, q: batch.rewards)  # which name their steps
    seen: list[float] = []
    losses = agent.losses

    def noted(part: QMinibatch, outputs: QOutput) -> Any:
        seen.extend((part.targets if part.mask is None else part.targets[part.mask]).tolist())
        return losses(part, outputs)

    monkeypatch.setattr(agent, "losses", noted)
    agent.learn(batch, 0.0)
    assert sorted(seen) == sorted(2 * batch.rewards[batch.action_used].tolist())
    assert agent.stepper.guard.steps == 4


def test_unused_rows_change_nothing_and_learning_moves_every_weight() -> None:
    batch = random_batch()
    batch.action_used[1:3, 0] = False
    weights = []
    for each in (batch, with_other_unused_rows(batch)):
        agent = agent_of(optimizer="adam", lr=0.1)
        before = {name: value.clone() for name, value in agent.network.named_parameters()}
        agent.learn(each, 0.0)
        assert not any(torch.equal(before[name], value) for name, value in agent.network.named_parameters())
        weights.append(agent.network.state_dict())
    assert same(*weights)


def test_several_choices_share_one_target() -> None:
    """One step, d = 0: each component's value of its choice moves towards the reward, and no other value does."""
    agent = agent_of(MultiDiscrete((2, 3)))
    choices, q = torch.tensor([[1, 2]]), torch.zeros(1, 5, requires_grad=True)
    part = QMinibatch(Steps(torch.zeros(1, 2, 6)), choices, torch.tensor([3.0]), None)
    found = agent.losses(part, QOutput(q)).terms["value_loss"].value
    assert found.item() == 4.5
    (gradient,) = torch.autograd.grad(found, [q])
    assert gradient.tolist() == [[0.0, -1.5, 0.0, 0.0, -1.5]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"action": Box((-1.0,), (1.0,))}, "agent: wanted choices among actions"),
        ({"core": "lstm", "minibatch_unit": "steps"}, "minibatch_unit: wanted columns or auto with --core=lstm"),
        ({"retrace_lambda": -0.5}, r"retrace_lambda: wanted -1 or a number in \[0, 1\], got -0.5"),
    ],
)
def test_what_it_cannot_learn_with_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        agent_of(**given)
