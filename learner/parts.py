"""What a training is made of, built once: the loop in `learner/train.py` only uses it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from agents import Agent
from agents.compute import allow_tf32, prepare_torch
from agents.networks.base import FeatureNetwork, make_network, on_device
from learner.building import agent_class, make_agent, make_network_config
from learner.evaluation.schedule import EvaluationSchedule
from learner.feeding.background import make_feeder
from learner.feeding.encoder import Encoder
from learner.feeding.feeder import Feeder
from learner.head_start import HeadStart, run_seeds
from learner.metrics.recorder import Recorder, Sources
from learner.runs.checkpoint import Checkpoint, Counters, restore_generators
from learner.runs.directory import RunDirectory
from learner.runs.resuming import restore_replays, trajectories_to_fill_in
from learner.runs.saving import Saver
from learner.settings.config import Config
from learner.skipping import SkippedUpdates
from replay import Mixture, make_mixture, needs_encode
from workers import Workers
from wrappers import EnvSpec, make_spec


@dataclass(frozen=True)
class Parts:
    """The parts of one training. counters: how far it has come. generator: draws from the replays. total_frames: its budget."""

    config: Config
    spec: EnvSpec
    device: torch.device
    network: FeatureNetwork
    agent: Agent
    skipped: SkippedUpdates
    workers: Workers
    mixture: Mixture
    feeder: Feeder
    recorder: Recorder
    saver: Saver
    evaluations: EvaluationSchedule
    counters: Counters
    generator: np.random.Generator
    total_frames: int

    def stop(self) -> None:
        """End all that runs beside the loop; safe to call at any time and twice."""
        self.evaluations.stop()
        self.feeder.stop()
        self.workers.stop()


def build(
    config: Config,
    run: RunDirectory,
    resumed: Checkpoint | None,
    head_start: HeadStart,
    *,
    load_optimizer: bool,
    replay: dict[str, Any] | None,
) -> Parts:
    """Build all parts; what was saved comes back, but for what was under way. Only the workers' processes run already: they get
    ready beside the rest, and have ended where that fails.

    replay: what was saved with the checkpoint, see `learner.runs.resuming`. Raises ResumeError where it does not fit.
    """
    settings = config.training
    _prepare_torch(config)
    generator = np.random.default_rng(run_seeds(config, resumed)[1])
    device = torch.device(settings.device)
    spec = make_spec(config.env)
    counters = replace(resumed.counters) if resumed else Counters()
    network = on_device(make_network(make_network_config(config, settings.precision)), device)
    workers = head_start.take_workers(config, network)
    with ExitStack() as undo:
        undo.callback(workers.stop)
        agent = make_agent(config, network, threads=settings.learner_threads, compiled=settings.compile)
        if resumed:
            agent.load_state_dict(resumed.agent, load_optimizer=load_optimizer)
            restore_generators(resumed.generators, generator)
        elif config.network_settings.calibrate_input:
            network.calibrate(head_start.random_observations().to(device))
        total_frames = settings.environment_max_steps * spec.frames_per_step
        mixture = make_mixture(
            config.replays,
            workers.setup.contract,
            settings.batch_size,
            config.replay_settings.replay_fill_fraction,
            generator,
            encode=Encoder(network, workers.weights, spec.frames_stacked, device) if needs_encode(config.replays) else None,
            progress=lambda: counters.frames / total_frames,  # of the batches taken so far
            device=device,
        )
        if replay:
            restore_replays(replay, mixture)
        feeder = make_feeder(workers, mixture, settings.prepared_batches, pinned=device.type == "cuda")
        skipped = SkippedUpdates(agent, settings.max_skipped_updates, counters.updates)
        parts = Parts(
            config=config,
            spec=spec,
            device=device,
            network=network,
            agent=agent,
            skipped=skipped,
            workers=workers,
            mixture=mixture,
            feeder=feeder,
            recorder=Recorder(
                config,
                run,
                counters,
                Sources(workers, mixture, feeder, skipped),
                resumed=resumed,
                to_fill_in=0 if replay else trajectories_to_fill_in(config),
                charts=agent_class(config).charts,
            ),
            saver=Saver(
                run,
                config.output.checkpoints_kept,
                config.output.return_window,
                resumed,
                evaluated=config.evaluation.eval_period > 0,
            ),
            evaluations=EvaluationSchedule(config, run, network, resumed),
            counters=counters,
            generator=generator,
            total_frames=total_frames,
        )
        undo.pop_all()
    return parts


def _prepare_torch(config: Config) -> None:
    torch.manual_seed(config.training.seed)
    prepare_torch(threads=1)  # the agent divides its work itself
    if config.training.device == "cuda":
        allow_tf32()
    if config.training.reproducible:
        torch.use_deterministic_algorithms(True)
