"""Turns a command into a job. It starts and writes nothing, except that `--load` may fetch a run from a store.

A setting's value passes five stages. Each is a function below that reads the results of those before it:

| stage     | result                                                                 | where it lies                      |
|-----------|------------------------------------------------------------------------|------------------------------------|
|           | with `--resume_if_exists`: the run that the command resumes, if any    | runs/resuming_newest               |
| `parse`   | what the command and its preset give, without credentials              | option_flags.py, settings/presets  |
| `load`    | the checkpoint that they name                                          | stores/fetching, runs/loading      |
| `fill_in` | all settings: given, saved, or the defaults of environment and agent   | runs/loading, settings/settle      |
| `fit`     | a value for every `auto`, by the machine; the plan made of the values  | machine/fit, settings/config, plan |
| `check`   | nothing; a run that cannot be is refused                               | here, and `check_*` of the parts   |

Later a value changes at most once: `learner/launch.py` fits it again if a measurement of the machine may decide it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agents.compute import compiler_missing, keep_freed_memory
from agents.networks.actor_critic import BEHAVIOUR_POLICY
from learner.building import agent_class, make_network_shapes
from learner.evaluation.estimating import open_estimated
from learner.evaluation.protocol import AS_SET, apply_protocol, check_protocol_of_env, check_same_protocol
from learner.evaluation.recording import check_record_to
from learner.evaluation.settings import NO_FOLDER
from learner.first_client import settle_served
from learner.hindsight import check_hindsight
from learner.machine.default_replay import fit_default_replay
from learner.machine.detect import Machine, detect_machine, free_gpu_memory
from learner.machine.fit import fit_to_machine
from learner.machine.memory_check import check_gpu_memory, check_memory, check_replay_devices, gpu_memory
from learner.machine.reproducible import settle_as_before
from learner.metrics.trackers import check_tracker
from learner.metrics.writer import check_history
from learner.plan import Plan, make_plan
from learner.policy_inputs import one_environment
from learner.ranks.check import part_of_learner
from learner.runs.budget import settle_budget
from learner.runs.checkpoint import Checkpoint
from learner.runs.directory import RunDirectory, check_run_folder, check_writable, run_of_checkpoint
from learner.runs.loading import check_finite, check_fit, load_newest, merge_settings
from learner.runs.resuming import trajectories_to_fill_in
from learner.runs.resuming_newest import check_unfinished, resume_if_exists
from learner.runs.sent_environment import find_environment
from learner.settings.check import check_given, check_settings
from learner.settings.config import Config, Settings, make_config
from learner.settings.help import preset_hints
from learner.settings.modes import shown_choices, unused_notes, without_unused
from learner.settings.presets import NO_PRESET, apply_preset
from learner.settings.schema import DEFAULTS, MORE, TOTAL, agent_of, build
from learner.settings.settle import settle
from learner.stores.fetching import Addresses, fetch_newest, store_notes, take_addresses
from learner.stores.store import redacted
from serve.run import check_address
from setting import TRAINING_MODES
from workers.base import NO_RECORDING, RECORDED, SERVED
from workers.minari_import import PREFIX
from workers.recorded import fitting_recording
from workers.recorded_values import check_values
from wrappers import EnvConfig, EnvSpec, env_notes, family_of, make_single_env, make_spec
from wrappers.served import spaces_of

BYTES_A_WEIGHT = 28  # a weight in float32, its gradient, up to two moments, and the last good weight and moments
PARTS_OF_BUDGET = 10  # the first of them is `learning_starts` if the usual one takes the whole budget


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command after the stages `parse` and `load`.

    Args:
        op_mode: train, train_w_load, test or export.
        command: the command line.
        typed: the settings that it gives.
        given: those and the ones of its preset.
        addresses: of the store, with credentials; settings, notes and command hold redacted ones.
        notes: lines for the user on settings that were loaded, overridden or not used.
        checkpoint_path: the file that was loaded, if any.
        checkpoint: its content.
    """

    op_mode: str
    command: list[str]
    typed: Settings
    given: Settings
    addresses: Addresses
    notes: list[str]
    checkpoint_path: Path | None = None
    checkpoint: Checkpoint | None = None

    @property
    def trains(self) -> bool:
        """Whether the command trains or resumes a run."""
        return self.op_mode in TRAINING_MODES


