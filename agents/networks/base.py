"""The base of every network: a torso turns observations into features, and the heads that the agent names use them.

A recurrent core may stand between the two. The features are the last hidden layer: the core's output if there is a core.
`agents/networks/inputs.py` has the part of the network that reads observations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from agents.acting import Acting
from agents.compute import PRECISIONS
from agents.distributions import Distribution
from agents.networks.cores import CorePair, make_core, zeroed
from agents.networks.exploration import begun
from agents.networks.initial_weights import INITIAL_WEIGHTS
from agents.networks.inputs import ObservationEncoder, Observations
from agents.networks.joint import make_joint_torso, without_last_layer
from agents.networks.settings import NetworkSettings
from agents.networks.spectral import spectral_layers
from wrappers.spaces import ACTION_MASK, ActionSpace, Leaf

__all__ = ["FeatureNetwork", "NetworkConfig", "NetworkOutput", "SampledActions", "make_network", "on_device"]

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class NetworkConfig:
    """A description from which every process builds the same network. It is sent to processes as it is.

    Args:
        settings: the torso and its sizes.
        observation_shape: `[S, H, W]`, `[S, H, W, C]` or, for `mlp`, also `[S, F]`; the environment's `observation_shape`.
        action: the environment's actions.
        network_class: the class that adds the heads. It must be found by its name in other processes.
        precision: what the torso computes in, a key of `PRECISIONS`. Weights are float32 in any case.
        leaves: the parts of a frame that has several, see `wrappers.spec.EnvSpec`.
        agent: the agent's settings, for a class whose heads depend on them.
        tasks: ids of the environments, if there are several and observations say which of them they come from.
    """

    settings: NetworkSettings
    observation_shape: tuple[int, ...]
    action: ActionSpace
    network_class: type[FeatureNetwork]
    precision: str = "float32"
    leaves: tuple[Leaf, ...] = ()
    agent: Any = None
    tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.observation_shape or min(self.observation_shape) < 1:
            raise ValueError(f"observation_shape: wanted sizes of 1 or more, got {self.observation_shape}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision: wanted {' or '.join(PRECISIONS)}, got {self.precision!r}")


class NetworkOutput(NamedTuple):
    """The output of a network for N observations, as tensors only.

    output: what the heads return, a NamedTuple of tensors `[N, ...]`. features: float32 `[N, F]`. state: float32 `[N, K]`,
    the memory with which the next observation is seen; None without a core.
    """

    output: Any
    features: Tensor
    state: Tensor | None = None


class SampledActions(NamedTuple):
    """Actions, and the fields that are stored with them.

    actions: `[N]`; fields: each `[N, *shape]`, as `acting` declares them. exploration: float32 `[N, E]`, the numbers with which
    these environments' next actions are chosen; None if they stay as they are.
    """

    actions: Tensor
    fields: dict[str, Tensor]
    exploration: Tensor | None = None


class FeatureNetwork(ObservationEncoder, ABC):
    """A torso, perhaps a core and, in subclasses, heads. A policy calls `infer`, then `choose`; learning calls the network.

    head_feature_count: features that one head reads. feature_count: F, twice as many where policy and value read features of
    their own (`--separate_value`, but with a core only if the agent separates cores). state_size: K, numbers of one
    environment's recurrent state; 0 without a core.
    """

    distribution: Distribution | None = None
    """Distribution of the actions, if the network has a policy."""
    noise_size: int = 0
    """Last numbers of `exploration` that are a state."""
    exported: ClassVar[tuple[str, ...]] = ()
    """Outputs of the heads that an exported policy returns beside its action."""
    heads_read: ClassVar[tuple[str, ...]] = ()
    """Settings of `NetworkSettings` that the heads depend on, beside the torso."""
    bytes_per_environment: int = 0
    """Bytes of weights that acting keeps for each environment."""
    explores_by_epsilon: ClassVar[bool] = False
    """Whether `exploration` is the probability of a random action, `[N, 1]`, so that an evaluation may set it."""

    def __init__(self, config: NetworkConfig) -> None:
        settings = config.settings
        shape, leaves, tasks = config.observation_shape, config.leaves, len(config.tasks)
        super().__init__(shape, leaves, normalises=settings.normalise_observations, tasks=tasks)
        self.config = config
        make_torso = partial(make_joint_torso, settings, self.parts, config.precision, self.heads_read)
        self.torso = without_last_layer(make_torso()) if getattr(config.agent, "head_units", 0) else make_torso()
        self.value_torso = make_torso() if settings.separate_value else None
        torso_features = self.torso.feature_count * (2 if settings.separate_value else 1)
        # An agent whose policy and value may share no weight gives each a core of its own, too.
        pair = settings.separate_value and getattr(config.agent, "separates_cores", False)
        self.core = make_core(settings.core, torso_features, settings.core_size, settings.core_memory, pair=pair)
        self.state_size = self.core.state_size if self.core else 0
        self.feature_count = self.core.size if self.core else torso_features
        # Whether policy and value read features of their own.
        self._has_halves = settings.separate_value and (self.core is None or isinstance(self.core, CorePair))
        self.head_feature_count = self.feature_count // (2 if self._has_halves else 1)
        self.make_heads()

    @abstractmethod
    def make_heads(self) -> None:
        """Make the layers that read `head_feature_count` features."""

    @abstractmethod
    def heads(self, features: Tensor, mask: Tensor | None = None) -> Any:
        """Outputs for float32 features `[N, feature_count]`: a NamedTuple of tensors `[N, ...]`.

        mask: uint8 `[N, mask_size]`, 1 for a legal action; None if the environment has no mask.
        """

    @abstractmethod
    def head_gain(self, layer: nn.Module) -> float | None:
        """Gain of the initial weights of one of the heads, None for any other layer."""

    @classmethod
    @abstractmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        """The fields that `choose` returns with the actions."""

    def best_actions(self, output: Any) -> Tensor:
        """The deterministic action for each of N outputs of the heads, `[N, *shape]`, as `choose` returns it if greedy."""
        assert self.distribution is not None
        return self.distribution.action(self.distribution.mode(output.policy))

    def exploration(self, environments: Tensor, total: int) -> Tensor | None:
        """Numbers with which `choose` explores in each environment, float32 `[N, E]`; None if it needs none.

        They are constants, computed once by each policy, except for the last `noise_size` of them. These are a state: zeros
        where an episode begins, and later what `choose` returned with the action before. It is part of an exact resume.

        Args:
            environments: int64 `[N]`, the environments' numbers in the run, on the device of the policy.
            total: environments of the run.
        """
        return None

    def begun(self, exploration: Tensor, first: Tensor) -> Tensor:
        """The exploration of the next actions, float32 `[N, E]`: by default its state is zero where an episode begins.

        exploration: `[N, E]`, of the actions before. first: bool `[N]`, whether each observation is its episode's first.
        """
        return begun(exploration, first, self.noise_size)

    def draw_noise(self, generator: torch.Generator | None = None, exploration: Tensor | None = None) -> None:
        """Draw new noise for the weights of noisy layers, or for those of every environment.

        Each policy does so before it acts; evaluations act without noise. exploration: `[N, E]`, of the next actions.
        """

    @abstractmethod
    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        """Actions for N observations.

        Args:
            inferred: what `infer` returned for them.
            generator: of random numbers, on the device of the output; None for PyTorch's own.
            exploration: float32 `[N, E]`, the environments' numbers (see `exploration`); None to use the network's alone.
            greedy: take the best action instead of exploring.
        """

    def forward(
        self, observations: Observations, state: Tensor | None = None, reset: Tensor | None = None, burn_in: int = 0
    ) -> Any:
        """Outputs of the heads for N observations, uint8 or floating point.

        With a core the observations are rows of columns, and the other arguments are those of `unroll`.
        """
        if state is None or reset is None:
            outputs = self.heads(self.features(observations), self.mask_of(observations))
            return self.of_tasks(outputs, observations) if self.config.tasks else outputs
        assert isinstance(observations, Tensor)
        return self.unroll(observations, state, reset, burn_in).output

    def infer(self, observations: Observations, state: Tensor | None = None) -> NetworkOutput:
        """The outputs for N observations with the features and the next state, for acting.

        state: `[N, K]`, zeros where an observation is its episode's first; None without a core.
        """
        inferred = self.infer_from(self.features(observations), self.mask_of(observations), state)
        return inferred._replace(output=self.of_tasks(inferred.output, observations)) if self.config.tasks else inferred

    def infer_from(self, features: Tensor, mask: Tensor | None, state: Tensor | None) -> NetworkOutput:
        """The output of `infer` before `of_tasks`. features: the torso's output. mask: as `heads` takes it."""
        if self.core is None:
            return NetworkOutput(self.heads(features, mask), features)
        assert state is not None, f"a network with a core: wanted a state [N, {self.state_size}], got none"
        # The core's output takes the place of the torso's.
        features, state = self.core(features, state)  # h [N, H], [N, K]
        return NetworkOutput(self.heads(features, mask), features, state)

    def unroll(self, observations: Tensor, state: Tensor, reset: Tensor, burn_in: int = 0) -> NetworkOutput:
        """Outputs and features of a network with a core for consecutive rows, `[R - burn_in, B, ...]` each tensor.

        Args:
            observations: `[R, B, *observation_shape]`.
            state: `[B, K]`, before row 0; a constant.
            reset: bool `[R-1, B]`, where observation t+1 is an episode's first: the state is zero there.
            burn_in: rows that only make the state. They have no outputs and no gradient (R2D2, Kapturowski et al. 2019,
                section 3).
        """
        assert self.core is not None
        if burn_in:
            with torch.no_grad():
                # Rows 0 to burn_in - 1 make the state, as a constant. The rows behind start from it.
                _, state = self.core.unroll(self._features_of_rows(observations[:burn_in]), state, reset[: burn_in - 1])
                # An episode may begin at the first row that is learned from.
                state = zeroed(state, reset[burn_in - 1])  # [B, K]
        # h [R - burn_in, B, H]
        hidden, state = self.core.unroll(self._features_of_rows(observations[burn_in:]), state, reset[burn_in:])
        rows = hidden.shape[:2]  # R - burn_in, B
        learned = observations[burn_in:].flatten(0, 1)
        outputs = self.heads(hidden.flatten(0, 1), self.mask_of(learned))  # [rows * B, ...] each
        outputs = self.of_tasks(outputs, learned) if self.config.tasks else outputs
        return NetworkOutput(type(outputs)(*(output.unflatten(0, rows) for output in outputs)), hidden, state)

    def _features_of_rows(self, observations: Tensor) -> Tensor:
        """The input of the core, `[R, B, F]`. The torso sees all rows at once."""
        features: Tensor = self.features(observations.flatten(0, 1)).unflatten(0, observations.shape[:2])
        return features

    def features(self, observations: Observations) -> Tensor:
        """The torso's output, float32 `[N, F]`, of N observations: what the core reads, or the heads without a core."""
        return self.features_of_inputs(self.inputs_of(observations, PRECISIONS[self.config.precision]))

    def features_of_inputs(self, inputs: Sequence[Tensor]) -> Tensor:
        """The torso's output `[N, F]` as in `features`, of prepared inputs: one `[N, *input_shape]` for each part."""
        dtype = PRECISIONS[self.config.precision]
        # The torso alone computes in the lower precision; core, heads and losses are float32.
        with torch.autocast(inputs[0].device.type, dtype) if dtype != torch.float32 else nullcontext():
            features: Tensor = self.torso(*inputs)
            if self.value_torso is not None:
                features = torch.cat([features, self.value_torso(*inputs)], -1)  # [N, 2 F of a torso], policy's half first
        return features.float()  # [N, F]

    def split_features(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The features that the policy and the value read, `[N, head_feature_count]` each. Both read a core that they share."""
        if self.value_torso is None or not self._has_halves:  # a copy may have left the torso of values out
            return features, features
        policy, value = features.split(self.head_feature_count, -1)
        return policy, value

    def mask_of(self, observations: Observations) -> Tensor | None:
        """The action mask of the newest frame of N observations, uint8 `[N, mask_size]`; None if they have none."""
        if self.packing is None or ACTION_MASK not in self.packing.parts:
            return None
        if isinstance(observations, Tensor):
            return observations[:, -1, self.packing.parts[ACTION_MASK]]  # the newest frame's mask; older ones are of past steps
        return observations[ACTION_MASK][:, -1]

    def task_of_columns(self, observations: Tensor) -> Tensor | None:
        """The task of each column of a batch `[T+1, B, *observation_shape]`, int64 `[B]`; None if there is one task."""
        return self.task_of(observations[0]) if self.config.tasks else None  # all rows of a column are of one environment

    def of_tasks(self, output: Any, observations: Observations) -> Any:
        """The output of `heads` for N observations of several tasks, with the parts of each observation's own task alone."""
        return output

    def only_act(self) -> Self:
        """Keep the torso's weights in the precision it computes in, so that no call casts them. Returns self."""
        for torso in (self.torso, self.value_torso):
            if torso is not None:
                torso.to(PRECISIONS[self.config.precision])
        return self.eval().requires_grad_(False)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights of `--initial_weights` from `generator` (None: PyTorch's global one)."""
        draw = INITIAL_WEIGHTS[self.config.settings.initial_weights]
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear) and (gain := self._gain(module)) is not None:
                draw(module, gain, generator)  # in the order of `modules()`, so equal seeds give equal weights
        for layer in spectral_layers(self):
            layer.start(generator)
        if self.core:
            self.core.initialise(generator)

    def _gain(self, layer: nn.Module) -> float | None:
        """Gain of a layer's initial weights; None for a layer of the user's own torso, which keeps its weights."""
        if (gain := self.head_gain(layer)) is not None:
            return gain
        if self.value_torso is not None and any(layer is module for module in self.value_torso.modules()):
            return self.value_torso.gain(layer)
        return self.torso.gain(layer)


def make_network(config: NetworkConfig, generator: torch.Generator | None = None) -> FeatureNetwork:
    """A new, initialised network on the CPU, of the config's `network_class`.

    Equal generators give equal weights. Without one the weights come from PyTorch's global generator.
    """
    network = config.network_class(config)
    network.initialise(generator)
    return network


def on_device(network: Network, device: torch.device) -> Network:
    """Move a network. On a GPU its kernels lie channels-last, as its input does; otherwise each call would transpose them."""
    if device.type == "cuda":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # PyTorch's types leave this use out
    return network.to(device)
