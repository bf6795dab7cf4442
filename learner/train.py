"""Training: the loop that turns trajectories into updates, readable top to bottom."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents import AGENTS, Agent
from agents.compute import allow_tf32, prepare_torch
from agents.networks import make_network, on_device
from agents.schedules import linear_schedule
from agents.streams import Fence
from learner.background import make_feeder
from learner.checkpoint import Checkpoint, Counters, generator_states, restore_generators
from learner.config import Config, make_contract
from learner.encoder import Encoder
from learner.evaluations import Evaluations
from learner.machine import acting_precision
from learner.protocol import evaluation_protocol
from learner.recorder import Recorder
from learner.resuming import replay_to_save, restore_replays, restore_under_way
from learner.run_directory import RunDirectory
from learner.saving import Saver
from learner.signals import StopSignals
from replay import make_mixture, replay_names
from replay.trajectory import make_batch
from workers import WORKERS, WorkerError, WorkerSetup, first_seeds, random_observations
from wrappers import make_spec

log = logging.getLogger("springbok")


def train(
    config: Config,
    run: RunDirectory,
    resumed: Checkpoint | None,
    *,
    load_optimizer: bool = True,
    replay: dict[str, Any] | None = None,
) -> int:
    """Train until the step budget is used up or a signal asks to stop. Returns the exit code.

    replay: what was saved with the checkpoint, see `learner.resuming`; without it replays start empty, with fresh episodes.
    """
    settings = config.training
    _prepare_torch(config)
    seeds = np.random.SeedSequence(settings.seed, spawn_key=(resumed.counters.updates,) if resumed else ())
    worker_seeds, sampling = seeds.spawn(2)
    generator = np.random.default_rng(sampling)
    device = torch.device(settings.device)
    spec = make_spec(config.env)
    contract = make_contract(config, spec)

    network = make_network(config.network, spec.observation_shape, spec.action_count, precision=settings.precision)
    network = on_device(network, device)
    agent = AGENTS["vtrace"](
        config.agent, network, replay_names(config.replays), threads=settings.learner_threads, compiled=settings.compile
    )
    counters = Counters()
    if settings.calibrate_input and not resumed:
        network.calibrate(random_observations(config.env, settings.seed).to(device))
    if resumed:
        counters = replace(resumed.counters)
        agent.load_state_dict(resumed.agent, load_optimizer=load_optimizer)
        restore_generators(resumed.generators, generator)

    setup = WorkerSetup(
        config.env,
        spec,
        config.network,
        contract,
        config.workers,
        first_seeds(worker_seeds, config.workers.worker_count),
        settings.precision if config.workers.kind == "central" else acting_precision(settings),
        device=settings.device,
        compiled=settings.compile,
    )
    workers = WORKERS[config.workers.kind](setup, network)
    total_frames = settings.environment_max_steps * spec.frames_per_step
    mixture = make_mixture(
        config.replays,
        contract,
        settings.batch_size,
        settings.training_fill_in_factor,
        generator,
        encode=Encoder(network, workers.weights, spec.frames_stacked, device),
        progress=lambda: counters.frames / total_frames,  # of the batches taken so far
    )
    if replay:
        restore_replays(replay, mixture)
    feeder = make_feeder(workers, mixture, settings.prepared_batches, pinned=device.type == "cuda")
    recorder = Recorder(config, run, counters, workers, mixture, feeder, spec.frames_per_step, resumed)
    saver = Saver(run, settings.checkpoints_kept, settings.avg_buff_size, resumed, evaluated=settings.eval_period > 0)
    evaluations = Evaluations(config, run, network, resumed)

    def checkpoint() -> Path | None:
        recorder.write_row()  # so that metrics and checkpoint tell of the same moment
        with mixture.lock:  # nothing comes in or goes out while the replays are written
            saved = _make_checkpoint(config, asdict(spec), agent, recorder, generator)
            return saver.save(saved, replay_to_save(config, mixture, workers, feeder))

    def to_evaluate() -> Checkpoint:
        return _make_checkpoint(config, asdict(spec), agent, recorder, generator)

    def stop() -> None:
        evaluations.stop()
        feeder.stop()
        workers.stop()

    try:
        with StopSignals(at_once=workers.kill) as signals:
            workers.weights.publish(network, counters.updates)
            workers.start()
            evaluations.start(counters.updates)
            if resumed and restore_under_way(config, replay, workers, feeder):
                restore_generators(resumed.generators, generator)  # again: building all this has drawn from them
            feeder.start()
            while counters.steps < settings.environment_max_steps and not signals.requested:
                with recorder.stage("wait"):
                    prepared = feeder.next_batch(lambda: signals.requested)
                if prepared is None:
                    break
                recorder.add_arrivals(prepared.arrivals)
                host = prepared.host
                with recorder.stage("batch"):
                    batch = make_batch(host.columns, host.is_replay, host.source, spec.frames_stacked, device)
                    copied = Fence(device)
                    copied.record()
                recorder.learning_rate = linear_schedule(settings.lr, settings.lr_end_value, counters.frames, total_frames)
                with recorder.stage("update"):
                    scalars = agent.update(batch, recorder.learning_rate)
                recorder.add_update(scalars, host)
                with recorder.stage("publish"):
                    workers.weights.publish(network, counters.updates)
                prepared.release(copied)  # a CPU has finished the update, a GPU the copy once that is
                recorder.report()
                if found := evaluations.step(network, counters, to_evaluate):
                    recorder.add_evaluation(found)
                if counters.updates % settings.save_model_period == 0:
                    checkpoint()
            feeder.stop()
            saved = checkpoint()
            workers.stop()
            recorder.finish(saved, interrupted=signals.requested)
            if saved is None:
                log.error("error: the last checkpoint could not be saved: %s", saver.error)
            return 0 if saved else 1
    except WorkerError:
        feeder.stop()
        checkpoint()
        raise
    finally:
        stop()
        recorder.close()


def _prepare_torch(config: Config) -> None:
    torch.manual_seed(config.training.seed)
    prepare_torch(threads=1)  # the agent divides its work itself
    if config.training.device == "cuda":
        allow_tf32()
    if config.training.reproducible:
        torch.use_deterministic_algorithms(True)


def _make_checkpoint(
    config: Config, spec: dict[str, object], agent: Agent, recorder: Recorder, generator: np.random.Generator
) -> Checkpoint:
    return Checkpoint(
        settings=config.settings,
        spec=spec,
        protocol=evaluation_protocol(config.env, config.test.greedy),
        counters=recorder.counters,
        agent=agent.state_dict(),
        learning_rate=recorder.learning_rate,
        generators=generator_states(generator),
        returns=list(recorder.episodes.recent),
    )
