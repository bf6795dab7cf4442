"""From settings to a running job: what is loaded, what is overridden, what the machine decides, where results go.

`prepare` checks everything and starts nothing; `run` measures where that decides something, and does the work.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from agents.compute import compiler_missing, keep_freed_memory
from learner.evaluation.protocol import is_atari
from learner.evaluation.protocols import AS_SET, apply_protocol, check_same_protocol
from learner.head_start import HeadStart
from learner.machine.machine import Machine, detect_machine, fit_to_machine, free_gpu_memory
from learner.machine.measuring import measure_costs
from learner.machine.memory_check import check_gpu_memory, check_memory, check_replay_devices, describe_memory, gpu_memory
from learner.machine.preflight import PART_SECONDS, wants_preflight
from learner.runs.checkpoint import Checkpoint
from learner.runs.checkpoint_file import remove_partial_files
from learner.runs.directory import RunDirectory, check_results_folder, check_run_folder, run_of_checkpoint
from learner.runs.loading import check_finite, check_fit, load_fitting_replay, load_newest, merge_settings
from learner.runs.resuming import UNDER_WAY, ResumeError, trajectories_to_fill_in
from learner.settings.check import check_given, check_settings
from learner.settings.config import Config, Settings, make_config, make_network_shapes
from learner.settings.modes import unused_notes
from learner.settings.presets import apply_preset
from learner.settings.renames import rename_settings
from learner.settings.schema import DEFAULTS, MACHINE_SETTINGS, SHARED
from learner.skipping import SkippingError
from setting import TRAINING_MODES
from workers import WorkerError
from workers.processes import launcher as children
from wrappers import make_spec

log = logging.getLogger("springbok")

GPU_IS_FULL = (
    "error: the GPU's memory is full; use a smaller --batch_size, --unroll_length or --network, or replays in host memory, or "
    "end other programs on it: {}"
)
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

    settings: as they were asked for, with `auto`; settled: with what the machine decides. notes: lines for the user on what was
    loaded; chosen: on what was decided.
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


def prepare(op_mode: str, given: Settings, command: list[str]) -> Job:
    """Settle and check all settings; reads a checkpoint if the mode asks for one. Raises ValueError with one line.

    given: the settings that the command gives; the others come from the preset, the checkpoint and the defaults.
    """
    keep_freed_memory()  # before there is any thread: one that has a heap of its own keeps it, and here PyTorch starts some
    machine = detect_machine()
    given = rename_settings(given)
    unused = unused_notes(op_mode, given)
    given = apply_preset(given)
    check_given(given)
    path = checkpoint = None
    notes: list[str] = []
    if op_mode != "train":
        asked = {**DEFAULTS, **given}
        path, checkpoint, notes = load_newest(asked["load"], Path(asked["results_dir"]))
    settings, overridden = merge_settings(given, checkpoint.settings if checkpoint else {})
    notes = notes + overridden
    if op_mode == "train_w_load" and not settings["load_optimizer"]:
        notes.append("load_optimizer=False (the optimiser starts anew)")
    settings = apply_protocol(settings, given)
    check_settings(settings)
    if op_mode == "train_w_load" and checkpoint:
        check_same_protocol(settings, checkpoint.settings)
    settled, chosen = fit_to_machine(settings, machine)
    config = _settled_config(settings, settled)
    if config.training.device == "cuda" and machine.gpu is None:
        raise ValueError("device: wanted a CUDA GPU, got a machine on which PyTorch sees none; use --device=cpu")
    _check_environment(config, machine)
    if checkpoint:
        check_fit(config, checkpoint, load_optimizer=op_mode in TRAINING_MODES and settings["load_optimizer"])
    if op_mode in TRAINING_MODES:
        _check_training(config, checkpoint, machine)
    if checkpoint and path and op_mode != "test":
        check_finite(checkpoint, path)
    if op_mode in TRAINING_MODES:
        run = _run_to_go_on_in(settings, path)
        check_run_folder(run) if run else check_results_folder(Path(settings["results_dir"]))
    if op_mode == "export":
        chosen = []
    elif op_mode == "test":
        chosen = [line for line in chosen if op_mode in SHARED[line.split("=")[0]].setting.modes]
    return Job(op_mode, config, machine, settings, settled, notes + unused, chosen, command, path, checkpoint)


def _settled_config(settings: Settings, settled: Settings) -> Config:
    """What was fitted to this machine is for this run; its checkpoints carry the machine's settings as they were given."""
    return make_config(settled, portable={**settled, **{name: settings[name] for name in MACHINE_SETTINGS}})