@dataclass(frozen=True, kw_only=True)
class Job(Command):
    """A command, checked and ready to start.

    Args:
        plan: made of the settled settings.
        machine: the machine that they were fitted to.
        settings: all settings as they were asked for; some are `auto`.
        settled: all settings with the values that the machine decided.
        chosen: lines for the user on settings that the machine decided.
        resumed: the run directory that training continues in; None for a new one.
    """

    plan: Plan
    machine: Machine
    settings: Settings
    settled: Settings
    chosen: list[str]
    resumed: RunDirectory | None

    @property
    def dataset(self) -> str:
        """The Minari dataset of which the run's recording has to be made; empty if it is there, or of no dataset."""
        named, recording = self.given.get("recording", NO_RECORDING), Path(self.config.workers.recording)
        return named.removeprefix(PREFIX) if named.startswith(PREFIX) and not recording.is_dir() else ""

    @property
    def config(self) -> Config:
        """The settled settings as dataclasses."""
        return self.plan.config


def prepare(op_mode: str, given: Settings, command: list[str], remarks: Sequence[str] = ()) -> Job:
    """The job of a command. Raises ValueError with one line.

    Args:
        op_mode: one of `MODES`.
        given: the settings that the command gives; the others come from the preset, the checkpoint and the defaults.
        command: the command line.
        remarks: lines for the user on parts of it that have no effect.

    Raises FinishedError too, see `learner.runs.resuming_newest`.
    """
    keep_freed_memory()  # before PyTorch starts threads: a thread that has a heap of its own keeps it
    machine = detect_machine()
    op_mode, given, found = resume_if_exists(op_mode, given)
    asked = load(parse(op_mode, given, command, [*remarks, *found]))
    if asked.op_mode == "train":
        asked = replace(asked, given=settle_served(asked.given))
    job = fit(asked, *fill_in(asked), machine)
    check(job)
    return job


def check_trainable(given: Settings) -> None:
    """Raise ValueError if no machine could train with these settings."""
    asked = parse("train", given, [], ())
    _check_recording(fit(asked, *fill_in(asked), detect_machine()).plan)


def parse(op_mode: str, given: Settings, command: list[str], remarks: Sequence[str]) -> Command:
    """The command with the settings of its preset, and without credentials. Raises ValueError."""
    whole = apply_preset(given)
    check_given(whole)
    whole, addresses = take_addresses(whole)
    addresses.open_store()  # a protocol without its package is one line
    shown, notes = [redacted(part) for part in command], [*remarks, *unused_notes(op_mode, given)]
    return Command(op_mode=op_mode, command=shown, typed=given, given=whole, addresses=addresses, notes=notes)


def load(asked: Command) -> Command:
    """The command with the checkpoint that `load` names, here or in a store. Raises ValueError."""
    if asked.op_mode == "train":
        return asked
    settings = {**DEFAULTS, **asked.given}
    results = Path(settings["results_dir"])
    named, fetched = fetch_newest(settings["load"], results, asked.addresses, with_replay=asked.trains)
    path, checkpoint, notes = load_newest(named, results)
    find_environment(run_of_checkpoint(path))
    return replace(asked, checkpoint_path=path, checkpoint=checkpoint, notes=fetched + notes + asked.notes)


def fill_in(asked: Command) -> tuple[Settings, EnvSpec, list[str]]:
    """All settings, of which some are still `auto`, the environment's spec, and lines for the user. Raises ValueError."""
    op_mode, given, saved = asked.op_mode, asked.given, asked.checkpoint.settings if asked.checkpoint else {}
    settings, notes = merge_settings(given, saved)
    settings = without_unused(op_mode, settings)
    if op_mode == "train_w_load":
        settings, lines = _settle_resumed(settings, asked)
        notes += lines
    settings = apply_protocol(settings, given)
    check_settings(settings)
    spec = make_spec(env := build(EnvConfig, settings))
    settings, lines = settle(settings, given, saved, spec)
    notes += lines
    if op_mode == "train" and settings["preset"] == NO_PRESET and family_of(settings["env"]) != "toy":
        notes += preset_hints(agent_of(settings), settings["env"])
    by_protocol = ("protocol",) if settings["protocol"] != AS_SET else ()
    return settings, spec, notes + env_notes(env, {*given, *by_protocol})


