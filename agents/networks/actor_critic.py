"""The network of actor-critic agents: policy logits and a value on one torso."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from agents.acting import Acting
from agents.distributions import sample_categorical
from agents.networks.base import Chosen, FeatureNetwork, NetworkConfig, Thought
from replay.trajectory import Field
from wrappers.spaces import Discrete

_POLICY_GAIN = 0.01
_VALUE_GAIN = 1.0
_ILLEGAL = -1e8
"""Logit of an illegal action. It is finite, so that entropies and divergences stay finite."""


class PolicyOutput(NamedTuple):
    """logits: float32 `[N, A]`; values: float32 `[N]`."""

    logits: Tensor
    values: Tensor


class ActorCritic(FeatureNetwork):
    """A categorical policy and a state value, each a linear layer on the features."""

    def make_heads(self) -> None:
        self.policy_head = nn.Linear(self.head_feature_count, _count(self.config))
        self.value_head = nn.Linear(self.head_feature_count, 1)

    def heads(self, features: Tensor, mask: Tensor | None = None) -> PolicyOutput:
        of_policy, of_value = self.split_features(features)
        logits = self.policy_head(of_policy)
        if mask is not None:
            logits = logits.masked_fill(mask == 0, _ILLEGAL)
        return PolicyOutput(logits=logits, values=self.value_head(of_value).squeeze(-1))

    def head_gain(self, layer: nn.Module) -> float | None:
        """A small policy gain makes the first policy nearly uniform, whatever the observation."""
        return _POLICY_GAIN if layer is self.policy_head else _VALUE_GAIN if layer is self.value_head else None

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        return Acting(
            {
                "behaviour_logits": Field((_count(config),), "float32"),  # of the policy that acted
                "behaviour_values": Field((), "float32"),
            }
        )

    def choose(self, thought: Thought, generator: torch.Generator | None, *, greedy: bool = False) -> Chosen:
        output: PolicyOutput = thought.output
        actions = output.logits.argmax(-1) if greedy else sample_categorical(output.logits, generator)
        return Chosen(actions, {"behaviour_logits": output.logits, "behaviour_values": output.values})


def _count(config: NetworkConfig) -> int:
    if not isinstance(config.action, Discrete):
        raise ValueError(f"env: wanted discrete actions, got {config.action.describe()}")
    return config.action.count
