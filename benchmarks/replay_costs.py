"""What each kind of replay costs a batch, as a ratio to a batch that comes from the queue alone, measured in one run.

    python -m benchmarks.replay_costs --network=nature --batch_size=32

Every batch has the same B trajectories; in all but the first row half of them are replayed. A batch is what the learner does
for one update: `insert` fresh trajectories until a batch can be drawn, `sample`, `make_batch`, `update` (publishing included),
here one after another, so that nothing hides behind anything else. Forward passes that a replay asks for, wherever it does,
stand in a column of their own (`encode`) and in no other. The kinds take turns, and each ratio is the median of ratios to the
queue within the same turn, so that a busy machine does little to it. One CPU thread.

Replays are full of real trajectories, made by the untrained policy. Elite and attentive replays draw as many candidates as at
the start of a run (`lambda_batch_multiplier` times a batch's share), which is the most they ever draw.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents import AGENTS
from agents.compute import prepare_torch
from agents.networks.actor_critic import make_network
from benchmarks.termination import end_with
from learner.feeding.encoder import Encoder
from learner.feeding.host_buffers import HostBuffers
from learner.machine.machine import detect_machine, fit_to_machine
from learner.machine.memory_check import LEARNER_RESERVE, replay_memory
from learner.settings.config import DEFAULTS, Config, make_config, make_contract
from replay import Encoded, make_mixture, replay_names
from replay.slot_store import SharedArrays
from replay.trajectory import Arrays, Fields, make_batch
from workers import WORKERS, WorkerConfig, WorkerSetup
from workers.weights import SharedWeights, weights_layout
from wrappers import make_spec

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
"""Name -> the replay that gives half of every batch."""

STAGES = ("insert", "sample", "encode", "make_batch", "update")
PREPARING = STAGES[:-1]
LEARNING_RATE = 1e-5  # small: the policy should stay near the one that made the trajectories
LEAST_TURNS = 5
PLAYED_IN_A_ROW = 8  # trajectories of each environment: those that follow each other share frames in a replay

Times = dict[str, float]


class Stopwatch:
    """Seconds of each stage of one batch; waits for the device, so that a stage's work is counted in that stage."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.times: Times = dict.fromkeys(STAGES, 0.0)
        self._last = self._now()

    def start(self) -> None:
        self.times = dict.fromkeys(STAGES, 0.0)
        self._last = self._now()

    def lap(self, stage: str) -> None:
        """Everything since the last lap belongs to `stage`."""
        now = self._now()
        self.times[stage] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Batches:
    """Makes and learns from the batches of one mixture, a full one from the start."""

    def __init__(self, config: Config, trajectories: Sequence[Arrays]) -> None:
        spec, training = make_spec(config.env), config.training
        contract = make_contract(config, spec)
        self.device = torch.device(config.training.device)
        self.watch = Stopwatch(self.device)
        self.frames_stacked = spec.frames_stacked
        network = make_network(config.network, spec.observation_shape, spec.action_count, precision=training.precision)
        self.network = network.to(self.device)
        self.agent = AGENTS[config.agent](config.agent_settings, self.network, replay_names(config.replays))
        self.weights = SharedWeights(SharedArrays(weights_layout(self.network)))
        self.weights.publish(self.network, 0)
        self._columns = HostBuffers(contract, training.batch_size, pinned=self.device.type == "cuda").take()
        self._encoder = Encoder(self.network, self.weights, spec.frames_stacked, self.device)
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
        """Seconds of each stage of the next batch."""
        self.watch.start()
        self._stage = "insert"
        while not self.mixture.can_sample():
            self.mixture.insert(next(self._coming))
        self.watch.lap(self._stage)
        self._stage = "sample"
        host = self.mixture.sample(self._columns)
        self.watch.lap(self._stage)
        batch = make_batch(host.columns, host.is_replay, host.source, self.frames_stacked, self.device, host.device_frames)
        self.watch.lap("make_batch")
        self.agent.update(batch, LEARNING_RATE)
        self.weights.publish(self.network, self.weights.published_version + 1)
        self.watch.lap("update")
        return self.watch.times

    def _encode(self, trajectories: Fields) -> Encoded:
        self.watch.lap(self._stage)
        encoded = self._encoder(trajectories)
        self.watch.lap("encode")
        return encoded


def collect(config: Config) -> list[Arrays]:
    """Trajectories of every environment of a run with this config, `PLAYED_IN_A_ROW` of each, features included."""
    spec = make_spec(config.env)
    torch.manual_seed(config.training.seed)
    network = make_network(config.network, spec.observation_shape, spec.action_count)
    count = config.workers.worker_count
    setup = WorkerSetup(
        config.env,
        spec,
        config.network,
        make_contract(config, spec),
        WorkerConfig("serial", count, config.workers.envs_per_worker),
        tuple(range(1, count + 1)),
    )
    workers = WORKERS["serial"](setup, network)
    trajectories: list[Arrays] = []
    try:
        workers.weights.publish(network, 0)
        workers.start()
        for _ in range(PLAYED_IN_A_ROW * count):
            for block in workers.poll(0.0):
                for slot in range(block.first_slot, block.first_slot + block.slot_count):
                    trajectories.append({name: array[slot].copy() for name, array in workers.slots.items()})
                workers.release(block)
    finally:
        workers.stop()
    return trajectories


def make_configs(settings: Mapping[str, Any], capacity: int) -> dict[str, Config]:
    """One config a kind, the queue alone first. Raises ValueError where a setting is wrong or memory too small."""
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
    needed, room = sum(sum(replay_memory(each)) for each in configs.values()), machine.memory_bytes - LEARNER_RESERVE
    if needed > room:
        raise ValueError(f"capacity: wanted replays that together fit in {room / 1e9:.1f} GB, got {needed / 1e9:.1f} GB")
    return configs


def measure(configs: Mapping[str, Config], seconds: float) -> list[dict[str, Times]]:
    """The times of every kind's batches, turn by turn."""
    trajectories = collect(configs["elite"])
    batches = {name: Batches(config, trajectories) for name, config in configs.items()}
    for each in batches.values():
        each.one()  # the first one warms up
    turns: list[dict[str, Times]] = []
    names = list(batches)
    generator = np.random.default_rng(0)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(turns) < LEAST_TURNS:
        order = generator.permutation(names)  # at random, so that no kind always follows the same other one
        turns.append({str(name): batches[str(name)].one() for name in order})
    return turns


def summarise(turns: Sequence[Mapping[str, Times]]) -> dict[str, dict[str, float]]:
    """Kind -> median milliseconds of each stage and of the batch, and three ratios to the queue, medians over turns:
    preparing, the batch, and the batch if its update took as long as the queue's (what a replay costs beyond gradients)."""

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
    """One line a kind, columns as in `summarise`."""
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
    parser.add_argument("--seconds", type=float, default=60.0, help="for measuring; filling the replays comes before it")
    parser.add_argument("--json", type=Path, help="write the result here too")
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
    prepare_torch(threads=1)  # threads that wait for cores that others use would be measured too
    turns = measure(configs, arguments.seconds)
    summary = summarise(turns)
    print("\n".join(table(summary)))
    print(f"{len(turns)} turns of every kind, medians; real trajectories of {arguments.env}, made by the untrained policy")
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                {"settings": {**settings, "capacity": arguments.capacity}, "turns": len(turns), "kinds": summary}, indent=2
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    end_with(main)
