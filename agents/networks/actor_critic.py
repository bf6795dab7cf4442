"""Networks with a policy: alone, for imitation, and beside a value, for actor-critic agents."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from agents.acting import Acting
from agents.distributions import ILLEGAL_LOGIT, DiagonalGaussian, Distribution, make_distribution
from agents.networks.base import FeatureNetwork, NetworkConfig, NetworkOutput, SampledActions
from agents.networks.cores import CorePair, HalfOfPair
from agents.networks.inputs import Observations
from agents.networks.popart import PopArtHead
from replay.trajectory import Field
from wrappers.spaces import ACTION_MASK

BEHAVIOUR_POLICY = "behaviour_policy"
"""Field of the parameters of the policy that acted."""

_VALUE_GAIN = 1.0
RAW_ACTION = "raw_action"
"""Field of the drawn value, where the action does not determine it (`Distribution.stores_drawn`)."""

_POLICY_GAIN = 0.01


class PolicyAlone(NamedTuple):
    """policy: float32 `[N, P]`, the parameters of the action distribution, such as logits."""

    policy: Tensor


class PolicyNetwork(FeatureNetwork):
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
        policy: Tensor = self.policy_head(features)  # [N, P], or [N, D] of means if log_std is shared
        if self._shares_log_std:
            policy = torch.cat([policy, self.log_std.expand_as(policy)], -1)  # [N, 2 D]: means, then log_stds
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
            shared.fill_(self.config.settings.initial_log_std)  # behind the orthogonal start, which sets biases to 0

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        drawn = {RAW_ACTION: Field(config.action.shape, "float32")} if distribution_of(config).stores_drawn else {}
        return Acting(drawn)

    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        policy: Tensor = inferred.output.policy
        drawn = self.distribution.mode(policy) if greedy else self.distribution.sample(policy, generator)  # [N], or [N, D]
        fields = {RAW_ACTION: drawn} if self.distribution.stores_drawn else {}  # u of tanh(u), float32
        return SampledActions(self.distribution.action(drawn), fields)  # tanh of u, or the drawn value itself


class PolicyOutput(NamedTuple):
    """policy: float32 `[N, P]`, the parameters of the action distribution, such as logits; values: float32 `[N]`."""

    policy: Tensor
    values: Tensor


class ExploringOutput(NamedTuple):
    """A `PolicyOutput`, and intrinsic_values: float32 `[N]`, the values of intrinsic rewards."""

    policy: Tensor
    values: Tensor
    intrinsic_values: Tensor


class ActorCritic(PolicyNetwork):
    """A policy for any action space and a state value, each a linear layer on the features.

    With intrinsic rewards a third layer is their value. It reads what the other value reads.
    """

    exported: ClassVar[tuple[str, ...]] = ("policy", "values")

    def make_heads(self) -> None:
        super().make_heads()
        # `popart` is a setting of the agent, whose moments set the scale of the head. It has a value for each task.
        features, names = self.head_feature_count, self.config.tasks
        popart = getattr(self.config.agent, "popart", False)
        self.value_head = PopArtHead(features, len(names) or 1, names) if popart else nn.Linear(features, 1)
        explores = getattr(self.config.agent, "intrinsic", "none") != "none"
        self.intrinsic_head = nn.Linear(features, 1) if explores else None

    def heads(self, features: Tensor, mask: Tensor | None = None) -> PolicyOutput | ExploringOutput:
        """The policy and the value of float32 features `[N, feature_count]`. mask: as `PolicyNetwork.heads` takes it.

        With PopArt and several tasks there is a value for each, `[N, tasks]`, until `of_tasks` takes that of the observation.
        """
        of_policy, of_value = self.split_features(features)  # [N, head_feature_count] each
        policy, values = self.policy_of(of_policy, mask), self.value_head(of_value)  # [N, P], [N, 1] or [N, tasks]
        outputs = PolicyOutput(policy, values.squeeze(-1) if values.shape[-1] == 1 else values)
        return outputs if self.intrinsic_head is None else ExploringOutput(*outputs, self.intrinsic_head(of_value).squeeze(-1))

    def of_tasks(self, output: PolicyOutput, observations: Observations) -> PolicyOutput:
        tasks = self.task_of(observations)  # [N]
        if tasks is None or output.values.dim() == 1:
            return output
        return output._replace(values=output.values.gather(1, tasks[:, None]).squeeze(1))  # V_i(x) of the task i

    def head_gain(self, layer: nn.Module) -> float | None:
        return _VALUE_GAIN if layer in (self.value_head, self.intrinsic_head) else super().head_gain(layer)

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
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        chosen = super().choose(inferred, generator, exploration, greedy=greedy)
        output: PolicyOutput = inferred.output
        # Importance ratios need the policy that acted, whose weights are gone when the row is learned from.
        behaviour = {BEHAVIOUR_POLICY: output.policy, "behaviour_values": output.values}  # mu [N, P], V_behaviour [N]
        return SampledActions(chosen.actions, {**behaviour, **chosen.fields})

    @property
    def policy_parameters(self) -> list[nn.Parameter]:
        """The weights that the policy depends on, if it shares none with the value."""
        modules: list[nn.Module] = [self.torso, self.policy_head]
        if isinstance(self.core, CorePair):
            modules.append(self.core.first)
        shared = [self.log_std] if self._shares_log_std else []
        return [*(parameter for module in modules for parameter in module.parameters()), *shared]

    def alone(self, part: Literal["policy", "values"]) -> Self:
        """A network with the layers of one part alone, on the same weights and buffers, if the parts share none.

        Its other output means nothing. It is for learning: with a core it has no `infer`.
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


def distribution_name(network: NetworkConfig) -> str:
    """The distribution from which a network draws its actions, such as `categorical`; empty if it draws from none."""
    is_policy = issubclass(network.network_class, PolicyNetwork)
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
