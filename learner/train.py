"""Training: the loop that turns trajectories into updates, readable top to bottom.

`learner/parts.py` builds what an update needs. All else follows the loop as a hook (`learner/hooks.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agents.engine.graphs import GraphError
from agents.engine.streams import Fence
from learner.early_processes import EarlyProcesses
from learner.evaluation.schedule import EvaluationSchedule
from learner.hooks import Hook, stage
from learner.metrics.profiler import UpdateProfiler
from learner.metrics.recorder import MetricsRecorder
from learner.parts import Parts, build
from learner.plan import Plan
from learner.ranks.base import Learners, RankError
from learner.runs.checkpoint import Checkpoint, generator_states, restore_generators
from learner.runs.directory import RunDirectory
from learner.runs.resuming import continued, restore_under_way, trajectories_to_fill_in
from learner.runs.saving import SaveTimes, replay_to_save
from learner.signals import TRAINING_STOPS, StopSignals
from learner.skipping import SkippingError
from replay.batch import make_batch
from workers import WorkerError

log = logging.getLogger("springbok")


def train(
    plan: Plan,
    run: RunDirectory,
    resumed: Checkpoint | None,
    *,
    replay: dict[str, Any] | None = None,
    early_processes: EarlyProcesses | None = None,
    learners: Learners | None = None,
) -> int:
    """Train until the step budget is used up or a signal asks to stop. Returns the exit code.

    Args:
        replay: saved with the checkpoint, see `learner.runs.resuming`; emptied once it is loaded. None: replays start empty.
        early_processes: the processes that were started early; None starts them here.
        learners: connects this learner with the others of the run, if it has any.

    Raises ExchangeError, GraphError, RankError, WorkerError, SkippingError, ResumeError or torch.OutOfMemoryError after a
    failure. A signal before the first update raises KeyboardInterrupt or ReplayStopped.
    """
    resumed = continued(resumed, plan.protocol) if resumed else None
    early_processes, learners = early_processes or EarlyProcesses(plan, resumed), learners or Learners()
    with ExitStack() as at_end:
        parts = build(plan, run, resumed, early_processes, replay, learners)
        at_end.callback(parts.stop)
        hooks = _make_hooks(parts, run, resumed, to_fill_in=0 if replay else trajectories_to_fill_in(plan))
        for hook in hooks:
            at_end.callback(hook.close)
        return _train(parts, hooks, resumed, replay)


def _make_hooks(parts: Parts, run: RunDirectory, resumed: Checkpoint | None, to_fill_in: int) -> list[Hook]:
    """The hooks of a training, in the order of the calls after an update. Rank 0 does it for all learners."""
    config, counters = parts.plan.config, parts.counting.counters
    if parts.learners.rank:
        return []
    hooks: list[Hook] = []
    if config.output.profile:
        hooks.append(UpdateProfiler(config.output.profile, run, counters, gpu=config.training.device == "cuda"))
    hooks.append(recorder := MetricsRecorder(parts, run, to_fill_in))
    if config.evaluation.evaluates:
        now, add = partial(_checkpoint, parts), recorder.add_evaluation
        hooks.append(EvaluationSchedule(parts.plan, run, parts.network, counters, resumed, make_checkpoint=now, add=add))
    return hooks


def _train(parts: Parts, hooks: Sequence[Hook], resumed: Checkpoint | None, replay: dict[str, Any] | None) -> int:
    """Train, save and report. Returns the exit code. Raises as `train`."""
    learners, started = parts.learners, False
    try:
        with StopSignals(at_once=parts.workers.kill, first=TRAINING_STOPS if learners.rank == 0 else "") as signals:
            _start(parts, hooks, resumed, replay, signals)
            started = True
            _make_updates(parts, hooks, signals)
            parts.feeder.stop()
            saved = _save(parts, hooks)
            stopped = learners.stops(signals.asked)  # by a signal, perhaps to another learner
            interrupted = stopped or parts.counting.counters.steps < parts.plan.config.training.environment_max_steps
            if not interrupted:
                parts.workers.announce_end()
            parts.workers.stop()
            with signals.silent():  # the run is saved, so the line that promises it would mean nothing
                for hook in reversed(hooks):
                    hook.on_end(saved, interrupted=interrupted, asked=lambda: stopped or signals.asked())
            if saved is None:
                log.error("error: the last checkpoint could not be saved: %s", parts.saver.error)
            return 0 if saved else 1
    except (GraphError, RankError, WorkerError, torch.OutOfMemoryError):
        # Leaving comes first: saving must not wait for an exchange with a learner that may be gone.
        learners.leave()
        parts.feeder.stop()
        if started:  # before that nothing is new, and a save would replace the resumed replay by one that is not restored yet
            _save_what_is_left(parts, hooks)
        raise
    except SkippingError:
        for hook in hooks:
            hook.on_checkpoint()  # yet nothing is saved: no update since the last good weights was better
        raise


def _start(
    parts: Parts,
    hooks: Sequence[Hook],
    resumed: Checkpoint | None,
    replay: dict[str, Any] | None,
    signals: StopSignals,
) -> None:
    """Start the workers and the hooks, and continue what was in progress.

    Raises ReplayStopped or KeyboardInterrupt if a signal comes meanwhile.
    """
    # Weights are published first, because workers begin to act as soon as `start` gives them slot blocks.
    parts.workers.weights.publish(parts.agent.acting_network, parts.counting.counters.updates)
    parts.workers.start()
    for hook in hooks:
        hook.on_start()
    with signals.silent():  # the usual line promises to finish an update and save; here the caller logs the stop instead
        should_stop = partial(parts.learners.stops_waiting, signals.asked)
        restored = restore_under_way(parts.plan.config, replay, parts.workers, parts.feeder, should_stop)
        if not parts.learners.start(signals.asked):
            raise KeyboardInterrupt
    if resumed and restored:
        restore_generators(resumed.generators, parts.generator)  # again: building the parts has drawn from them
    if replay:
        # Its tensors lie in the saved file. While one of them is held, the disk keeps the file, even after its removal.
        replay.clear()
    parts.feeder.start()


def _make_updates(parts: Parts, hooks: Sequence[Hook], signals: StopSignals) -> None:
    """Run the loop, one update per iteration."""
    settings, counters, learners = parts.plan.config.training, parts.counting.counters, parts.learners
    last = min(settings.stop_at_steps or settings.environment_max_steps, settings.environment_max_steps)
    saves = SaveTimes(parts.plan.config.output, learners)

    def should_stop() -> bool:
        for hook in hooks:
            hook.on_wait()
        return learners.stops_waiting(signals.asked)

    while counters.steps < last and not learners.stops(signals.asked):
        with stage(hooks, "wait"):
            prepared = parts.feeder.next_batch(should_stop)
        # An update exchanges gradients, so it begins only when every learner has its batch.
        arrivals = learners.meet(prepared.arrivals, signals.asked) if prepared else None
        if prepared is None or arrivals is None:
            break
        progress = counters.frames / parts.total_frames  # 0 in the first update: a schedule begins at its first value
        parts.counting.add_arrivals(arrivals)
        host = prepared.host
        with stage(hooks, "batch"):
            batch = make_batch(host, parts.mixture.contract, parts.device)
            copied = Fence(parts.device)
            copied.record()
        with stage(hooks, "update"):
            updated = parts.agent.learn(batch, progress)
        parts.feedback.put(host.tickets, updated.priorities)
        for hook in hooks:
            hook.on_batch(host, updated)
        parts.counting.add_update(updated)
        with stage(hooks, "publish"):
            # Skipped updates are handled before publishing: after too many in a row the last good weights are restored here.
            parts.skipped.look()
            parts.workers.weights.publish(parts.agent.acting_network, counters.updates)
            parts.feeder.release_held()  # after the new version is there, so that an on-policy agent's rollouts act with it
        prepared.release(copied)  # on a CPU the update is over; on a GPU the memory is reused only after the copy
        for hook in hooks:
            hook.on_update()
        # No checkpoint is written in a streak of skipped updates, since it would not hold the length of the streak.
        if saves.due(counters.updates) and parts.skipped.newest_is_sound():
            _save(parts, hooks)
            saves.saved()
            parts.skipped.keep()


def _save_what_is_left(parts: Parts, hooks: Sequence[Hook]) -> None:
    """Save after a failure. Saving may fail too: a GPU that has failed returns no tensors."""
    if parts.learners.rank:
        return  # rank 0 saves
    try:
        _save(parts, hooks)
    except RuntimeError as error:
        log.error("error: the last checkpoint could not be saved: %s", " ".join(str(error).split()))


def _save(parts: Parts, hooks: Sequence[Hook]) -> Path | None:
    """Save a checkpoint and the replays. Returns the checkpoint's path, or None if it could not be written."""
    parts.skipped.look(everything=True)
    parts.learners.keep_equal(parts.agent)
    for hook in hooks:
        hook.on_checkpoint()
    parts.feedback.settle()
    with parts.mixture.lock:  # replays neither insert nor sample while they are written
        replay = replay_to_save(parts.plan.config, parts.mixture, parts.workers, parts.feeder)
        return parts.saver.save(_checkpoint(parts), replay)


def _checkpoint(parts: Parts) -> Checkpoint:
    """The run as it is now. Its tensors are live: the next update changes them, so they are written before it."""
    return Checkpoint(
        **parts.about,
        counters=parts.counting.counters,
        agent=parts.agent.state_dict(),
        learning_rate=parts.counting.learning_rate,
        generators=generator_states(parts.generator),
        returns=list(parts.counting.episodes.recent),
        infos=list(parts.counting.episodes.infos.recent),
        task_returns=[list(recent) for recent in parts.counting.episodes.recent_of_tasks.values()],
    )
