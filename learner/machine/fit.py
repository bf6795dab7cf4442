"""Fits the settings that are `auto` to the cores, the memory and the GPU of the machine, and gives a reason for each choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agents import find_agent
from agents.compute import prefers_bfloat16
from agents.networks.cores import NO_CORE
from learner.machine.costs import (
    WORTH_DOUBLING,
    Costs,
    answer_takes,
    doubling_saves,
    enough_threads,
    enough_workers,
    expected,
    larger_groups_help,
)
from learner.machine.detect import Machine
from learner.machine.memory_check import LEARNER_RESERVE, WORKER_RESERVE
from learner.machine.reproducible import REPRODUCIBLE
from learner.settings.config import AUTO, Settings
from learner.settings.declarations import TrainingConfig
from learner.settings.schema import SHARED, needs_of
from workers import groups_of
from workers.base import NO_RECORDING, RECORDED, SERVED

SMALL_MACHINE_CORES = 4
PUBLISHED_BATCH = 32
SMALL_BATCH = 8
MANY_CORES = 8
TINY, SMALL = ("mlp", "flat"), ("nature", "impala_shallow", "conv")
"""Networks that a CPU passes through quickly."""
ENVIRONMENTS = 16
PACED_ENVIRONMENTS = 4
MOST_LEARNER_THREADS = 8
SEATS, SERVED_BATCH = 64, 8
MOST_PREPARED_BATCHES = 4
MOST_TEST_ENVIRONMENTS = 64
MOST_ENVIRONMENTS = int(SHARED["envs_per_worker"].setting.high)
"""Environments that one worker can have."""
FOLLOW_FROM_EACH_OTHER = ("batch_size", "envs_per_worker")
"""Settings of an on-policy agent: a batch is one trajectory of each environment. An agent with a pace has its own."""
WORKERS_FRACTION = 0.75  # of the memory that the learner leaves; replays have the rest


class Choices:
    """Settings whose `auto` values are chosen one after another. reasons: one line for each choice that was made."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settled = dict(settings)
        self.reasons: list[str] = []

    def choose(self, name: str, value: Any, reason: str) -> None:
        """Set a setting if it is still `auto`; the first choice stands."""
        if self.settled[name] == AUTO:
            self.settled[name] = value
            self.reasons.append(f"{name}={value} ({reason})")


