"""The network of SQN: two Q-functions of choices, whose smaller values make a softmax policy."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from agents.acting import BEHAVIOUR_LOG_PROB, Acting
from agents.distributions import ILLEGAL_LOGIT, Categorical, MultiCategorical, make_distribution
from agents.networks.base import FeatureNetwork, NetworkConfig, NetworkOutput, SampledActions
from agents.networks.q_network import ILLEGAL_VALUE, choice_counts
from replay.trajectory import Field

_HEAD_GAIN = 0.1


class SoftQOutput(NamedTuple):
    """policy: float32 `[N, P]`, logits (q - largest q of the component) / alpha. q: float32 `[N, P]`, min(Q_1, Q_2).

    twins: `[N, 2, P]`. Choices of all components stand one after another.
    """

    policy: Tensor
    q: Tensor
    twins: Tensor


class SoftQNetwork(FeatureNetwork):
    """Twin Q-values on the features, of two torsos with `--separate_value`, and the temperature of the policy.

    counts: values of each component; P is their sum. log_alpha: float32 `[]`, logarithm of the temperature. It travels with the
    weights, because acting needs it.
    """

    exported: ClassVar[tuple[str, ...]] = ("policy",)
    distribution: Categorical | MultiCategorical

    def make_heads(self) -> None:
        self.counts = choice_counts(self.config.action)
        distribution = make_distribution(self.config.action)
        assert isinstance(distribution, Categorical | MultiCategorical)
        self.distribution = distribution
        self.first_head = nn.Linear(self.head_feature_count, sum(self.counts))
        self.second_head = nn.Linear(self.head_feature_count, sum(self.counts))
        self.log_alpha = nn.Parameter(torch.full((), math.log(self.config.agent.temperature)))

    @property
    def temperature(self) -> Tensor:
        """alpha, `[]`, without gradient."""
        return self.log_alpha.detach().exp()

    @property
    def critic_parameters(self) -> list[nn.Parameter]:
        """All weights but the temperature."""
        return [parameter for parameter in self.parameters() if parameter is not self.log_alpha]

    def heads(self, features: Tensor, mask: Tensor | None = None) -> SoftQOutput:
        first, second = self.split_features(features)
        twins = torch.stack([self.first_head(first), self.second_head(second)], 1)  # [N, 2, P]
        if mask is not None:
            twins = twins.masked_fill(mask.unsqueeze(1) == 0, ILLEGAL_VALUE)
        q = twins.amin(1)  # per action, before any soft value: a policy finds what one critic overestimates
        # The best legal choice has logit 0, so that none falls below the illegal ones, however small alpha is.
        best = torch.cat([part.amax(-1, keepdim=True).expand_as(part) for part in q.split(self.counts, -1)], -1)  # [N, P]
        policy = torch.where(q > ILLEGAL_VALUE, (q - best) / self.temperature, ILLEGAL_LOGIT)
        return SoftQOutput(policy, q, twins)

    def head_gain(self, layer: nn.Module) -> float | None:
        """A small gain: the first values are near 0, and the first policy is nearly uniform."""
        return _HEAD_GAIN if layer is self.first_head or layer is self.second_head else None

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        """Retrace needs the probability with which an action was taken."""
        return Acting({BEHAVIOUR_LOG_PROB: Field((), "float32")} if config.agent.retrace_lambda != -1 else {})

    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        policy = inferred.output.policy  # [N, P]
        drawn = self.distribution.mode(policy) if greedy else self.distribution.sample(policy, generator)  # [N] or [N, D]
        stored = self.config.agent.retrace_lambda != -1
        return SampledActions(drawn, {BEHAVIOUR_LOG_PROB: self.distribution.log_prob(policy, drawn)} if stored else {})
