"""The work that updates share, before and after an agent's `update`, and the optimiser steps in it.

An update runs in this order, and no agent can forget a part of it, because none calls one:

    learning rate -> finite check of the inputs -> rows of burn-in are cut off -> rewards are scaled or clipped
    -> the agent's `update`: outputs of the network, losses, and for each step
           gradient -> gradients of other learners -> clip -> finite check -> optimiser -> target networks
    -> running moments -> metrics

On a GPU the host never waits in it, and the whole update may be one CUDA graph (agents/engine/graphs.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from agents.engine import saving
from agents.engine.collectives import Collectives, Used
from agents.engine.graphs import UpdateGraphs, copied
from agents.engine.guard import Guard, clip_gradients, finite_inputs, start_mean_squares
from agents.engine.optimizers import make_optimizer
from agents.engine.passes import NetworkPasses
from agents.engine.targets import TargetNetwork
from agents.intrinsic.rewards import PredictorRows, make_intrinsic
from agents.losses import Losses, RawValues, Term
from agents.metrics import OptimizerStep, UpdateReport, results_of_steps
from agents.networks.popart import PopArt
from agents.networks.spectral import spectral_layers
from agents.networks.statistics import ObservationMoments
from agents.rewards import RewardScale, clip_rewards
from agents.schedules import ScheduledWeight, ends_of
from replay.batch import Batch

if TYPE_CHECKING:
    from agents.base import Agent

Part = TypeVar("Part")
Given = TypeVar("Given")
Made = TypeVar("Made")


class Stepper:
    """Takes the optimiser steps of one agent.

    Attributes:
        progress: the part of the run's budget that is used, in [0, 1]. A CUDA graph keeps it; see `progress_on_device`.
        passes: forward and backward of the network.
        guard: keeps non-finite numbers out of the weights.
        collectives: operations over all learners of the run.
        entropy_weight: of the entropy bonus.
        units, popart: of values in the losses: those of the rewards, or PopArt's; None without PopArt.
        intrinsic: intrinsic rewards, and the modules behind them; None without any.
        records_steps: whether calls of `launch` may be CUDA graphs.
        inputs: for each input of this update that may hold non-finite numbers, a scalar `[]` that is finite if all of it is.

    Args:
        agent: whose network learns.
        modules: further modules that learn, by name, on the network's device. They are saved, and the optimiser steps them.
        target_networks: by name. They are saved.
        extra_state: further tensors of the agent that are saved, by two names. They are changed in place.
        learned: the part of the network that an update's passes go through and the optimiser steps; None for all of it.
        asked: int64 `[]` on the host, counts the steps that were asked for, also refused ones.
        steps_some, checks_on_host: whether a step may leave out some parameters; whether finite checks are never on a GPU.
        threads, compiled: how many share the network's passes on a CPU, and whether these go through torch.compile.
        idle_cores: whether the workers wait while the learner computes, so that threads may share a small pass's operations.
        cuda_graphs: whether updates on a GPU are launched as CUDA graphs, if the agent allows it.
        environments: of all learners, whose intrinsic rewards have a scale of their own.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        modules: Mapping[str, nn.Module] | None = None,
        target_networks: Mapping[str, TargetNetwork] | None = None,
        extra_state: Mapping[str, Mapping[str, Tensor]] | None = None,
        learned: nn.Module | None = None,
        asked: Tensor | None = None,
        steps_some: bool = False,
        checks_on_host: bool = False,
        threads: int = 1,
        compiled: bool = False,
        idle_cores: bool = False,
        cuda_graphs: bool = False,
        environments: int = 1,
    ) -> None:
        network, config, learned = agent.network, agent.config, learned or agent.network
        self.agent, self.config, self.network = agent, config, network
        self.intrinsic = make_intrinsic(network, config, environments)
        self._rows: PredictorRows | None = None  # of a launched step
        modules = {**(modules or {}), **(self.intrinsic.modules if self.intrinsic else {})}
        self.modules, self.target_networks = {"network": network, **modules}, target_networks or {}
        self.steps_some, self._asked = steps_some, asked
        self._device = next(chain(network.parameters(), network.buffers())).device
        others = [parameter for module in modules.values() for parameter in module.parameters()]
        self.passes = NetworkPasses(learned, threads, compiled=compiled, idle_cores=idle_cores, further=others)
        self.parameters = [*learned.parameters(), *others]
        self._graphed = agent.graphed(config) if cuda_graphs and self._device.type == "cuda" else ""
        self.optimizer = make_optimizer(config, self.modules.values(), graphed=bool(self._graphed))
        self._spectral = spectral_layers(network)
        targets = (target.guarded_tensors for target in self.target_networks.values())
        moved = [*chain(*(layer.guarded_tensors for layer in self._spectral), *targets)]
        self.guard = Guard(self.optimizer, torch.device("cpu") if checks_on_host else self._device, moved)
        self.records_steps = self._graphed == "step"
        self._graphs = UpdateGraphs(self._called if self.records_steps else self._learn, self.guard) if self._graphed else None
        self.observation_moments = ObservationMoments(network) if network.config.settings.normalise_observations else None
        self.reward_scale = RewardScale(self._device) if getattr(config, "normalise_rewards", False) else None
        self._clipping: str | None = getattr(config, "reward_clipping", None)
        self._limit: float = getattr(config, "gradient_clip_by_norm_threshold", 0.0)
        self._first_rate, self._last_rate = ends_of(config, "lr", "lr_end_value")
        self.entropy_weight = ScheduledWeight(*ends_of(config, "entropy_loss_weight", "entropy_loss_weight_end"), self._device)
        self.popart = PopArt(network.value_head, config.popart_rate) if getattr(config, "popart", False) else None
        self.units = self.popart or RawValues()
        self._windows = agent.needs(config).window > 0
        self.extra_state = {**(extra_state or {}), **(self.popart.state if self.popart else {})}
        self.collectives = Collectives()  # alone, until `join`
        self.progress, self._progress = 0.0, torch.zeros((), dtype=torch.float64, device=self._device)
        self._outputs: Any = None  # of the last forward pass, as `passes` returned them
        self.inputs: dict[str, Tensor] = {}
        self._taken: list[OptimizerStep] = []
        self._notes: dict[str, Tensor] = {}

    # Around the agent's update

    def learn(self, batch: Batch, progress: float) -> UpdateReport:
        """Run one update of the agent. See `Agent.learn`."""
        self.progress = progress
        # Every update sets it anew, so a resumed run and a changed budget need nothing else.
        learning_rate = self._first_rate + (self._last_rate - self._first_rate) * min(1.0, progress)
        for group in self.optimizer.param_groups if self.optimizer else ():
            rate = group["lr"]  # a tensor on the device where steps may be recorded
            group["lr"] = rate.fill_(learning_rate) if isinstance(rate, Tensor) else learning_rate
        if self.entropy_weight.moves:
            self.entropy_weight.move(progress)
        if self._graphed:
            self._progress.fill_(progress)
        batch = self.intrinsic.drawn(batch) if self.intrinsic else batch
        if self._graphs and self._graphed == "update":
            scalars, priorities = self._graphs(batch, self.agent.variant)
            # The next launch of a graph overwrites its results, and priorities are read after that.
            priorities = None if priorities is None else priorities.clone()
        else:
            scalars, priorities = self._learn(batch)
        steps = self.guard.end_update()
        if self._asked is not None:
            self._asked += steps
        return UpdateReport(scalars, learning_rate, self.guard.steps if self.agent.several_steps else None, priorities)

    def _learn(self, batch: Batch) -> tuple[Mapping[str, Tensor], Tensor | None]:
        """The part of an update that a CUDA graph may record. Returns metrics and priorities."""
        self._taken, self._notes = [], self.entropy_weight.metrics("losses/entropy_weight") if self.entropy_weight.moves else {}
        self.inputs = finite_inputs(batch, self.network)
        if self.popart:
            self.popart.begin(self.collectives)
        # Rows of burn-in are in the network's passes, because they make the core's state, but in no loss and no metric.
        learned = batch.without_overlap() if batch.overlap else batch
        if self._windows:  # no column is fresh, so the running moments are those of drawn windows
            learned = replace(learned, is_replay=torch.zeros_like(batch.is_replay))  # [B], all of them merged
        if self.reward_scale:
            learned = self.reward_scale.scaled(learned)
        elif self._clipping:
            learned = replace(learned, rewards=clip_rewards(learned.rewards, self._clipping))  # rows store raw rewards
        learned = self.intrinsic.rewarded(learned) if self.intrinsic else learned
        self.agent.update(learned, self)  # forward, losses and steps of the agent
        for target in self.target_networks.values():
            target.end_update(self.applied)  # those that count updates; the others moved in the steps
        if self.agent.merges_moments and (self.reward_scale or self.observation_moments or self.intrinsic):
            self.merge_moments(learned, self.applied)
        scalars, priorities = results_of_steps(self._taken, learned.rewards.numel(), self._limit or math.inf)
        if self.intrinsic:
            self._notes |= self.intrinsic.metrics()
        if self.popart:
            self._notes |= self.popart.metrics()
        return {**scalars, **self._notes}, priorities

    def merge_moments(self, batch: Batch, applied: Tensor | None, *, rescales: bool = True) -> None:
        """Merge a batch into the running moments; nothing if `applied`, bool `[]` on the device, is false.

        It comes after all steps: the batch was acted with the statistics of before, so acting and learning see the same inputs.
        rescales: whether the network's scale follows at once.
        """
        if self.intrinsic:
            self.intrinsic.settle(applied)
        if self.reward_scale and applied is not None:
            self.reward_scale.settle(applied)
        if self.observation_moments:
            # Of windows the first rows count, which are uniform unless the replay is prioritised.
            rows = replace(batch, observations=batch.observations[:2]) if self._windows else batch
            self.observation_moments.merge(rows, applied, rescales=rescales)

    # For the agent's update

    @property
    def applied(self) -> Tensor:
        """Whether any step of this update was applied, bool `[]` on the device."""
        applied = [taken.applied for taken in self._taken]
        if len(applied) == 1:
            return applied[0]
        return torch.stack(applied).any() if applied else torch.zeros((), dtype=torch.bool, device=self._device)

    @property
    def progress_on_device(self) -> Tensor:
        """`progress` as float64 `[]` on the device, which a CUDA graph reads anew each time."""
        return self._progress if self._graphed else self._progress.fill_(self.progress)

    def note(self, metrics: Mapping[str, Tensor]) -> None:
        """Report metrics of the whole update, scalars `[]` without gradient."""
        self._notes.update(metrics)

    def forward(self, batch: Any) -> Any:
        """The network's outputs for a batch, each tensor `[T+1, B, ...]`, with gradient. `take` must follow.

        Rows of burn-in make the state of a core, and have no outputs.

        batch: a `Batch`, or a part of one with the same `observations`, `recurrent_state`, `reset` and `whole`. A part may have
        rows of single steps, `[n, ...]`.
        """
        whole = batch.whole or batch
        if whole.recurrent_state is not None:
            self._outputs = self.passes.forward(whole.observations, whole.recurrent_state, whole.reset, whole.overlap)
            return self._outputs
        # Without a core no row needs another, so rows and columns are one dimension.
        rows = whole.observations.shape[: -len(self.network.config.observation_shape)]  # (T+1, B), or (n,)
        self._outputs = self.passes.forward(whole.observations.flatten(0, len(rows) - 1))
        if len(rows) == 1:
            return self._outputs
        return type(self._outputs)(*(each.unflatten(0, rows) for each in self._outputs))  # [T+1, B, ...] each

    def without_gradient(self, batch: Any, network: nn.Module | None = None, *, last_row: bool = True) -> Any:
        """The outputs of `forward` without gradient.

        network: another network of the same kind, such as a target network. last_row: whether row T is among the outputs.
        """
        whole = batch.whole or batch
        end = None if last_row else -1
        if whole.recurrent_state is not None:
            given = whole.observations[:end], whole.recurrent_state, whole.reset[:end]
            outputs = self.passes.without_gradient(*given, network=network)
            return type(outputs)(*(each[whole.overlap :] for each in outputs))  # rows of burn-in have no outputs
        observations = whole.observations[:end]
        outputs = self.passes.without_gradient(observations.flatten(0, 1), network=network)
        return type(outputs)(*(each.unflatten(0, observations.shape[:2]) for each in outputs))

    def take(
        self, terms: Mapping[str, Term], metrics: Mapping[str, Tensor], priorities: Tensor | None = None, *, used: Used = None
    ) -> Tensor:
        """Take one optimiser step on the weighted sum of the terms, if all numbers are finite.

        terms, metrics, priorities: see `Losses`. The terms come from the outputs of the last `forward`.
        used: the steps that means among the terms are over; by default they are as many on every learner.

        Returns whether the step was applied, bool `[]` on the device.
        """
        sums = any(term.reduction == "sum" for term in terms.values())
        terms = {**terms, **self.intrinsic.terms(self._rows, sums=sums)} if self.intrinsic else terms
        values = {name: term.value for name, term in terms.items()}
        weights = self.collectives.weights(terms) if self.collectives.count > 1 else [term.weight for term in terms.values()]
        self.passes.backward(list(values.values()), self._outputs, weights)  # gradients of this learner alone
        if self.popart:
            self.popart.scale_gradients()
        # Causes come before consequences, since the first non-finite number is the one that is reported.
        numbers = {**self.inputs, **values}
        if self.collectives.count > 1:
            numbers |= self.collectives.add_gradients(self.parameters, numbers, used, sums=sums)
        seen = {name: term._replace(value=term.value.detach()) for name, term in terms.items()}
        norm = clip_gradients(self.parameters, self._limit)
        self._taken.append(OptimizerStep(self._step(numbers, norm), seen, metrics, norm, None, priorities))
        return self._taken[-1].applied

    def take_rows(
        self,
        losses: Callable[..., Losses],
        rows: Any,
        *constants: Tensor,
        draws: bool = False,
        moves_targets: bool = True,
    ) -> Tensor:
        """Take one optimiser step on losses of N rows, as means over them. Each learner thread computes those of a part.

        All gradients are those at the same weights, so one finite check protects every network.

        Args:
            losses: is called with some of the rows and of the constants, by several threads at once.
            rows: a NamedTuple of tensors `[N, ...]`.
            constants: further tensors `[N, ...]`, computed once for all rows: targets, or random numbers.
            draws: whether the losses draw random numbers, so that one thread computes them all.
            moves_targets: whether target networks move after this step.

        Returns whether the step was applied, bool `[]` on the device.
        """
        for parameter in self.parameters:
            parameter.grad = None  # the optimiser leaves a parameter without a gradient as it is
        found = self.passes.backward_of_rows(losses, rows, constants, self.parameters, most_threads=1 if draws else None)
        values = {name: term.value for name, term in found.terms.items()}
        numbers = {**self.inputs, **{f"losses/{name}": value for name, value in values.items()}}
        if self.collectives.count > 1:
            numbers |= self.collectives.add_gradients(self.parameters, numbers)
        # Each loss that has parameters of its own is clipped by itself.
        norms = torch.stack([clip_gradients(term.parameters or self.parameters, self._limit) for term in found.terms.values()])
        norm, clipped = torch.linalg.vector_norm(norms), (norms > (self._limit or math.inf)).any()  # [] each
        applied = self._step(numbers, norm, moves_targets=moves_targets)
        metrics = {**{f"losses/{name}": value for name, value in values.items()}, **found.metrics}
        self._taken.append(OptimizerStep(applied, {}, metrics, norm, clipped, found.priorities))
        return applied

    def apply(self, numbers: Mapping[str, Tensor], change: Callable[[], None]) -> Tensor:
        """Call `change`, which is no step of the optimiser, if the inputs and these numbers are finite. Returns as `take`."""
        applied = self.guard.step({**self.inputs, **numbers}, change)
        self._taken.append(OptimizerStep(applied, {}, {}, None))
        return applied

    def turns(self, parts: Iterable[Part], most: int, stops_at: float = math.inf) -> Generator[Part, None, bool]:
        """Yield the parts of this learner's batch. Where only other learners have one, this one takes part in their step.

        most: the most parts that a learner has. stops_at: the limit of `exceeds`, which each step asks before it is taken.

        Returns whether the learners have stopped in a step of others.
        """
        if self.collectives.count == 1:
            yield from parts
            return False
        for part in self.collectives.turns(parts, most):
            if part is not None:
                yield part
                continue
            if stops_at < math.inf and self.exceeds(torch.zeros((), device=self._device), 0, stops_at):
                return True
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter)  # this learner adds nothing to the sum, but takes the step
            numbers = {**self.inputs, **self.collectives.add_gradients(self.parameters, self.inputs, 0, present=False)}
            norm = clip_gradients(self.parameters, self._limit)
            self._taken.append(OptimizerStep(self._step(numbers, norm), {}, {}, norm))
        return False

    def exceeds(self, mean: Tensor, used: Used, limit: float) -> bool:
        """Whether the mean over the used steps of all learners is above a limit. The host waits for the number."""
        return float(self.collectives.mean(mean, used)) > limit

    def launch(self, function: Callable[[Given], Made], given: Given) -> Made:
        """Call a function that takes steps; as a CUDA graph where the agent allows it for steps (`Agent.graphed`)."""
        if self._graphs is None or not self.records_steps:
            return function(given)
        inputs, self._function = self.inputs, function
        # The next launch of a graph overwrites its results, and metrics are made after the last step.
        made: Made
        made, taken = copied(self._graphs((given, inputs, self.intrinsic.next_rows() if self.intrinsic else None)))
        self.inputs, self._rows = inputs, None
        self._taken += taken
        return made

    def _called(self, given: tuple[Any, dict[str, Tensor], PredictorRows | None]) -> tuple[Any, tuple[OptimizerStep, ...]]:
        """Call the function of `launch`. Returns its result and its steps."""
        before, self._taken = self._taken, []
        part, self.inputs, self._rows = given
        made = self._function(part)
        taken, self._taken = tuple(self._taken), before
        return made, taken

    def _step(self, numbers: Mapping[str, Tensor], norm: Tensor, *, moves_targets: bool = True) -> Tensor:
        """Take the step if all numbers and the gradient are finite. Returns whether they are, bool `[]` on the device."""
        applied = self.guard.step({**numbers, "gradient": norm}, partial(self.step_optimizer, moves_targets=moves_targets))
        if self.popart:
            self.popart.settle(applied)
        return applied

    def step_optimizer(self, *, moves_targets: bool = True) -> None:
        """Step the optimiser, unguarded, and the target networks."""
        assert self.optimizer is not None
        if self.popart:
            self.popart.rescale()
        if isinstance(self.optimizer, torch.optim.RMSprop) and len(self.optimizer.state) < len(self.parameters):
            start_mean_squares(self.optimizer)
        # Numbers below 1.2e-38, which shrinking moments reach, count as zero where the CPU can: they are 100 times slower.
        torch.set_flush_denormal(True)
        try:
            self.optimizer.step()  # weights without a gradient stay, and so do their moments
        finally:
            torch.set_flush_denormal(False)
        for layer in self._spectral:
            layer.iterate()  # the vectors belong to the new weights, and target networks copy both
        for target in self.target_networks.values() if moves_targets else ():
            target.after_step()  # inside the guarded step, so a refused step undoes the move too

    # Called a few times in a run

    def join(self, collectives: Collectives) -> None:
        """Learn together with other learners from now on. See `Agent.join`."""
        self.collectives = collectives
        for moments in saving.moments_of(self).values():
            moments.collectives = collectives
        if collectives.count > 1:
            self._graphs, self.records_steps = None, False  # the host takes part in the exchange of gradients

    def calibrate(self, observations: Tensor) -> None:
        """Learn the scale of observations. See `Agent.calibrate`."""
        if self.network.config.settings.calibrate_input:
            self.network.calibrate(observations)
        if self.observation_moments:
            self.observation_moments.calibrate(observations)
        if self.intrinsic:
            self.intrinsic.calibrate(observations)
        for target in self.target_networks.values():
            target.reset()

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Load what `agents.engine.saving.state_of` returned. See `Agent.load_state_dict`."""
        saving.load_state(self, state, load_optimizer=load_optimizer)
        if self._graphs:
            self._graphs.forget()
