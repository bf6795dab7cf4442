"""The network of value-based agents: a Q-value for each action, with dueling, distributional or noisy heads.

With several choices at once (MultiDiscrete) each component has values of its own, and the value of an action is the mean over
its components (branching, Tavakoli et al. 2018, arXiv:1711.08946). Dueling heads share the value of the state among them.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from agents.acting import Acting
from agents.networks.base import FeatureNetwork, NetworkConfig, NetworkOutput, SampledActions
from agents.networks.exploration import LADDER, epsilon_ladder, legal_choices, repeated, with_probability, zeta_cumulative
from agents.networks.inputs import Observations
from agents.networks.noisy import NoisyLinear, draw_noise
from agents.networks.torsos import ACTIVATIONS, normalised
from agents.values.categorical import expectation, support
from agents.values.dueling import dueling
from agents.values.hl_gauss import bin_centres, bin_edges
from agents.values.implicit import COSINES, cosines
from agents.values.quantiles import midpoints
from replay.trajectory import Field
from wrappers.spaces import ActionSpace, Discrete

BEHAVIOUR_Q, BEHAVIOUR_Q_MAX = "behaviour_q", "behaviour_q_max"
"""Fields of the values, by the network that acted, of the action taken and of the best one."""

Q_VALUES = "q"
"""Name of the values among the heads' outputs."""
ILLEGAL_VALUE = -1e9
"""Value of an illegal action. It is finite, so that no product with it is NaN."""
_HEAD_GAIN = 0.1
NO_DISTRIBUTION, C51, QUANTILES, IMPLICIT, HL_GAUSS = "none", "c51", "qr", "iqn", "hl_gauss"
"""Values of the setting `return_distribution`."""


class ReturnDistribution(NamedTuple):
    """How the heads represent the return of an action: by its expectation or by a distribution.

    kind: a value of the setting `return_distribution`. size: numbers K for each action: atoms, bins, quantiles or, with
    IMPLICIT, the fractions with which the network acts. lowest, highest: values of C51's first and last atom, or the ends of
    HL_GAUSS's bins.
    """

    kind: str
    size: int = 1
    lowest: float = 0.0
    highest: float = 0.0


EXPECTATION = ReturnDistribution(NO_DISTRIBUTION)


class HeadSettings(Protocol):
    """The settings of the agent that its heads depend on."""

    dueling: bool
    noisy: bool
    exploration: str
    epsilon_start: float

    @property
    def distribution(self) -> ReturnDistribution:
        """How the heads represent the return of an action."""


class QOutput(NamedTuple):
    """q: float32 `[N, P]`, the Q-value of each choice of each component, joined; `ILLEGAL_VALUE` for an illegal choice."""

    q: Tensor


class DistributionalOutput(NamedTuple):
    """q: as in `QOutput`. atoms: float32 `[N, P, K]`, logits of the atoms or bins (C51, HL-Gauss) or quantiles (QR-DQN)."""

    q: Tensor
    atoms: Tensor


class ImplicitOutput(NamedTuple):
    """q: as in `QOutput`. atoms: float32 `[N, P, K]`, quantiles at the fractions, float32 `[N, K]` (IQN)."""

    q: Tensor
    atoms: Tensor
    fractions: Tensor


Output = QOutput | DistributionalOutput | ImplicitOutput


