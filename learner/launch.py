"""Turns settings into a job and runs it.

`prepare` loads the checkpoint, settles all settings and checks everything, but starts nothing. `run` then does the work: it
measures the machine if that decides a setting, opens the run directory, and calls training, test mode or export.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from agents.compute import compiler_missing, keep_freed_memory
from learner.building import agent_class, make_network_config, make_network_shapes
from learner.console import log_to_console, log_to_file
from learner.evaluation.protocol import AS_SET, apply_protocol, check_protocol_of_env, check_same_protocol
from learner.head_start import HeadStart
from learner.machine.default_replay import fit_default_replay
from learner.machine.detect import Machine, detect_machine, free_gpu_memory
from learner.machine.fit import fit_to_machine, portable_settings
from learner.machine.measuring import PART_SECONDS, measure_costs, wants_preflight
from learner.machine.memory_check import check_gpu_memory, check_memory, check_replay_devices, describe_memory, gpu_memory
from learner.machine.reproducible import settle_as_before
from learner.metrics.progress import steps_and_frames
from learner.ranks.base import RankError
from learner.ranks.check import part_of_learner
from learner.runs.checkpoint import Checkpoint, remove_partial_files
from learner.runs.directory import RunDirectory, check_results_folder, check_run_folder, run_of_checkpoint
from learner.runs.loading import check_finite, check_fit, load_newest, merge_settings
from learner.runs.lock import LockedError, locked
from learner.runs.resuming import ResumeError, load_saved_replay, trajectories_to_fill_in
from learner.settings.check import check_given, check_settings
from learner.settings.config import Config, Settings, make_config
from learner.settings.modes import shown_choices, unused_notes
from learner.settings.presets import apply_preset
from learner.settings.renames import rename_settings
from learner.settings.schema import DEFAULTS
from learner.settings.settle import settle
from learner.skipping import SkippingError
from learner.stores.fetching import Addresses, fetch_newest, take_addresses
from learner.stores.mirror import mirror_new_files, mirror_training
from learner.stores.store import redacted
from learner.waiting import announced
from setting import TRAINING_MODES
from workers import WorkerError
from workers.processes import launcher
from workers.processes.out_of_memory import describe, is_out_of_memory
from wrappers import env_notes, make_single_env, make_spec
from wrappers.journal import ReplayStopped

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
}
BYTES_A_WEIGHT = 28  # a weight in float32, its gradient, up to two moments, and the last good weight and moments


@dataclass(frozen=True)
class Job:
    """One command, checked and ready to start.

    Args:
        op_mode: train, train_w_load, test or export.
        config: the settled settings as dataclasses.
        machine: the machine that they were fitted to.
        settings: all settings as they were asked for; some are `auto`.
        settled: all settings with the values that the machine decided.
        notes: lines for the user on settings that were loaded, overridden or not used.
        chosen: lines for the user on settings that the machine decided.
        command: the command line.
        checkpoint_path: the file that was loaded, if any.
        checkpoint: its content.
        addresses: of the store, with credentials; settings, notes and command hold redacted ones.
    """

    op_mode: str
    config: Config
    machine: Machine
    settings: Settings
    settled: Settings
    notes: list[str]
    chosen: list[str]
    command: list[str]
    checkpoint_path: Path | None = None
    checkpoint: Checkpoint | None = None
    addresses: Addresses = field(default_factory=Addresses)


def prepare(op_mode: str, given: Settings, command: list[str]) -> Job:
    """Settle and check all settings, and load a checkpoint if the mode asks for one. Raises ValueError with one line.

    given: the settings that the command gives; the others come from the preset, the checkpoint and the defaults.
    """
    keep_freed_memory()  # before PyTorch starts threads: a thread that has a heap of its own keeps it
    machine = detect_machine()
    given = rename_settings(given)
    unused = unused_notes(op_mode, given)
    given = apply_preset(given)
    check_given(given)
    given, addresses = take_addresses(given)
    addresses.open_store()  # a protocol without its package is one line
    path = checkpoint = None
    notes: list[str] = []
    if op_mode != "train":
        path, checkpoint, notes = _load(op_mode, {**DEFAULTS, **given}, addresses)
    settings, overridden = merge_settings(given, checkpoint.settings if checkpoint else {})
    notes = notes + overridden
    if op_mode == "train_w_load" and checkpoint and path:
        config_file = run_before.config if (run_before := run_of_checkpoint(path)) else None
        settings, lines = settle_as_before(settings, checkpoint.settings, given, config_file)
        notes += lines
    if op_mode == "train_w_load" and not settings["load_optimizer"]:
        notes.append("load_optimizer=False (the optimiser's moments start at zero)")
    settings = apply_protocol(settings, given)
    check_settings(settings)
    settings, lines = settle(settings, given)
    notes += lines
    if op_mode == "train_w_load" and checkpoint:
        check_same_protocol(settings, checkpoint.settings)
    machine = part_of_learner(settings, machine, checkpoint) if op_mode in TRAINING_MODES else machine
    settled, chosen = fit_to_machine(settings, machine)
    config = _settled_config(settings, settled)
    _check_environment(config, machine)
    if op_mode == "train":
        settings, lines = fit_default_replay(settings, config, machine.memory_bytes)
        if lines:
            settled, chosen = fit_to_machine(settings, machine)
            config, notes = _settled_config(settings, settled), notes + lines
    if op_mode == "test" and config.evaluation.render:
        make_single_env(config.env, "rgb_array").close()  # a missing package or mode is one line
    notes += env_notes(config.env, {*given, *(("protocol",) if settings["protocol"] != AS_SET else ())})
    if checkpoint:
        check_fit(config, checkpoint, load_optimizer=op_mode in TRAINING_MODES and settings["load_optimizer"])
    if op_mode in TRAINING_MODES:
        _check_training(config, checkpoint, machine)
        run = _resumed_run(settings, path)
        check_run_folder(run) if run else check_results_folder(Path(settings["results_dir"]))
    if checkpoint and path and op_mode != "test":
        check_finite(checkpoint, path)
    chosen, command = shown_choices(op_mode, chosen), [redacted(part) for part in command]
    return Job(op_mode, config, machine, settings, settled, notes + unused, chosen, command, path, checkpoint, addresses)


def _load(op_mode: str, asked: Settings, addresses: Addresses) -> tuple[Path, Checkpoint, list[str]]:
    """The checkpoint that `load` names, here or in a store, its file, and lines for the user. Raises ValueError."""
    results = Path(asked["results_dir"])
    load, fetched = fetch_newest(asked["load"], results, addresses, with_replay=op_mode in TRAINING_MODES)
    path, checkpoint, notes = load_newest(load, results)
    return path, checkpoint, fetched + notes


def _settled_config(settings: Settings, settled: Settings) -> Config:
    """The config of the settled settings. Checkpoints store machine settings as they were given, to suit other machines."""
    return make_config(settled, portable=portable_settings(settings, settled))


def _check_environment(config: Config, machine: Machine) -> None:
    """Raise ValueError if environment or network cannot be made, the network is too large, or the protocol does not fit."""
    if config.training.device == "cuda" and machine.gpu is None:
        raise ValueError("device: wanted a CUDA GPU, got a machine on which PyTorch sees none; use --device=cpu")
    agent_class(config).check(config.agent_settings, make_network_config(config))  # before a network is made for the actions
    network = make_network_shapes(config)
    needed = BYTES_A_WEIGHT * sum(weights.numel() for weights in network.parameters())
    if needed > machine.memory_bytes:
        shape = list(make_spec(config.env).observation_shape)
        raise ValueError(
            f"network: wanted one that fits in {machine.memory_bytes / 1e9:.1f} GB of memory, got {config.network} for "
            f"observations of shape {shape}, which takes {needed / 1e9:.1f} GB to train"
        )
    if config.replay_settings.compress_replay and config.needs.window and all(part.is_vector for part in network.parts):
        raise ValueError(
            f"compress_replay: wanted false with agent {config.agent} for observations without images, because vectors hardly "
            "get smaller and each window would unpack a whole trajectory; got true"
        )
    check_protocol_of_env(config.settings["protocol"], config.env)


def _check_training(config: Config, checkpoint: Checkpoint | None, machine: Machine) -> None:
    """Raise ValueError if the agent cannot learn so, nothing is left to train, or a compiler, memory or device is missing."""
    agent_class(config).check_learning(config.agent_settings)
    limit = config.training.environment_max_steps
    if checkpoint and checkpoint.counters.steps >= limit:
        raise ValueError(
            f"environment_max_steps: wanted more than the {checkpoint.counters.steps} steps the checkpoint has, got {limit}"
        )
    if config.training.compile and (compilers := compiler_missing(config.training.device)):
        raise ValueError(f"compile: wanted a compiler that torch.compile can call, got a machine without {compilers}")
    check_replay_devices(config)
    check_memory(config, machine.memory_bytes)
    if any(gpu_memory(config)):
        check_gpu_memory(config, free_gpu_memory())
    if not checkpoint:
        _check_fill_in(config)


def _check_fill_in(config: Config) -> None:
    """Raise ValueError if empty replays take the whole budget of steps before the first update."""
    trajectories = config.training.learner_count * trajectories_to_fill_in(config)
    budget = config.training.environment_max_steps
    steps = trajectories * config.training.unroll_length
    if trajectories and steps >= budget:
        raise ValueError(
            f"environment_max_steps: wanted more than the {steps:,} steps of the {trajectories:,} trajectories that fill the "
            f"replays before the first update, got {budget:,}; a smaller "
            f"{'learning_starts' if config.pace else 'capacity or replay_fill_fraction'} takes fewer"
        )


def run(job: Job) -> int:
    """Do the job. Returns the exit code."""
    log_to_console(job.config.settings["verbosity"])
    try:
        return _run(job)
    except WorkerError as error:  # before there is a run directory, or without one
        log.error("error: %s (--verbosity=2 shows where)", error)
        return 1
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        log.error(OUT_OF_MEMORY, describe(error))
        return 1


def _run(job: Job) -> int:
    if job.op_mode in TRAINING_MODES:
        return _train(job)
    _introduce(job)
    return _test(job) if job.op_mode == "test" else _export(job)


def _introduce(job: Job) -> None:
    """Log the command's task and the settings that were loaded, overridden or chosen."""
    log.info("%s %s", TITLES[job.op_mode], job.config.env.env)
    for line in job.notes + job.chosen:
        log.info("  %s", line)


