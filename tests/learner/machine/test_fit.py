"""Every `auto` is settled with a reason; given settings stay."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from learner.machine.costs import Costs
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.machine.memory_check import check_memory
from learner.plan import make_plan
from learner.settings.config import AUTO, make_config
from learner.settings.config import DEFAULTS as ALL_DEFAULTS
from learner.settings.schema import SHARED, default_settings

DEFAULTS = {**ALL_DEFAULTS, "network": "nature"}  # the environment decides it, not the machine
AUTOMATIC = sorted(name for name, field in SHARED.items() if field.setting.auto and DEFAULTS[name] == AUTO)
MACHINES = [
    Machine(cores, memory, gpu) for cores, memory, gpu in itertools.product((1, 2, 4, 5, 64), (8 * 10**9,), (None, "GPU 9000"))
]
GIVEN: dict[str, Any] = {
    "device": "cpu",
    "learner_threads": 3,
    "precision": "bfloat16",
    "worker_kind": "cpu",
    "worker_count": 5,
    "envs_per_worker": 6,
    "prepared_batches": 2,
    "batch_size": 7,
    "test_environments": 9,
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("reproducible", [False, True])
def test_every_auto_is_settled_to_a_valid_config(machine: Machine, reproducible: bool) -> None:
    settled, reasons = fit_to_machine({**DEFAULTS, "reproducible": reproducible}, machine)
    config = make_config(settled)
    assert config.settings == settled
    assert settled["device"] == ("cuda" if machine.gpu and not reproducible else "cpu")
    assert sorted(reason.split("=")[0] for reason in reasons) == AUTOMATIC
    for reason in reasons:
        name = reason.split("=")[0]
        assert reason.startswith(f"{name}={settled[name]} (")
        assert reason.endswith(")")
        assert len(reason) > len(f"{name}={settled[name]} ()")


@pytest.mark.parametrize("machine", MACHINES)
def test_read_settings_stay(machine: Machine) -> None:
    settled, reasons = fit_to_machine({**DEFAULTS, **GIVEN}, machine)
    assert settled == {**DEFAULTS, **GIVEN}
    assert reasons == []


@pytest.mark.parametrize("name", AUTOMATIC)
def test_one_given_setting_does_not_stop_the_choice_of_the_others(name: str) -> None:
    settled, reasons = fit_to_machine({**DEFAULTS, name: GIVEN[name]}, Machine(8, 10**10, "GPU 9000"))
    assert settled[name] == GIVEN[name]
    assert sorted(reason.split("=")[0] for reason in reasons) == sorted(set(AUTOMATIC) - {name})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bfloat16_is_chosen_for_a_device_that_is_faster_in_it(device: str) -> None:
    def chosen(able: set[str]) -> str:
        machine = Machine(8, 10**10, "GPU 9000", frozenset(able))
        return str(fit_to_machine({**DEFAULTS, "device": device}, machine)[0]["precision"])

    assert chosen({device}) == chosen({"cpu", "cuda"}) == "bfloat16"
    assert chosen(set()) == chosen({"cpu", "cuda"} - {device}) == "float32"


def test_an_agent_that_needs_exact_products_gets_float32() -> None:
    machine = Machine(8, 10**10, "GPU 9000", frozenset({"cpu", "cuda"}))
    settled, _ = fit_to_machine({**default_settings("trpo"), "agent": "trpo", "network": "nature"}, machine)
    assert settled["precision"] == "float32"


def test_a_small_mlp_keeps_float32() -> None:
    machine = Machine(8, 10**10, None, frozenset({"cpu"}))
    settled, reasons = fit_to_machine({**DEFAULTS, "network": "mlp"}, machine)
    assert settled["precision"] == "float32"
    assert any(line.startswith("precision=float32 (an mlp is small") for line in reasons)


def test_settings_that_are_not_auto_stay() -> None:
    settled, _ = fit_to_machine(DEFAULTS, MACHINES[0])
    assert {name: settled[name] for name in DEFAULTS if name not in AUTOMATIC} == {
        name: default for name, default in DEFAULTS.items() if name not in AUTOMATIC
    }
    assert DEFAULTS["worker_count"] == AUTO


@pytest.mark.parametrize(
    ("machine", "settings", "wanted"),
    [
        (Machine(2, 10**10, None), {}, 0),
        (Machine(2, 10**10, "GPU 9000"), {}, 4),
        (Machine(16, 10**10, None), {}, 4),
        (Machine(16, 10**10, None), {"reproducible": True}, 0),
        (Machine(16, 10**10, "GPU 9000"), {"worker_kind": "serial"}, 0),
    ],
)
def test_batches_are_prepared_ahead_if_there_is_an_idle_core(machine: Machine, settings: dict[str, Any], wanted: int) -> None:
    settled, _ = fit_to_machine({**DEFAULTS, **settings}, machine)
    assert settled["prepared_batches"] == wanted


def test_reproducible_is_serial_in_one_process() -> None:
    settled, reasons = fit_to_machine({**DEFAULTS, "reproducible": True}, Machine(16, 10**10, None))
    assert (settled["worker_kind"], settled["worker_count"]) == ("serial", 1)
    assert any(reason.startswith("worker_kind=serial (reproducible") for reason in reasons)


def test_worker_processes_use_every_core() -> None:
    settled, _ = fit_to_machine(DEFAULTS, Machine(16, 10**10, None))
    assert (settled["worker_kind"], settled["worker_count"]) == ("cpu", 16)


def test_with_a_gpu_one_policy_acts_for_all_and_the_learner_has_one_thread() -> None:
    settled, reasons = fit_to_machine({**DEFAULTS, "network": "impala_deep"}, Machine(16, 10**10, "GPU 9000"))
    names = ("worker_kind", "worker_count", "envs_per_worker", "learner_threads")
    assert tuple(settled[name] for name in names) == ("central", 16, 32, 1)
    on_cpu, _ = fit_to_machine({**DEFAULTS, "device": "cpu"}, Machine(16, 10**10, "GPU 9000"))
    assert tuple(on_cpu[name] for name in names) == ("cpu", 16, 16, 8)
    assert any(reason.startswith("worker_kind=central (one policy on the GPU") for reason in reasons)


@pytest.mark.parametrize(
    ("cores", "settings", "kind"),
    [
        (2, {"network": "mlp"}, "cpu"),
        (4, {"network": "nature"}, "central"),
        (8, {"network": "nature"}, "cpu"),
        (8, {"network": "nature", "core": "lstm"}, "central"),
        (16, {"network": "conv"}, "cpu"),
        (16, {"network": "impala_deep"}, "central"),
        (16, {"network": "my_module:Torso"}, "central"),
    ],
)
def test_with_a_gpu_workers_have_copies_of_a_small_network(cores: int, settings: dict[str, Any], kind: str) -> None:
    settled, reasons = fit_to_machine({**DEFAULTS, **settings}, Machine(cores, 10**11, "GPU 9000"))
    assert settled["worker_kind"] == kind
    small = any(reason.startswith("worker_kind=cpu (a copy of a small network in each worker") for reason in reasons)
    assert small == (kind == "cpu")


@pytest.mark.parametrize(("cores", "gpu", "batch"), [(2, None, 8), (4, None, 8), (5, None, 32), (2, "GPU 9000", 32)])
def test_small_machines_take_small_batches(cores: int, gpu: str | None, batch: int) -> None:
    settled, _ = fit_to_machine(DEFAULTS, Machine(cores, 10**10, gpu))
    assert settled["batch_size"] == batch


COSTS = Costs(env=300e-6, act=100e-6, act_doubled=90e-6, learn=3000e-6, frames_per_step=4)


def fitted(machine: Machine, costs: Costs, **settings: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The settled settings, and the reasons by name."""
    settled, reasons = fit_to_machine({**DEFAULTS, **settings}, machine, costs)
    return settled, dict(reason.split("=", 1) for reason in reasons)