def fit(asked: Command, settings: Settings, spec: EnvSpec, notes: list[str], machine: Machine) -> Job:
    """The job, with all settings fitted to its part of the machine. Raises ValueError."""
    machine = part_of_learner(settings, machine, asked.checkpoint) if asked.trains else machine
    settled, chosen = fit_to_machine(settings, machine)
    plan = make_plan(make_config(settled, settings, spec), spec)
    if asked.op_mode == "train":
        smaller, lines = fit_default_replay(plan, machine.memory_bytes)
        earlier, more = _fit_learning_starts(plan, asked.typed)
        if changed := smaller | earlier:
            settings, settled, notes = settings | changed, settled | changed, notes + lines + more
            plan = replace(plan, config=make_config(settled, settings, spec))
    path, chosen = asked.checkpoint_path, shown_choices(asked.op_mode, chosen)
    resumed = run_of_checkpoint(path) if path and settings["resume_in"] != "new" else None
    known = {**vars(asked), "notes": notes + asked.notes}
    return Job(**known, plan=plan, machine=machine, settings=settings, settled=settled, chosen=chosen, resumed=resumed)


def check(job: Job) -> None:
    """Raise ValueError if the job cannot be done."""
    plan, checkpoint, path = job.plan, job.checkpoint, job.checkpoint_path
    _check_environment(plan, job.machine)
    if job.op_mode in ("test", "export") and plan.config.is_remote:
        make_single_env(plan.config.env)  # it refuses this environment
    if job.op_mode == "test":
        _check_test(plan)
    if job.op_mode == "serve":
        check_address(plan.config.server)
        spaces_of(one_environment(plan.config.env))
    if checkpoint:
        check_fit(plan, checkpoint, load_optimizer=job.trains and plan.config.loading.load_optimizer)
    if job.trains:
        _check_training(job)
        if job.resumed is None:
            check_writable(Path(job.settings["results_dir"]), "results_dir")
        else:
            check_run_folder(job.resumed)
            check_history(job.resumed.metrics)
    if checkpoint and path and job.op_mode != "test":
        check_finite(checkpoint, path)


def _settle_resumed(settings: Settings, asked: Command) -> tuple[Settings, list[str]]:
    """A resumed run's settings, from those of the command and the checkpoint, with lines for the user. Raises ValueError."""
    assert asked.checkpoint is not None
    assert asked.checkpoint_path is not None
    saved, run = asked.checkpoint.settings, run_of_checkpoint(asked.checkpoint_path)
    check_same_protocol(settings, saved)
    settings, notes = settle_as_before(settings, saved, asked.given, run)
    if asked.given.get("resume_if_exists") and MORE not in asked.typed:
        check_unfinished(run, asked.checkpoint.counters.steps, settings[TOTAL])
    settings, lines = settle_budget(settings, asked.typed, saved, asked.checkpoint.counters.steps)
    if not settings["load_optimizer"]:
        lines.append("load_optimizer=False (the optimiser's moments start at zero)")
    return settings, notes + lines + store_notes(run, asked.given, asked.addresses)


def _check_environment(plan: Plan, machine: Machine) -> None:
    """Raise ValueError if the device is not there, the network is too large, or the protocol does not fit."""
    config, network = plan.config, make_network_shapes(plan.network)
    if config.training.device == "cuda" and machine.gpu is None:
        raise ValueError("device: wanted a CUDA GPU, got a machine on which PyTorch sees none; use --device=cpu")
    needed = BYTES_A_WEIGHT * sum(weights.numel() for weights in network.parameters())
    if needed > machine.memory_bytes:
        shape = list(plan.spec.observation_shape)
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


def _check_test(plan: Plan) -> None:
    """Raise ValueError if test mode cannot show its games, or not keep them."""
    config = plan.config
    if config.evaluation.estimate_from != NO_FOLDER:
        check_values(open_estimated(plan), plan.spec)
    if config.evaluation.render:
        for task in config.env.tasks:
            make_single_env(task, "rgb_array").close()  # a missing package or mode is one line
    check_record_to(plan)


def _check_training(job: Job) -> None:
    """Raise ValueError if the agent cannot learn so, nothing is left to train, or a compiler, memory or device is missing."""
    plan, config, checkpoint = job.plan, job.config, job.checkpoint
    agent_class(config).check_learning(config.agent_settings)
    check_tracker(config.output.track)
    if (folder := config.replay_settings.share_experience) != NO_FOLDER:
        check_writable(Path(folder), "share_experience")
    limit = config.training.environment_max_steps
    if checkpoint and (steps := checkpoint.counters.steps) >= limit:
        raise ValueError(
            f"environment_max_steps: wanted more than the {steps:,} steps the checkpoint has, got {limit:,}; "
            f"--more_steps={limit} trains to step {steps + limit:,}"
        )
    if config.training.compile and (compilers := compiler_missing(config.training.device)):
        raise ValueError(f"compile: wanted a compiler that torch.compile can call, got a machine without {compilers}")
    tasks, environments = len(plan.spec.tasks), config.workers.environments
    if environments < tasks and config.workers.worker_kind != RECORDED:
        raise ValueError(f"envs_per_worker: wanted at least {tasks} environments for {config.env.env}, got {environments}")
    _check_recording(plan)
    _check_episodic_count(config)
    if not job.dataset:
        check_recorded(plan)
    check_hindsight(plan)
    check_replay_devices(config)
    check_memory(plan, job.machine.memory_bytes)
    if any(gpu_memory(plan)):
        check_gpu_memory(plan, free_gpu_memory())
    if not checkpoint:
        _check_fill_in(plan)


