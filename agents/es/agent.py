"""Evolution strategies (Salimans et al. 2017, arXiv:1703.03864): gradient ascent on the mean return of perturbed weights.

Each pair of members plays theta + sigma eps and theta - sigma eps, one episode each. The gradient g is `evolution_gradient` of
the centred ranks of all returns, and Adam ascends

    g - decay theta
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from agents.engine.guard import give_gradients
from agents.engine.stepper import Stepper
from agents.evolution.agent import Population, PopulationAgent
from agents.evolution.policy import PopulationPolicy
from agents.evolution.search import centred_ranks, evolution_gradient
from agents.settings import AgentConfig, HeldLearningRate, LearningRate, OptimizerName, RmspropEpsilon
from setting import Log, Setting


@dataclass(frozen=True)
class ESConfig(AgentConfig):
    """Settings of evolution strategies, by default those of OpenAI's program; its population is 10,000."""

    epsilon: ClassVar[float] = 0.0  # evaluations take the best action

    population: Population = 100
    lr: LearningRate = 0.01
    lr_end_value: HeldLearningRate = -1.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 1e-5
    adam_eps: float = 1e-8
    noise_std: Annotated[
        float,
        Setting("Standard deviation sigma of the members' weights.", "a number in (0, 10]", 1e-6, 10, search=Log(1e-3, 0.3)),
    ] = 0.02
    weight_decay: Annotated[
        float, Setting("Part of each weight that is taken off the gradient.", "a number in [0, 1]", 0, 1)
    ] = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.population % 2:
            raise ValueError(f"population: wanted an even number with agent es, whose members are pairs, got {self.population}")

    @property
    def decoupled_decay(self) -> float:
        """None: the agent has its weight decay in the gradient, as OpenAI's program does."""
        return 0.0


class MirroredPolicy(PopulationPolicy):
    """Members in pairs. Member 2i-1 has the i-th noise added, and member 2i has it taken off."""

    def perturbation(self, member: int) -> Tensor:
        pair, taken_off = divmod(member - 1, 2)
        std: float = self.config.agent.noise_std
        # Mirrored: the difference of a pair's returns has less variance than two independent returns.
        return self.noise(pair) * (-std if taken_off else std)


class ESAgent(PopulationAgent):
    """Evolution strategies."""

    config_class = ESConfig
    network_class = MirroredPolicy
    tuned = ("lr", "noise_std")

    config: ESConfig
    network: MirroredPolicy

    @torch.no_grad()
    def improve(self, step: Stepper) -> dict[str, Tensor]:
        weights = centred_ranks(self.returns.view(-1, 2))  # [n, 2]: pair i has theta + sigma eps_i, theta - sigma eps_i
        noise = (self.network.noise(pair) for pair in range(len(weights)))  # a generator: one eps at a time
        gradient = evolution_gradient(weights, noise, self.config.noise_std)  # g [dim]
        own = list(self.network.parameters())
        # The optimiser descends.
        parts = self.network.parts_of(-gradient)
        # -(g - decay theta)
        give_gradients(own, [part + self.config.weight_decay * theta for part, theta in zip(parts, own, strict=True)])
        step.step_optimizer()  # unguarded: this runs inside a guarded step already
        return {"losses/gradient_norm": torch.linalg.vector_norm(gradient)}