def _test(job: Job) -> int:
    from learner.evaluation.test_mode import evaluate

    assert job.checkpoint is not None
    assert job.checkpoint_path is not None
    run = run_of_checkpoint(job.checkpoint_path)
    with mirror_new_files(job.config.output, job.addresses, run):
        return evaluate(job.config, job.checkpoint, job.checkpoint_path, run)


def _export(job: Job) -> int:
    from learner.serving.export import export_policy

    assert job.checkpoint is not None
    assert job.checkpoint_path is not None
    run = run_of_checkpoint(job.checkpoint_path)
    with mirror_new_files(job.config.output, job.addresses, run):
        return export_policy(job.config, job.checkpoint, job.checkpoint_path, run.path if run else job.checkpoint_path.parent)


def _train(job: Job) -> int:
    """Start the run's processes, measure the machine, and train. Returns the exit code."""
    try:
        launcher.start_fork_server()  # before there is any thread: a fork copies locks that other threads hold
        head_start = HeadStart(job.config, job.checkpoint)
    except (OSError, WorkerError) as error:
        if is_out_of_memory(error):
            raise  # `run` says what to do
        log.error("error: the run's processes could not be started: %s", error)
        return 1
    with head_start:
        return _train_in_directory(measured(job), head_start)


def _train_in_directory(job: Job, head_start: HeadStart) -> int:
    """Hold the run directory's lock and train. Returns the exit code."""
    with ExitStack() as held:
        try:
            directory = _make_directory(job)
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
        same_run = job.checkpoint and _resumed_run(job.config.settings, job.checkpoint_path)
        resumed_at = job.checkpoint.counters.updates if job.checkpoint and same_run else None
        held.enter_context(mirror_training(job.config.output, job.addresses, directory, resumed_at))
        return _train_here(job, directory, head_start)


