"""Networks that act: the actor alone. Critics are modules of the agent, so no worker, evaluation or export has them."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from agents.acting import BEHAVIOUR_LOG_PROB, Acting
from agents.continuous.losses import next_noise
from agents.distributions import ILLEGAL_LOGIT, Categorical, SquashedGaussian
from agents.networks.base import FeatureNetwork, NetworkConfig, NetworkOutput, SampledActions
from agents.networks.batch_renorm import add_renorms
from agents.networks.torsos import hidden_layers, parse_hidden_sizes
from replay.trajectory import Field
from wrappers.spaces import Box, Discrete

LOG_STDS = (-20.0, 2.0)
"""Bounds of the logarithms of SAC's standard deviations, as in its authors' code."""
GAUSSIAN, CORRELATED = "gaussian", "ou"
"""Values of the setting `exploration_noise_kind`."""
_POLICY_GAIN = 0.01
_HIDDEN_GAIN = math.sqrt(2.0)


class ActorOutput(NamedTuple):
    """policy: float32 `[N, P]`, parameters of the distribution of actions, or the actions of a deterministic policy."""

    policy: Tensor


class Actor(FeatureNetwork):
    """A policy for agents that have critics.

    Critics of vectors have layers of their own, which read the same normalised vectors as the actor. An observation with images
    has one encoder for both. Only the critics' loss changes it, and the actor reads its features as constants (DrQ-v2,
    arXiv:2107.09645, section 3.1). Hidden layers of `--hidden_sizes` then follow in the actor too.

    Attributes:
        shares: Whether the encoder is shared.
        acts_randomly: float32 `[]`, 1 until learning starts: actions are uniform until then. It travels with the weights.
    """

    heads_read: ClassVar[tuple[str, ...]] = ("hidden_sizes", "activation", "layer_norm")

    acts_randomly: Tensor

    def make_heads(self) -> None:
        settings = self.config.settings
        self.shares = not all(part.is_vector for part in self.parts)
        sizes = parse_hidden_sizes(settings.hidden_sizes)
        features = sizes[-1] if self.shares else self.head_feature_count
        layers = hidden_layers(self.head_feature_count, sizes, settings) if self.shares else []
        self.hidden = nn.Sequential(*layers)
        self.policy_head = nn.Linear(features, self.parameter_count)
        if (warm_up := getattr(self.config.agent, "renorm_warm_up", None)) is not None:
            own = self.hidden if self.shares else self.torso
            assert isinstance(own, nn.Sequential), "CrossQ's check refuses other torsos"
            add_renorms(own, warm_up)
        self.register_buffer("acts_randomly", torch.ones(()))

    @property
    @abstractmethod
    def parameter_count(self) -> int:
        """P, the numbers that the policy's head gives."""

    @property
    def encoder_parameters(self) -> list[nn.Parameter]:
        """The weights that the critics' loss changes: those of a shared encoder."""
        return list(self.torso.parameters()) if self.shares else []

    @property
    def actor_parameters(self) -> list[nn.Parameter]:
        """The weights that the actor's loss changes."""
        return [*([] if self.shares else self.torso.parameters()), *self.hidden.parameters(), *self.policy_head.parameters()]

    def heads(self, features: Tensor, mask: Tensor | None = None) -> ActorOutput:
        policy = self.policy_head(self.hidden(features))  # [N, P]
        return ActorOutput(policy if mask is None else policy.masked_fill(mask == 0, ILLEGAL_LOGIT))

    def encode(self, observations: Tensor) -> Tensor:
        """The critics' input from N observations, `[N, F]`: normalised vectors, or the features of a shared encoder."""
        return self.features(observations) if self.shares else self.inputs_of(observations, torch.float32)[0].flatten(1)

    @property
    def encoded_size(self) -> int:
        """F of `encode`."""
        return self.head_feature_count if self.shares else math.prod(self.parts[0].shape)

    def policy(self, observations: Tensor, encoded: Tensor) -> Tensor:
        """The policy's output `[N, P]`, with gradient for `actor_parameters` alone. encoded: of the same observations."""
        # Detached, so that the actor's loss does not change a shared encoder.
        features = encoded.detach() if self.shares else self.features_of_inputs([encoded.unflatten(1, self.parts[0].shape)])
        return self.heads(features, self.mask_of(observations) if self.packing else None).policy

    def head_gain(self, layer: nn.Module) -> float | None:
        """A small gain makes the first policy nearly the same, whatever the observation."""
        if any(layer is each for each in self.hidden):
            return _HIDDEN_GAIN
        return _POLICY_GAIN if layer is self.policy_head else None

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        return Acting({})

    def uniform_or(self, actions: Tensor, generator: torch.Generator | None) -> Tensor:
        """Actions `[N, D]`; uniform ones in [-1, 1] until learning starts."""
        uniform = torch.empty_like(actions).uniform_(-1, 1, generator=generator)  # in any case: the host reads no flag
        return torch.where(self._randomly(actions), uniform, actions)

    def _randomly(self, actions: Tensor) -> Tensor:
        """Whether actions are uniform, bool `[]` where the actions lie: evaluations draw them on the CPU."""
        return self.acts_randomly.to(actions.device) > 0