def test_a_small_machine_has_one_worker_per_core_whatever_was_measured() -> None:
    settled, reasons = fitted(Machine(2, 10**10, None), COSTS)
    assert settled["worker_count"] == 2
    assert reasons["worker_count"] == (
        "2 (one per core, 2 cores; measured: stepping 300 us, acting 100 us, learning 3000 us per step, "
        "so about 530 steps/s = 2,120 frames/s)"
    )


def test_a_large_machine_has_as_many_workers_as_its_learner_can_use() -> None:
    settled, reasons = fitted(Machine(16, 10**10, None), COSTS)
    assert settled["worker_count"] == 2
    assert "more than the learner can take" in reasons["worker_count"]
    gpu = replace(COSTS, gpu_learns=True)
    assert fitted(Machine(16, 10**10, "GPU 9000"), gpu)[0]["worker_count"] == 1
    acts_there = replace(
        gpu, learn=66e-6, gpu_acts=True
    )  # 15,152 steps/s, and 8 workers that only step collect 1.76 times that
    assert fitted(Machine(16, 10**10, "GPU 9000"), acts_there)[0]["worker_count"] == 8
    assert fitted(Machine(16, 10**10, "GPU 9000"), replace(acts_there, gpu_acts=False))[0]["worker_count"] == 16
    assert fitted(Machine(16, 10**10, None), COSTS, learner_threads=16)[0]["worker_count"] == 4
    assert fitted(Machine(16, 10**10, None), COSTS, worker_count=7)[0]["worker_count"] == 7