class QNetwork(FeatureNetwork):
    """Q-values on the features. The agent's settings in `config.agent` decide on the heads.

    counts: values of each component; P is their sum. epsilon: float32 `[]`, the probability of a random action in a schedule.
    support: float32 `[K]`, the values of atoms or bins (C51, HL-Gauss). edges: float32 `[K+1]`, of the bins. fractions: float32
    `[K]`, with which it acts (IQN): midpoints until `draw_noise` draws some, as evaluations and exported policies never do.
    repeats: of `zeta_cumulative`, from which the steps of a random action are drawn (`--epsilon_zeta`).
    """

    explores_by_epsilon = True
    exported: ClassVar[tuple[str, ...]] = (Q_VALUES,)
    epsilon: Tensor

    def make_heads(self) -> None:
        settings = self.settings
        self.counts = choice_counts(self.config.action)
        self.kind, size, lowest, highest = settings.distribution
        self.atom_count = 1 if self.kind == IMPLICIT else size  # IQN's heads are evaluated once for each fraction
        self.action_head = self._make_head(sum(self.counts) * self.atom_count)
        self.state_head = self._make_head(self.atom_count) if settings.dueling else None
        only_noise = settings.noisy and not getattr(settings, "noisy_epsilon", False)
        self.register_buffer("epsilon", torch.full((), 0.0 if only_noise else float(settings.epsilon_start)))
        if zeta := getattr(settings, "epsilon_zeta", 0.0):
            self.noise_size = 1 + len(self.counts)  # the steps left of a repeat, and its choice of each component
            self.register_buffer("repeats", zeta_cumulative(zeta), persistent=False)
        if self.kind == C51:
            self.register_buffer("support", support(lowest, highest, size), persistent=False)
        elif self.kind == HL_GAUSS:
            self.register_buffer("edges", bin_edges(lowest, highest, size), persistent=False)
            self.register_buffer("support", bin_centres(self.get_buffer("edges")), persistent=False)
        elif self.kind == IMPLICIT:
            self.fraction_head = nn.Linear(COSINES, self.head_feature_count)  # w and b of phi
            # Also for shapes without values: on the meta device PyTorch loads its compiler, for a second, to count.
            self.register_buffer("fractions", midpoints(size, torch.empty((), device="cpu")), persistent=False)

    def _make_head(self, outputs: int) -> nn.Module:
        """A linear layer or, with `--head_units`, two with an activation function between them."""
        layer, units = (NoisyLinear if self.settings.noisy else nn.Linear), getattr(self.settings, "head_units", 0)
        if not units:
            return layer(self.head_feature_count, outputs)
        hidden = normalised(layer(self.head_feature_count, units), (units,), self.config.settings)
        return nn.Sequential(*hidden, ACTIVATIONS[self.config.settings.activation](), layer(units, outputs))

    @property
    def settings(self) -> HeadSettings:
        """The agent's settings."""
        settings: HeadSettings = self.config.agent
        return settings

    def forward(
        self,
        observations: Observations,
        state: Tensor | None = None,
        reset: Tensor | None = None,
        burn_in: int = 0,
        fractions: Tensor | None = None,
    ) -> Any:
        """Outputs of the heads, as `FeatureNetwork.forward` returns them; with fractions `[N, K]` IQN's quantiles at these."""
        if fractions is None:
            return super().forward(observations, state, reset, burn_in)
        return self.heads(self.features(observations), self.mask_of(observations), fractions)

    def heads(self, features: Tensor, mask: Tensor | None = None, fractions: Tensor | None = None) -> Output:
        """The values of float32 features `[N, feature_count]`.

        Args:
            features: of N observations.
            mask: `[N, mask_size]`, 0 for an illegal action.
            fractions: `[N, K]`, of IQN; None for those with which the network acts.
        """
        if self.kind == IMPLICIT:
            fractions = self.get_buffer("fractions").expand(features.shape[0], -1) if fractions is None else fractions
            # phi [N, K, F]; one set of features for each fraction
            embedded = torch.relu(self.fraction_head(cosines(fractions)))
            atoms = self._atoms((features.unsqueeze(1) * embedded).flatten(0, 1))  # [N * K, P, 1]
            atoms = atoms.view(features.shape[0], fractions.shape[-1], -1).transpose(1, 2)  # [N, P, K]
        else:
            atoms = self._atoms(features)  # [N, P, K]
        q = self._values(atoms)  # [N, P]
        if mask is not None:
            q = q.masked_fill(mask == 0, ILLEGAL_VALUE)  # behind the dueling mean, which such a value would ruin
        if fractions is not None:
            return ImplicitOutput(q, atoms, fractions)
        return DistributionalOutput(q, atoms) if self.kind != NO_DISTRIBUTION else QOutput(q)

    def _atoms(self, features: Tensor) -> Tensor:
        """The heads' outputs `[N, P, K]` of features `[N, F]`."""
        atoms: Tensor = self.action_head(features).unflatten(-1, (-1, self.atom_count))  # [N, P, K]
        if self.state_head is None:
            return atoms
        values = self.state_head(features)  # [N, K]
        # The components of one action share the state's value and have advantages of their own.
        return torch.cat([dueling(values, part) for part in atoms.split(list(self.counts), 1)], 1)

    def _values(self, atoms: Tensor) -> Tensor:
        """Q-values `[N, P]` of the heads' outputs `[N, P, K]`."""
        if self.kind in (C51, HL_GAUSS):
            return expectation(atoms, self.get_buffer("support"))  # sum_i z_i p_i
        if self.kind == IMPLICIT:  # fractions before the last ones are those of targets, which select no action
            atoms = atoms[..., -len(self.get_buffer("fractions")) :]
        return atoms.squeeze(-1) if self.kind == NO_DISTRIBUTION else atoms.mean(-1)  # mean_i theta_i

    def head_gain(self, layer: nn.Module) -> float | None:
        """A small gain: the first values are near 0."""
        last = [head[-1] if isinstance(head, nn.Sequential) else head for head in (self.action_head, self.state_head)]
        return _HEAD_GAIN if any(layer is each for each in last) else None

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> None:
        super().initialise(generator)
        for layer in self.noisy_layers:
            layer.initialise(generator)

    @property
    def noisy_layers(self) -> list[NoisyLinear]:
        heads = (self.action_head, self.state_head) if self.settings.noisy else ()
        return [layer for head in heads if head for layer in head.modules() if isinstance(layer, NoisyLinear)]

    def draw_noise(self, generator: torch.Generator | None = None, exploration: Tensor | None = None) -> None:
        draw_noise(self.noisy_layers, generator)
        if self.kind == IMPLICIT:
            fractions = self.get_buffer("fractions")
            device = generator.device if generator else fractions.device
            fractions.copy_(torch.rand(fractions.shape, generator=generator, device=device), non_blocking=True)

    @classmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        return Acting({BEHAVIOUR_Q: Field((), "float32"), BEHAVIOUR_Q_MAX: Field((), "float32")})

    def best_actions(self, output: Output) -> Tensor:
        return self._as_actions(best_choices(output.q, self.counts))

    def _as_actions(self, choices: Tensor) -> Tensor:
        """Choices `[N, D]` as the environment takes them."""
        return choices.squeeze(-1) if isinstance(self.config.action, Discrete) else choices

    def exploration(self, environments: Tensor, total: int) -> Tensor | None:
        """The epsilon of each environment with Ape-X's ladder, `[N, 1]`, and the state of a repeat with `--epsilon_zeta`."""
        parts = [epsilon_ladder(environments, total).unsqueeze(-1)] if self.settings.exploration == LADDER else []
        if self.noise_size:
            parts.append(torch.zeros(len(environments), self.noise_size, device=environments.device))
        return torch.cat(parts, -1) if parts else None

    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        q: Tensor = inferred.output.q  # [N, P]
        best = best_choices(q, self.counts)  # [N, D]
        taken, kept = best, None
        if not greedy:
            explored = legal_choices(q != ILLEGAL_VALUE, self.counts, generator)  # [N, D]
            # An evaluation explores with an epsilon [N, 1] alone, so its random actions are of one step.
            if exploration is not None and exploration.shape[-1] > 1:
                taken, kept = self._repeated(q, explored, best, exploration, generator)
            else:
                epsilon = self.epsilon if exploration is None else exploration[:, 0]  # [] of a schedule, [N] of a ladder
                taken = with_probability(epsilon, explored, best, generator)
        # With both values stored, a replay can tell a new trajectory's priority without a pass of the network.
        fields = {
            BEHAVIOUR_Q: chosen_values(q, taken, self.counts).mean(-1),
            BEHAVIOUR_Q_MAX: chosen_values(q, best, self.counts).mean(-1),
        }
        return SampledActions(self._as_actions(taken), fields, kept)

    def _repeated(
        self, q: Tensor, explored: Tensor, best: Tensor, exploration: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Choices `[N, D]` with random ones that last (`--epsilon_zeta`), and the exploration of the next ones."""
        constants, state = exploration.tensor_split([exploration.shape[-1] - self.noise_size], -1)
        epsilon = constants[:, 0] if constants.shape[-1] else self.epsilon  # [N] of a ladder, [] of a schedule
        legal = (chosen_values(q, state[:, 1:].long(), self.counts) != ILLEGAL_VALUE).all(-1)  # [N]
        taken, state = repeated(state, legal, epsilon, explored, best, self.get_buffer("repeats"), generator)
        return taken, torch.cat([constants, state], -1)


def choice_counts(action: ActionSpace) -> tuple[int, ...]:
    """The number of values of each component of an action. Raises ValueError for actions that are no choices."""
    if action.mask_counts:
        return action.mask_counts
    raise ValueError(f"agent: wanted choices among actions, which have a value each, got {action.summary()}")


def best_choices(q: Tensor, counts: tuple[int, ...]) -> Tensor:
    """The best value of each component, the first of equal ones, int64 `[..., D]`. q: `[..., P]`."""
    return torch.stack([part.argmax(-1) for part in q.split(list(counts), -1)], -1)


def chosen_values(q: Tensor, choices: Tensor, counts: tuple[int, ...]) -> Tensor:
    """The value of each component's choice, `[..., D]`. q: `[..., P]`. choices: int64 `[..., D]`."""
    if len(counts) == 1:
        return q.gather(-1, choices)
    # One gather for each component: a table of offsets would have to be copied to the device in each call.
    parts = zip(q.split(list(counts), -1), choices.split(1, -1), strict=True)
    return torch.cat([values.gather(-1, chosen) for values, chosen in parts], -1)


def as_choices(actions: Tensor, action: ActionSpace) -> Tensor:
    """Actions of a batch, `[...]` or `[..., D]`, as choices `[..., D]`."""
    return actions.unsqueeze(-1) if isinstance(action, Discrete) else actions
