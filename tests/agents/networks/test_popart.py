"""PopArt equals the golden vectors: moments, the rescaled head, which keeps its values, and the head's gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents import AGENTS
from agents.a2c.agent import A2CAgent, A2CConfig
from agents.engine.collectives import Collectives
from agents.networks.popart import PopArt, PopArtHead, TargetMoments, with_targets
from tests.agents.support import A, each_golden_case, random_batch
from tests.builders import network_of
from wrappers.spaces import TASK, Leaf, Packing


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@each_golden_case("popart.json")
def test_updates_are_those_of_the_golden_vectors(case: dict[str, Any]) -> None:
    head = PopArtHead(len(case["inputs"]["weight"]), case["tasks"]).double()
    with torch.no_grad():
        head.weight.copy_(exact(case["inputs"]["weight"]).T)  # the golden weights are [F, tasks]
        head.bias.copy_(exact(case["inputs"]["bias"]))
    popart = PopArt(head, case["beta"])
    for given, wanted in zip(case["inputs"]["updates"], case["outputs"]["updates"], strict=True):
        features, targets = exact(given["features"]), exact(given["value_targets"])  # [T, B, F], [T, B]
        tasks, used = torch.tensor(given["tasks"]), torch.tensor(given["action_used"]).bool()

        def values(features: Tensor = features, tasks: Tensor = tasks) -> Tensor:
            of_tasks: Tensor = head(features)  # [T, B, tasks]
            return of_tasks.gather(-1, tasks.expand(of_tasks.shape[:2])[..., None]).squeeze(-1)

        def compare(got: Tensor, name: str, wanted: dict[str, Any] = wanted) -> None:
            torch.testing.assert_close(got, exact(wanted[name]), rtol=1e-9, atol=1e-12, msg=lambda text: f"{name}: {text}")

        before = values()
        compare(before.detach(), "values_before")
        popart.begin(Collectives())
        popart.observe(targets, used, tasks)
        popart.observe(targets, used, tasks)  # of a further pass over the same steps, which does not count
        errors = popart.normalised(before, tasks) - popart.normalised(targets, tasks)
        loss = 0.5 * errors.square()[used].mean()
        head.weight.grad, head.bias.grad = torch.autograd.grad(loss, [head.weight, head.bias])
        popart.scale_gradients()
        popart.rescale()
        popart.settle(torch.tensor(True))
        compare(loss.detach(), "value_loss")
        compare(head.weight.grad.T, "grad_weight")
        compare(head.bias.grad, "grad_bias")
        compare(popart.normalised(targets, tasks), "normalised_targets")
        compare(popart.scaled(exact(given["advantages"]), tasks), "advantages_scaled")
        compare(popart.now.mean, "mean")
        compare(popart.now.square, "second_moment")
        compare(popart.now.scale, "sigma")
        compare(head.weight.detach().T, "weight")
        compare(head.bias.detach(), "bias")
        compare(values().detach(), "values_after")
        compare(popart.normalised(values(), tasks).detach(), "normalised_after")


@pytest.mark.parametrize("steps", [1, 3])
def test_further_steps_of_an_update_leave_the_head_alone(steps: int) -> None:
    head = PopArtHead(3)
    popart = PopArt(head, 0.1)
    popart.begin(Collectives())
    popart.observe(torch.full((4, 2), 50.0), torch.ones(4, 2, dtype=torch.bool))
    found = []
    for _ in range(steps):
        popart.rescale()
        popart.settle(torch.tensor(True))
        found.append([tensor.clone() for tensor in (head.weight, head.bias, head.scale, head.shift)])
    assert all(torch.equal(one, other) for later in found for one, other in zip(found[0], later, strict=True))


def test_values_of_large_rewards_are_learned() -> None:
    """Rewards of some thousands, with a learning rate and a clip norm that suit rewards of 1."""

    def explained(popart: bool) -> float:
        config = A2CConfig(lr=3e-3, lr_end_value=3e-3, optimizer="adam", gamma=0.0, popart=popart, popart_rate=0.01)
        network = network_of("mlp", (2, 6), A, generator=torch.Generator().manual_seed(1), agent=config)
        agent, batch = A2CAgent(config, network), random_batch()
        batch = replace(batch, rewards=1000 * (batch.rewards + 3))
        found = [agent.learn(batch, 0.0).scalars["losses/explained_variance"] for _ in range(100)]
        return float(found[-1])

    assert explained(popart=True) > 0.9
    assert explained(popart=False) < 0.6


def test_an_update_rescales_the_head_and_has_its_gradient() -> None:
    config = A2CConfig(popart=True, popart_rate=0.1, gamma=0.0, gradient_clip_by_norm_threshold=1e9, lr=0.0)
    network = network_of("mlp", (2, 6), A, generator=torch.Generator().manual_seed(1), agent=config)
    agent, batch = A2CAgent(config, network), random_batch()
    used = batch.action_used
    with torch.no_grad():
        features = network.features(batch.observations[:-1][used])  # [n, F]
        values = network.value_head(features).squeeze(-1)  # [n]
    agent.learn(batch, 0.0)
    moments = with_targets(TargetMoments(exact([0.0]), exact([1.0])), batch.rewards, used, 0.1)
    errors = (values - batch.rewards[used]) / moments.scale.float()  # of normalised values; without a discount G is the reward
    wanted = (errors[:, None] * features).mean(0)
    assert network.value_head.weight.grad is not None
    torch.testing.assert_close(network.value_head.weight.grad[0], wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(network.value_head.scale, moments.scale.float())
    torch.testing.assert_close(network.value_head(features).squeeze(-1).detach(), values)  # at a learning rate of 0


@pytest.mark.parametrize("name", ["appo", "impact"])
def test_moments_are_those_of_the_whole_batch_with_minibatches_too(name: str) -> None:
    agent_class: Any = AGENTS[name]
    found = []
    for minibatches in (1, 3):  # of three columns
        config = agent_class.config_class(popart=True, popart_rate=0.1, clip_rewards=False, minibatches=minibatches, epochs=2)
        network = network_of("mlp", (2, 6), A, generator=torch.Generator().manual_seed(1), agent=config)
        agent = agent_class(config, network)
        agent.learn(random_batch(), 0.0)
        found.append(torch.stack([*agent.stepper.popart.now]))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("name", [name for name, agent in AGENTS.items() if hasattr(agent.config_class(), "popart")])
def test_each_task_has_moments_and_a_value_of_its_own(name: str, core: str) -> None:
    """Task 1 of three is not in the batch. With a discount of 0 the targets of the others are their rewards."""
    leaves = (Leaf("numbers", (6,), "float32"), Leaf(TASK, (1,), "uint8"))
    agent_class: Any = AGENTS[name]
    unclipped = {"clip_rewards": False} if hasattr(agent_class.config_class(), "clip_rewards") else {}
    whole = {"minibatches": 1} if name == "ppo" else {}
    config = agent_class.config_class(popart=True, popart_rate=0.1, gamma=0.0, lr=0.0, **unclipped, **whole)
    network = network_of(
        *("mlp", (2, 25), A), core=core, leaves=leaves, agent=config, tasks=("a", "b", "c"), separate_value=name == "trpo"
    )
    batch, tasks = random_batch(), np.array([2, 0, 2])
    packed = Packing(leaves).pack(
        {"numbers": batch.observations.numpy().reshape(-1, 6), TASK: np.broadcast_to(tasks[:, None], (6, 3, 2)).reshape(-1, 1)}
    )
    state = torch.zeros(3, network.state_size) if core != "none" else None
    rewards = batch.rewards * torch.tensor([1.0, 100.0, 1.0])
    batch = replace(batch, observations=torch.from_numpy(packed).view(6, 3, 2, 25), rewards=rewards, recurrent_state=state)
    agent = agent_class(config, network)
    before = agent.stepper.without_gradient(batch).values  # [T+1, B]
    report = agent.learn(batch, 0.0)
    mean, square = agent.stepper.popart.now
    assert (mean[1], square[1]) == (0.0, 1.0)
    if name in ("a2c", "ppo", "trpo", "marwil"):  # the others correct for the policy that acted
        for task, columns in ((0, [1]), (2, [0, 2])):
            used = batch.action_used[:, columns]
            wanted = with_targets(TargetMoments(exact([0.0]), exact([1.0])), rewards[:, columns], used, 0.1)
            torch.testing.assert_close(mean[task], wanted.mean[0], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(square[task], wanted.square[0], rtol=1e-4, atol=1e-4)
    if name in ("a2c", "ppo"):
        errors = (before[:-1] - rewards) / agent.stepper.popart.now.scale[torch.from_numpy(tasks)]  # [T, B]
        wanted_loss = 0.5 * errors[batch.action_used].square().mean().float()
        torch.testing.assert_close(report.scalars["losses/value_loss"], wanted_loss, rtol=1e-3, atol=1e-4)
    assert report.scalars["popart/scale/a"] > 3 * report.scalars["popart/scale/c"]
    after = agent.stepper.without_gradient(batch).values
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)  # at a learning rate of 0
    head = network.value_head
    with torch.no_grad():
        head.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    at_zero = network.of_tasks(network.heads(torch.zeros(3, network.feature_count)), batch.observations[0]).values
    torch.testing.assert_close(at_zero, (head.bias * head.scale + head.shift)[torch.from_numpy(tasks)])