def test_twice_the_environments_if_they_make_a_step_a_quarter_cheaper() -> None:
    settled, reasons = fitted(Machine(2, 10**10, None), COSTS)
    assert settled["envs_per_worker"] == 16
    assert "32 would save 2% of a step" in reasons["envs_per_worker"]
    steep = replace(COSTS, act=600e-6, act_doubled=300e-6)
    settled, reasons = fitted(Machine(2, 10**10, None), steep)
    assert settled["envs_per_worker"] == 32
    assert "acting 300 us" in reasons["worker_count"]
    _, reasons = fitted(Machine(2, 10**10, None), steep, envs_per_worker=16)
    assert "acting 600 us" in reasons["worker_count"]
    settled, reasons = fitted(Machine(2, 10**10, None), steep, worker_kind="central")
    assert settled["envs_per_worker"] == 32, "two groups of 16, as without a measurement"
    assert "acting 600 us" in reasons["worker_count"]


def test_groups_of_a_central_policy_are_larger_if_its_answers_take_long() -> None:
    gpu, costs = Machine(16, 10**10, "GPU 9000"), replace(COSTS, learn=1e-6, gpu_acts=True, gpu_learns=True)
    deep = {"network": "impala_deep"}
    settled, reasons = fitted(gpu, replace(costs, act=6e-6, act_doubled=5e-6), **deep)
    assert settled["envs_per_worker"] == 32
    assert reasons["envs_per_worker"].startswith("32 (two groups of 16: ")
    assert "takes 32% of that time with groups of 16, 27% with twice as many" in reasons["envs_per_worker"]
    settled, reasons = fitted(gpu, replace(costs, act=18e-6, act_doubled=12e-6), **deep)
    assert settled["envs_per_worker"] == 64
    assert reasons["envs_per_worker"].startswith("64 (two groups of 32: ")
    assert "takes 96% of that time with groups of 16, 64% with twice as many" in reasons["envs_per_worker"]
    assert "acting 18 us" in reasons["worker_count"]
    settled, _ = fitted(gpu, replace(costs, act=18e-6, act_doubled=12e-6), worker_count=8, **deep)
    assert settled["envs_per_worker"] == 32


@pytest.mark.parametrize("machine", MACHINES)
def test_a_measurement_never_decides_the_batch_size(machine: Machine) -> None:
    """The batch is the same on a machine that is ten times slower or faster."""
    batches = {
        fitted(machine, replace(COSTS, env=factor * COSTS.env, learn=COSTS.learn / factor))[0]["batch_size"]
        for factor in (0.1, 1, 10)
    }
    assert batches == {fit_to_machine(DEFAULTS, machine)[0]["batch_size"]}


def test_a_learner_with_a_gpu_has_one_thread() -> None:
    assert fit_to_machine(DEFAULTS, Machine(16, 10**10, "GPU 9000"))[0]["learner_threads"] == 1
    assert fit_to_machine(DEFAULTS, Machine(16, 10**10, None))[0]["learner_threads"] == 8


@pytest.mark.parametrize(
    ("learn", "cores", "threads"), [(200e-6, 2, 1), (200e-6, 16, 8), (600e-6, 2, 1), (900e-6, 2, 2), (600e-6, 4, 2)]
)
def test_a_small_machine_has_as_few_learner_threads_as_keep_up(learn: float, cores: int, threads: int) -> None:
    """On other machines there are cores for all threads."""
    settled, reasons = fitted(Machine(cores, 10**10, None), replace(COSTS, learn=learn))
    assert settled["learner_threads"] == threads
    assert ("measured" in reasons["learner_threads"]) is (threads < min(cores, 8))
    assert fitted(Machine(cores, 10**10, None), replace(COSTS, learn=learn), learner_threads=7)[0]["learner_threads"] == 7


def test_no_more_workers_than_fit_into_memory() -> None:
    settled, reasons = fit_to_machine(DEFAULTS, Machine(cores=64, memory_bytes=9 * 10**9, gpu=None))
    assert settled["worker_count"] == 20
    assert any(line.startswith("worker_count=20 (as many as fit into 9.0 GB of memory") for line in reasons)
    check_memory(make_plan(make_config(settled)), 9 * 10**9)
    assert fit_to_machine(DEFAULTS, Machine(cores=2, memory_bytes=10**8, gpu=None))[0]["worker_count"] == 1


