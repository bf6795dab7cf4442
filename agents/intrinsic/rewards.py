"""Intrinsic rewards of an update (`--intrinsic`): a module's errors, scaled, as a second stream of rewards.

An update computes them once, with the module as it was before. The agent estimates a return of each stream with a value head
of its own (IMPALA's and PPO's network has both), and learns from

    A = w_I A_I + w_E A_E

The module learns from a random share of the fresh used rows in each step of the agent's optimiser. The present module rewards
replayed rows, but does not learn from them again: novelty falls with visits, not with replays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from agents.intrinsic.modules import MODULES, Frames
from agents.intrinsic.scale import RewardFilter, deviation_or
from agents.intrinsic.streams import IntrinsicStream, stream_of
from agents.losses import Term, used_mean
from agents.networks.base import FeatureNetwork, on_device
from agents.networks.inputs import input_parts, network_input, part_of, scale_of, unpack
from agents.networks.joint import make_joint_torso
from agents.networks.settings import NetworkSettings
from agents.networks.statistics import Moments, RunningMoments, merged, moments_of
from agents.networks.torsos import suitable_network
from replay.batch import Batch
from wrappers.spaces import PREVIOUS_ACTION, PREVIOUS_REWARD, Packing

INTRINSIC = "intrinsic"
"""Name of the module among an agent's modules, and beginning of the names of its moments."""
CLIP = 5.0
"""Largest normalised feature of a frame, in standard deviations (RND)."""
UNVARIED = 0.01
"""Deviation of a feature that has not varied yet, in parts of a byte's range or in the feature's unit. Its first change is
large, as in RND's code: a picture never seen before is new."""
ROWS_AT_ONCE = 1024
"""Rows that a pass without gradient takes, which bounds its memory."""


class StreamEstimates(NamedTuple):
    """A_t and the targets G_t of the values of a stream, by an agent's estimator: constants `[T, B]`."""

    advantages: Tensor
    targets: Tensor


class PredictorRows(NamedTuple):
    """Rows that the module learns from in one step.

    before, after: raw newest frames of x_t and x_{t+1}, `[n, 1, *frame_shape]`. actions: `[n, ...]`. counted: bool `[n]`, used
    steps of fresh columns. used: `[]`, the number of used steps among them, of replayed columns too.
    """

    before: Tensor
    after: Tensor
    actions: Tensor
    counted: Tensor
    used: Tensor


def make_intrinsic(network: FeatureNetwork, config: Any, environments: int) -> Intrinsic | None:
    """The intrinsic rewards that the agent's settings ask for, if any. environments: of all learners."""
    kind = getattr(config, INTRINSIC, "none")
    return None if kind == "none" else Intrinsic(network, config, MODULES[kind], environments)


