"""Does a job: measures the machine if that decides a setting, opens the run directory, and calls training, test mode or export.

`learner/prepare.py` makes the job.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import torch

from agents.engine.graphs import GraphError
from checked_files import LockedError
from learner.console import apart_from_libraries, keep_library_output, log_to_console, log_to_file
from learner.early_processes import EarlyProcesses
from learner.evaluation.settings import NO_FOLDER
from learner.machine.fit import fit_to_machine
from learner.machine.measuring import PART_SECONDS, measure_costs, wants_preflight
from learner.machine.memory_check import describe_memory
from learner.metrics.hardware import family_of
from learner.metrics.progress import steps_and_frames
from learner.plan import Plan
from learner.prepare import Job, check_recorded, prepare
from learner.ranks.base import RankError
from learner.runs.checkpoint import Checkpoint, remove_partial_files
from learner.runs.directory import RunDirectory, run_of_checkpoint, shell_name_of_program
from learner.runs.lock import locked
from learner.runs.resuming import ResumeError, load_saved_replay
from learner.runs.resuming_newest import FinishedError
from learner.runs.sent_environment import keep_environment
from learner.settings.config import make_config
from learner.skipping import SkippingError
from learner.stores.mirror import mirror_new_files, mirror_training
from learner.waiting import announced
from replay.exchange import ExchangeError, check_room
from workers import WorkerError
from workers.base import NO_RECORDING
from workers.minari_import import import_dataset
from workers.processes import launcher
from workers.processes.out_of_memory import describe, is_out_of_memory
from workers.recorded import summary_of
from wrappers.answering import allow
from wrappers.journal import ReplayStopped
from wrappers.spec import NoAnswerError

__all__ = ["FinishedError", "Job", "measured", "prepare", "run"]

log = logging.getLogger("springbok")

GPU_IS_FULL = (
    "error: the GPU's memory is full; use a smaller --batch_size, --unroll_length or --network, or replays in host memory, or "
    "end other programs on it: {}"
)
OUT_OF_MEMORY = (
    "error: wanted more memory than the system gives this program (%s); use fewer workers, environments or learner threads, "
    "smaller batches or replays, or raise the limit (ulimit -v)"
)
STOPPED = 130  # exit code of a program that Ctrl-C ended: 128 + SIGINT
TITLES = {
    "train": "Training on",
    "train_w_load": "Training on",
    "test": "Testing on",
    "export": "Exporting the policy for",
    "serve": "Serving the policy for",
}


def run(job: Job, *, apart: bool = False) -> int:
    """Do the job. Returns the exit code. apart: see `learner.console.apart_from_libraries`; --verbosity=2 shows all instead."""
    verbosity = job.config.settings["verbosity"]
    allow(job.config.workers.worker_timeout)
    with apart_from_libraries() if apart and verbosity < 2 else nullcontext():
        log_to_console(verbosity)
        return _checked(job)


def _checked(job: Job) -> int:
    """Do the job. Returns the exit code, after one line on failures that may happen in any mode."""
    try:
        return _run(job)
    except (GraphError, NoAnswerError) as error:  # in the measurement; when environments are closed
        log.error("error: %s", error)
        return 1
    except WorkerError as error:  # before there is a run directory, or without one
        log.error("error: %s (--verbosity=2 shows where)", error)
        return 1
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        log.error(OUT_OF_MEMORY, describe(error))
        return 1


def end_at_once(line: str) -> None:
    """End the program and all its processes. line: says which code does not answer."""
    log.error("error: %s", line)
    for process in family_of(os.getpid())[1:]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    os._exit(1)


def _run(job: Job) -> int:
    if job.trains:
        return _train(job)
    _introduce(job)
    assert job.checkpoint is not None
    assert job.checkpoint_path is not None
    run = run_of_checkpoint(job.checkpoint_path)
    loaded = job.plan, job.checkpoint, job.checkpoint_path, run
    if run:
        keep_library_output(run.log)
    if job.op_mode == "serve":
        from learner.policy_server import serve_policy

        return serve_policy(*loaded)
    with mirror_new_files(job.config.output, job.addresses, run):
        return _test(*loaded) if job.op_mode == "test" else _export(*loaded)


def _introduce(job: Job) -> None:
    """Log the command's task and the settings that were loaded, overridden or chosen."""
    log.info("%s %s", TITLES[job.op_mode], job.config.env.env)
    for line in job.notes + job.chosen:
        log.info("  %s", line)


