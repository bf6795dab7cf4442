"""A policy for any action space on the features: the network of imitation, and the base of actor-critic networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from agents.acting import Acting
from agents.distributions import ILLEGAL_LOGIT, DiagonalGaussian, Distribution, make_distribution
from agents.networks.base import Chosen, FeatureNetwork, NetworkConfig, Thought
from replay.trajectory import Field
from wrappers.spaces import ACTION_MASK

RAW_ACTION = "raw_action"
"""Field of the drawn value, where the action does not determine it (`Distribution.stores_drawn`)."""

_POLICY_GAIN = 0.01


class PolicyAlone(NamedTuple):
    """policy: float32 `[N, P]`, the parameters of the action distribution, such as logits."""

    policy: Tensor


class Policy(FeatureNetwork):
    """A policy for any action space, a linear layer on the features.

    distribution: gives the policy's parameters their meaning. log_std: float32 `[D]`, the logarithms of the standard deviations
    of a Gaussian policy, if all observations share them.
    """

    distribution: Distribution
    exported: ClassVar[tuple[str, ...]] = ("policy",)

    def make_heads(self) -> None:
        settings = self.config.settings
        self.distribution = distribution_of(self.config)
        gaussian = isinstance(self.distribution, DiagonalGaussian)
        count = self.distribution.parameter_count
        self._deviations = count // 2 if gaussian else 0  # the last parameters of the distribution
        self._shares_log_std = gaussian and settings.log_std == "shared"
        self.policy_head = nn.Linear(self.head_feature_count, count - self._deviations * self._shares_log_std)
        if self._shares_log_std:
            self.log_std = nn.Parameter(torch.full((self._deviations,), float(settings.initial_log_std)))

    def heads(self, features: Tensor, mask: Tensor | None = None) -> Any:
        """The policy of float32 features `[N, feature_count]`.

        mask: `[N, mask_size]`, 0 for an illegal action. Illegal actions of choices get a very small logit.
        """
        return PolicyAlone(self.policy_of(features, mask))

    def policy_of(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The policy's parameters, `[N, P]`. features: those that the policy reads, `[N, head_feature_count]`."""
        policy: Tensor = self.policy_head(features)
        if self._shares_log_std:
            policy = torch.cat([policy, self.log_std.expand_as(policy)], -1)
        if mask is not None:
            # After softmax such an action has probability 0 and no gradient.
            policy = policy.masked_fill(mask == 0, ILLEGAL_LOGIT)
        return policy

    def head_gain(self, layer: nn.Module) -> float | None:
        """A small policy gain makes the first policy nearly the same, whatever the observation."""
        return _POLICY_GAIN if layer is self.policy_head else None

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> None:
        super().initialise(generator)
        if self._deviations:
            shared = self.log_std if self._shares_log_std else self.policy_head.bias[-self._deviations :]
            shared.fill_(self.config.settings.initial_log_std)

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        drawn = {RAW_ACTION: Field(config.action.shape, "float32")} if distribution_of(config).stores_drawn else {}
        return Acting(drawn)

    def choose(
        self,
        thought: Thought,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> Chosen:
        policy: Tensor = thought.output.policy
        drawn = self.distribution.mode(policy) if greedy else self.distribution.sample(policy, generator)
        fields = {RAW_ACTION: drawn} if self.distribution.stores_drawn else {}
        return Chosen(self.distribution.action(drawn), fields)


def distribution_name(network: NetworkConfig) -> str:
    """The distribution from which a network draws its actions, such as `categorical`; empty if it draws from none."""
    is_policy = issubclass(network.network_class, Policy)
    return type(distribution_of(network)).__name__.lower() if is_policy else ""


def drawn_actions(actions: Tensor, acting: Mapping[str, Tensor]) -> Tensor:
    """The values with which `Distribution.log_prob` is called for the actions and acting fields of a batch."""
    return acting.get(RAW_ACTION, actions)


def distribution_of(config: NetworkConfig) -> Distribution:
    """The distribution of the config's actions. Raises ValueError if the settings or an action mask do not fit the actions."""
    for leaf in config.leaves:
        if leaf.name == ACTION_MASK and leaf.shape != (config.action.mask_size,):
            wanted = f"of {config.action.mask_size} numbers" if config.action.mask_size else "for discrete actions"
            raise ValueError(
                f"env: wanted an action mask {wanted}, got one of shape {leaf.shape} for {config.action.summary()}"
            )
    return make_distribution(config.action, config.settings.action_distribution)