def _check_environment(config: Config, machine: Machine) -> None:
    """Refuse what cannot be made: environment, network, protocol, or a network that is too large. Raises ValueError."""
    network = make_network_shapes(config, make_spec(config.env))
    needed = BYTES_A_WEIGHT * sum(weights.numel() for weights in network.parameters())
    if needed > machine.memory_bytes:
        raise ValueError(
            f"network: wanted one that fits in {machine.memory_bytes / 1e9:.1f} GB of memory, got {config.network} for "
            f"{config.env.frame_height},{config.env.frame_width} frames, which takes {needed / 1e9:.1f} GB to train"
        )
    if config.settings["protocol"] != AS_SET and not is_atari(config.env.env):
        raise ValueError(
            f"protocol: wanted as_set for an environment other than an Atari game, got {config.settings['protocol']}"
        )


def _check_training(config: Config, checkpoint: Checkpoint | None, machine: Machine) -> None:
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
    """Refuse empty replays that take the whole budget before the first update. Raises ValueError."""
    trajectories, budget = trajectories_to_fill_in(config), config.training.environment_max_steps
    steps = trajectories * config.training.unroll_length
    if trajectories and steps >= budget:
        raise ValueError(
            f"environment_max_steps: wanted more than the {steps:,} steps of the {trajectories:,} trajectories that fill the "
            f"replays before the first update, got {budget:,}; a smaller capacity or replay_fill_fraction takes fewer"
        )


def run(job: Job) -> int:
    """Do the job. Returns the exit code."""
    _log_to_console(job.config.settings["verbosity"])
    if job.op_mode in TRAINING_MODES:
        return _train(job)
    _introduce(job)
    return _test(job) if job.op_mode == "test" else _export(job)


def _introduce(job: Job) -> None:
    log.info("%s %s", TITLES[job.op_mode], job.config.env.env)
    for line in job.notes + job.chosen:
        log.info("  %s", line)


def _test(job: Job) -> int:
    from learner.evaluation.test_mode import evaluate

    assert job.checkpoint is not None
    assert job.checkpoint_path is not None
    return evaluate(job.config, job.checkpoint, job.checkpoint_path, run_of_checkpoint(job.checkpoint_path))


def _export(job: Job) -> int:
    from learner.serving.export import export_policy

    assert job.checkpoint is not None
    assert job.checkpoint_path is not None
    run = run_of_checkpoint(job.checkpoint_path)
    return export_policy(job.config, job.checkpoint, job.checkpoint_path, run.path if run else job.checkpoint_path.parent)


def _train(job: Job) -> int:
    try:
        children.prepare()  # before there is any thread
        head_start = HeadStart(job.config, job.checkpoint)
    except (OSError, WorkerError) as error:
        log.error("error: the run's processes could not be started: %s", error)
        return 1
    with head_start:
        return _train_in_directory(measured(job), head_start)


def _train_in_directory(job: Job, head_start: HeadStart) -> int:
    from learner.train import train

    try:
        directory = _prepare_directory(job)
        _introduce(job)  # once there is a log file, which has all that is said
        _put_aside_newer(job, directory)
    except OSError as error:
        log.error("error: the run directory could not be written: %s", error)
        return 1
    _describe(job, directory)
    load_optimizer, replay = job.config.settings["load_optimizer"], _load_replay(job)
    try:
        return train(job.config, directory, job.checkpoint, load_optimizer=load_optimizer, replay=replay, head_start=head_start)
    except (ResumeError, SkippingError, WorkerError, torch.OutOfMemoryError) as error:
        if not isinstance(error, ResumeError) and directory.checkpoint_paths():
            log.info("Go on: python main.py --op_mode=train_w_load --load=%s", directory.path)
        log.error("%s", GPU_IS_FULL.format(error) if isinstance(error, torch.OutOfMemoryError) else error)
        return 1