def fit_to_machine(settings: Mapping[str, Any], machine: Machine, costs: Costs | None = None) -> tuple[Settings, list[str]]:
    """Settle every `auto` of the settings. Returns the settled settings, and one line for each choice.

    Measured costs decide on workers, environments and learner threads, and only coarsely. These settings touch what is learned,
    because they change the policy lag, so they may not follow the noise of a measurement.

    Args:
        settings: all settings, some of them `auto`.
        machine: what the run may use.
        costs: measured with the choices that this function makes without them; None before a measurement.
    """
    choices = Choices(settings)
    settled = choices.settled
    needs = needs_of(settings)
    on_policy, paced = needs.on_policy, needs.updates_per_step is not None
    if on_policy and AUTO not in (settled["batch_size"], settled["envs_per_worker"]):
        count = max(1, settled["batch_size"] // settled["envs_per_worker"])
        choices.choose("worker_count", count, f"a batch is one trajectory of each of {settled['batch_size']} environments")
    if settled["recording"] != NO_RECORDING:
        choices.choose("worker_kind", RECORDED, "a recording takes the place of environments")
    for name, (value, reason) in REPRODUCIBLE.items() if settled["reproducible"] else ():
        if not ((on_policy or paced) and name in FOLLOW_FROM_EACH_OTHER):
            choices.choose(name, value, f"reproducible: {reason}")
    choices.choose("device", "cuda" if machine.gpu else "cpu", machine.gpu or "no GPU found")
    if settled["device"] == "cuda":
        _choose_who_acts(choices, machine, on_policy=on_policy)
    choices.choose("worker_kind", "cpu", "each worker runs its own copy of the policy")
    _choose_for_kind(choices, machine, on_policy=on_policy)
    if on_policy:
        _choose_turns(choices, machine)
    if paced:
        _choose_paced(choices, machine, costs)
    _choose_processes(choices, machine, costs)
    _choose_batches(choices, small=is_small(machine.cores, settled["device"]))
    _choose_precision(choices, machine)
    choices.choose("test_environments", min(8 * machine.cores, MOST_TEST_ENVIRONMENTS), "episodes evaluated at once")
    return settled, choices.reasons


def acting_precision(training: TrainingConfig) -> str:
    """The precision that workers act in: the learner's, but float32 if that uses a GPU and this CPU is slow in bfloat16."""
    return training.precision if training.device == "cpu" or prefers_bfloat16("cpu") else "float32"


def is_small(cores: int, device: str) -> bool:
    """Whether learner and workers share few cores, so that an idle core is a large part of them."""
    return cores <= SMALL_MACHINE_CORES and device != "cuda"


def _choose_precision(choices: Choices, machine: Machine) -> None:
    settled = choices.settled
    if find_agent(settled["agent"]).exact:
        choices.choose("precision", "float32", f"the steps of {settled['agent']} need more exactness than bfloat16 has")
    if settled["network"] == "mlp":
        choices.choose("precision", "float32", "an mlp is small, so bfloat16 would cost exactness and save no time")
    if ":" in settled["network"]:
        choices.choose("precision", "float32", "not every module of a user's computes in bfloat16")
    fast = settled["device"] in machine.bfloat16
    device = "GPU" if settled["device"] == "cuda" else "CPU"
    precision, other = ("bfloat16", "float32") if fast else ("float32", "bfloat16")
    choices.choose("precision", precision, f"the {device} computes faster in it than in {other}")


def _choose_who_acts(choices: Choices, machine: Machine, *, on_policy: bool) -> None:
    """With a GPU: choose between one policy on it and a copy in each worker.

    A core computes a small network in less time than a request to the GPU takes, and the learner's process has no requests to
    answer. With `nature` the copies take a quarter of each worker's time, so few cores keep the policy on the GPU. An `mlp`
    takes little on any core. With 16 cores and an H200, runs with copies had 1.06 to 1.7 times the speed (docs/performance.md).
    """
    settled = choices.settled
    small = settled["network"] in TINY or (settled["network"] in SMALL and machine.cores >= MANY_CORES)
    if small and settled["core"] == NO_CORE:
        choices.choose("worker_kind", "cpu", "a copy of a small network in each worker answers sooner than one on the GPU")
    if _fits_a_central_policy(settled, on_policy=on_policy):
        choices.choose("worker_kind", "central", "one policy on the GPU acts for all workers")


def _fits_a_central_policy(settled: Settings, *, on_policy: bool) -> bool:
    """Whether a central policy can divide the environments of a worker into its groups."""
    environments, batch, workers = (settled[name] for name in ("envs_per_worker", "batch_size", "worker_count"))
    if on_policy and environments == AUTO and batch != AUTO:  # the environments follow from the batch
        environments = batch if workers == AUTO else max(1, batch // workers)
    return bool(environments == AUTO or environments % groups_of("central") == 0)


def _choose_for_kind(choices: Choices, machine: Machine, *, on_policy: bool) -> None:
    """Choose what the kind of the workers decides."""
    kind = choices.settled["worker_kind"]
    if choices.settled["recording"] != NO_RECORDING:
        _choose_recorded(choices, machine)
    elif kind == SERVED:
        _choose_served(choices, on_policy=on_policy)
    if kind == "serial":
        choices.choose("worker_count", 1, "serial: everything in one process")
        choices.choose("prepared_batches", 0, "serial: everything in one thread")


def _choose_served(choices: Choices, *, on_policy: bool) -> None:
    """Choose the seats of a server. They are room for clients, so their number changes nothing that is learned."""
    choices.choose("worker_count", 1, "one process serves all clients")
    choices.choose("envs_per_worker", SEATS, "seats for the environments of clients")
    if on_policy:
        choices.choose("batch_size", SERVED_BATCH, "an update learns from the next trajectories of any clients")


def _choose_turns(choices: Choices, machine: Machine) -> None:
    """Choose environments and batch size of an on-policy agent. They follow from each other, so nothing is measured.

    A batch is one trajectory of each environment. A batch size that is given decides how many environments there are.
    """
    settled = choices.settled
    turns = "workers and learner take turns"
    choices.choose("prepared_batches", 0, turns)
    if settled["device"] != "cuda":
        choices.choose("learner_threads", min(machine.cores, MOST_LEARNER_THREADS), f"{turns}, so the cores are free")
    batch = settled["batch_size"]
    most, why = _workers(None, machine, settled["learner_threads"], small=False)
    if batch != AUTO:
        why = f"a batch is one trajectory of each of {batch} environments"
        least = -(-batch // MOST_ENVIRONMENTS)
        choices.choose("worker_count", _divisor(batch // groups_of(settled["worker_kind"]), least, most), why)
        choices.choose("envs_per_worker", max(1, batch // settled["worker_count"]), why)
    choices.choose("worker_count", most, why)
    choices.choose("envs_per_worker", ENVIRONMENTS * groups_of(settled["worker_kind"]), "enough for efficient inference")
    environments = settled["worker_count"] * settled["envs_per_worker"]
    choices.choose("batch_size", environments, "one trajectory of each environment, all acted by the version that learns")


def _choose_paced(choices: Choices, machine: Machine, costs: Costs | None) -> None:
    """Choose workers, environments and batch size of an agent that learns from each step a fixed number of times.

    Workers wait for the learner in most such runs, so there are few, and few environments: their data is then of the newest
    policies. Neither count limits the speed.
    """
    settled = choices.settled
    published = find_agent(settled["agent"]).defaults.get("batch_size", PUBLISHED_BATCH)
    choices.choose("batch_size", published, "the published setting")
    environments = PACED_ENVIRONMENTS * groups_of(settled["worker_kind"])
    choices.choose("envs_per_worker", environments, "few, since the learner sets the pace, so that their policy is new")
    small = is_small(machine.cores, settled["device"])
    if small and costs is None:
        choices.choose("worker_count", 1, "the learner sets the pace")
    if small and settled["network"] == "mlp":
        why = "they share the operations of a small network as long as cores are idle"
        choices.choose("learner_threads", min(machine.cores, MOST_LEARNER_THREADS), why)
    choices.choose("learner_threads", *_learner_threads(costs, machine.cores, gpu=settled["device"] == "cuda", small=small))
    choices.choose("worker_count", *_workers(costs, machine, settled["learner_threads"], small=False))


def _choose_recorded(choices: Choices, machine: Machine) -> None:
    """Choose what reads a recording: one reader in the learner's process, so all cores learn."""
    settled = choices.settled
    choices.choose("worker_count", 1, "one place reads the recording")
    choices.choose("envs_per_worker", ENVIRONMENTS, "trajectories that are read together")
    if settled["device"] != "cuda":
        choices.choose("learner_threads", min(machine.cores, MOST_LEARNER_THREADS), "no worker needs the cores")
    published = find_agent(settled["agent"]).defaults.get("batch_size", PUBLISHED_BATCH)
    choices.choose("batch_size", published, "the published setting")


def _divisor(number: int, least: int, most: int) -> int:
    """The largest divisor of a number from `least` to `most`, otherwise the smallest one above; 1 if there is none."""
    counts = (*range(min(most, number), least - 1, -1), *range(max(least, most + 1), number + 1))
    return next((count for count in counts if number % count == 0), 1)


def _choose_processes(choices: Choices, machine: Machine, costs: Costs | None) -> None:
    """Choose learner threads, workers and their environments."""
    settled = choices.settled
    small = is_small(machine.cores, settled["device"])
    choices.choose("learner_threads", *_learner_threads(costs, machine.cores, gpu=settled["device"] == "cuda", small=small))
    if settled["worker_kind"] == "central":
        choices.choose("worker_count", *_workers(costs, machine, settled["learner_threads"], small=small))
        choices.choose("envs_per_worker", *_two_groups(costs, settled["worker_count"]))
        return
    environments, reason = _environments(costs)
    if costs and settled["envs_per_worker"] == AUTO and environments > ENVIRONMENTS:
        costs = replace(costs, act=costs.act_doubled)  # the count of workers follows from the larger groups
    choices.choose("worker_count", *_workers(costs, machine, settled["learner_threads"], small=small))
    choices.choose("envs_per_worker", environments, reason)


def _choose_batches(choices: Choices, *, small: bool) -> None:
    """Choose the batch size, which is part of what is learned and so never measured, and the batches prepared ahead."""
    if small:
        choices.choose("batch_size", SMALL_BATCH, "a small machine learns sooner from more and smaller updates")
        choices.choose("prepared_batches", 0, "a small machine has no idle core to prepare them")
    choices.choose("batch_size", PUBLISHED_BATCH, "the published setting")
    choices.choose("prepared_batches", MOST_PREPARED_BATCHES, "the most; as few are prepared as keep the learner busy")


def _learner_threads(costs: Costs | None, cores: int, *, gpu: bool, small: bool) -> tuple[int, str]:
    """Threads of the learner, and why. On a small machine no more than needed: they take the cores from the workers."""
    if gpu:
        return 1, "the GPU computes"
    most = min(cores, MOST_LEARNER_THREADS)
    if costs and small and (count := enough_threads(costs, cores)) < most:
        return count, f"measured: enough to learn from most of what {cores} cores can collect"
    return most, f"{cores} cores, shared with the workers"


def _workers(costs: Costs | None, machine: Machine, learner_threads: int, *, small: bool) -> tuple[int, str]:
    """Worker processes, and why. On a small machine always one per core: an idle core is a large part of it."""
    cores = machine.cores
    most = max(1, int(WORKERS_FRACTION * (machine.memory_bytes - LEARNER_RESERVE)) // WORKER_RESERVE)
    count = cores if small or costs is None else enough_workers(costs, cores, learner_threads)
    if most < count:
        return most, f"as many as fit into {machine.memory_bytes / 1e9:.1f} GB of memory with learner and replays"
    why = f"one per core, {cores} cores" if count == cores else "they collect more than the learner can take"
    return count, f"{why}; measured: {_described(costs, cores, count)}" if costs else why


def _described(costs: Costs, cores: int, workers: int) -> str:
    """The costs and the speed that follows from them, for a reader."""
    stepping, acting, learning = (f"{1e6 * seconds:.0f} us" for seconds in (costs.env, costs.act, costs.learn))
    speed = _two_digits(expected(costs, cores, workers))
    frames = "" if costs.frames_per_step == 1 else f" = {speed * costs.frames_per_step:,.0f} frames/s"
    return f"stepping {stepping}, acting {acting}, learning {learning} per step, so about {speed:,.0f} steps/s{frames}"


def _environments(costs: Costs | None) -> tuple[int, str]:
    """Environments of a worker that acts for itself, and why."""
    if costs is None:
        return ENVIRONMENTS, "enough for efficient inference, few enough for a small policy lag"
    saves = doubling_saves(costs)
    reason = f"measured: {2 * ENVIRONMENTS} would save {max(0.0, saves):.0%} of a step and double the policy lag"
    return (2 * ENVIRONMENTS if saves >= WORTH_DOUBLING else ENVIRONMENTS), reason


def _two_groups(costs: Costs | None, workers: int) -> tuple[int, str]:
    """Environments of a worker for which a central policy acts, and why."""
    group = 2 * ENVIRONMENTS if costs and larger_groups_help(costs, workers) else ENVIRONMENTS
    reason = f"two groups of {group}: one steps while the policy computes the actions of the other"
    if costs and costs.gpu_acts:
        now, doubled = (f"{answer_takes(act, costs, workers):.0%}" for act in (costs.act, costs.act_doubled))
        reason += f"; measured: the policy takes {now} of that time with groups of {ENVIRONMENTS}, {doubled} with twice as many"
    return 2 * group, reason


def _two_digits(number: float) -> float:
    """Rounded to two digits: a short measurement is no more exact."""
    return float(f"{number:.2g}")
