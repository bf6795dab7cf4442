"""A run whose replays do not fit is refused in one line that says how to mend it; one that fits says what it takes."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from learner.machine.memory_check import (
    GPU_RESERVE,
    LEARNER_RESERVE,
    WORKER_RESERVE,
    check_gpu_memory,
    check_memory,
    check_replay_devices,
    describe_memory,
    gpu_memory,
    replay_memory,
    reserve_bytes,
)
from learner.settings.config import make_contract
from replay import make_mixture
from replay.ring.storage import BLOCK_OVERHEAD
from tests.support import small_config
from wrappers import make_spec


def config_of(*replays: dict[str, Any], **settings: Any) -> Any:
    return small_config(replay_parameters=json.dumps(list(replays)), **settings)


def test_replays_and_processes_must_fit_together() -> None:
    config = config_of({"type": "standard", "memory": "1GB", "sample_ratio": 1})
    check_memory(config, 10**9 + LEARNER_RESERVE)
    with pytest.raises(
        ValueError, match=r"^replay_parameters: wanted at most 1.00 GB of replays .*, got 1.00 GB; use "
    ) as caught:
        check_memory(config, 10**9 + LEARNER_RESERVE - 1)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    for said in ("of memory 2.00 GB are available now, 1.00 GB of it", "smaller capacity", "--compress_replay"):
        assert said in line


def test_less_than_the_processes_take_leaves_nothing() -> None:
    with pytest.raises(ValueError, match="wanted at most 0.00 MB of replays"):
        check_memory(small_config(), 5)


def test_every_worker_process_counts() -> None:
    assert reserve_bytes(small_config(worker_kind="cpu", worker_count=3)) == LEARNER_RESERVE + 3 * WORKER_RESERVE
    assert reserve_bytes(small_config()) == LEARNER_RESERVE


def test_each_replay_and_the_total_are_told() -> None:
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    lines = describe_memory(config_of(queue, {"type": "standard", "memory": "250MB", "sample_ratio": 0.5}))
    assert lines[0].startswith("Replay queue: 3 trajectories of 10 steps, at most 0.00")
    assert re.fullmatch("Replay standard: at least [0-9,]+ trajectories of 10 steps, at most 0.25 GB", lines[1])
    assert lines[2] == "Replay memory: at most 0.25 GB, beside 1.00 GB for the processes"


def test_compression_reaches_the_replays() -> None:
    assert [replay.compress for replay in small_config().replays] == [False]
    assert [replay.compress for replay in small_config(compress_replay=True).replays] == [True]


ON_A_GPU = {"type": "standard", "memory": "5GB", "sample_ratio": 1, "device": "cuda"}


def on_a_gpu(*replays: dict[str, Any], **settings: Any) -> Any:
    return config_of(*replays, device="cuda", worker_kind="serial", **settings)


def test_frames_on_a_gpu_count_there_and_the_rest_in_host_memory() -> None:
    config = on_a_gpu(ON_A_GPU)
    (total,), (frames,) = replay_memory(config), gpu_memory(config)
    assert total == 5 * 10**9
    check_memory(config, total - frames + LEARNER_RESERVE)
    with pytest.raises(ValueError, match=r"^replay_parameters: wanted at most .* of replays \(of memory"):
        check_memory(config, total - frames + LEARNER_RESERVE - 1)
    check_gpu_memory(config, frames + GPU_RESERVE)
    with pytest.raises(ValueError, match=r"^replay_parameters: wanted at most .* of replays on the GPU .*, got ") as caught:
        check_gpu_memory(config, frames + GPU_RESERVE - 1)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("size", [{"memory": "10MB"}, {"capacity": 700}])
def test_what_is_told_of_a_gpu_is_what_a_replay_claims_there(size: dict[str, Any]) -> None:
    config = on_a_gpu({**{name: value for name, value in ON_A_GPU.items() if name != "memory"}, **size})
    contract = make_contract(config, make_spec(config.env))
    mixture = make_mixture(config.replays, contract, config.training.batch_size, 0.0, np.random.default_rng(0))
    storage = mixture.replays[0].ring.storage  # type: ignore[attr-defined]
    assert gpu_memory(config) == [storage.pool.bytes.nbytes]
    beside = replay_memory(config)[0] - storage.pool.bytes.nbytes
    assert 0 < beside < replay_memory(config)[0]
    if "capacity" in size:
        assert beside == 700 * storage.slot_bytes + len(storage.pool.bytes) * BLOCK_OVERHEAD


def test_frames_on_a_gpu_pass_through_host_memory_when_they_are_saved() -> None:
    for saved in ({"save_replay": True}, {"reproducible": True}):
        config = on_a_gpu(ON_A_GPU, **saved)
        check_memory(config, 5 * 10**9 + LEARNER_RESERVE)
        with pytest.raises(ValueError, match="^replay_parameters: wanted at most "):
            check_memory(config, 5 * 10**9 + LEARNER_RESERVE - 1)
        assert describe_memory(config)[-1].endswith("on the GPU with room to save what lies there")


def test_a_replay_on_a_gpu_is_told_as_one() -> None:
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    lines = describe_memory(on_a_gpu(queue, {**ON_A_GPU, "sample_ratio": 0.5}))
    assert "GPU" not in lines[0]
    assert re.fullmatch(r"Replay standard: at least [0-9,]+ .* at most 5.00 GB, [0-9.]+ GB of it on the GPU", lines[1])
    assert re.fullmatch(r"Replay memory: at most .*, beside 1.00 GB for the processes, and [0-9.]+ GB on the GPU", lines[2])


def test_a_replay_on_a_gpu_wants_a_learner_there_and_no_compression() -> None:
    check_replay_devices(on_a_gpu(ON_A_GPU))
    check_replay_devices(config_of({**ON_A_GPU, "device": "cpu"}, compress_replay=True))
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    with pytest.raises(
        ValueError,
        match=r'^replay_parameters\[1\]: wanted --device=cuda or "device": "cpu", got "device": "cuda" with --device=cpu$',
    ):
        check_replay_devices(config_of(queue, {**ON_A_GPU, "sample_ratio": 0.5}))
    with pytest.raises(ValueError, match=r"^replay_parameters\[0\]: wanted --nocompress_replay or .*, got .*$"):
        check_replay_devices(on_a_gpu(ON_A_GPU, compress_replay=True))


def test_too_many_workers_for_the_memory_are_told_apart_from_too_large_replays() -> None:
    config = small_config(worker_kind="cpu", worker_count=500)
    with pytest.raises(ValueError, match=r"^worker_count: wanted at most 30 of 0.30 GB each .*10.00 GB .*1.00 GB .*got 500$"):
        check_memory(config, 10**10)
    check_memory(small_config(worker_kind="cpu", worker_count=29), 10**10)
    with pytest.raises(ValueError, match="^replay_parameters"):
        check_memory(config, 10**9)  # not even one
