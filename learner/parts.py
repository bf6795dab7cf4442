"""Builds the objects that updates need, once a training. The loop in `learner/train.py` uses them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents import Agent
from agents.compute import prepare_torch, set_tf32
from agents.networks.actor_critic import distribution_name
from agents.networks.base import FeatureNetwork, make_network, on_device
from learner.building import agent_class, make_agent
from learner.early_processes import EarlyProcesses, run_seeds
from learner.feeding.background import make_feeder
from learner.feeding.encoder import Encoder, policy_divergence
from learner.feeding.feedback import PriorityFeedback
from learner.feeding.feeder import Feeder
from learner.hindsight import OpenGoals
from learner.metrics.counting import Counting
from learner.plan import Plan
from learner.ranks.base import Learners
from learner.ranks.saving import RankSaver
from learner.ranks.several import SeveralLearners
from learner.runs.checkpoint import Checkpoint, Counters, restore_generators
from learner.runs.directory import RunDirectory
from learner.runs.resuming import restore_replays
from learner.runs.saving import Saver
from learner.settings.config import Config
from learner.skipping import SkippedUpdates
from replay import Mixture, make_mixture, needs_encode
from replay.exchange import Exchange
from replay.settings import NO_FOLDER
from workers import Workers


@dataclass(frozen=True)
class Parts:
    """The objects that the updates of one training need, and the one that saves it.

    about: settings, spec and protocol, the same in every checkpoint. counting: how far the training has come. generator: draws
    from the replays. total_frames: the budget. learners: those of the run.
    """

    plan: Plan
    about: dict[str, Any]
    device: torch.device
    network: FeatureNetwork
    agent: Agent
    skipped: SkippedUpdates
    workers: Workers
    mixture: Mixture
    feeder: Feeder
    feedback: PriorityFeedback
    counting: Counting
    saver: Saver | RankSaver
    generator: np.random.Generator
    total_frames: int
    learners: Learners
    goals: OpenGoals

    def stop(self) -> None:
        """End the processes and threads that run next to the loop. May be called at any time, also twice."""
        # The feeder's thread reads the workers' slots, whose memory `workers.stop` gives back.
        self.feeder.stop()
        self.workers.stop()
        self.goals.close()
        if self.mixture.exchange:
            self.mixture.exchange.close()


def build(
    plan: Plan,
    run: RunDirectory,
    resumed: Checkpoint | None,
    early_processes: EarlyProcesses,
    replay: dict[str, Any] | None,
    learners: Learners,
) -> Parts:
    """Build all parts and restore what was saved. The workers' processes are already running, and are stopped if this fails.

    replay: the replays saved with the checkpoint, see `learner.runs.resuming`. Raises ResumeError if they do not fit, or
    ExchangeError if there is no room for the ring with which experience is shared.
    """
    config, settings = plan.config, plan.config.training
    _prepare_torch(config)
    generator, device = np.random.default_rng(run_seeds(config, resumed)[1]), torch.device(settings.device)
    counters = replace(resumed.counters) if resumed else Counters()
    total_frames = settings.environment_max_steps * plan.spec.frames_per_step
    network = on_device(make_network(replace(plan.network, precision=settings.precision)), device)
    workers = early_processes.take_workers(plan, network)
    with ExitStack() as undo:
        undo.callback(workers.stop)
        agent = make_agent(config, network, threads=settings.learner_threads, compiled=settings.compile)
        if resumed:
            agent.load_state_dict(resumed.agent, load_optimizer=config.loading.load_optimizer)
            restore_generators(resumed.generators, generator)
        elif config.wants_random_play and learners.rank == 0:
            agent.calibrate(early_processes.random_observations().to(device))
        learners.join(agent, workers)
        goals = undo.enter_context(closing(OpenGoals(plan)))
        mixture = _make_mixture(config, workers, network, generator, replay, lambda: counters.frames / total_frames, goals)
        if (folder := config.replay_settings.share_experience) != NO_FOLDER:
            mixture.exchange = _make_exchange(Path(folder), plan, run)
            undo.callback(mixture.exchange.close)
        pinned, prepared = device.type == "cuda", settings.prepared_batches
        parts = Parts(
            plan=plan,
            about={"settings": config.settings, "spec": plan.spec.to_json(), "protocol": plan.protocol},
            device=device,
            network=network,
            agent=agent,
            skipped=SkippedUpdates(agent, settings.max_skipped_updates, counters.updates),
            workers=workers,
            mixture=mixture,
            feeder=make_feeder(workers, mixture, prepared, pinned=pinned, hold_slots=config.workers.on_policy),
            feedback=PriorityFeedback(mixture, device),
            counting=Counting(plan, counters, resumed),
            saver=_make_saver(config, run, resumed, learners, generator),
            generator=generator,
            total_frames=total_frames,
            learners=learners,
            goals=goals,
        )
        undo.pop_all()
    return parts


def _make_mixture(
    config: Config,
    workers: Workers,
    network: FeatureNetwork,
    generator: np.random.Generator,
    replay: dict[str, Any] | None,
    progress: Callable[[], float],
    goals: OpenGoals,
) -> Mixture:
    """replay: what was saved of it. progress: the share of the training that the batches taken so far make up, 0 to 1."""
    device = torch.device(config.training.device)
    encoder = None
    if needs_encode(config.replays):
        encoder = Encoder(network, workers.weights, workers.setup.spec.frames_stacked, device)
    mixture = make_mixture(
        config.replays,
        workers.setup.contract,
        config.columns_at_once,
        config.replay_settings.replay_fill_fraction,
        generator,
        encode=encoder,
        progress=progress,
        device=device,
        policy_divergence=policy_divergence(network),
        pace=config.pace,
        initial_errors=agent_class(config).initial_errors(config.agent_settings, workers.setup.network),
        goals=goals.access,
    )
    if replay:
        restore_replays(replay, mixture)
    return mixture


def _make_exchange(folder: Path, plan: Plan, run: RunDirectory) -> Exchange:
    """The exchange with runs whose environment and action distribution are the same. Other settings may differ."""
    # The parameters of the policy that acted mean what its distribution says.
    identity = json.dumps([asdict(plan.config.env), distribution_name(plan.network)])
    found = run.path.stat()  # its path may name another directory in another container
    return Exchange(folder, plan.contract, identity, f"{found.st_dev:x}.{found.st_ino:x}")


def _make_saver(
    config: Config, run: RunDirectory, resumed: Checkpoint | None, learners: Learners, generator: np.random.Generator
) -> Saver | RankSaver:
    if isinstance(learners, SeveralLearners) and learners.rank:
        return RankSaver(run, learners, generator)
    output = config.output
    evaluated = config.evaluation.evaluates
    checksums = learners.replay_checksums
    return Saver(run, output.checkpoints_kept, output.return_window, resumed, evaluated=evaluated, rank_replays=checksums)


def _prepare_torch(config: Config) -> None:
    torch.manual_seed(config.training.seed)
    prepare_torch(threads=1)  # the agent divides its work itself
    if config.training.device == "cuda":
        set_tf32(allowed=not agent_class(config).exact)
    if config.training.reproducible:
        torch.use_deterministic_algorithms(True)
