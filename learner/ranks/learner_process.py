"""The process of a learner of rank 1 or up: the whole of a learner, with its own workers, replays and device.

Rank 0 has settled all settings. This learner writes its own replay and log lines alone, and prints only warnings and errors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from copy import deepcopy
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.compute import keep_freed_memory
from learner.console import log_to_console, log_to_file
from learner.early_processes import EarlyProcesses, run_seeds
from learner.plan import Plan
from learner.ranks.base import RankError
from learner.ranks.group import LearnerGroup
from learner.ranks.several import SeveralLearners
from learner.runs.checkpoint import Checkpoint, generator_states, load_checkpoint
from learner.runs.directory import RunDirectory
from learner.runs.resuming import load_saved_replay
from learner.runs.saving import GENERATORS
from learner.train import train
from workers import WorkerError
from workers.processes import launcher
from workers.processes.fork_server import die_with_parent, set_process_name
from workers.processes.out_of_memory import describe
from wrappers.journal import ReplayStopped

log = logging.getLogger("springbok")

READY = "ready"
LOST_OTHERS = 3
"""Exit code of a learner that has lost contact with another one, which is the one to blame."""
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class LearnerTask:
    """The arguments of the process.

    Args:
        rank: of the learner.
        plan: of the run, settled.
        run: the run directory.
        checkpoint: that the run resumes from.
        port: of rank 0's store.
        parent: process id of rank 0.
    """

    rank: int
    plan: Plan
    run: Path
    checkpoint: Path | None
    port: int
    parent: int


def run_learner(task: LearnerTask, words: Connection) -> None:
    """Entry of the process: train until all learners end. words: takes READY, and the cause of a failure in one line."""
    if sys.platform == "linux":
        die_with_parent(task.parent)
        set_process_name(f"learner-{task.rank}")
    if task.plan.config.training.device == "cuda":
        os.environ[VISIBLE_GPUS] = gpu_of(task.rank)  # before anything looks for a GPU
    name = f"rank {task.rank}"
    log_to_console(0, name)
    with contextlib.suppress(OSError):
        log_to_file(RunDirectory(task.run).log, name)
    try:
        code = _train(task, words)
    except (RankError, KeyboardInterrupt, ReplayStopped):
        code = LOST_OTHERS
    except Exception as error:  # a process boundary: rank 0 says the cause last
        log.error("%s", error)
        log.debug("", exc_info=True)
        lines = str(error).strip().splitlines() or [""]
        code = 1
        with contextlib.suppress(OSError):
            words.send(lines[-1] if isinstance(error, WorkerError) else describe(error))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # at once: the fork server ends with this process, and would otherwise be waited for


def _train(task: LearnerTask, words: Connection) -> int:
    """Train in step with the others. Returns the exit code. Raises RankError if another learner is gone."""
    keep_freed_memory()  # before there is a second thread
    checkpoint = load_checkpoint(task.checkpoint) if task.checkpoint else None
    plan = plan_of_rank(task.plan, task.rank, checkpoint.counters.updates if checkpoint else 0)
    launcher.start_fork_server()  # before there is any thread, and before the connections, which no other process may hold
    with EarlyProcesses(plan, checkpoint, random_play=False) as early_processes:
        # Rank 0 connects only when all learners are ready, so their start does not count against the time for connecting.
        words.send(READY)
        training = plan.config.training
        group = LearnerGroup(task.rank, training.learner_count, None, task.port, torch.device(training.device))
        learners = SeveralLearners(group, whole_updates=training.reproducible)
        # A large replay takes minutes to check. Connected learners wait for each other that long, those that start do not.
        resumed, replay = _saved(plan, checkpoint, task) if checkpoint else (None, None)
        return train(plan, RunDirectory(task.run), resumed, replay=replay, early_processes=early_processes, learners=learners)


def plan_of_rank(plan: Plan, rank: int, updates: int) -> Plan:
    """The plan of rank 1 or up: with its own seed, and without what rank 0 does for all. updates: made so far."""
    config = plan.config
    seed = int(np.random.SeedSequence([config.training.seed, rank, updates]).generate_state(1)[0] >> 1)
    config = replace(
        config,
        training=replace(config.training, seed=seed),
        evaluation=replace(config.evaluation, eval_period=0, eval_seconds=0.0),
        output=replace(config.output, profile=0),
    )
    return replace(plan, config=config)


def _saved(plan: Plan, checkpoint: Checkpoint, task: LearnerTask) -> tuple[Checkpoint, dict[str, Any] | None]:
    """The checkpoint with this learner's own replay and random states, and the state of that replay, None without one."""
    checkpoint = checkpoint.of_rank(task.rank)
    replay = load_saved_replay(plan, checkpoint, task.checkpoint, task.rank)
    # The checkpoint holds the random states of rank 0 alone, so this learner takes its own file's or fresh ones.
    torch.manual_seed(plan.config.training.seed)
    fresh = generator_states(np.random.default_rng(run_seeds(plan.config, checkpoint)[1]))
    # A copy, because the checkpoint is kept for longer than the replay's file.
    return replace(checkpoint, generators=deepcopy((replay or {}).get(GENERATORS, fresh))), replay


def gpu_of(rank: int) -> str:
    """The GPU of a learner, as the variable `VISIBLE_GPUS` names it: one of those that rank 0 may use."""
    visible = os.environ.get(VISIBLE_GPUS, "")
    return visible.split(",")[rank] if visible else str(rank)