def _test(plan: Plan, checkpoint: Checkpoint, path: Path, run: RunDirectory | None) -> int:
    from learner.evaluation.estimating import estimate_score
    from learner.evaluation.test_mode import evaluate

    if plan.config.evaluation.estimate_from != NO_FOLDER:
        return estimate_score(plan, checkpoint, path, run.path if run else path.parent)
    try:
        return evaluate(plan, checkpoint, path, run)
    except LockedError as error:  # another process has begun to record into the folder
        log.error("error: %s", error)
        return 2
    except OSError as error:
        log.error("error: the recording could not be written: %s", error)
        return 1


def _export(plan: Plan, checkpoint: Checkpoint, path: Path, run: RunDirectory | None) -> int:
    from learner.export.export import export_policy

    return export_policy(plan, checkpoint, path, run.path if run else path.parent)


def _train(job: Job) -> int:
    """Start the run's processes, measure the machine, and train. Returns the exit code."""
    try:
        if (folder := job.config.replay_settings.share_experience) != NO_FOLDER:
            check_room(Path(folder), job.plan.contract)
        if job.dataset:
            _import_dataset(job)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)  # as main.py does for what `prepare` refuses
        return 2
    try:
        launcher.start_fork_server()  # before there is any thread: a fork copies locks that other threads hold
        early_processes = EarlyProcesses(job.plan, job.checkpoint)
    except (OSError, WorkerError) as error:
        if is_out_of_memory(error):
            raise  # `run` says what to do
        log.error("error: the run's processes could not be started: %s", error)
        return 1
    with early_processes:
        return _train_in_directory(measured(job), early_processes)


def _import_dataset(job: Job) -> None:
    """Make the recording of the Minari dataset that the command names. Raises ValueError in one line."""
    try:
        with announced(f"Making a recording of {job.given['recording']}"):
            import_dataset(job.dataset, job.config.env, job.plan.spec, Path(job.config.workers.recording))
    except OSError as error:
        raise ValueError(f"recording: wanted room for a copy of {job.given['recording']}, got {error}") from error
    check_recorded(job.plan)


def _train_in_directory(job: Job, early_processes: EarlyProcesses) -> int:
    """Hold the run directory's lock and train. Returns the exit code."""
    with ExitStack() as held:
        try:
            directory = job.resumed or RunDirectory.create(Path(job.config.settings["results_dir"]), job.config.env.env)
            held.callback(_keep_latest_loadable, directory)
            # The lock comes before the first write: config.json and the log belong to the process that trains here.
            held.enter_context(locked(directory.path))
            _prepare_directory(job, directory)
            _introduce(job)  # after the log file was opened, so that it has these lines too
            _put_aside_newer(job, directory)
        except LockedError as error:  # another process has taken the lock since `prepare` checked it
            log.error("error: %s", error)
            return 2
        except OSError as error:
            log.error("error: the run directory could not be written: %s", error)
            return 1
        resumed_at = job.checkpoint.counters.updates if job.checkpoint and job.resumed else None
        held.enter_context(mirror_training(job.config.output, job.addresses, directory, resumed_at))
        return _train_here(job, directory, early_processes)


def _keep_latest_loadable(directory: RunDirectory) -> None:
    """At the end of a command: give `latest` back to the run before, if this one has no checkpoint to load."""
    if not directory.checkpoint_paths():
        directory.give_latest_back()


