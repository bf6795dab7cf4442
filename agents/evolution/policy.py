"""A policy whose weights differ from environment to environment: each plays the episodes of one member of a population.

The weights theta of the network are the population's centre. A member is theta and a perturbation, which follows from the
generation and the member's number alone: `noise` draws the same numbers in every process. So only these two numbers travel with
a trajectory. Drawing them again costs 8 ns each, 14 ms for the 1.7 million weights of `nature`, so there is no table of noise
in shared memory as in the published program.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from agents.acting import Acting
from agents.compute import PRECISIONS
from agents.distributions import ILLEGAL_LOGIT, make_distribution
from agents.evolution.turns import CENTRE, Turns
from agents.networks.base import FeatureNetwork, NetworkConfig, NetworkOutput, SampledActions
from agents.networks.inputs import Observations
from replay.trajectory import Field
from wrappers.spaces import Box

GENERATION, MEMBER = "generation", "member"
"""Acting fields: the generation that an action's member belongs to, and its number from 1 on; 0 for the centre."""

_KEYS = 2**24
"""The key of the noise is a float32 buffer, which holds whole numbers below this one exactly."""
_POLICY_GAIN = 0.01


class PopulationOutput(NamedTuple):
    """policy: float32 `[N, P]`, logits of choices, or the actions `[N, D]`."""

    policy: Tensor


