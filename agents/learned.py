"""The base class of all agents that learn: the passes, guarded optimiser steps, and saving and loading of its state.

A new agent is a subclass with `config_class`, `network_class` and `losses`; see docs/extending.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from agents.base import Agent, Updated
from agents.guard import Guard, largest
from agents.networks.base import FeatureNetwork
from agents.networks.statistics import ObservationMoments, RunningMoments
from agents.passes import NetworkPasses
from agents.rewards import RewardScale
from agents.schedules import linear_schedule
from replay.batch import Batch
from setting import Setting, check_fields

RMSPROP_DECAY = 0.99
NORM_EPSILON = 1e-6
"""Added to a gradient's norm before the division, as PyTorch does."""
NETWORK = "network"
"""Name of the acting network among an agent's modules, and of its optimiser."""
OPTIMIZER_STEPS = "optimizer_steps"
"""Name of the count of optimiser steps among an agent's numbers."""


LearningRate = Annotated[
    float,
    Setting("Learning rate at the start; it falls linearly over the run's fresh frames.", "a learning rate in [0, 10]", 0, 10),
]
LastLearningRate = Annotated[float, Setting("Learning rate at the end of the run.", "a learning rate in [0, 10]", 0, 10)]
OptimizerName = Annotated[Literal["adam", "rmsprop"], Setting("Optimiser of the network's weights.")]
RmspropEpsilon = Annotated[float, Setting("Epsilon of RMSProp, added outside the root.", "a number in (0, 10]", 1e-12, 10)]
GradientClip = Annotated[
    float, Setting("Global gradient norm above which gradients are scaled down.", "a gradient norm > 0", 1e-9, 1e9)
]


@dataclass(frozen=True)
class LearnedConfig:
    """Settings of every agent that learns by gradient descent; `losses` reads the others.

    adam_eps: epsilon of Adam. It is no setting; each agent has its own.
    """

    lr: LearningRate = 6e-4
    lr_end_value: LastLearningRate = 0.0
    optimizer: OptimizerName = "rmsprop"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-8
    gradient_clip_by_norm_threshold: GradientClip = 40.0
    normalise_rewards: Annotated[
        bool,
        Setting(
            "Divide rewards by the running standard deviation of their discounted sum and clip them at 10, for learning; "
            "reported returns stay raw. It takes the place of --clip_rewards."
        ),
    ] = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.normalise_rewards and getattr(self, "clip_rewards", False):
            raise ValueError(
                "normalise_rewards: wanted either it or clip_rewards, got both; drop one with --noclip_rewards or "
                "--nonormalise_rewards"
            )


class Loss(NamedTuple):
    """One term of the loss. value: a scalar with gradient.

    reduction: whether the value is a sum over the batch's steps or a mean. The gradient is that of weight * value in either
    case; metrics show the value per step.
    """

    value: Tensor
    weight: float
    reduction: Literal["sum", "mean"] = "sum"


class Losses(NamedTuple):
    """The terms of one update's loss by name, and further scalars for the metrics, without gradient."""

    terms: Mapping[str, Loss]
    metrics: Mapping[str, Tensor]


class Step(NamedTuple):
    """One guarded step of the optimiser.

    sound: bool `[]` on the device, whether it was taken. gradient_norm: `[]`, before clipping.
    """

    sound: Tensor
    gradient_norm: Tensor