def _train_here(job: Job, directory: RunDirectory, early_processes: EarlyProcesses) -> int:
    """Train in a run directory that is open and locked. Returns the exit code, after one line on any failure."""
    from learner.ranks.processes import all_learners
    from learner.train import train

    _describe(job, directory)
    replay = load_saved_replay(job.plan, job.checkpoint, job.checkpoint_path)
    try:
        with all_learners(job.plan, directory, job.checkpoint_path) as learners:
            return train(job.plan, directory, job.checkpoint, replay=replay, early_processes=early_processes, learners=learners)
    except KeyboardInterrupt:  # before or after the training loop: while it runs, `StopSignals` handles all signals
        newest = directory.checkpoint_paths()[-1:]
        log.info("Stopped. %s", f"The newest checkpoint is {newest[0]}." if newest else "No checkpoint was saved.")
        return STOPPED
    except ExchangeError as error:  # there was room when `_train` looked
        log.error("error: %s", error)
        return 2
    except ReplayStopped:
        log.info("Stopped while the environments were being restored. The run can be resumed from %s", job.checkpoint_path)
        return STOPPED
    except (GraphError, RankError, ResumeError, SkippingError, WorkerError, torch.OutOfMemoryError) as error:
        if not isinstance(error, ResumeError) and directory.checkpoint_paths():
            path = shlex.quote(str(directory.path))
            log.info("Resume: python %s --op_mode=train_w_load --load=%s", shell_name_of_program(), path)
        log.error("%s", GPU_IS_FULL.format(error) if isinstance(error, torch.OutOfMemoryError) else error)
        return 1


def measured(job: Job, seconds: float = PART_SECONDS) -> Job:
    """The job with the settings that a measurement of the machine decides, if one is wanted. Measuring takes two seconds,
    or longer if the environment is slow.

    seconds: time for each part that is measured.
    """
    if not job.trains or not wants_preflight(job.settings, job.config, job.machine.cores):
        return job
    with announced(f"Measuring the speed of {job.config.env.env}, acting and learning (--nopreflight leaves this out)"):
        costs = measure_costs(job.plan, seconds, brief=True)
    settled, chosen = fit_to_machine(job.settings, job.machine, costs)
    config = make_config(settled, job.settings, job.plan.spec)
    # The measurement decides on workers, environments and threads. Network, contract and protocol do not depend on them.
    return replace(job, plan=replace(job.plan, config=config), settled=settled, chosen=chosen)


def _prepare_directory(job: Job, directory: RunDirectory) -> None:
    """Write config.json, open the log file, and let `latest` name the run. Raises OSError."""
    parent = str(job.checkpoint_path) if job.checkpoint_path and not job.resumed else None
    directory.point_latest_here()
    keep_environment(job.config.env.env, directory)
    directory.write_config(job.settled, job.command, job.notes + job.chosen, parent)
    log_to_file(directory.log)


def _put_aside_newer(job: Job, directory: RunDirectory) -> None:
    """Rename checkpoints of later updates than the one that the run resumes from. Raises OSError."""
    if job.checkpoint:
        remove_partial_files(directory.checkpoints)
        for path in directory.put_aside_after(job.checkpoint.counters.updates):
            log.info("A checkpoint is newer than the one loaded and was kept as %s", path)


def _describe(job: Job, directory: RunDirectory) -> None:
    """Log where the run is saved, its budget, its memory, and where it resumes."""
    config = job.config
    steps, skip = config.training.environment_max_steps, job.plan.spec.frames_per_step
    log.info("Run directory: %s", directory.path)
    log.info("Budget: %s", steps_and_frames(steps, steps * skip))
    if (learners := config.training.learner_count) > 1:
        batch = config.training.batch_size
        log.info("Learners: %d; an update learns from %d trajectories, %d of each learner", learners, learners * batch, batch)
    if config.workers.recording != NO_RECORDING:
        log.info("Recording: %s", summary_of(config.workers.recording))
    for line in describe_memory(job.plan):
        log.info("%s", line)
    if job.checkpoint:
        log.info("Resuming from %s at step %s", job.checkpoint_path, f"{job.checkpoint.counters.steps:,}")
        before = job.checkpoint.settings.get("environment_max_steps", steps)
        if steps != before:
            log.info("Schedules, such as the learning rate's, now end at step %s instead of %s", f"{steps:,}", f"{before:,}")