class StochasticActor(Actor):
    """The policy of SAC: a squashed Gaussian for bounded real numbers, a categorical distribution for one choice."""

    exported: ClassVar[tuple[str, ...]] = ("policy",)
    distribution: SquashedGaussian | Categorical

    def make_heads(self) -> None:
        action = self.config.action
        if isinstance(action, Discrete):
            self.distribution = Categorical(action.count)
        else:
            assert isinstance(action, Box)
            self.distribution = SquashedGaussian(len(action.low), log_stds=LOG_STDS)
        super().make_heads()

    @property
    def parameter_count(self) -> int:
        return self.distribution.parameter_count

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        """Retrace needs the probability with which an action was taken."""
        traces = getattr(config.agent, "retrace_lambda", -1.0) != -1
        return Acting({BEHAVIOUR_LOG_PROB: Field((), "float32")} if traces else {})

    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        policy, distribution = inferred.output.policy, self.distribution
        if isinstance(distribution, Categorical) and not greedy:
            # Equal logits for all legal actions: they are uniform until learning starts.
            legal = torch.where(policy > ILLEGAL_LOGIT / 2, 0.0, ILLEGAL_LOGIT)  # [N, A]
            policy = torch.where(self._randomly(policy), legal, policy)
        drawn = distribution.mode(policy) if greedy else distribution.sample(policy, generator)
        stored = self.acting(self.config).fields
        fields = {BEHAVIOUR_LOG_PROB: distribution.log_prob(policy, drawn)} if stored else {}
        if greedy or isinstance(distribution, Categorical):
            return SampledActions(distribution.action(drawn), fields)
        return SampledActions(self.uniform_or(distribution.action(drawn), generator), fields)


class NoiseSettings(Protocol):
    """The settings of the noise that a deterministic policy explores with."""

    exploration_noise: float
    exploration_noise_kind: str
    noise_theta: float
    noise_dt: float


class DeterministicActor(Actor):
    """The policy of TD3 and DDPG: tanh of a linear layer. Noise is added in training, and nowhere else.

    Gaussian noise is independent in every step. Ornstein-Uhlenbeck noise is a state of each environment, 0 where an episode
    begins.
    """

    def make_heads(self) -> None:
        action = self.config.action
        assert isinstance(action, Box)
        self._size = len(action.low)
        self.noise_size = self._size if self._noise.exploration_noise_kind == CORRELATED else 0
        super().make_heads()

    @property
    def _noise(self) -> NoiseSettings:
        settings: NoiseSettings = self.config.agent
        return settings

    @property
    def parameter_count(self) -> int:
        return self._size

    def heads(self, features: Tensor, mask: Tensor | None = None) -> ActorOutput:
        return ActorOutput(super().heads(features).policy.tanh())

    def best_actions(self, output: ActorOutput) -> Tensor:
        return output.policy

    def exploration(self, environments: Tensor, total: int) -> Tensor | None:
        """The noise's size `[N, 1]`, and behind it the state of correlated noise, `[N, D]`."""
        size = torch.full((len(environments), 1), float(self._noise.exploration_noise), device=environments.device)
        return torch.cat([size, torch.zeros(len(environments), self.noise_size, device=environments.device)], -1)

    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        actions, settings = inferred.output.policy, self._noise
        if greedy or exploration is None:
            return SampledActions(actions, {})
        noise = torch.empty_like(actions).normal_(generator=generator)  # [N, D]
        kept = None
        if self.noise_size:
            noise = next_noise(exploration[:, 1:], noise, settings.noise_theta, settings.exploration_noise, settings.noise_dt)
            kept = torch.cat([exploration[:, :1], noise], -1)  # [N, 1 + D], carried to each environment's next step
        else:
            noise = exploration * noise  # [N, 1] * [N, D]
        # Actions are in [-1, 1] here; the environment's bounds come later, so noise has the same size for each number.
        return SampledActions(self.uniform_or((actions + noise).clamp(-1, 1), generator), {}, kept)
