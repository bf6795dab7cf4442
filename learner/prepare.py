"""Turns settings into a job: loads the checkpoint, settles all settings and checks everything, but starts nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agents.compute import compiler_missing, keep_freed_memory
from agents.networks.actor_critic import BEHAVIOUR_POLICY
from learner.building import agent_class, make_contract, make_network_config, make_network_shapes
from learner.evaluation.estimating import open_estimated
from learner.evaluation.protocol import AS_SET, apply_protocol, check_protocol_of_env, check_same_protocol
from learner.evaluation.recording import check_record_to
from learner.hindsight import check_hindsight
from learner.machine.default_replay import fit_default_replay
from learner.machine.detect import Machine, detect_machine, free_gpu_memory
from learner.machine.fit import fit_to_machine, portable_settings
from learner.machine.memory_check import check_gpu_memory, check_memory, check_replay_devices, gpu_memory
from learner.machine.reproducible import settle_as_before
from learner.metrics.writer import check_history
from learner.ranks.check import part_of_learner
from learner.runs.budget import settle_budget
from learner.runs.checkpoint import Checkpoint
from learner.runs.directory import RunDirectory, check_run_folder, check_writable, run_of_checkpoint
from learner.runs.loading import check_finite, check_fit, load_newest, merge_settings
from learner.runs.resuming import trajectories_to_fill_in
from learner.settings.check import check_given, check_settings
from learner.settings.config import Config, Settings, make_config
from learner.settings.declarations import NO_FOLDER
from learner.settings.help import preset_hints
from learner.settings.modes import shown_choices, unused_notes, without_unused
from learner.settings.other_names import rename_settings
from learner.settings.presets import NO_PRESET, apply_preset
from learner.settings.schema import DEFAULTS
from learner.settings.settle import settle
from learner.stores.fetching import Addresses, fetch_newest, store_notes, take_addresses
from learner.stores.store import redacted
from setting import TRAINING_MODES
from workers.base import NO_RECORDING
from workers.recorded import fitting_recording
from workers.recorded_values import check_values
from wrappers import env_notes, family_of, make_single_env, make_spec

BYTES_A_WEIGHT = 28  # a weight in float32, its gradient, up to two moments, and the last good weight and moments
PARTS_OF_BUDGET = 10  # the first of them is `learning_starts` if the usual one takes the whole budget


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


def prepare(op_mode: str, given: Settings, command: list[str], remarks: Sequence[str] = ()) -> Job:
    """Settle and check all settings, and load a checkpoint if the mode asks for one. Raises ValueError with one line.

    Args:
        op_mode: one of `MODES`.
        given: the settings that the command gives; the others come from the preset, the checkpoint and the defaults.
        command: the command line.
        remarks: lines for the user on parts of it that have no effect.
    """
    keep_freed_memory()  # before PyTorch starts threads: a thread that has a heap of its own keeps it
    machine = detect_machine()
    typed = rename_settings(given)
    unused = [*remarks, *unused_notes(op_mode, typed)]
    given = apply_preset(typed)
    check_given(given)
    given, addresses = take_addresses(given)
    addresses.open_store()  # a protocol without its package is one line
    path, checkpoint, notes = _load(op_mode, {**DEFAULTS, **given}, addresses)
    settings, overridden = merge_settings(given, checkpoint.settings if checkpoint else {})
    settings, notes = without_unused(op_mode, settings), notes + overridden
    if op_mode == "train_w_load" and checkpoint and path:
        settings, lines = _settle_resumed(settings, given, typed, path, checkpoint)
        notes += lines + store_notes(run_of_checkpoint(path), given, addresses)
    settings = apply_protocol(settings, given)
    check_settings(settings)
    settings, lines = settle(settings, given, checkpoint.settings if checkpoint else {})
    notes += lines
    if op_mode == "train_w_load" and checkpoint:
        check_same_protocol(settings, checkpoint.settings)
    machine = part_of_learner(settings, machine, checkpoint) if op_mode in TRAINING_MODES else machine
    settled, chosen = fit_to_machine(settings, machine)
    config = settled_config(settings, settled)
    _check_environment(config, machine)
    if op_mode == "train":
        settings, lines = fit_default_replay(settings, config, machine.memory_bytes)
        settings, of_start = _fit_learning_starts(settings, config, typed)
        if lines := lines + of_start:
            settled, chosen = fit_to_machine(settings, machine)
            config, notes = settled_config(settings, settled), notes + lines
    if op_mode == "test":
        _check_test(config)
    if op_mode == "train" and settings["preset"] == NO_PRESET and family_of(settings["env"]) != "toy":
        notes += preset_hints(config.agent, settings["env"])
    notes += env_notes(config.env, {*given, *(("protocol",) if settings["protocol"] != AS_SET else ())})
    if checkpoint:
        check_fit(config, checkpoint, load_optimizer=op_mode in TRAINING_MODES and settings["load_optimizer"])
    if op_mode in TRAINING_MODES:
        _check_training(config, checkpoint, machine)
        _check_folder(settings, path)
    if checkpoint and path and op_mode != "test":
        check_finite(checkpoint, path)
    chosen, command = shown_choices(op_mode, chosen), [redacted(part) for part in command]
    return Job(op_mode, config, machine, settings, settled, notes + unused, chosen, command, path, checkpoint, addresses)


def _settle_resumed(
    settings: Settings, given: Settings, typed: Settings, path: Path, checkpoint: Checkpoint
) -> tuple[Settings, list[str]]:
    """The settings of a run that is resumed, and lines for the user. Raises ValueError.

    Args:
        settings: of the command and the checkpoint.
        given: of the command line and its preset.
        typed: of the command line alone.
        path: of the checkpoint.
        checkpoint: the one that was loaded.
    """
    settings, notes = settle_as_before(settings, checkpoint.settings, given, run_of_checkpoint(path))
    settings, lines = settle_budget(settings, typed, checkpoint.settings, checkpoint.counters.steps)
    if not settings["load_optimizer"]:
        lines.append("load_optimizer=False (the optimiser's moments start at zero)")
    return settings, notes + lines


def _load(op_mode: str, asked: Settings, addresses: Addresses) -> tuple[Path | None, Checkpoint | None, list[str]]:
    """The checkpoint that `load` names, here or in a store, its file, and lines for the user. Raises ValueError.

    A new run has none.
    """
    if op_mode == "train":
        return None, None, []
    results = Path(asked["results_dir"])
    load, fetched = fetch_newest(asked["load"], results, addresses, with_replay=op_mode in TRAINING_MODES)
    path, checkpoint, notes = load_newest(load, results)
    return path, checkpoint, fetched + notes


def settled_config(settings: Settings, settled: Settings) -> Config:
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


def _check_test(config: Config) -> None:
    """Raise ValueError if test mode cannot show its games, or not keep them."""
    if config.evaluation.estimate_from != NO_FOLDER:
        check_values(open_estimated(config), make_spec(config.env))
    if config.evaluation.render:
        make_single_env(config.env, "rgb_array").close()  # a missing package or mode is one line
    check_record_to(config)


def _check_training(config: Config, checkpoint: Checkpoint | None, machine: Machine) -> None:
    """Raise ValueError if the agent cannot learn so, nothing is left to train, or a compiler, memory or device is missing."""
    agent_class(config).check_learning(config.agent_settings)
    limit = config.training.environment_max_steps
    if checkpoint and (steps := checkpoint.counters.steps) >= limit:
        raise ValueError(
            f"environment_max_steps: wanted more than the {steps:,} steps the checkpoint has, got {limit:,}; "
            f"--more_steps={limit} trains to step {steps + limit:,}"
        )
    if config.training.compile and (compilers := compiler_missing(config.training.device)):
        raise ValueError(f"compile: wanted a compiler that torch.compile can call, got a machine without {compilers}")
    _check_recording(config)
    check_hindsight(config)
    check_replay_devices(config)
    check_memory(config, machine.memory_bytes)
    if any(gpu_memory(config)):
        check_gpu_memory(config, free_gpu_memory())
    if not checkpoint:
        _check_fill_in(config)


def _check_folder(settings: Settings, path: Path | None) -> None:
    """Raise ValueError if the run directory cannot be written. path: of the checkpoint that is resumed, if any."""
    run = resumed_run(settings, path)
    if run is None:
        return check_writable(Path(settings["results_dir"]), "results_dir")
    check_run_folder(run)
    check_history(run.metrics)


def _check_recording(config: Config) -> None:
    """Raise ValueError if the agent needs a recording that is not there, cannot learn from one, or does not fit this one."""
    needs, recording, agent = config.needs, config.workers.recording, f"agent {config.agent}"
    if recording == NO_RECORDING:
        if needs.recorded:
            raise ValueError(
                f"recording: wanted a folder with {agent}, which learns from recordings alone, got {NO_RECORDING}; "
                "--op_mode=test --record_to=FOLDER makes one"
            )
        return
    contract = make_contract(config)
    compared = [replay.insert_strategy or replay.type for replay in config.replays if replay.compares_policies]
    if compared and BEHAVIOUR_POLICY not in contract.acting:
        raise ValueError(
            f"replay_parameters: wanted no replay that compares policies with {agent}, which does not know the policy that "
            f"acted, got {compared[0]}"
        )
    try:
        spec = make_spec(config.env)
        check_values(fitting_recording(recording, contract, spec, make_network_config(config)), spec)
    except OSError as error:
        raise ValueError(f"recording: wanted a folder that can be read, got {error}") from error


def _fit_learning_starts(settings: Settings, config: Config, asked: Collection[str]) -> tuple[Settings, list[str]]:
    """The settings with a smaller `learning_starts` if the usual one takes the whole budget, and a line that says so.

    A checkpoint carries it, so a resumed run with more steps has the same start. asked: names of the settings that the command
    gives, without those of its preset.
    """
    budget, of_learner = config.training.environment_max_steps, PARTS_OF_BUDGET * config.training.learner_count
    fills = _to_fill_in(config) * config.training.unroll_length
    start = budget // of_learner
    if "learning_starts" in asked or not config.pace or fills < budget or start >= config.pace.learning_starts:
        return settings, []
    line = f"learning_starts={start} (the usual {config.pace.learning_starts:,} would leave none of the {budget:,} steps)"
    return {**settings, "learning_starts": start}, [line]


def _to_fill_in(config: Config) -> int:
    """Trajectories of all learners that empty replays take in before the first update."""
    return config.training.learner_count * trajectories_to_fill_in(config)


def _check_fill_in(config: Config) -> None:
    """Raise ValueError if empty replays take the whole budget of steps before the first update."""
    trajectories, budget = _to_fill_in(config), config.training.environment_max_steps
    steps = trajectories * config.training.unroll_length
    if trajectories and steps >= budget:
        less = "learning_starts or a larger updates_per_step" if config.pace else "capacity or replay_fill_fraction"
        raise ValueError(
            f"environment_max_steps: wanted more than the {steps:,} steps of the {trajectories:,} trajectories that fill the "
            f"replays before the first update, got {budget:,}; a smaller {less} takes fewer"
        )


def resumed_run(settings: Settings, checkpoint_path: Path | None) -> RunDirectory | None:
    """The run directory of the checkpoint, or None if a new one is wanted."""
    if checkpoint_path is None or settings["resume_in"] == "new":
        return None
    return run_of_checkpoint(checkpoint_path)