def _check_recording(plan: Plan) -> None:
    """Raise ValueError if the agent needs a recording and has none, or cannot learn from one."""
    config, contract = plan.config, plan.contract
    needs, recording, agent = config.needs, config.workers.recording, f"agent {config.agent}"
    if recording == NO_RECORDING:
        if needs.recorded:
            raise ValueError(
                f"recording: wanted a folder with {agent}, which learns from recordings alone, got {NO_RECORDING}; "
                "--op_mode=test --record_to=FOLDER makes one"
            )
        return
    compared = [replay.insert_strategy or replay.type for replay in config.replays if replay.compares_policies]
    if compared and BEHAVIOUR_POLICY not in contract.acting:
        raise ValueError(
            f"replay_parameters: wanted no replay that compares policies with {agent}, which does not know the policy that "
            f"acted, got {compared[0]}"
        )


def _check_episodic_count(config: Config) -> None:
    """Raise ValueError if no bonus would reach the agent, or clipping would make it as large as a reward."""
    weight, kind = config.env.episodic_count, config.workers.worker_kind
    if not weight:
        return
    for holds, reason in (
        (config.needs.episodes, f"agent {config.agent}, which learns from returns, and these have no bonus"),
        (kind == SERVED, f"worker_kind {SERVED}, whose rewards are those of clients"),
        (kind == RECORDED, "a recording, whose rewards have no bonus"),
    ):
        if holds:
            raise ValueError(f"episodic_count: wanted 0 with {reason}, got {weight:g}")
    if getattr(config.agent_settings, "reward_clipping", None) == "abs_one_sign":
        raise ValueError(
            "episodic_count: wanted 0 with clip_rewards by abs_one_sign, after which a bonus counts as much as a reward, got "
            f"{weight:g}; use --noclip_rewards or --reward_clipping_method=abs_one_clamp"
        )


def check_recorded(plan: Plan) -> None:
    """Raise ValueError if the run's recording, if any, does not fit it."""
    if (recording := plan.config.workers.recording) == NO_RECORDING:
        return
    try:
        check_values(fitting_recording(recording, plan.contract, plan.spec, plan.network), plan.spec)
    except OSError as error:
        raise ValueError(f"recording: wanted a folder that can be read, got {error}") from error


def _fit_learning_starts(plan: Plan, asked: Collection[str]) -> tuple[Settings, list[str]]:
    """A smaller `learning_starts` if the usual one takes the whole budget, and a line that says so.

    A checkpoint carries it, so a resumed run with more steps has the same start. asked: names of the settings that the command
    gives, without those of its preset.
    """
    config = plan.config
    budget, of_learner = config.training.environment_max_steps, PARTS_OF_BUDGET * config.training.learner_count
    fills = config.training.learner_count * trajectories_to_fill_in(plan) * config.training.unroll_length
    start = budget // of_learner
    if "learning_starts" in asked or not config.pace or fills < budget or start >= config.pace.learning_starts:
        return {}, []
    line = f"learning_starts={start} (the usual {config.pace.learning_starts:,} would leave none of the {budget:,} steps)"
    return {"learning_starts": start}, [line]


def _check_fill_in(plan: Plan) -> None:
    """Raise ValueError if empty replays take the whole budget of steps before the first update."""
    config, budget = plan.config, plan.config.training.environment_max_steps
    trajectories = config.training.learner_count * trajectories_to_fill_in(plan)
    steps = trajectories * config.training.unroll_length
    if trajectories and steps >= budget:
        less = "learning_starts or a larger updates_per_step" if config.pace else "capacity or replay_fill_fraction"
        raise ValueError(
            f"environment_max_steps: wanted more than the {steps:,} steps of the {trajectories:,} trajectories that fill the "
            f"replays before the first update, got {budget:,}; a smaller {less} takes fewer"
        )
