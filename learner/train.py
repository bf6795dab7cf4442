"""Training: the loop that turns trajectories into updates, readable top to bottom. `learner/parts.py` builds what it uses."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agents.engine.graphs import GraphError
from agents.engine.streams import Fence
from learner.head_start import HeadStart
from learner.parts import Parts, build
from learner.plan import Plan
from learner.ranks.base import RankError, Ranks
from learner.runs.checkpoint import Checkpoint, generator_states, restore_generators
from learner.runs.directory import RunDirectory
from learner.runs.resuming import continued, restore_under_way
from learner.runs.saving import replay_to_save
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
    head_start: HeadStart | None = None,
    ranks: Ranks | None = None,
) -> int:
    """Train until the step budget is used up or a signal asks to stop. Returns the exit code.

    Args:
        replay: saved with the checkpoint, see `learner.runs.resuming`; emptied once it is loaded. None: replays start empty.
        head_start: the processes that were started early; None starts them here.
        ranks: connects this learner with the others of the run, if it has any.

    Raises GraphError, RankError, WorkerError, SkippingError, ResumeError or torch.OutOfMemoryError after a failure. A signal
    before the first update raises KeyboardInterrupt or ReplayStopped.
    """
    resumed = continued(resumed, plan.protocol) if resumed else None
    head_start, ranks = head_start or HeadStart(plan, resumed), ranks or Ranks()
    parts = build(plan, run, resumed, head_start, replay, ranks)
    started = False
    try:
        with StopSignals(at_once=parts.workers.kill, first=TRAINING_STOPS if ranks.rank == 0 else "") as signals:
            _start(parts, resumed, replay, signals)
            started = True
            _make_updates(parts, signals)
            parts.feeder.stop()
            saved = _save(parts)
            parts.workers.stop()
            interrupted = ranks.stops(signals.asked)
            if not interrupted:
                _evaluate_the_final_policy(parts, signals)
            parts.recorder.finish(saved, interrupted=interrupted)
            if saved is None:
                log.error("error: the last checkpoint could not be saved: %s", parts.saver.error)
            return 0 if saved else 1
    except (GraphError, RankError, WorkerError, torch.OutOfMemoryError):
        # Leaving comes first: saving must not wait for an exchange with a learner that may be gone.
        ranks.leave()
        parts.feeder.stop()
        if started:  # before that nothing is new, and a save would replace the resumed replay by one that is not restored yet
            _save_what_is_left(parts)
        raise
    except SkippingError:
        parts.recorder.write_record()  # nothing is saved: no update since the last good weights was better
        raise
    finally:
        parts.stop()
        parts.recorder.close()


def _start(parts: Parts, resumed: Checkpoint | None, replay: dict[str, Any] | None, signals: StopSignals) -> None:
    """Start the workers and evaluations, and continue what was in progress.

    Raises ReplayStopped or KeyboardInterrupt if a signal comes meanwhile.
    """
    # Weights are published first, because workers begin to act as soon as `start` gives them slot blocks.
    parts.workers.weights.publish(parts.network, parts.counters.updates)
    parts.workers.start()
    parts.evaluations.start(parts.counters.updates)
    with signals.silent():  # the usual line promises to finish an update and save; here the caller logs the stop instead
        should_stop = partial(parts.ranks.stops_waiting, signals.asked)
        restored = restore_under_way(parts.plan.config, replay, parts.workers, parts.feeder, should_stop)
        if not parts.ranks.start(signals.asked):
            raise KeyboardInterrupt
    if resumed and restored:
        restore_generators(resumed.generators, parts.generator)  # again: building the parts has drawn from them
    if replay:
        # Its tensors lie in the saved file. While one of them is held, the disk keeps the file, even after its removal.
        replay.clear()
    parts.feeder.start()


def _make_updates(parts: Parts, signals: StopSignals) -> None:
    """Run the loop, one update per iteration."""
    settings, counters, recorder, ranks = parts.plan.config.training, parts.counters, parts.recorder, parts.ranks

    def should_stop() -> bool:
        recorder.show_filling()
        return ranks.stops_waiting(signals.asked)

    while counters.steps < settings.environment_max_steps and not ranks.stops(signals.asked):
        with recorder.stage("wait"):
            prepared = parts.feeder.next_batch(should_stop)
        # An update exchanges gradients, so it begins only when every learner has its batch.
        arrivals = ranks.meet(prepared.arrivals, signals.asked) if prepared else None
        if prepared is None or arrivals is None:
            break
        progress = counters.frames / parts.total_frames  # 0 in the first update: a schedule begins at its first value
        recorder.add_arrivals(arrivals)
        host = prepared.host
        with recorder.stage("batch"):
            batch = make_batch(host, parts.mixture.contract, parts.device)
            copied = Fence(parts.device)
            copied.record()
        with recorder.stage("update"):
            updated = parts.agent.learn(batch, progress)
        parts.feedback.put(host.tickets, updated.priorities)
        recorder.add_update(updated, host)
        with recorder.stage("publish"):
            # Skipped updates are handled before publishing: after too many in a row the last good weights are restored here.
            parts.skipped.look()
            parts.workers.weights.publish(parts.network, counters.updates)
            parts.feeder.release_held()  # after the new version is there, so that an on-policy agent's rollouts act with it
        prepared.release(copied)  # on a CPU the update is over; on a GPU the memory is reused only after the copy
        recorder.report()
        if found := parts.evaluations.step(parts.network, counters, lambda: _checkpoint(parts)):
            recorder.add_evaluation(found)
        # No checkpoint is written in a streak of skipped updates, since it would not hold the length of the streak.
        if counters.updates % parts.plan.config.output.checkpoint_period == 0 and parts.skipped.newest_is_sound():
            _save(parts)
            parts.skipped.keep()


def _evaluate_the_final_policy(parts: Parts, signals: StopSignals) -> None:
    """Wait for its evaluation, if the run evaluates at all. The run is saved already, so a signal ends the wait."""
    with signals.silent():
        for found in parts.evaluations.finish(parts.network, parts.counters, lambda: _checkpoint(parts), signals.asked):
            parts.recorder.add_evaluation(found)


def _save_what_is_left(parts: Parts) -> None:
    """Save after a failure. Saving may fail too: a GPU that has failed returns no tensors."""
    if parts.ranks.rank:
        return  # rank 0 saves
    try:
        _save(parts)
    except RuntimeError as error:
        log.error("error: the last checkpoint could not be saved: %s", " ".join(str(error).split()))


def _save(parts: Parts) -> Path | None:
    """Save a checkpoint, the metrics and the replays. Returns the checkpoint's path, or None if it could not be written."""
    parts.skipped.look(everything=True)
    parts.ranks.keep_equal(parts.agent)
    parts.recorder.write_record()  # so that metrics and checkpoint describe the same moment
    parts.feedback.settle()
    with parts.mixture.lock:  # replays neither insert nor sample while they are written
        replay = replay_to_save(parts.plan.config, parts.mixture, parts.workers, parts.feeder)
        return parts.saver.save(_checkpoint(parts), replay)


def _checkpoint(parts: Parts) -> Checkpoint:
    """The run as it is now. Its tensors are live: the next update changes them, so they are written before it."""
    return Checkpoint(
        settings=parts.plan.config.settings,
        spec=parts.plan.spec.to_json(),
        protocol=parts.plan.protocol,
        counters=parts.counters,
        agent=parts.agent.state_dict(),
        learning_rate=parts.recorder.learning_rate,
        generators=generator_states(parts.generator),
        returns=list(parts.recorder.episodes.recent),
        infos=list(parts.recorder.episodes.infos.recent),
    )
