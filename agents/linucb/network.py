"""The policy of LinUCB: a linear estimate of each action's reward, and a bonus for actions that are not yet known well."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from agents.acting import Acting
from agents.linucb.arms import estimates_and_widths
from agents.networks.base import FeatureNetwork, NetworkConfig, NetworkOutput, SampledActions
from agents.networks.inputs import Observations
from agents.networks.q_network import ILLEGAL_VALUE, Q_VALUES
from wrappers.spaces import Discrete

MOST_NUMBERS = 2**24
"""Numbers in the matrices of all arms. They are sent to every worker with each update, and inverted."""


class LinUCBOutput(NamedTuple):
    """q: float32 `[N, n]`, the expected reward of each action; `ILLEGAL_VALUE` for an illegal one. widths: `[N, n]`, their
    uncertainty."""

    q: Tensor
    widths: Tensor


class LinUCBNetwork(FeatureNetwork):
    """Arms on the features, none of which is learned by gradient descent.

    The context of an observation is its features and a constant 1. With `--network=flat` the features are the observation.

    theta: float32 `[n, F]`, the weights of each arm. inverse: float32 `[n, F, F]`, A^-1 of each arm.
    """

    exported: ClassVar[tuple[str, ...]] = (Q_VALUES,)

    theta: Tensor
    inverse: Tensor

    def make_heads(self) -> None:
        action, size = self.config.action, self.head_feature_count + 1
        if not isinstance(action, Discrete):
            raise ValueError(f"env: wanted one choice among actions with agent linucb, got {action.summary()}")
        if action.mask_size * size**2 > MOST_NUMBERS:
            most = int((MOST_NUMBERS / action.mask_size) ** 0.5) - 1
            raise ValueError(
                f"network: wanted at most {most:,} features for {action.mask_size} actions with agent linucb, got "
                f"{size - 1:,}; --network=mlp --hidden_sizes=64 makes 64 of them"
            )
        self.register_buffer("theta", torch.zeros(action.mask_size, size))
        # A^-1 = I / ridge before any pull.
        self.register_buffer("inverse", torch.eye(size).repeat(action.mask_size, 1, 1) / self.config.agent.ridge)

    def contexts(self, observations: Observations) -> Tensor:
        """The contexts x of N observations, float32 `[N, F]`."""
        return _with_constant(self.features(observations))

    def heads(self, features: Tensor, mask: Tensor | None = None) -> LinUCBOutput:
        q, widths = estimates_and_widths(_with_constant(features), self.theta, self.inverse)  # [N, n] each
        return LinUCBOutput(q if mask is None else q.masked_fill(mask == 0, ILLEGAL_VALUE), widths)

    def head_gain(self, layer: nn.Module) -> float | None:
        return None

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        return Acting({})

    def best_actions(self, output: LinUCBOutput) -> Tensor:
        return output.q.argmax(-1)

    def exploration(self, environments: Tensor, total: int) -> Tensor | None:
        """The factor alpha of the widths in each environment, `[N, 1]`. Evaluations have none and take the best estimate."""
        return torch.full((len(environments), 1), float(self.config.agent.alpha), device=environments.device)

    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        output: LinUCBOutput = inferred.output
        if greedy or exploration is None:
            return SampledActions(self.best_actions(output), {})
        bonuses = exploration * output.widths  # alpha sqrt(x' A^-1 x): [N, 1] * [N, n]
        if self.config.agent.thompson:
            # The same as to draw weights from N(theta, alpha^2 A^-1) for each arm, because x' A^-1 x = width^2.
            bonuses = bonuses * torch.randn(bonuses.shape, generator=generator, device=bonuses.device)
        # A wide bonus must not lift an illegal action above a legal one.
        scores = (output.q + bonuses).masked_fill(output.q == ILLEGAL_VALUE, -math.inf)
        return SampledActions(scores.argmax(-1), {})


def _with_constant(features: Tensor) -> Tensor:
    """`[N, F - 1]` with a last feature that is always 1, so that arms may differ in what they pay everywhere."""
    return torch.nn.functional.pad(features, (0, 1), value=1.0)