class _Thinking(nn.Module):
    """The inference of one environment as the forward pass of a module, which `functional_call` needs."""

    def __init__(self, network: FeatureNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parts of the output that are there. All tensors are without an axis for environments.

        given: inputs of the torso, and the mask and the recurrent state where there are any.
        """
        inputs = [each.unsqueeze(0) for each in given["inputs"]]  # `vmap` takes the axis of environments away; layers want one
        mask, state = (given[name].unsqueeze(0) if name in given else None for name in ("mask", "state"))
        inferred = self.network.infer_from(self.network.features_of_inputs(inputs), mask, state)
        found = {"policy": inferred.output.policy, "features": inferred.features, "state": inferred.state}
        return {name: tensor.squeeze(0) for name, tensor in found.items() if tensor is not None}


class PopulationPolicy(FeatureNetwork):
    """A deterministic policy for any action space, and the weights of the members that its environments play.

    In training its noise is in the weights alone, so choices are those of the largest logit.

    Attributes:
        generation: float32 `[]`, the number of the generation, from 1 on. It travels with the weights.
        key: float32 `[]`, a random whole number of the run, from which all noise is drawn.
    """

    noise_size = 3
    exported: ClassVar[tuple[str, ...]] = ("policy",)

    generation: Tensor
    key: Tensor
    bounded: Tensor

    def make_heads(self) -> None:
        action = self.config.action
        if isinstance(action, Box):
            self.register_buffer("bounded", torch.from_numpy(np.asarray(action.bounded, np.float32)))
            count = len(action.low)
        else:
            self.distribution = make_distribution(action)
            count = self.distribution.parameter_count
        self.policy_head = nn.Linear(self.head_feature_count, count)
        self.register_buffer("generation", torch.ones(()))
        self.register_buffer("key", torch.zeros(()))
        self.weight_count = sum(weights.numel() for weights in self.parameters())
        self.bytes_per_environment = 4 * self.weight_count
        self._thinking = (_Thinking(self),)  # in a tuple, or the network would be a module of itself
        self._members: dict[str, Tensor] = {}
        self._playing: list[tuple[int, int]] = []
        self._asked: list[int] | None = None

    def heads(self, features: Tensor, mask: Tensor | None = None) -> PopulationOutput:
        policy = self.policy_head(features)
        if self.distribution is None:
            return PopulationOutput(torch.where(self.bounded > 0, policy.tanh(), policy))  # [N, D]
        return PopulationOutput(policy if mask is None else policy.masked_fill(mask == 0, ILLEGAL_LOGIT))

    def head_gain(self, layer: nn.Module) -> float | None:
        """With a small gain the first members differ by their noise more than by the weights that they share."""
        return _POLICY_GAIN if layer is self.policy_head else None

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> None:
        super().initialise(generator)
        self.key.copy_(torch.randint(_KEYS, (), generator=generator))  # saved with the weights, so a resumed run draws the same

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        return Acting({GENERATION: Field((), "float32"), MEMBER: Field((), "float32")})

    def best_actions(self, output: PopulationOutput) -> Tensor:
        if self.distribution is None:
            return output.policy
        return self.distribution.action(self.distribution.mode(output.policy))

    @abstractmethod
    def perturbation(self, member: int) -> Tensor:
        """The difference of a member's weights from theta, `[weight_count]` in the order of `parameters()`.

        member: its number, from 1 on.
        """

    @property
    def population(self) -> int:
        """Members of a generation."""
        return int(self.config.agent.population)

    def noise(self, number: int) -> Tensor:
        """Independent normals `[weight_count]`, the `number`-th of this generation, on the device of the weights."""
        # A seed of its own for each (run, generation, number), so members can be drawn in any order, in any process.
        entropy = [int(self.key), int(self.generation), number]
        generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))
        drawn = generator.standard_normal(self.weight_count, np.float32)
        return torch.from_numpy(drawn).to(self.key.device)

    def parts_of(self, flat: Tensor) -> list[Tensor]:
        """`[weight_count]` in the shapes of `parameters()`."""
        own = list(self.parameters())
        parts = flat.split([weights.numel() for weights in own])  # views
        return [part.view(weights.shape) for part, weights in zip(parts, own, strict=True)]

    def exploration(self, environments: Tensor, total: int) -> Tensor | None:
        """The number of each environment, and its state: the generation, the member, and how many episodes it began there.

        It also makes room for the weights of as many members as there are environments.
        """
        count = len(environments)
        self._turns = Turns(environments.tolist(), total, self.population)
        # Each weight has an axis for environments, which `vmap` runs over.
        self._members = {name: weights.detach().new_empty((count, *weights.shape)) for name, weights in self.named_parameters()}
        self._playing = [(0, 0)] * count
        numbers = environments.float().unsqueeze(-1)  # [N, 1]
        return torch.cat([numbers, numbers.new_zeros(count, self.noise_size)], -1)  # [N, 4]

    def begun(self, exploration: Tensor, first: Tensor) -> Tensor:
        """Give the next member to every environment whose episode begins."""
        turns, now, found = self._turns, int(self.generation), exploration.tolist()
        if turns.generation != now:  # also for environments that do not ask now
            turns.enter(now)
        rows = [turns.rows[int(number)] for number, *_ in found]
        for row, (_, generation, member, count) in zip(rows, found, strict=True):
            turns.members[row], turns.begun[row] = (int(member), int(count)) if generation == now else (CENTRE, 0)
        for asked in first.nonzero().flatten().tolist():
            member = turns.begin(rows[asked])
            found[asked][1:] = [now, member, turns.begun[rows[asked]]]
        return exploration.new_tensor(found)

    def draw_noise(self, generator: torch.Generator | None = None, exploration: Tensor | None = None) -> None:
        """Make the weights of the environments that begin another member."""
        if exploration is None:
            return
        now, asked = int(self.generation), []
        for number, generation, member, _ in exploration.long().tolist():
            row = self._turns.rows[number]
            # An episode that began with older weights no longer counts, so any weights will do. These are the same after a
            # resume, which knows the new ones alone.
            plays = (now, member if generation == now else CENTRE)
            if self._playing[row] != plays:
                self._make_member(row, plays[1])
                self._playing[row] = plays
            asked.append(row)
        self._asked = None if asked == list(range(len(self._playing))) else asked

    @torch.no_grad()
    def _make_member(self, row: int, member: int) -> None:
        parts = self.parts_of(self.perturbation(member)) if member else None
        for index, (name, weights) in enumerate(self.named_parameters()):
            self._members[name][row] = weights if parts is None else weights + parts[index]  # theta, or theta + perturbation

    def infer(self, observations: Observations, state: Tensor | None = None) -> NetworkOutput:
        """As every network; in training each environment's observation goes through the weights of its own member."""
        if not self._playing:  # no training: evaluations and exports use theta itself
            return super().infer(observations, state)
        present = {"mask": self.mask_of(observations), "state": state}
        given: dict[str, Any] = {"inputs": self.inputs_of(observations, PRECISIONS[self.config.precision])}
        given |= {name: tensor for name, tensor in present.items() if tensor is not None}
        chosen = self._members
        if self._asked is not None:
            chosen = {name: weights[self._asked] for name, weights in chosen.items()}  # [asked, *shape] each
        found = vmap(self._think_of_one)({f"network.{name}": weights for name, weights in chosen.items()}, given)
        return NetworkOutput(PopulationOutput(found["policy"]), found["features"], found.get("state"))

    def _think_of_one(self, weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = functional_call(self._thinking[0], dict(weights), (given,))
        return found

    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        actions = self.best_actions(inferred.output)
        if exploration is None:
            zeros = torch.zeros(len(actions), device=actions.device)  # the centre acts
            return SampledActions(actions, {GENERATION: zeros, MEMBER: zeros})
        return SampledActions(actions, {GENERATION: exploration[:, 1], MEMBER: exploration[:, 2]}, exploration)