def _train_here(job: Job, directory: RunDirectory, head_start: HeadStart) -> int:
    """Train in a run directory that is open and locked. Returns the exit code, after one line on any failure."""
    from learner.ranks.processes import all_ranks
    from learner.train import train

    _describe(job, directory)
    replay = load_saved_replay(job.config, job.checkpoint, job.checkpoint_path)
    load_optimizer = job.config.settings["load_optimizer"]
    try:
        with all_ranks(job.config, directory, job.checkpoint_path) as ranks:
            return train(
                job.config,
                directory,
                job.checkpoint,
                load_optimizer=load_optimizer,
                replay=replay,
                head_start=head_start,
                ranks=ranks,
            )
    except KeyboardInterrupt:  # before or after the training loop: while it runs, `StopSignals` handles all signals
        newest = directory.checkpoint_paths()[-1:]
        log.info("Stopped. %s", f"The newest checkpoint is {newest[0]}." if newest else "No checkpoint was saved.")
        return STOPPED
    except ReplayStopped:
        log.info("Stopped while the environments were being restored. The run can be resumed from %s", job.checkpoint_path)
        return STOPPED
    except (RankError, ResumeError, SkippingError, WorkerError, torch.OutOfMemoryError) as error:
        if not isinstance(error, ResumeError) and directory.checkpoint_paths():
            log.info("Resume: python main.py --op_mode=train_w_load --load=%s", directory.path)
        log.error("%s", GPU_IS_FULL.format(error) if isinstance(error, torch.OutOfMemoryError) else error)
        return 1


