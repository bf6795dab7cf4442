"""From settings to a running job: what is loaded, what is overridden, what the machine decides, where results go.

`prepare` checks everything and starts nothing; `run` does the work.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from learner.checkpoint import Checkpoint, load_checkpoint
from learner.config import Config, Settings, check_settings, make_config
from learner.machine import MACHINE_SETTINGS, Machine, detect_machine, fit_to_machine
from learner.memory import check_memory, describe_memory
from learner.run_directory import RunDirectory, check_results_folder, find_checkpoint, run_of_checkpoint
from workers import WorkerError
from wrappers import make_spec

log = logging.getLogger("springbok")

LOADING_ONLY = ("load_model_url", "load_optimizer_save", "results_dir", "verbosity", "render")
"""Settings that belong to a command, not to the run it loads."""


TEST_SETTINGS = ("device", "learner_threads", "test_environments")
"""What test mode has to do with of all that is fitted to the machine."""


@dataclass(frozen=True)
class Job:
    """One command, checked and ready to start."""

    op_mode: str
    config: Config
    settled: Settings
    notes: list[str]
    command: list[str]
    checkpoint_path: Path | None = None
    checkpoint: Checkpoint | None = None


def prepare(op_mode: str, settings: Settings, given: Settings, command: list[str]) -> Job:
    """Settle and check all settings; reads a checkpoint where the mode asks for one. Raises ValueError with one line."""
    machine = detect_machine()
    path = checkpoint = None
    notes: list[str] = []
    if op_mode != "train":
        path = find_checkpoint(settings["load_model_url"], Path(settings["results_dir"]))
        checkpoint = load_checkpoint(path)
        settings, notes = _merge(settings, checkpoint.settings, given)
    check_settings(settings)
    settled, chosen = fit_to_machine(settings, machine)
    config = make_config(settled, portable={**settled, **{name: settings[name] for name in MACHINE_SETTINGS}})
    if config.training.device == "cuda" and machine.gpu is None:
        raise ValueError("device: wanted a CUDA GPU, got a machine on which PyTorch sees none; use --device=cpu")
    _check_environment(config, checkpoint)
    if op_mode != "test":
        check_results_folder(Path(settings["results_dir"]))
        _check_training(config, checkpoint, machine)
    if op_mode == "test":
        chosen = [line for line in chosen if line.split("=")[0] in TEST_SETTINGS]
    return Job(op_mode, config, settled, notes + chosen, command, path, checkpoint)


def _merge(settings: Settings, saved: Settings, given: Settings) -> tuple[Settings, list[str]]:
    """The checkpoint's settings, unless the command line says otherwise."""
    merged = {**settings, **{name: value for name, value in saved.items() if name not in LOADING_ONLY}, **given}
    notes = [
        f"{name}={value} (overrides the checkpoint's {saved[name]})"
        for name, value in given.items()
        if name in saved and name not in LOADING_ONLY and saved[name] != value
    ]
    return merged, notes


def _check_environment(config: Config, checkpoint: Checkpoint | None) -> None:
    from agents.networks import make_network

    spec = make_spec(config.env)
    network = make_network(config.network, spec.observation_shape, spec.action_count)
    if checkpoint is None:
        return
    if checkpoint.spec["action_count"] != spec.action_count:
        raise ValueError(
            f"load_model_url: wanted a checkpoint for the {spec.action_count} actions of {config.env.env}, got one for the "
            f"{checkpoint.spec['action_count']} actions of {checkpoint.spec['env']}"
        )
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    got = {name: tuple(value.shape) for name, value in checkpoint.agent["network"].items()}
    if wanted != got:
        raise ValueError(
            f"load_model_url: wanted weights of the network {config.network} for observations {list(spec.observation_shape)}, "
            f"got a checkpoint of {checkpoint.settings['network']} for {checkpoint.spec['frame_shape']} frames"
        )


def _check_training(config: Config, checkpoint: Checkpoint | None, machine: Machine) -> None:
    limit = config.training.environment_max_steps
    if checkpoint and checkpoint.counters.steps >= limit:
        raise ValueError(
            f"environment_max_steps: wanted more than the {checkpoint.counters.steps} steps the checkpoint has, got {limit}"
        )
    check_memory(config, machine.memory_bytes)


def run(job: Job) -> int:
    """Do the job. Returns the exit code."""
    _log_to_console(job.config.settings["verbosity"])
    log.info("%s on %s", "Testing" if job.op_mode == "test" else "Training", job.config.env.env)
    for note in job.notes:
        log.info("  %s", note)
    if job.op_mode == "test":
        return _test(job)
    return _train(job)


def _test(job: Job) -> int:
    from learner.evaluate import evaluate

    assert job.checkpoint is not None
    assert job.checkpoint_path is not None
    return evaluate(job.config, job.checkpoint, job.checkpoint_path, run_of_checkpoint(job.checkpoint_path))


def _train(job: Job) -> int:
    from learner.train import train

    config = job.config
    directory = run_of_checkpoint(job.checkpoint_path) if job.checkpoint_path else None
    directory = directory or RunDirectory.create(Path(config.settings["results_dir"]), config.env.env)
    directory.point_latest_here()
    directory.write_config(job.settled, job.command, job.notes)
    _log_to_file(directory.log)
    steps, skip = config.training.environment_max_steps, make_spec(config.env).frames_per_step
    log.info("Run directory: %s", directory.path)
    log.info("Budget: %s steps = %s frames", f"{steps:,}", f"{steps * skip:,}")
    for line in describe_memory(config):
        log.info("%s", line)
    if job.checkpoint:
        for path in directory.put_aside_after(job.checkpoint.counters.updates):
            log.info("Newer than the checkpoint loaded, put aside: %s", path)
        log.info("Going on from %s at step %s", job.checkpoint_path, f"{job.checkpoint.counters.steps:,}")
    try:
        return train(config, directory, job.checkpoint, load_optimizer=config.settings["load_optimizer_save"])
    except WorkerError as error:
        log.info("Saved; go on: python main.py --op_mode=train_w_load --load_model_url=%s", directory.path)
        log.error("%s", error)
        return 1


def _log_to_console(verbosity: int) -> None:
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.handlers.clear()
    console = logging.StreamHandler(sys.stdout)
    console.setLevel({0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}[verbosity])
    console.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(console)


def _log_to_file(path: Path) -> None:
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(file)
