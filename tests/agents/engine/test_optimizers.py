"""Steps of the optimisers on convolutions, whose gradients may lie in memory in another order than their weights."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from agents import AGENTS
from agents.base import Agent
from agents.engine.guard import give_gradients
from agents.engine.optimizers import make_optimizer
from agents.networks.base import NetworkConfig, make_network
from agents.networks.settings import NetworkSettings
from replay.batch import Batch
from tests.agents.continuous.support import CONTINUOUS, SPACE, windows
from tests.agents.evolution.support import ended_batch
from tests.agents.support import A, B, T, random_batch
from tests.support import golden
from wrappers.spaces import Discrete

IMAGE = (2, 10, 10)
ONE_STEP: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 1, "minibatches": 1},
    "pqn": {"epochs": 1, "minibatches": 1},
    "sqn": {"batches_at_once": 1},
    "dqn": {"batches_at_once": 1, "target_update_rate": 0.5},
    "bcq": {"batches_at_once": 1, "target_update_rate": 0.5},
    **{name: {"batches_at_once": 1} for name in CONTINUOUS},
    "td3": {"batches_at_once": 1, "delay": 1},
    "crossq": {"batches_at_once": 1, "delay": 1, "adam_beta1": 0.9},
    "es": {"population": 2},
}


def agent_of(name: str) -> Agent:
    kind: Any = AGENTS[name]
    config = kind.config_class(**{"lr": 1e-2, "optimizer": "adam", **ONE_STEP.get(name, {})})
    settings = NetworkSettings("conv", conv="4x3x1", hidden_sizes="8", calibrate_input=False)
    if name == "r2d2":
        settings = replace(settings, core="lstm", core_size=8)
    action = SPACE if name in CONTINUOUS else Discrete(A)
    described = NetworkConfig(settings, IMAGE, action, kind.network_class, agent=config)
    agent: Agent = kind(config, make_network(described, torch.Generator().manual_seed(1)), ("standard",))
    return agent


def batch_for(name: str, agent: Agent) -> Batch:
    if name in CONTINUOUS:
        return windows(IMAGE)
    if name in ("dqn", "bcq", "sqn"):
        return windows(IMAGE, Discrete(3))
    if name == "es":
        return replace(ended_batch([(1, 3.0), (2, 5.0)]), observations=torch.randn(3, 2, *IMAGE))
    state = torch.zeros(B, agent.network.state_size) if agent.network.core else None
    return replace(random_batch(), observations=torch.randn(T + 1, B, *IMAGE), recurrent_state=state)


# The policy of TRPO and all numbers of CEM and LinUCB move without the optimiser.
@pytest.mark.parametrize("name", [name for name in AGENTS if name not in ("trpo", "cem", "linucb")])
def test_a_step_on_images_is_that_of_plain_adam(name: str) -> None:
    """PyTorch's fused Adam pairs weights and gradients by their places in memory."""
    agent = agent_of(name)
    parameters = [parameter for module in agent.stepper.modules.values() for parameter in module.parameters()]
    plain = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    agent.learn(batch_for(name, agent), 0.0)
    assert agent.stepper.guard.steps == 1
    for own, parameter in zip(plain, parameters, strict=True):
        own.grad = None if parameter.grad is None else parameter.grad.clone(memory_format=torch.contiguous_format)
    torch.optim.Adam(plain, lr=1e-2, eps=agent.config.adam_eps, fused=False, foreach=False).step()
    for own, parameter in zip(plain, parameters, strict=True):
        torch.testing.assert_close(parameter, own, rtol=1e-4, atol=1e-6)


def test_radam_rectifies_adam_after_five_steps_of_momentum() -> None:
    """Against algorithm 2 of Liu et al. 2020 (arXiv:1908.03265), in float64."""
    weights = nn.Linear(3, 1, bias=False)
    config = SimpleNamespace(optimizer="radam", adam_eps=1e-8)
    optimizer = make_optimizer(config, [weights])
    assert optimizer is not None
    optimizer.param_groups[0]["lr"] = 0.1
    own, mean, square = weights.weight.detach().double().clone(), torch.zeros(1, 3), torch.zeros(1, 3)
    longest = 2 / (1 - 0.999) - 1
    for step in range(1, 9):
        gradient = torch.tensor([[1.0, -0.5, 0.01 * step]])
        weights.weight.grad = gradient.clone()
        optimizer.step()
        mean, square = 0.9 * mean + 0.1 * gradient.double(), 0.999 * square + 0.001 * gradient.double().square()
        change = 0.1 * mean / (1 - 0.9**step)
        length = longest - 2 * step * 0.999**step / (1 - 0.999**step)
        assert (length > 5) == (step > 5)
        if length > 5:
            factor = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            change = change * factor**0.5 * (1 - 0.999**step) ** 0.5 / (square.sqrt() + 1e-8)
        own -= change
        torch.testing.assert_close(weights.weight.double(), own, rtol=1e-5, atol=1e-6)


def test_weight_decay_is_decoupled_and_leaves_the_temperature() -> None:
    case = next(case for case in golden("simba.json") if case["name"] == "decoupled_weight_decay")
    module, kept = (nn.ParameterDict({"weights": torch.tensor(case["inputs"]["parameters"])}) for _ in range(2))
    kept.decays = False
    config = SimpleNamespace(
        optimizer="adam", decoupled_decay=case["weight_decay"], adam_beta1=case["b1"], adam_eps=case["eps"]
    )
    optimizer = make_optimizer(config, [module, kept])
    assert optimizer is not None
    plain = nn.Parameter(kept["weights"].detach().clone())
    without = torch.optim.Adam([plain], lr=case["lr"], eps=case["eps"])
    for group in optimizer.param_groups:
        group["lr"] = case["lr"]
    steps = case["inputs"]["gradients"], case["outputs"]["parameters_after_each_step"]
    for gradient, wanted in zip(*steps, strict=True):
        for parameter in (module["weights"], kept["weights"], plain):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
        without.step()
        torch.testing.assert_close(module["weights"].detach(), torch.tensor(wanted), rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(kept["weights"], plain)


def test_gradients_take_the_layout_of_their_weights() -> None:
    convolution = nn.Conv2d(6, 4, 3)
    gradient = torch.randn(4, 6, 3, 3).contiguous(memory_format=torch.channels_last)
    give_gradients([convolution.weight], [gradient])
    assert convolution.weight.grad is not None
    assert convolution.weight.grad.stride() == convolution.weight.stride()
    assert torch.equal(convolution.weight.grad, gradient)