def measured(job: Job, seconds: float = PART_SECONDS) -> Job:
    """The job with the settings that a measurement of the machine decides, if one is wanted. Measuring takes two seconds,
    or longer if the environment is slow.

    seconds: time for each part that is measured.
    """
    if job.op_mode not in TRAINING_MODES or not wants_preflight(job.settings, job.config, job.machine.cores):
        return job
    with announced(f"Measuring the speed of {job.config.env.env}, acting and learning (--nopreflight leaves this out)"):
        costs = measure_costs(job.config, seconds, brief=True)
    settled, chosen = fit_to_machine(job.settings, job.machine, costs)
    return replace(job, config=_settled_config(job.settings, settled), settled=settled, chosen=chosen)


def _resumed_run(settings: Settings, checkpoint_path: Path | None) -> RunDirectory | None:
    """The run directory of the checkpoint, or None if a new one is wanted."""
    if checkpoint_path is None or settings["resume_in"] == "new":
        return None
    return run_of_checkpoint(checkpoint_path)


def _make_directory(job: Job) -> RunDirectory:
    """The run directory of the checkpoint, or a new one. Raises OSError."""
    directory = _resumed_run(job.config.settings, job.checkpoint_path)
    return directory or RunDirectory.create(Path(job.config.settings["results_dir"]), job.config.env.env)


def _prepare_directory(job: Job, directory: RunDirectory) -> None:
    """Write config.json, open the log file, and let `latest` name the run. Raises OSError."""
    is_new = _resumed_run(job.config.settings, job.checkpoint_path) is None
    parent = str(job.checkpoint_path) if is_new and job.checkpoint_path else None
    directory.point_latest_here()
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
    steps, skip = config.training.environment_max_steps, make_spec(config.env).frames_per_step
    log.info("Run directory: %s", directory.path)
    log.info("Budget: %s", steps_and_frames(steps, steps * skip))
    if (learners := config.training.learner_count) > 1:
        batch = config.training.batch_size
        log.info("Learners: %d; an update learns from %d trajectories, %d of each learner", learners, learners * batch, batch)
    for line in describe_memory(config):
        log.info("%s", line)
    if job.checkpoint:
        log.info("Resuming from %s at step %s", job.checkpoint_path, f"{job.checkpoint.counters.steps:,}")
        before = job.checkpoint.settings.get("environment_max_steps", steps)
        if steps != before:
            log.info("Schedules, such as the learning rate's, now end at step %s instead of %s", f"{steps:,}", f"{before:,}")