@pytest.mark.parametrize("cores", [1, 2, 4, 6])
@pytest.mark.parametrize("kind", ["cpu", "central", "serial"])
@pytest.mark.parametrize("given", [{}, {"batch_size": 8}, {"batch_size": 12, "envs_per_worker": 4}, {"worker_count": 2}])
def test_a_batch_of_an_on_policy_agent_is_one_trajectory_of_each_environment(
    cores: int, kind: str, given: dict[str, Any]
) -> None:
    settings = {**default_settings("ppo"), "agent": "ppo", "network": "nature", "worker_kind": kind, **given}
    settled, _ = fit_to_machine(settings, Machine(cores, 64 * 10**9, None))
    config = make_config(settled)
    assert given.items() <= settled.items()
    assert config.workers.environments == config.training.batch_size
    assert config.workers.blocks_per_worker == config.workers.groups
    assert settled["prepared_batches"] == 0
    assert settled["worker_count"] <= max(cores, given.get("worker_count", 1), 3)


@pytest.mark.parametrize(("batch", "cores", "workers"), [(16384, 2, 4), (16384, 16, 16), (12288, 2, 3), (4096, 1, 1)])
def test_a_large_batch_has_workers_for_its_environments(batch: int, cores: int, workers: int) -> None:
    """A worker has at most 4,096 environments."""
    settings = {**default_settings("ppo"), "agent": "ppo", "env": "Catch-v0", "network": "mlp", "batch_size": batch}
    settled, _ = fit_to_machine(settings, Machine(cores, 64 * 10**9, None))
    assert make_config(settled).workers.worker_count == workers


def test_a_reproducible_on_policy_run_has_the_environments_of_its_batch() -> None:
    settings = {**default_settings("a2c"), "agent": "a2c", "network": "nature", "reproducible": True}
    for given, wanted in (({}, 16), ({"batch_size": 5}, 5), ({"envs_per_worker": 4}, 4)):
        settled, _ = fit_to_machine({**settings, **given}, Machine(64, 64 * 10**9, "GPU 9000"))
        assert (settled["worker_count"], settled["envs_per_worker"], settled["batch_size"]) == (1, wanted, wanted)


@pytest.mark.parametrize(
    ("agent", "given", "kind"),
    [
        ("ppo", {"batch_size": 1}, "cpu"),
        ("ppo", {"batch_size": 8}, "central"),
        ("ppo", {"batch_size": 16, "worker_count": 16}, "cpu"),
        ("ppo", {"batch_size": 12, "worker_count": 4}, "cpu"),
        ("ppo", {"batch_size": 16, "worker_count": 4}, "central"),
        ("ppo", {"batch_size": 15, "envs_per_worker": 5}, "cpu"),
        ("ppo", {"batch_size": 12, "envs_per_worker": 4}, "central"),
        ("ppo", {"worker_count": 7}, "central"),
        ("ppo", {"envs_per_worker": 5}, "cpu"),
        ("ppo", {"envs_per_worker": 6}, "central"),
        ("vtrace", {"envs_per_worker": 1, "worker_count": 8}, "cpu"),
        ("vtrace", {"envs_per_worker": 6, "batch_size": 7}, "central"),
        ("dqn", {"envs_per_worker": 1, "worker_count": 1}, "cpu"),
    ],
)
def test_an_odd_number_of_environments_is_not_given_to_a_central_policy(agent: str, given: dict[str, Any], kind: str) -> None:
    settings = {**default_settings(agent), "agent": agent, "env": "PongNoFrameskip-v4", "network": "impala_deep", **given}
    settled, _ = fit_to_machine(settings, Machine(16, 64 * 10**9, "GPU 9000"))
    assert make_config(settled).workers.worker_kind == kind
    assert given.items() <= settled.items()


@pytest.mark.parametrize(("cores", "network", "wanted"), [(1, "mlp", 1), (2, "mlp", 2), (2, "nature", 2), (16, "mlp", 8)])
def test_a_small_network_that_learns_from_transitions_has_threads_for_idle_cores(cores: int, network: str, wanted: int) -> None:
    given = {**default_settings("sac"), "agent": "sac", "network": network}
    settled, reasons = fit_to_machine(given, Machine(cores, 10**10, None))
    assert settled["learner_threads"] == wanted
    assert any("small network" in reason for reason in reasons) == (network == "mlp" and cores < 16)
