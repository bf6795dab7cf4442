"""The network of actor-critic agents: the parameters of a policy, and a value, on one torso."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from agents.acting import Acting
from agents.networks.base import Chosen, NetworkConfig, Thought
from agents.networks.cores import CorePair, HalfOfPair
from agents.networks.policy import Policy, distribution_of
from replay.trajectory import Field

BEHAVIOUR_POLICY = "behaviour_policy"
"""Field of the parameters of the policy that acted."""

_VALUE_GAIN = 1.0


class PolicyOutput(NamedTuple):
    """policy: float32 `[N, P]`, the parameters of the action distribution, such as logits; values: float32 `[N]`."""

    policy: Tensor
    values: Tensor


class ActorCritic(Policy):
    """A policy for any action space and a state value, each a linear layer on the features."""

    exported: ClassVar[tuple[str, ...]] = ("policy", "values")

    def make_heads(self) -> None:
        super().make_heads()
        self.value_head = nn.Linear(self.head_feature_count, 1)

    def heads(self, features: Tensor, mask: Tensor | None = None) -> PolicyOutput:
        """The policy and the value of float32 features `[N, feature_count]`. mask: as `Policy.heads` takes it."""
        of_policy, of_value = self.split_features(features)
        return PolicyOutput(policy=self.policy_of(of_policy, mask), values=self.value_head(of_value).squeeze(-1))

    def head_gain(self, layer: nn.Module) -> float | None:
        return _VALUE_GAIN if layer is self.value_head else super().head_gain(layer)

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        count = distribution_of(config).parameter_count
        behaviour = {
            BEHAVIOUR_POLICY: Field((count,), "float32"),  # of the policy that acted
            "behaviour_values": Field((), "float32"),
        }
        return Acting({**behaviour, **super().acting(config).fields})

    def choose(
        self,
        thought: Thought,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> Chosen:
        chosen = super().choose(thought, generator, exploration, greedy=greedy)
        output: PolicyOutput = thought.output
        # Importance ratios need the policy that acted, whose weights are gone when the row is learned from.
        behaviour = {BEHAVIOUR_POLICY: output.policy, "behaviour_values": output.values}
        return Chosen(chosen.actions, {**behaviour, **chosen.fields})


class SeparateActorCritic(ActorCritic):
    """An `ActorCritic` whose policy and value share no weight, with `--separate_value`; a core is then one core for each."""

    separates_cores = True

    @property
    def policy_parameters(self) -> list[nn.Parameter]:
        """The weights that the policy depends on."""
        modules: list[nn.Module] = [self.torso, self.policy_head]
        if isinstance(self.core, CorePair):
            modules.append(self.core.first)
        shared = [self.log_std] if self._shares_log_std else []
        return [*(parameter for module in modules for parameter in module.parameters()), *shared]

    def alone(self, part: Literal["policy", "values"]) -> SeparateActorCritic:
        """A network with the layers of one part alone, on the same weights and buffers.

        Its other output means nothing. It is for learning: with a core it has no `think`.
        """
        network = copy(self)
        network._modules = dict(self._modules)  # a shallow copy shares them
        if part == "values" and self.value_torso is not None:
            network.torso = self.value_torso
        network.value_torso = None
        if isinstance(self.core, CorePair):
            core: Any = HalfOfPair(self.core, ("policy", "values").index(part))
            network.core = core
        return network
