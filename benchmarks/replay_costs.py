"""Measures the cost of each kind of replay per batch, as a ratio to a batch from the queue alone.

    python -m benchmarks.replay_costs --network=nature --batch_size=32

Every batch has B trajectories. In the first row all are fresh, in the other rows half are replayed. The measured stages
are those of one update: `insert` of fresh trajectories until a batch can be drawn, `sample`, `make_batch`, and
`update`, which includes publishing. Here they run one after another in one CPU thread, so that none hides behind
another. Forward passes for a replay have their own column, `encode`, and count in no other.

The kinds take turns. Each ratio is a median of ratios to the queue within the same turn, so that other load on the
machine affects it little. The replays are full of real trajectories of the untrained policy. Elite and attentive
replays draw as many candidates as at the start of a run (`lambda_batch_multiplier` times their share of the batch),
which is the most they ever draw.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch

from agents.compute import prepare_torch
from agents.networks.base import make_network
from benchmarks.building import learner_agent, learner_network
from benchmarks.output import add_json, write_json
from learner.feeding.encoder import Encoder
from learner.feeding.host_buffers import HostBuffers
from learner.machine.detect import detect_machine
from learner.machine.fit import fit_to_machine
from learner.machine.memory_check import LEARNER_RESERVE, replay_memory
from learner.plan import make_plan
from learner.settings.config import DEFAULTS, Config, make_config
from replay import Encoded, make_mixture
from replay.batch import make_batch
from replay.slot_store import SharedArrays
from replay.trajectory import Arrays, Fields
from tools.termination import end_with
from workers import WORKERS, WorkerConfig, WorkerSetup
from workers.weights import SharedWeights, weights_layout

QUEUE = "queue"
COMPRESSED = "standard, compressed"
KINDS: dict[str, dict[str, Any]] = {
    "standard, fifo": {"type": "standard"},
    "standard, reservoir": {"type": "standard", "retention": "reservoir"},
    COMPRESSED: {"type": "standard"},
    "elite": {"type": "elite"},
    "attentive": {"type": "attentive"},
    "custom, attentive_sampling": {"type": "custom", "sample_strategy": "attentive_sampling"},
    "custom, elite_insertion": {"type": "custom", "insert_strategy": "elite_insertion"},
}
"""Name -> the replay that provides half of every batch."""

STAGES = ("insert", "sample", "encode", "make_batch", "update")
PREPARING = STAGES[:-1]
PROGRESS = 0.999  # of the run: steps are small then, and an update costs the same at any
LEAST_TURNS = 5
IN_SEQUENCE = 8  # trajectories of each environment: consecutive ones share frames in a replay

Times = dict[str, float]


class Stopwatch:
    """Measures the seconds of each stage of one batch. It waits for the device, so that work counts in its own stage."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.times: Times = dict.fromkeys(STAGES, 0.0)
        self._last = self._now()

    def start(self) -> None:
        """Start a new batch."""
        self.times = dict.fromkeys(STAGES, 0.0)
        self._last = self._now()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap as part of `stage`."""
        now = self._now()
        self.times[stage] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Batches:
    """Makes batches of one mixture, whose replays are full, and learns from them."""

    def __init__(self, config: Config, trajectories: Sequence[Arrays]) -> None:
        plan, training = make_plan(config), config.training
        contract = plan.contract
        self.device = torch.device(config.training.device)
        self.watch = Stopwatch(self.device)
        self.network = learner_network(config)
        self.agent = learner_agent(config, self.network)
        self.weights = SharedWeights(SharedArrays(weights_layout(self.network)))
        self.weights.publish(self.network, 0)
        self._columns = HostBuffers(contract, training.batch_size, pinned=self.device.type == "cuda").take()
        self._encoder = Encoder(self.network, self.weights, plan.spec.frames_stacked, self.device)
        self._coming = cycle(trajectories)
        self._stage = "insert"
        self.mixture = make_mixture(
            config.replays,
            contract,
            training.batch_size,
            config.replay_settings.replay_fill_fraction,
            np.random.default_rng(0),
            encode=self._encode,
            device=self.device,
        )
        for _ in range(max(replay.capacity for replay in config.replays)):
            self.mixture.insert(next(self._coming))

    def one(self) -> Times:
        """Make the next batch and its update. Returns the seconds of each stage."""
        self.watch.start()
        self._stage = "insert"
        while not self.mixture.can_sample():
            self.mixture.insert(next(self._coming))
        self.watch.lap(self._stage)
        self._stage = "sample"
        host = self.mixture.sample(self._columns)
        self.watch.lap(self._stage)
        batch = make_batch(host, self.mixture.contract, self.device)
        self.watch.lap("make_batch")
        self.agent.learn(batch, PROGRESS)
        self.weights.publish(self.network, self.weights.published_version + 1)
        self.watch.lap("update")
        return self.watch.times

    def _encode(self, trajectories: Fields) -> Encoded:
        self.watch.lap(self._stage)
        encoded = self._encoder(trajectories)
        self.watch.lap("encode")
        return encoded


def collect(config: Config) -> list[Arrays]:
    """Return `IN_SEQUENCE` trajectories of each environment of a run with this config, with features."""
    plan = make_plan(config)
    torch.manual_seed(config.training.seed)
    network = make_network(plan.network)
    count = config.workers.worker_count
    setup = WorkerSetup(
        config.env,
        plan.spec,
        plan.network,
        plan.contract,
        WorkerConfig("serial", count, config.workers.envs_per_worker),
        tuple(range(1, count + 1)),
    )
    workers = WORKERS["serial"](setup, network)
    trajectories: list[Arrays] = []
    try:
        workers.weights.publish(network, 0)
        workers.start()
        for _ in range(IN_SEQUENCE * count):
            for block in workers.poll(0.0):
                for slot in range(block.first_slot, block.first_slot + block.slot_count):
                    trajectories.append({name: array[slot].copy() for name, array in workers.slots.items()})
                workers.release(block)
    finally:
        workers.stop()
    return trajectories


def make_configs(settings: Mapping[str, Any], capacity: int) -> dict[str, Config]:
    """Return one config per kind, that of the queue alone first. Raises ValueError for bad settings or too little memory."""
    machine = detect_machine()
    queue = {"type": "queue", "capacity": 1}
    mixtures = {QUEUE: [{**queue, "sample_ratio": 1.0}]}
    for name, replay in KINDS.items():
        mixtures[name] = [{**queue, "sample_ratio": 0.5}, {**replay, "capacity": capacity, "sample_ratio": 0.5}]
    configs = {}
    for name, mixture in mixtures.items():
        given = {**settings, "replay_parameters": json.dumps(mixture), "compress_replay": name == COMPRESSED}
        settled, _ = fit_to_machine({**DEFAULTS, **given}, machine)
        configs[name] = make_config(settled)
    needed, room = sum(sum(replay_memory(make_plan(each))) for each in configs.values()), machine.memory_bytes - LEARNER_RESERVE
    if needed > room:
        raise ValueError(f"capacity: wanted replays that fit in {room / 1e9:.1f} GB together, got {needed / 1e9:.1f} GB")
    return configs


def measure(configs: Mapping[str, Config], seconds: float) -> list[dict[str, Times]]:
    """Return the times of one batch of each kind for each turn. seconds: duration of all turns."""
    trajectories = collect(configs["elite"])
    batches = {name: Batches(config, trajectories) for name, config in configs.items()}
    for each in batches.values():
        each.one()  # warm-up
    turns: list[dict[str, Times]] = []
    names = list(batches)
    generator = np.random.default_rng(0)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(turns) < LEAST_TURNS:
        order = generator.permutation(names)  # at random, so that no kind always follows the same one
        turns.append({str(name): batches[str(name)].one() for name in order})
    return turns


def summarise(turns: Sequence[Mapping[str, Times]]) -> dict[str, dict[str, float]]:
    """Return for each kind the median milliseconds of each stage and of the batch, and three ratios to the queue.

    The ratios are medians over turns: of all stages before the update, of the whole batch, and of the batch if its update
    took as long as that of the queue. The last one is the cost of a replay beyond gradients.
    """

    def seconds(name: str, stages: Sequence[str]) -> np.ndarray:
        return np.array([sum(turn[name][stage] for stage in stages) for turn in turns])

    def median(values: np.ndarray) -> float:
        return float(np.median(values))

    summary = {}
    for name in sorted(turns[0], key=[QUEUE, *KINDS].index):
        prepare, batch = seconds(name, PREPARING), seconds(name, STAGES)
        queue_prepare, queue_batch = seconds(QUEUE, PREPARING), seconds(QUEUE, STAGES)
        summary[name] = {
            **{f"{stage}_ms": 1e3 * median(seconds(name, [stage])) for stage in STAGES},
            "batch_ms": 1e3 * median(batch),
            "prepare_ratio": median(prepare / queue_prepare),
            "batch_ratio": median(batch / queue_batch),
            "beyond_update_ratio": median((prepare + queue_batch - queue_prepare) / queue_batch),
        }
    return summary


def table(summary: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the lines of a table: one per kind, with the columns of `summarise`."""
    columns = list(summary[QUEUE])
    width = max(map(len, summary)) + 1
    lines = [f"{'half replayed from':{width}}" + " ".join(f"{column:>{max(9, len(column))}}" for column in columns)]
    for name, row in summary.items():
        cells = [f"{row[column]:>{max(9, len(column))}.{2 if column.endswith('_ms') else 3}f}" for column in columns]
        lines.append(f"{name:{width}}" + " ".join(cells))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default=DEFAULTS["env"])
    parser.add_argument("--network", default=DEFAULTS["network"])
    parser.add_argument("--resolution", default=DEFAULTS["frame_scale_resolution"], help="height,width in pixels")
    parser.add_argument("--unroll_length", type=int, default=DEFAULTS["unroll_length"])
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--capacity", type=int, default=1000, help="trajectories in each replay")
    parser.add_argument("--device", default=DEFAULTS["device"])
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the measurement, after the replays are filled")
    add_json(parser)
    arguments = parser.parse_args()
    names = ("env", "network", "unroll_length", "batch_size", "device")
    settings = {
        **{name: getattr(arguments, name) for name in names},
        "frame_scale_resolution": arguments.resolution,
        "environment_max_steps": 10**9,
    }
    try:
        configs = make_configs(settings, arguments.capacity)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    prepare_torch(threads=1)  # more threads would also measure waits for busy cores
    turns = measure(configs, arguments.seconds)
    summary = summarise(turns)
    print("\n".join(table(summary)))
    print(f"Medians over {len(turns)} turns; real trajectories of the untrained policy on {arguments.env}")
    write_json(
        arguments.json, {"settings": {**settings, "capacity": arguments.capacity}, "turns": len(turns), "kinds": summary}
    )
    return 0


if __name__ == "__main__":
    end_with(main)
