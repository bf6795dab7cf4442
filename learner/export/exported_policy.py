"""The network that is exported: plain tensors as inputs and outputs, with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from agents.networks.base import FeatureNetwork
from agents.networks.inputs import Observations
from wrappers.spaces import Box, Leaf

INPUT = "observations"
STATE_IN, STATE_OUT = "state_in", "state_out"  # of a network with a core
POLICY, LOGITS, VALUES, ACTION = "policy", "logits", "values", "action"
RESERVED = frozenset((STATE_IN, STATE_OUT, POLICY, LOGITS, VALUES, ACTION))

Inputs = tuple[Observations, ...]
"""The arguments of an exported policy: observations, and the state of a core if there is one."""
Outputs = tuple[Tensor, ...]


def leaf_names(leaves: Sequence[Leaf]) -> dict[str, str]:
    """Name of an input -> the leaf that it takes. They differ where another input or output has the leaf's name."""
    names: dict[str, str] = {}
    for leaf in leaves:
        name, others = leaf.name, {*RESERVED, *names, *(other.name for other in leaves if other is not leaf)}
        while name in others:
            name = f"observation_{name}"
        names[name] = leaf.name
    return names


class ExportedPolicy(nn.Module):
    """The network with plain tensors as outputs: `[N, *observation_shape]` -> its `exported` outputs and an action `[N, ...]`.

    An actor-critic has the outputs policy `[N, P]` and values `[N]`.

    An observation with several leaves is a dictionary of them, `[N, S, *shape]` each. The action is the deterministic one, as
    the environment takes it. With a core it also takes the state `[N, K]` and returns the next one.

    leaves: name of an input -> the leaf that it takes; empty if observations are one tensor.
    """

    def __init__(self, network: FeatureNetwork) -> None:
        super().__init__()
        self.network = network
        self.leaves = leaf_names(network.config.leaves)
        self.scale = ToEnvironment(network.config.action) if isinstance(network.config.action, Box) else nn.Identity()

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the input tensors, in the order of `tensors_of`."""
        return (*(self.leaves or [INPUT]), *([STATE_IN] if self.network.state_size else []))

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs. The parameters are called `logits` if they are the logits of choices."""
        policy = POLICY if isinstance(self.network.config.action, Box) else LOGITS
        others = (policy if name == POLICY else name for name in self.network.exported)
        return (*others, ACTION, *([STATE_OUT] if self.network.state_size else []))

    def split(self, observations: Tensor) -> Observations:
        """N observations of the environment, packed or not, as `forward` takes them."""
        if not self.leaves:
            return observations
        leaves = self.network.leaves_of(observations)
        return {name: leaves[leaf] for name, leaf in self.leaves.items()}

    def forward(self, observations: Observations, state_in: Tensor | None = None) -> Outputs:
        if not isinstance(observations, Tensor):
            observations = {leaf: observations[name] for name, leaf in self.leaves.items()}
        output, _, state_out = self.network.infer(observations, state_in)
        others = (getattr(output, name) for name in self.network.exported)
        outputs = (*others, self.scale(self.network.best_actions(output)))
        return outputs if state_out is None else (*outputs, state_out)


def first_of(inputs: Inputs, count: int) -> Inputs:
    """The inputs for the first observations alone."""
    return tuple(
        {name: leaf[:count] for name, leaf in each.items()} if isinstance(each, Mapping) else each[:count] for each in inputs
    )


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """All tensors of the inputs, in the order of `ExportedPolicy.input_names`."""
    return [tensor for each in inputs for tensor in (each.values() if isinstance(each, Mapping) else (each,))]


class ToEnvironment(nn.Module):
    """`Box.to_environment` for tensors."""

    low: Tensor
    high: Tensor
    middle: Tensor
    half_width: Tensor

    def __init__(self, box: Box) -> None:
        super().__init__()
        bounded, low, high = (torch.tensor(values) for values in (box.bounded, box.low, box.high))
        # A component without two bounds gets the middle 0 and the half width 1, which leave it as it is.
        below, above = torch.where(bounded, low, -1.0), torch.where(bounded, high, 1.0)
        self.register_buffer("low", torch.where(bounded, -1.0, low))  # of actions as the policy draws them
        self.register_buffer("high", torch.where(bounded, 1.0, high))
        # Each is halved first, because the largest numbers have no sum or difference in float32.
        self.register_buffer("middle", below / 2 + above / 2)
        self.register_buffer("half_width", above / 2 - below / 2)

    def forward(self, actions: Tensor) -> Tensor:
        """Actions `[N, D]`, clipped to the bounds and rescaled from [-1, 1] between them."""
        return self.middle + self.half_width * actions.clamp(self.low, self.high)