class LearnedAgent(Agent):
    """One network, one optimiser, and by default one step an update, on `losses`.

    An agent that takes several steps an update sets `several_steps`, overrides `update`, and is made of the same parts:
    `finite_inputs`, `scaled`, `take_step`, `end_update` and `merge_moments`. See agents/ppo/agent.py.

    Args:
        config: a `LearnedConfig`, with the agent's own settings.
        network: learns in place.
        replay_names: the run's replays, in the order of `batch.source`; names of metrics.
        threads: how many share the network's passes on a CPU.
        compiled: whether these passes go through torch.compile.
    """

    config_class = LearnedConfig
    several_steps: ClassVar[bool] = False

    def __init__(
        self, config: Any, network: Any, replay_names: Sequence[str] = (), *, threads: int = 1, compiled: bool = False
    ) -> None:
        self.config = config
        self.network: FeatureNetwork = network
        self.replay_names = tuple(replay_names)
        self.passes = NetworkPasses(network, threads, compiled=compiled)
        self._parameters = list(self.network.parameters())
        self._weights: dict[float, Tensor] = {}
        self.optimizer = make_optimizer(config, network)
        device = next(network.parameters()).device
        self.guard = Guard(self.optimizer, device)
        normalises = network.config.settings.normalise_observations
        self.observation_moments = ObservationMoments(network) if normalises else None
        self.reward_scale = RewardScale(device) if config.normalise_rewards else None

    @abstractmethod
    def losses(self, batch: Any, outputs: Any) -> Losses:
        """The loss of one step.

        Args:
            batch: a `Batch` of B trajectories of T steps, without the rows of burn-in. An agent with an `update` of its own
                decides what it passes.
            outputs: what the network's heads return for all T+1 rows, each tensor `[T+1, B, ...]`.
        """

    def calibrate(self, observations: Tensor) -> None:
        super().calibrate(observations)
        if self.observation_moments:
            self.observation_moments.calibrate(observations)

    def update(self, batch: Batch, progress: float) -> Updated:
        inputs = self.finite_inputs(batch)
        leaves, outputs = self._forward(batch)
        learned = self.scaled(batch.without_overlap())
        terms, metrics = self.losses(learned, outputs)
        learning_rate = self.set_learning_rate(progress)
        step = self.take_step(terms, leaves, inputs)
        self.end_update()
        self.merge_moments(learned, step.sound)
        scalars = {**per_step(terms, learned.rewards.numel()), **self.gradient_metrics(step.gradient_norm), **metrics}
        return Updated(scalars, learning_rate)

    def finite_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """For each input that may hold non-finite numbers: a scalar that is finite if all of it is.

        Raw rewards are checked, because scaling would hide a non-finite one.
        """
        return {name: largest(tensor) for name, tensor in _float_inputs(batch, self.network).items()}

    def scaled(self, batch: Batch) -> Batch:
        """The batch with the rewards that are learned from. `merge_moments` must follow."""
        return self.reward_scale.scaled(batch) if self.reward_scale else batch

    def set_learning_rate(self, progress: float) -> float:
        """Set the learning rate of the update. progress: the part of the run's budget that is used, in [0, 1]."""
        learning_rate = linear_schedule(self.config.lr, self.config.lr_end_value, progress)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        return learning_rate

    def take_step(self, terms: Mapping[str, Loss], outputs: Any, inputs: Mapping[str, Tensor]) -> Step:
        """Take one optimiser step on the weighted sum of the terms if all numbers are finite. `end_update` must follow.

        Args:
            terms: of the loss, by name.
            outputs: those of `self.passes.forward` from which the terms were computed.
            inputs: further scalars that must be finite. Their order with the terms decides which one is reported.
        """
        weights = [self._weight(term.weight) for term in terms.values()]
        self.passes.backward([term.value for term in terms.values()], outputs, weights)
        gradient_norm = clip_gradients(self._parameters, self.config.gradient_clip_by_norm_threshold)
        values = {name: term.value for name, term in terms.items()}
        sound = self.guard.step({**inputs, **values, "gradient": gradient_norm}, self._step, ends_update=False)
        return Step(sound, gradient_norm)

    def _weight(self, weight: float) -> Tensor:
        """A weight as a scalar on the device, kept because making one takes as long as an operation of a small network."""
        if weight not in self._weights:
            self._weights[weight] = torch.full((), weight, device=self._parameters[0].device)
        return self._weights[weight]

    def end_update(self) -> None:
        """The steps since the last call make one update. It is skipped if each of them was refused."""
        self.guard.end_update()

    def merge_moments(self, learned: Batch, sound: Tensor) -> None:
        """Merge the batch into the running moments; nothing if `sound`, bool `[]` on the device, is false.

        It comes after all steps: the batch was acted with the statistics of before, so acting and learning see the same inputs.
        """
        if self.reward_scale:
            self.reward_scale.settle(sound)
        if self.observation_moments:
            self.observation_moments.merge(learned, sound)

    def gradient_metrics(self, norms: Tensor) -> dict[str, Tensor]:
        """Mean norm of the gradients before clipping, and the fraction that was clipped. norms: `[]`, or `[steps]`."""
        clipped = norms > self.config.gradient_clip_by_norm_threshold
        return {"losses/gradient_norm": norms.mean(), "losses/gradient_clipped": clipped.float().mean()}

    def _forward(self, batch: Batch) -> tuple[Any, Any]:
        """The network's outputs as leaves, and the same tensors by row, `[T+1, B, ...]`, without the rows of burn-in."""
        if batch.recurrent_state is not None:
            leaves = self.passes.forward(batch.observations, batch.recurrent_state, batch.reset, batch.overlap)
            return leaves, leaves
        leaves = self.passes.forward(batch.observations.flatten(0, 1))
        rows = batch.observations.shape[:2]
        return leaves, type(leaves)(*(leaf.unflatten(0, rows) for leaf in leaves))

    def _step(self) -> None:
        if isinstance(self.optimizer, torch.optim.RMSprop) and not self.optimizer.state:
            self._start_mean_squares()
        self.optimizer.step()

    def _start_mean_squares(self) -> None:
        """Start RMSProp's running mean of squared gradients at the first squared gradient instead of at zero.

        From zero the first step is 1/sqrt(1 - 0.99) = 10 times the learning rate in every weight, whatever the gradient. It was
        seen to leave a convolutional network with a constant value for good.
        """
        for parameter in self.network.parameters():
            assert parameter.grad is not None
            self.optimizer.state[parameter] = {"step": torch.zeros(()), "square_avg": parameter.grad.square()}

    def take_skip_reasons(self, *, everything: bool = False) -> list[str | None]:
        return self.guard.take_skip_reasons(everything=everything)

    def state_dict(self) -> dict[str, Any]:
        self.guard.settle()
        return {
            "modules": {NETWORK: self.network.state_dict()},
            "optimizers": {NETWORK: self.optimizer.state_dict()},
            "numbers": {name: moments.state_dict() for name, moments in self._moments().items()} | self.own_numbers(),
        }

    def own_numbers(self) -> dict[str, dict[str, Tensor]]:
        """Further numbers of the agent's state by name: of steps, if an update has several."""
        return {OPTIMIZER_STEPS: {"count": torch.tensor(self.guard.steps)}} if self.several_steps else {}

    def load_own_numbers(self, numbers: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load what `own_numbers` returned. A checkpoint of other settings may lack some."""
        if self.several_steps and OPTIMIZER_STEPS in numbers:
            self.guard.steps = int(numbers[OPTIMIZER_STEPS]["count"])

    def _moments(self) -> dict[str, RunningMoments]:
        """The running moments of observations and rewards, by their names in a checkpoint."""
        return {
            **({"observations": self.observation_moments} if self.observation_moments else {}),
            **({"rewards": self.reward_scale.moments} if self.reward_scale else {}),
        }

    def check_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        check_weights(self.network.state_dict(), state["modules"][NETWORK])
        for name, moments in self._moments().items():
            if name in state.get("numbers", {}):
                moments.check_state_dict(state["numbers"][name])
        for name, own in self.own_numbers().items():
            if name in state.get("numbers", {}):
                check_weights(own, state["numbers"][name])
        if load_optimizer:
            self._check_moments(state["optimizers"][NETWORK]["state"])

    def _check_moments(self, moments: dict[int, dict[str, Any]]) -> None:
        """There must be moments of every parameter or, before the first update, of none.

        The optimiser checks nothing itself.
        """
        names = {"rmsprop": {"step", "square_avg"}, "adam": {"step", "exp_avg", "exp_avg_sq"}}[self.config.optimizer]
        parameters = dict(enumerate(self.network.parameters()))
        if moments and moments.keys() != parameters.keys():
            raise ValueError(f"wanted moments of {len(parameters)} parameters, got {len(moments)}")
        for index, kept in moments.items():
            if kept.keys() != names:
                raise ValueError(f"wanted {', '.join(sorted(names))} of each parameter, got {', '.join(sorted(kept))}")
            for name, value in kept.items():
                shape = () if name == "step" else parameters[index].shape
                if not isinstance(value, Tensor) or value.shape != shape or value.dtype != torch.float32:
                    raise ValueError(f"wanted {name} as float32 {list(shape)} for parameter {index}, got another")

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Moments come from `state`, the optimiser's settings from the config."""
        self.guard.settle()
        self.network.load_state_dict(state["modules"][NETWORK])
        for name, running in self._moments().items():
            if name in state.get("numbers", {}):  # a run may begin to scale rewards when it is resumed
                running.load_state_dict(state["numbers"][name])
        self.load_own_numbers(state.get("numbers", {}))
        if load_optimizer:
            moments = state["optimizers"][NETWORK]["state"]
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
            self._lay_out_moments()

    def _lay_out_moments(self) -> None:
        """Give moments the memory layout of their weights on this device. Otherwise each step would loop over the tensors."""
        for parameter, moments in self.optimizer.state.items():
            for name, moment in moments.items():
                if moment.shape == parameter.shape and moment.stride() != parameter.stride():
                    moments[name] = torch.empty_like(parameter).copy_(moment)


def make_optimizer(config: LearnedConfig, network: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimiser that the config names. The learning rate is set at every update."""
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(network.parameters(), lr=0.0, alpha=RMSPROP_DECAY, eps=config.rmsprop_eps, foreach=True)
    if config.optimizer == "adam":
        fused = next(network.parameters()).device.type == "cpu"  # twice as fast there; PyTorch has it for Adam alone
        return torch.optim.Adam(network.parameters(), lr=0.0, eps=config.adam_eps, fused=fused, foreach=not fused)
    raise ValueError(f"optimizer: wanted rmsprop or adam, got {config.optimizer!r}")


@torch.no_grad()
def clip_gradients(parameters: Sequence[Tensor], largest_norm: float) -> Tensor:
    """Scale the gradients of all parameters down to a global norm of at most `largest_norm`. Returns the norm before, `[]`.

    The operations are those of `torch.nn.utils.clip_grad_norm_`, without its checks, which take longer than a small network's.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, torch.clamp(largest_norm / (norm + NORM_EPSILON), max=1.0))
    return norm


def per_step(terms: Mapping[str, Loss], steps: int) -> dict[str, Tensor]:
    """Each term as a mean over the batch's steps, without its weight, and the weighted total of these."""
    shown = {f"losses/{name}": term.value.detach() / (steps if term.reduction == "sum" else 1) for name, term in terms.items()}
    sums, means = (
        [term.weight * term.value.detach() for term in terms.values() if term.reduction == reduction]
        for reduction in ("sum", "mean")
    )
    totals = [*([torch.stack(sums).sum() / steps] if sums else []), *means]
    return {**shown, "losses/total_loss": torch.stack(totals).sum()}


def check_weights(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Compare names, shapes and dtypes. Raises ValueError that names the first tensor that differs, with both."""
    wanted, got = ({name: _described(tensor) for name, tensor in tensors.items()} for tensors in (own, state))
    for name in [*wanted, *got]:
        if wanted.get(name) != got.get(name):
            raise ValueError(f"wanted {name} as {wanted.get(name, 'absent')}, got {got.get(name, 'none')}")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _float_inputs(batch: Batch, network: FeatureNetwork) -> dict[str, Tensor]:
    """The parts of a batch that may hold non-finite numbers."""
    inputs = {"rewards": batch.rewards, **batch.acting}
    if batch.recurrent_state is not None:
        inputs["recurrent_state"] = batch.recurrent_state
    floats = {name: tensor for name, tensor in inputs.items() if tensor.is_floating_point()}
    return {**network.float_inputs(batch.observations.flatten(0, 1)), **floats}
