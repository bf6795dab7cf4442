"""The network of discrete BCQ: Q-values, and logits of the actions that the recording has, on one torso."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from agents.acting import Acting
from agents.distributions import ILLEGAL_LOGIT
from agents.networks.base import NetworkConfig, NetworkOutput, SampledActions
from agents.networks.q_network import ILLEGAL_VALUE, QNetwork, QOutput, best_choices

_BEHAVIOUR_GAIN = 0.01


class BCQOutput(NamedTuple):
    """q: float32 `[N, P]`, as in `QOutput`. behaviour: float32 `[N, P]`, logits of the recorded actions."""

    q: Tensor
    behaviour: Tensor


class BCQNetwork(QNetwork):
    """Acts with the best of the actions that the recorded policy might have taken."""

    exported: ClassVar[tuple[str, ...]] = ("q", "behaviour")

    def make_heads(self) -> None:
        super().make_heads()
        self.behaviour_head = nn.Linear(self.head_feature_count, sum(self.counts))

    def heads(self, features: Tensor, mask: Tensor | None = None) -> BCQOutput:  # type: ignore[override]
        behaviour = self.behaviour_head(features)  # [N, P]
        if mask is not None:
            behaviour = behaviour.masked_fill(mask == 0, ILLEGAL_LOGIT)
        return BCQOutput(super().heads(features, mask).q, behaviour)

    def head_gain(self, layer: nn.Module) -> float | None:
        return _BEHAVIOUR_GAIN if layer is self.behaviour_head else super().head_gain(layer)

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        return Acting({})

    def constrained(self, output: BCQOutput) -> QOutput:
        """The values `[N, P]`, with `ILLEGAL_VALUE` for every choice that is not allowed."""
        allowed = allowed_choices(output.behaviour, self.counts, self.config.agent.threshold)  # bool [N, P]
        return QOutput(torch.where(allowed, output.q, ILLEGAL_VALUE))  # not a product: 0 * -inf is NaN

    def best_actions(self, output: BCQOutput) -> Tensor:  # type: ignore[override]
        return self._as_actions(best_choices(self.constrained(output).q, self.counts))

    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        constrained = inferred._replace(output=self.constrained(inferred.output))
        return SampledActions(super().choose(constrained, generator, exploration, greedy=greedy).actions, {})


def allowed_choices(behaviour: Tensor, counts: tuple[int, ...], threshold: float) -> Tensor:
    """The choices of each component that are likely enough: G(a|x) / max G(.|x) > threshold, bool `[..., P]`.

    Args:
        behaviour: `[..., P]`, logits of G.
        counts: choices of each component.
        threshold: in [0, 1). The most likely choice is always allowed.
    """
    lowest = math.log(threshold) if threshold > 0 else -math.inf  # G / max G > threshold, in logits
    # The normalisation of the softmax cancels in the ratio.
    return torch.cat([part - part.amax(-1, keepdim=True) > lowest for part in behaviour.split(list(counts), -1)], -1)
