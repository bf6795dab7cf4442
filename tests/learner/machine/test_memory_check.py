"""A run that does not fit into memory is refused in one line with a setting to change; others say what they take."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from learner.building import make_network_shapes
from learner.early_processes import worker_setup
from learner.machine.memory_check import (
    GPU_RESERVE,
    LEARNER_RESERVE,
    WORKER_RESERVE,
    check_gpu_memory,
    check_memory,
    check_replay_devices,
    describe_memory,
    gpu_memory,
    host_memory,
    replay_memory,
)
from replay import make_mixture
from replay.ring.storage import PAGE_OVERHEAD
from tests.support import small_config, small_plan
from workers import WORKERS

ATARI: dict[str, Any] = {"env": "PongNoFrameskip-v4", "network": "nature", "frames_stacked": 4}


def plan_of(*replays: dict[str, Any], **settings: Any) -> Any:
    return small_plan(replay_parameters=json.dumps(list(replays)), **settings)


def test_the_arena_counts() -> None:
    """It was left out once, and this run was accepted at 2 GB."""
    plan = small_plan(worker_kind="cpu", worker_count=2, envs_per_worker=256, unroll_length=500, **ATARI)
    contract = plan.contract
    arena = 2 * 256 * plan.config.workers.blocks_per_worker * contract.bytes_per_trajectory
    assert arena > 3.6e9
    assert host_memory(plan).arena >= arena
    with pytest.raises(ValueError, match=r"^envs_per_worker: wanted at most \d+ .* got 256"):
        check_memory(plan, 2 * 10**9)
    check_memory(plan, host_memory(plan).total)


@pytest.mark.parametrize("kind", ["cpu", "serial", "central"])
def test_no_arena_is_larger_than_what_is_counted(kind: str) -> None:
    plan = small_plan(worker_kind=kind, worker_count=3, envs_per_worker=8)
    workers = WORKERS[kind](worker_setup(plan, None), make_network_shapes(plan.network).to_empty(device="cpu"))
    try:
        assert 0.9 * host_memory(plan).arena <= workers.shared.size <= host_memory(plan).arena
    finally:
        workers.stop()


def test_emulators_count_by_their_family_and_frame_size() -> None:
    """Measured: 1.6 MB for an Atari game at 84 x 84, 2.6 MB at 210 x 210."""
    sizes = [
        host_memory(small_plan(**{**ATARI, "frame_scale_resolution": size, "envs_per_worker": 100})).environments / 100
        for size in ("84,84", "210,210")
    ]
    assert sizes == [pytest.approx(1.65e6, rel=0.1), pytest.approx(2.65e6, rel=0.1)]
    assert host_memory(small_plan()).environments < 10**5


def test_batches_count_in_the_buffers_that_hold_them() -> None:
    def batches(**settings: Any) -> int:
        return host_memory(small_plan(batch_size=16, **settings)).batches

    one = 16 * small_plan().contract.bytes_per_trajectory
    assert batches(prepared_batches=0) == one + one  # a buffer, and the stacked observations of one frame each
    assert batches(prepared_batches=4) == 6 * one + one
    assert batches(prepared_batches=0, device="cuda") == one


def test_replays_and_all_else_must_fit_together() -> None:
    plan = plan_of({"type": "standard", "memory": "1GB", "sample_ratio": 1})
    check_memory(plan, 10**9 + host_memory(plan).without_replays)
    with pytest.raises(ValueError, match=r"^replay_parameters: wanted at most 1\.00 GB of replays .*, got 1\.00 GB") as caught:
        check_memory(plan, 10**9 + host_memory(plan).without_replays - 1)
    assert len(str(caught.value).splitlines()) == 1
    assert "--compress_replay" in str(caught.value)


def test_too_little_memory_for_the_learner_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="^memory: wanted at least 1.00 GB .*, got 0.00 MB"):
        check_memory(small_plan(), 5)


def test_every_worker_process_counts() -> None:
    assert host_memory(small_plan(worker_kind="cpu", worker_count=3)).processes == LEARNER_RESERVE + 3 * WORKER_RESERVE
    assert host_memory(small_plan()).processes == LEARNER_RESERVE
    assert host_memory(small_plan(eval_period=5)).processes == LEARNER_RESERVE + WORKER_RESERVE


def test_weights_of_each_environment_count_where_an_agent_has_them() -> None:
    plan, plain = small_plan(agent="es", hidden_sizes="64"), small_plan(agent="ppo", hidden_sizes="64")
    weights = sum(each.numel() for each in make_network_shapes(plan.network).parameters())
    grown = host_memory(plan).environments - host_memory(plain).environments
    assert grown == pytest.approx(4 * weights * plan.config.workers.environments, rel=0.02)
    on_the_device = host_memory(small_plan(agent="es", hidden_sizes="64", worker_kind="central")).environments
    assert on_the_device < host_memory(plan).environments


def test_environments_of_evaluations_count() -> None:
    plan = small_plan()
    each = host_memory(plan).environments // plan.config.workers.environments
    for episodes, environments in ((3, 3), (50, 16)):
        evaluated = host_memory(small_plan(eval_seconds=5.0, eval_episodes=episodes)).environments
        assert evaluated == (plan.config.workers.environments + environments) * each


def test_each_replay_and_the_total_are_described() -> None:
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    plan = plan_of(queue, {"type": "standard", "memory": "250MB", "sample_ratio": 0.5})
    lines = describe_memory(plan)
    assert lines[0].startswith("Replay queue: 3 trajectories of 10 steps, at most 0.00")
    assert re.fullmatch("Replay standard: at least [0-9,]+ trajectories of 10 steps, at most 0.25 GB", lines[1])
    assert lines[2].startswith("Memory: at most 1.25 GB (processes 1.00 GB, environments ")
    assert lines[2].endswith("replays 0.25 GB)")


def test_compression_reaches_the_replays() -> None:
    assert [replay.compress for replay in small_config().replays] == [False]
    assert [replay.compress for replay in small_config(compress_replay=True).replays] == [True]


ON_A_GPU = {"type": "standard", "memory": "5GB", "sample_ratio": 1, "device": "cuda"}


def on_a_gpu(*replays: dict[str, Any], **settings: Any) -> Any:
    return plan_of(*replays, device="cuda", worker_kind="serial", **settings)


def test_frames_on_a_gpu_count_there_and_the_rest_in_host_memory() -> None:
    plan = on_a_gpu(ON_A_GPU)
    (total,), (frames,) = replay_memory(plan), gpu_memory(plan)
    assert total == 5 * 10**9
    check_memory(plan, total - frames + host_memory(plan).without_replays)
    with pytest.raises(ValueError, match=r"^replay_parameters: wanted at most .* of replays \("):
        check_memory(plan, total - frames + host_memory(plan).without_replays - 1)
    check_gpu_memory(plan, frames + GPU_RESERVE)
    with pytest.raises(ValueError, match=r"^replay_parameters: wanted at most .* of replays on the GPU .*, got ") as caught:
        check_gpu_memory(plan, frames + GPU_RESERVE - 1)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("size", [{"memory": "10MB"}, {"capacity": 700}])
def test_the_gpu_memory_that_is_counted_is_what_a_replay_claims_there(size: dict[str, Any]) -> None:
    plan = on_a_gpu({**{name: value for name, value in ON_A_GPU.items() if name != "memory"}, **size})
    contract = plan.contract
    mixture = make_mixture(plan.config.replays, contract, plan.config.training.batch_size, 0.0, np.random.default_rng(0))
    storage = mixture.replays[0].ring.storage  # type: ignore[attr-defined]
    assert gpu_memory(plan) == [storage.pool.bytes.nbytes]
    beside = replay_memory(plan)[0] - storage.pool.bytes.nbytes
    assert 0 < beside < replay_memory(plan)[0]
    if "capacity" in size:
        assert beside == 700 * storage.slot_bytes + len(storage.pool.bytes) * PAGE_OVERHEAD


def test_frames_on_a_gpu_pass_through_host_memory_when_they_are_saved() -> None:
    for saved in ({"save_replay": True}, {"reproducible": True}):
        plan = on_a_gpu(ON_A_GPU, **saved)
        check_memory(plan, 5 * 10**9 + host_memory(plan).without_replays)
        with pytest.raises(ValueError, match="^replay_parameters: wanted at most "):
            check_memory(plan, 5 * 10**9 + host_memory(plan).without_replays - 1)
        assert describe_memory(plan)[-1].endswith("on the GPU; host memory has room to save it")


def test_a_replay_on_a_gpu_is_described_as_one() -> None:
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    lines = describe_memory(on_a_gpu(queue, {**ON_A_GPU, "sample_ratio": 0.5}))
    assert "GPU" not in lines[0]
    assert re.fullmatch(r"Replay standard: at least [0-9,]+ .* at most 5.00 GB, [0-9.]+ GB of it on the GPU", lines[1])
    assert re.fullmatch(r"Memory: at most .*\), and [0-9.]+ GB on the GPU", lines[2])


def test_a_replay_on_a_gpu_wants_a_learner_there_and_no_compression() -> None:
    check_replay_devices(on_a_gpu(ON_A_GPU).config)
    check_replay_devices(plan_of({**ON_A_GPU, "device": "cpu"}, compress_replay=True).config)
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    with pytest.raises(
        ValueError,
        match=r'^replay_parameters\[1\]: wanted --device=cuda or "device": "cpu", got "device": "cuda" with --device=cpu$',
    ):
        check_replay_devices(plan_of(queue, {**ON_A_GPU, "sample_ratio": 0.5}).config)
    with pytest.raises(ValueError, match=r"^replay_parameters\[0\]: wanted --nocompress_replay or .*, got .*$"):
        check_replay_devices(on_a_gpu(ON_A_GPU, compress_replay=True).config)


def test_too_many_workers_for_the_memory_are_refused_before_too_large_replays() -> None:
    plan = small_plan(worker_kind="cpu", worker_count=500)
    with pytest.raises(ValueError, match=r"^worker_count: wanted at most 29 with envs_per_worker=4 \(10.00 GB .*, got 500$"):
        check_memory(plan, 10**10)
    check_memory(small_plan(worker_kind="cpu", worker_count=29), 10**10)
    with pytest.raises(ValueError, match="^memory: wanted at least"):
        check_memory(plan, 10**9)


def test_the_environments_that_are_named_fit() -> None:
    for kind, step in (("cpu", 1), ("central", 2), ("serial", 1)):
        given = {"worker_kind": kind, "worker_count": 1, "unroll_length": 500, **ATARI}
        with pytest.raises(ValueError, match="^envs_per_worker") as caught:
            check_memory(small_plan(**given, envs_per_worker=2000), 2 * 10**9)
        named = int(str(caught.value).split("at most ")[1].split()[0])
        assert named % step == 0
        check_memory(small_plan(**given, envs_per_worker=named), 2 * 10**9)
        with pytest.raises(ValueError, match="wanted at most"):
            check_memory(small_plan(**given, envs_per_worker=named + step), 2 * 10**9)


def test_trajectories_that_a_replay_compares_count() -> None:
    """A draw reads all candidates at once and stacks their frames; so does an insertion that compares."""
    elite = {"type": "elite", "capacity": 500, "sample_ratio": 1.0, "dist_function": "kl_policy"}
    small, large, inserting = (
        plan_of({**elite, **keys}, batch_size=8, **ATARI)
        for keys in (
            {"lambda_batch_multiplier": 1},
            {"lambda_batch_multiplier": 20},
            {"lambda_batch_multiplier": 1, "insert_strategy": "elite_insertion", "elite_batch_size": 5000},
        )
    )
    one = (1 + 4) * large.contract.bytes_per_trajectory
    before = host_memory(small).batches
    assert host_memory(large).batches - before == (20 - 1) * 8 * one
    assert host_memory(inserting).batches - before == (500 - 8) * one
