"""The common ground of all agents that learn by gradient descent: modules, guarded steps, statistics, saving and loading."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from agents.base import Agent
from agents.compute import flushed_denormals
from agents.guard import Guard, largest
from agents.networks.base import FeatureNetwork
from agents.networks.statistics import ObservationMoments, RunningMoments
from agents.optimizers import (
    check_moments,
    check_weights,
    lay_out_moments,
    make_optimizer,
    optimizer_state,
    set_learning_rate,
    start_mean_squares,
)
from agents.passes import NetworkPasses
from agents.peers import Peers
from agents.rewards import RewardScale
from agents.schedules import linear_schedule
from agents.target_network import TargetNetwork
from replay.batch import Batch
from setting import Setting, check_fields

NETWORK = "network"
"""Name of the acting network among an agent's modules, and of its optimiser."""
OPTIMIZER_STEPS = "optimizer_steps"
"""Name of the count of optimiser steps among an agent's numbers."""


LearningRate = Annotated[
    float,
    Setting("Learning rate at the start; it moves linearly to lr_end_value.", "a learning rate in [0, 10]", 0, 10),
]
LastLearningRate = Annotated[float, Setting("Learning rate at the end of the run.", "a learning rate in [0, 10]", 0, 10)]
HeldLearningRate = Annotated[
    float,
    Setting("Learning rate at the end of the run; -1: as at the start.", "-1 or a learning rate in [0, 10]", -1, 10),
]
OptimizerName = Annotated[Literal["adam", "rmsprop"], Setting("Optimiser of the network's weights.")]
RmspropEpsilon = Annotated[float, Setting("Epsilon of RMSProp, added outside the root.", "a number in (0, 10]", 1e-12, 10)]
GradientClip = Annotated[
    float, Setting("Global gradient norm above which gradients are scaled down.", "a gradient norm > 0", 1e-9, 1e9)
]


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of an optimiser and its learning rate.

    adam_eps: epsilon of Adam. Value-based agents declare it as a setting (`ValueConfig`); for the others it is a constant.
    """

    lr: LearningRate = 6e-4
    lr_end_value: LastLearningRate = 0.0
    optimizer: OptimizerName = "rmsprop"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-8

    def __post_init__(self) -> None:
        check_fields(self)
        if -1 < self.lr_end_value < 0:
            raise ValueError(f"lr_end_value: wanted -1 or a learning rate in [0, 10], got {self.lr_end_value:g}")

    @property
    def last_learning_rate(self) -> float:
        """The learning rate at the end of the run."""
        return self.lr if self.lr_end_value < 0 else self.lr_end_value


@dataclass(frozen=True)
class LearnedConfig(OptimizerConfig):
    """Settings of every agent that learns from rewards by gradient descent."""

    gradient_clip_by_norm_threshold: GradientClip = 40.0
    normalise_rewards: Annotated[
        bool,
        Setting(
            "Divide rewards by the running standard deviation of their discounted sum and clip them at 10, for learning; "
            "reported returns stay raw. It takes the place of --clip_rewards."
        ),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalise_rewards and getattr(self, "clip_rewards", False):
            raise ValueError(
                "normalise_rewards: wanted either it or clip_rewards, got both; drop one with --noclip_rewards or "
                "--nonormalise_rewards"
            )


class Step(NamedTuple):
    """One guarded step of the optimiser.

    sound: bool `[]` on the device, whether it was taken. gradient_norm: `[]`, before clipping.
    """

    sound: Tensor
    gradient_norm: Tensor


class GuardedAgent(Agent):
    """Modules that learn, one optimiser with a group of parameters for each, and steps that no non-finite number gets through.

    `SteppingAgent` adds the update.

    Args:
        config: a `LearnedConfig`, with the agent's own settings.
        network: acts, and learns in place.
        replay_names: the run's replays, in the order of `batch.source`; names of metrics.
        threads: how many share the network's passes on a CPU.
        compiled: whether these passes go through torch.compile.
        idle_cores: whether the workers wait while the learner computes, so that the threads may share the operations of a
            small pass.
        cuda_graphs: whether steps on a GPU are launched as CUDA graphs, if the agent allows it.
    """

    config_class: ClassVar[type] = LearnedConfig
    several_steps: ClassVar[bool] = False
    steps_some: ClassVar[bool] = False
    """Whether a step may leave out some of the parameters."""

    def __init__(
        self,
        config: Any,
        network: Any,
        replay_names: Sequence[str] = (),
        *,
        threads: int = 1,
        compiled: bool = False,
        idle_cores: bool = False,
        cuda_graphs: bool = False,
    ) -> None:
        self.config = config
        self.network: FeatureNetwork = network
        self.replay_names = tuple(replay_names)
        self.modules = {NETWORK: network, **self.make_modules()}
        passed = self.passed_network()
        others = [module for name, module in self.modules.items() if name != NETWORK]
        further = [parameter for module in others for parameter in module.parameters()]
        self.passes = NetworkPasses(passed, threads, compiled=compiled, idle_cores=idle_cores, further=further)
        self._parameters = [*passed.parameters(), *further]
        device = next(network.parameters()).device
        self.uses_graphs = cuda_graphs and device.type == "cuda" and self.can_be_graphed
        self.optimizer = make_optimizer(config, self.modules.values(), graphed=self.uses_graphs)
        self.guard = Guard(self.optimizer, device, [tensor for each in self.followers.values() for tensor in each.tensors])
        normalises = network.config.settings.normalise_observations
        self.observation_moments = ObservationMoments(network) if normalises else None
        self.reward_scale = RewardScale(device) if config.normalise_rewards else None
        self.peers = Peers()

    @property
    def can_be_graphed(self) -> bool:
        """Whether steps can be launched as CUDA graphs. `__init__` reads it after `make_modules`."""
        return False

    def join(self, peers: Peers) -> None:
        self.peers = peers
        for moments in self._moments().values():
            moments.peers = peers

    def passed_network(self) -> torch.nn.Module:
        """The part of the network that the passes of an update go through and the optimiser steps: by default all of it."""
        return self.network

    def make_modules(self) -> dict[str, torch.nn.Module]:
        """Further modules that learn, by name, on the network's device. They are saved, and the optimiser steps them too.

        `__init__` calls it early: only `config`, `network` and `replay_names` are set.
        """
        return {}

    @property
    def followers(self) -> Mapping[str, TargetNetwork]:
        """Target networks by the names of their modules. They are saved, and move after each step that is taken.

        `__init__` reads it after `make_modules`, which may make them.
        """
        return {}

    def after_step(self) -> None:
        """Move everything that follows the learned weights: by default the target networks.

        A refused step must change none of it. On a CPU such a step does not call this function. On a GPU it does, and the guard
        restores the tensors of `followers` alone.
        """
        for target in self.followers.values():
            target.move()

    def calibrate(self, observations: Tensor) -> None:
        super().calibrate(observations)
        if self.observation_moments:
            self.observation_moments.calibrate(observations)
        for target in self.followers.values():
            target.reset()

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
        # Every update sets it anew, so a resumed run and a changed budget need nothing else.
        learning_rate = linear_schedule(self.config.lr, self.config.last_learning_rate, progress)
        set_learning_rate(self.optimizer, learning_rate)
        return learning_rate

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

    def gradient_metrics(self, norms: Tensor, clipped: Tensor | None = None) -> dict[str, Tensor]:
        """Mean norm of the gradients before clipping, and the fraction of the steps in which it was clipped.

        norms: `[]`, or `[steps]`. clipped: bool of the same shape; by default where the norm is above the limit.
        """
        if clipped is None:
            clipped = norms > (self.config.gradient_clip_by_norm_threshold or math.inf)
        return {"losses/gradient_norm": norms.mean(), "losses/gradient_clipped": clipped.float().mean()}

    def _step(self) -> None:
        if isinstance(self.optimizer, torch.optim.RMSprop) and len(self.optimizer.state) < len(self._parameters):
            start_mean_squares(self.optimizer)
        with flushed_denormals():
            self.optimizer.step()
        self.after_step()

    def take_skip_reasons(self, *, everything: bool = False) -> list[str | None]:
        return self.guard.take_skip_reasons(everything=everything)

    def state_dict(self) -> dict[str, Any]:
        self.guard.settle()
        return {
            "modules": {name: module.state_dict() for name, module in self._saved_modules().items()},
            "optimizers": {NETWORK: optimizer_state(self.optimizer)},
            "numbers": {name: moments.state_dict() for name, moments in self._moments().items()} | self.own_numbers(),
        }

    def _saved_modules(self) -> dict[str, torch.nn.Module]:
        return {**self.modules, **{name: target.network for name, target in self.followers.items()}}

    def own_numbers(self) -> dict[str, dict[str, Tensor]]:
        """Further numbers of the agent's state by name: the ages of target networks, and a count of steps if an update has
        several."""
        steps = {OPTIMIZER_STEPS: {"count": torch.tensor(self.guard.steps)}} if self.several_steps else {}
        return {**steps, **{name: {"age": target.age} for name, target in self.followers.items()}}

    def load_own_numbers(self, numbers: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load what `own_numbers` returned. A checkpoint of other settings may lack some."""
        if self.several_steps and OPTIMIZER_STEPS in numbers:
            self.guard.steps = int(numbers[OPTIMIZER_STEPS]["count"])
        for name, target in self.followers.items():
            if name in numbers:
                target.age.copy_(numbers[name]["age"])

    def _moments(self) -> dict[str, RunningMoments]:
        """The running moments of observations and rewards, by their names in a checkpoint."""
        return {
            **({"observations": self.observation_moments} if self.observation_moments else {}),
            **({"rewards": self.reward_scale.moments} if self.reward_scale else {}),
        }

    def check_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        for name, module in self._saved_modules().items():
            if name not in state["modules"]:
                raise ValueError(
                    f"wanted the weights of {' and '.join(self.modules)}, got those of {' and '.join(state['modules'])}"
                )
            check_weights(module.state_dict(), state["modules"][name])
        for name, moments in self._moments().items():
            if name in state.get("numbers", {}):
                moments.check_state_dict(state["numbers"][name])
        for name, own in self.own_numbers().items():
            if name in state.get("numbers", {}):
                check_weights(own, state["numbers"][name])
        if load_optimizer:
            moments = state["optimizers"][NETWORK]["state"]
            check_moments(moments, self.optimizer, self.config.optimizer, some=self.steps_some)

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Moments come from `state`, the optimiser's settings from the config."""
        self.guard.settle()
        for module_name, module in self._saved_modules().items():
            module.load_state_dict(state["modules"][module_name])
        for name, running in self._moments().items():
            if name in state.get("numbers", {}):  # a run may begin to scale rewards when it is resumed
                running.load_state_dict(state["numbers"][name])
        self.load_own_numbers(state.get("numbers", {}))
        if load_optimizer:
            moments = state["optimizers"][NETWORK]["state"]
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
            lay_out_moments(self.optimizer)


def _float_inputs(batch: Batch, network: FeatureNetwork) -> dict[str, Tensor]:
    """The parts of a batch that may hold non-finite numbers."""
    inputs = {"rewards": batch.rewards, **batch.acting}
    if batch.recurrent_state is not None:
        inputs["recurrent_state"] = batch.recurrent_state
    floats = {name: tensor for name, tensor in inputs.items() if tensor.is_floating_point()}
    return {**network.float_inputs(batch.observations.flatten(0, 1)), **floats}