class Intrinsic:
    """Intrinsic rewards by a module.

    Args:
        network: of the agent. The module has its own torso of the same kind, for the newest frame.
        config: the agent's settings.
        kind: the module's class.
        environments: of all learners.

    modules: that learn, by name. moments: that are saved, by name.
    """

    def __init__(self, network: FeatureNetwork, config: Any, kind: type[Any], environments: int) -> None:
        device = next(network.parameters()).device
        self._config, self._frames = config, NewestFrames(network)
        with torch.device("meta" if device.type == "meta" else "cpu"):  # a seed gives equal weights on every device
            self._module = on_device(kind(self._frames.make_torso, network.config.action), device)
        self._seen, now = (RunningMoments(self._frames.size, device) for _ in range(2))
        self._now = now.now  # of this update, in memory that a CUDA graph reads each time
        self._scale = RewardFilter(environments, config.intrinsic_gamma, device)
        self.modules: dict[str, nn.Module] = {INTRINSIC: self._module}
        self.moments: dict[str, RunningMoments] = {f"{INTRINSIC}_observations": self._seen, f"{INTRINSIC}_rewards": self._scale}
        self._batch: Batch | None = None  # of this update
        self._values: list[Tensor] = []  # mean V_I of each part of it
        self._steps = getattr(config, "epochs", 1) * getattr(config, "minibatches", 1)

    def drawn(self, batch: Batch) -> Batch:
        """The batch with what the host draws for the update, before a CUDA graph may take it."""
        rows = batch.rewards[batch.overlap :].numel()  # T B
        parts, size = getattr(self._config, "minibatches", 1), self._config.predictor_share * rows
        count = max(1, int(size / parts))
        # For each step of an epoch other rows, drawn on the CPU: a seed gives the same on every device.
        orders = [torch.randperm(rows)[: count * parts] for _ in range(self._steps // parts)]
        drawn = torch.cat(orders).view(-1, count)  # [steps, count]; fewer steps where there are fewer rows
        return replace(batch, predictor_rows=drawn.to(batch.rewards.device, non_blocking=True))

    @torch.no_grad()
    def rewarded(self, batch: Batch) -> Batch:
        """The batch with intrinsic rewards. Scale and moments change with `settle`."""
        self._batch, self._step, self._values = batch, 0, []
        used = batch.action_used
        # Replayed columns were folded into scale and moments when they were fresh.
        self._counted = counted = used & ~batch.is_replay  # [T, B] & [B]
        fresh = self._moments_of(batch.observations[1:, :, -1:], counted)
        self._next = self._seen.with_batch(fresh)
        # The statistics of before the batch, so that reward and loss see one scale. Without any its own ones begin.
        begun = self._seen.now.weight > 0
        for now, old, new in zip(self._now, self._seen.now, self._next, strict=True):
            now.copy_(torch.where(begun, old, new))
        raw = torch.where(used, self._raw(batch), 0.0)  # [T, B]; an autoreset row has no action, so it is no discovery
        environments = batch.environment_id
        if environments is None:
            environments = torch.arange(raw.shape[1], device=raw.device)
        rewards = self._scale.scaled(raw, counted, environments)
        self._mean = used_mean(rewards, used)
        return replace(batch, intrinsic_rewards=rewards)

    def next_rows(self) -> PredictorRows:
        """The rows that the module learns from in the next step."""
        batch = self._batch
        assert batch is not None
        assert batch.predictor_rows is not None
        order = batch.predictor_rows[self._step % len(batch.predictor_rows)]  # t * B + b, int64 [n]
        self._step += 1
        newest = batch.observations[:, :, -1:].flatten(0, 1)  # [(T+1) * B, 1, *F]
        following = order + batch.rewards.shape[1]  # row t+1 lies B places behind row t
        before, after = (newest.index_select(0, places) for places in (order, following))
        of_steps = (batch.actions, self._counted, batch.action_used)
        actions, counted, used = (steps.flatten(0, 1).index_select(0, order) for steps in of_steps)
        return PredictorRows(before, after, actions, counted, used.sum())

    def terms(self, rows: PredictorRows | None, *, sums: bool) -> Mapping[str, Term]:
        """The module's term in the loss of a step.

        rows: None for those of `next_rows`. sums: whether the agent's terms are sums over the batch's steps.
        """
        rows = rows or self.next_rows()
        losses = self._module.losses(*self._inputs(rows.before, rows.actions, rows.after))  # [n]
        loss = torch.where(rows.counted, losses, 0.0).sum()
        if sums:  # the rows stand for all steps of the batch
            return {"predictor_loss": Term(loss * (self._counted.numel() / len(losses)), self._module.weight, "sum")}
        return {"predictor_loss": Term(loss / rows.used.clamp(min=1), self._module.weight)}

    def combined(
        self, batch: Batch, outputs: Any, advantages: Tensor, estimate: Callable[[IntrinsicStream], Any]
    ) -> tuple[Tensor, Tensor]:
        """A_t of both streams together `[T, B]`, and the targets of V_I `[T, B]`.

        Args:
            batch: with intrinsic rewards.
            outputs: of the network for all T+1 rows.
            advantages: A_E `[T, B]`, in the units of the losses.
            estimate: the agent's estimator. Its result has the fields of `StreamEstimates`, in the rows of its argument.
        """
        config, values, rewards = self._config, outputs.intrinsic_values.detach(), batch.intrinsic_rewards
        assert rewards is not None
        self._values.append(used_mean(values[:-1], batch.action_used))
        stream = stream_of(batch, rewards, values, config.intrinsic_gamma, episodic=config.intrinsic_episodic)
        found = estimate(stream)
        of_intrinsic = torch.where(batch.action_used, stream.back(found.advantages), 0.0)
        together = config.intrinsic_weight * of_intrinsic + config.extrinsic_weight * advantages
        return together, stream.back(found.targets)

    def value_terms(
        self, outputs: Any, targets: Tensor, used: Tensor | None, weight: float, *, sums: bool = False
    ) -> dict[str, Term]:
        """The loss of V_I, half the squared error.

        Args:
            outputs: of the network, with V_I of the targets' rows first.
            targets: as `combined` returned them, or a part of them.
            used: bool, of the targets' shape, the steps that count; None for all.
            weight: of the value loss. sums: whether the term is a sum over the steps.
        """
        errors = 0.5 * (targets - outputs.intrinsic_values[: len(targets)]).square()
        if sums:
            assert used is not None
            return {"intrinsic_value_loss": Term(torch.where(used, errors, 0.0).sum(), weight, "sum")}
        return {"intrinsic_value_loss": Term(used_mean(errors, used), weight)}

    def settle(self, applied: Tensor | None) -> None:
        """Keep the batch's part of scale and moments if `applied`, bool `[]` on the device, is true. None stands for true."""
        self._seen.take(self._next, applied)
        self._scale.settle(applied)
        self._batch = None  # a GPU's memory need not hold it beside the next one

    @torch.no_grad()
    def calibrate(self, observations: Tensor) -> None:
        """Learn the scale of frames from observations of random play `[N, *observation_shape]`, before the first update."""
        newest = observations[:, None, -1:]
        everything = torch.ones(newest.shape[:2], dtype=torch.bool, device=newest.device)
        self._seen.take(self._seen.with_batch(self._moments_of(newest, everything)))

    def metrics(self) -> dict[str, Tensor]:
        """Metrics of the update."""
        value = torch.stack(self._values).mean() if self._values else self._mean.new_full((), torch.nan)
        return {f"{INTRINSIC}/reward": self._mean, f"{INTRINSIC}/value": value}

    def _raw(self, batch: Batch) -> Tensor:
        """raw_t `[T, B]`, also of rows that are not used."""
        newest, (length, columns) = batch.observations[:, :, -1:], batch.rewards.shape
        at_once, found = max(1, ROWS_AT_ONCE // columns), []
        for t in range(0, length, at_once):
            end = min(t + at_once, length)
            before, after = newest[t:end].flatten(0, 1), newest[t + 1 : end + 1].flatten(0, 1)
            found.append(self._module.rewards(*self._inputs(before, batch.actions[t:end].flatten(0, 1), after)))
        return torch.cat(found).view(length, columns)

    def _inputs(self, before: Tensor, actions: Tensor, after: Tensor) -> tuple[Frames, Tensor, Frames]:
        """The arguments of the module."""
        prepared = partial(self._frames.prepared, moments=self._now)
        return prepared(before) if self._module.reads_before else (), actions, prepared(after)

    def _moments_of(self, newest: Tensor, counted: Tensor) -> Moments:
        """Moments of those frames `[T, B, 1, *F]` that a mask bool `[T, B]` keeps."""
        found, at_once = None, max(1, ROWS_AT_ONCE // newest.shape[1])
        for part, mask in zip(newest.split(at_once), counted.split(at_once), strict=True):
            of_part = moments_of(self._frames.flat(part.flatten(0, 1)), mask.flatten())
            found = of_part if found is None else merged(found, of_part)
        assert found is not None
        return found


class NewestFrames:
    """The part of an observation that intrinsic rewards read: its newest frame, without a mask and the inputs of a core.

    size: numbers of such a frame.
    """

    def __init__(self, network: FeatureNetwork) -> None:
        config = network.config
        read = tuple(leaf for leaf in config.leaves if leaf.name not in (PREVIOUS_ACTION, PREVIOUS_REWARD))
        self._packing: Packing | None = network.packing
        self._parts = input_parts((1, *config.observation_shape[1:]), read)
        self._shapes = [part.input_shape for part in self._parts]
        self._sizes = [torch.Size(shape).numel() for shape in self._shapes]
        self.size = sum(self._sizes)
        self._settings, self._also_read = config.settings, network.heads_read

    def make_torso(self) -> Any:
        """A torso of the network's kind for such frames; for a class of the user's, or `flat`, one that suits the frames."""
        settings = self._settings
        if ":" in settings.network or settings.network == "flat":
            settings = NetworkSettings(suitable_network(self._parts[0].shape)[0])
        return make_joint_torso(replace(settings, spectral_norm=False), self._parts, also_read=self._also_read)

    def flat(self, newest: Tensor) -> Tensor:
        """Newest frames `[n, 1, *frame_shape]` as numbers `[n, size]`; bytes are scaled to 0 .. 1."""
        leaves = unpack(self._packing, newest) if self._packing else {}
        values = [network_input(part_of(part, leaves) if part.names else newest) for part in self._parts]
        return torch.cat([value.flatten(1).float() * scale_of(value) for value in values], 1)

    def prepared(self, newest: Tensor, moments: Moments) -> Frames:
        """clip((x - mean) / std, -5, 5) of newest frames, `[n, *input_shape]` for each part. moments: of `flat` frames."""
        scale = (1.0 / deviation_or(moments, UNVARIED)).float()
        values = ((self.flat(newest) - moments.mean.float()) * scale).clamp(-CLIP, CLIP)
        parts = zip(values.split(self._sizes, 1), self._shapes, strict=True)
        return [network_input(part.unflatten(1, shape)) for part, shape in parts]