def measured(job: Job, seconds: float = PART_SECONDS) -> Job:
    """The job of a training with what a measurement decides, where one is wanted; takes some two seconds.

    seconds: of each part that is measured.
    """
    if job.op_mode not in TRAINING_MODES or not wants_preflight(job.settings, job.config, job.machine.cores):
        return job
    costs = measure_costs(job.config, seconds, brief=True)
    settled, chosen = fit_to_machine(job.settings, job.machine, costs)
    return replace(job, config=_settled_config(job.settings, settled), settled=settled, chosen=chosen)


def _run_to_go_on_in(settings: Settings, checkpoint_path: Path | None) -> RunDirectory | None:
    """The run directory of the checkpoint, None where a new one is to be made."""
    if checkpoint_path is None or settings["resume_in"] == "new":
        return None
    return run_of_checkpoint(checkpoint_path)


def _prepare_directory(job: Job) -> RunDirectory:
    """A new run directory, or the one of the checkpoint, with what this command asks for. Raises OSError."""
    config = job.config
    directory = _run_to_go_on_in(config.settings, job.checkpoint_path)
    parent = None
    if directory is None:
        directory = RunDirectory.create(Path(config.settings["results_dir"]), config.env.env)
        parent = str(job.checkpoint_path) if job.checkpoint_path else None
    directory.point_latest_here()
    directory.write_config(job.settled, job.command, job.notes + job.chosen, parent)
    _log_to_file(directory.log)
    return directory


def _put_aside_newer(job: Job, directory: RunDirectory) -> None:
    """What is newer than the checkpoint that the run goes on from. Raises OSError."""
    if job.checkpoint:
        remove_partial_files(directory.checkpoints)
        for path in directory.put_aside_after(job.checkpoint.counters.updates):
            log.info("Newer than the checkpoint loaded, put aside: %s", path)


def _describe(job: Job, directory: RunDirectory) -> None:
    config = job.config
    steps, skip = config.training.environment_max_steps, make_spec(config.env).frames_per_step
    log.info("Run directory: %s", directory.path)
    log.info("Budget: %s steps = %s frames", f"{steps:,}", f"{steps * skip:,}")
    for line in describe_memory(config):
        log.info("%s", line)
    if job.checkpoint:
        log.info("Going on from %s at step %s", job.checkpoint_path, f"{job.checkpoint.counters.steps:,}")


def _load_replay(job: Job) -> dict[str, Any] | None:
    """What was saved with the checkpoint; where that is nothing, or does not fit, it is said what follows."""
    count = trajectories_to_fill_in(job.config)
    if not job.checkpoint or not job.checkpoint_path:
        if count > job.config.training.batch_size:
            log.info("%s trajectories fill the replays before training begins", f"{count:,}")
        return None
    path = RunDirectory(job.checkpoint_path.parent.parent).replay_path(job.checkpoint.counters.updates)
    state, reason = None, "its environments were not saved: that run was not reproducible"
    try:
        state = load_fitting_replay(path, job.checkpoint, job.config)
        log.info("Replays go on with what was saved in %s", path)
    except ValueError as error:
        reason = str(error)
        if count:
            log.info("Replays start empty (%s): %s trajectories fill them before training goes on", reason, f"{count:,}")
    if job.config.training.reproducible and UNDER_WAY not in (state or {}):
        log.warning("This run goes on with fresh episodes and not to the bit (%s)", reason)
    return state


def _log_to_console(verbosity: int) -> None:
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.handlers.clear()
    console = _Console(sys.stdout)
    console.setLevel({0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}[verbosity])
    console.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(console)


class _Console(logging.StreamHandler[TextIO]):
    """A line is lost where the terminal or the other end of a pipe is gone; the run goes on, and its log has it."""

    def handleError(self, record: logging.LogRecord) -> None:
        return


class _LogFile(logging.FileHandler):
    """A line that a full disk does not take is lost there; the run goes on, and the console has it."""

    def handleError(self, record: logging.LogRecord) -> None:
        return


def _log_to_file(path: Path) -> None:
    file = _LogFile(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(file)
