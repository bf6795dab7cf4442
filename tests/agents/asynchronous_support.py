"""Recorded cases as batches of an asynchronous agent, and agents whose networks have the action space of a case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from agents.appo.agent import APPOAgent, MinibatchColumns
from agents.appo.config import SurrogateConfig
from agents.distributions import Categorical, DiagonalGaussian, MultiCategorical
from agents.losses import Losses
from agents.networks.actor_critic import PolicyOutput
from replay.batch import Batch
from tests.agents.test_distributions import distribution_of, parameters_of
from tests.builders import network_of
from wrappers.spaces import ActionSpace, Box, Discrete, MultiDiscrete


class Recorded:
    """A recorded case: its losses as an agent computes them in float32, and their gradient."""

    def __init__(self, agent_class: type[APPOAgent], config: SurrogateConfig, case: dict[str, Any]) -> None:
        self.case, self.outputs = case, case["outputs"]
        self.distribution = distribution_of(case)
        network = network_of("mlp", (1, 3), _space_of(self.distribution))
        own = {"gamma": case["gamma"], "vtrace_lambda": case["lambda"], "clip_rewards": False}
        self.agent = agent_class(replace(config, **own), network)
        self.policy, self.behaviour = (parameters_of(case, whose, torch.float32) for whose in ("target", "behaviour"))
        self.batch = _batch_of(case, self.behaviour)
        self.used = self.batch.action_used
        self.policy.requires_grad_()
        inputs = case["inputs"]
        self.values = torch.tensor([*inputs["values"], inputs["bootstrap_value"]], requires_grad=True)

    def losses(self, target_policy: Tensor | None = None) -> Losses:
        last = self.policy.detach()[-1:]  # row T acts nothing
        output = PolicyOutput(torch.cat([self.policy, last]), self.values)
        return self.agent.losses(MinibatchColumns(self.batch, target_policy, self.case["clip"]), output)

    def check(self, name: str, got: Tensor) -> None:
        wanted = torch.tensor(self.outputs[name], dtype=torch.float32)
        torch.testing.assert_close(got.detach(), wanted, rtol=2e-5, atol=1e-5, msg=lambda text: f"{name}: {text}")

    def check_gradient(self, name: str, policy_loss: Tensor) -> None:
        """The gradient with respect to log-probabilities, as one with respect to the policy's parameters."""
        log_probs = self.distribution.log_prob(self.policy, self.batch.actions)
        per_step = torch.where(self.used, torch.tensor(self.outputs[name], dtype=torch.float32), 0.0)
        (wanted,) = torch.autograd.grad((per_step * log_probs).sum(), self.policy)
        (got,) = torch.autograd.grad(policy_loss, self.policy)
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-5, msg=lambda text: f"{name}: {text}")


def _batch_of(case: dict[str, Any], behaviour: Tensor) -> Batch:
    given = {name: torch.tensor(case["inputs"][name]) for name in ("actions", "rewards", "terminated", "action_used")}
    _, columns = given["rewards"].shape
    return Batch(
        observations=torch.zeros(0, columns, 1, 3),
        reset=~given["action_used"],
        acting={"behaviour_policy": behaviour},
        is_replay=torch.zeros(columns, dtype=torch.bool),
        source=torch.zeros(columns, dtype=torch.int64),
        **given,
    )


def _space_of(distribution: Any) -> ActionSpace:
    if isinstance(distribution, Categorical):
        return Discrete(distribution.count)
    if isinstance(distribution, MultiCategorical):
        return MultiDiscrete(distribution.counts)
    assert isinstance(distribution, DiagonalGaussian)
    return Box((-float("inf"),) * distribution.size, (float("inf"),) * distribution.size)
