"""Measures memory: bytes per step of replays, plain and compressed, and the memory of a whole run.

    python -m benchmarks.memory --env=PongNoFrameskip-v4 --steps=40000 --seconds=40 -- --worker_count=2

Trajectories of a random policy fill a standard replay of either form, and its bytes are scaled to a million steps. Then
the program runs (`main.py --op_mode=train` with the settings after `--`), and the memory of all its processes is added
up. Shared pages are counted once (PSS). `--json=FILE` also writes the result. Linux only.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import job_of
from benchmarks.output import add_json, print_values, write_json
from learner.metrics.hardware import family_of
from learner.plan import make_plan
from learner.settings.config import Config
from replay import ReplayConfig, ReplayContext
from replay.kinds.standard import StandardReplay
from replay.trajectory import TrajectoryContract
from tools.termination import ENDLESS, end_with, training, unwind_when_terminated
from workers.clocks import CLOCKS
from workers.policy import Acted
from workers.rollout import Rollout
from wrappers import make_vector_env

ENVIRONMENTS = 32
BATCH_SIZE = 32
TIMED_ROUNDS = 20
POLL_SECONDS = 0.2


class RandomPolicy:
    """A policy of rollouts that acts uniformly at random."""

    version = 0

    def __init__(self, action_count: int) -> None:
        self.action_count = action_count
        self.generator = np.random.default_rng(0)

    def refresh(self) -> None:
        return

    def ask(self, observations: np.ndarray, first: np.ndarray, *, with_state: bool = False) -> None:
        self.asked = len(observations)

    def answer(self) -> Acted:
        count = self.asked
        logits, values = np.zeros((count, self.action_count), np.float32), np.zeros(count, np.float32)
        fields = {"behaviour_policy": logits, "behaviour_values": values}
        return Acted(self.generator.integers(self.action_count, size=count), fields)


def replay_figures(config: Config, steps: int) -> dict[str, Any]:
    """Return bytes per step of full replays, plain and compressed, and the time of an insert and a sample in them.

    steps: with which the replays are filled at least.
    """
    plan, length = make_plan(config), config.training.unroll_length
    contract = plan.contract
    round_steps = ENVIRONMENTS * length
    filling = -(-steps // round_steps)
    replays = {name: _standard(contract, filling * ENVIRONMENTS, name == "compressed") for name in ("plain", "compressed")}
    slots, out = contract.allocate(ENVIRONMENTS), contract.allocate(BATCH_SIZE)
    env = make_vector_env(config.env, ENVIRONMENTS)
    rollout = Rollout(
        env,
        RandomPolicy(plan.spec.action.mask_size),
        slots,
        np.zeros(len(CLOCKS)),
        seed=1,
        environment_ids=np.arange(ENVIRONMENTS),
    )
    seconds: dict[str, list[float]] = {f"{name}_{what}": [] for name in replays for what in ("insert", "sample")}
    for turn in range(filling + TIMED_ROUNDS):
        rollout.collect(0)
        for name, replay in replays.items():
            started = time.perf_counter()
            for row in range(ENVIRONMENTS):
                replay.insert({field: array[row] for field, array in slots.items()})
            inserted = time.perf_counter()
            replay.sample(BATCH_SIZE, out)
            if turn >= filling:  # first writes to memory take the system's time, not the replay's
                seconds[f"{name}_insert"].append((inserted - started) / round_steps)
                seconds[f"{name}_sample"].append((time.perf_counter() - inserted) / (BATCH_SIZE * length))
    env.close()
    sizes = {name: replay.ring.storage.bytes_claimed / (filling * round_steps) for name, replay in replays.items()}
    return {
        "steps": filling * round_steps,
        **{f"{name}_bytes_per_step": size for name, size in sizes.items()},
        **{f"{name}_gigabytes_per_million_steps": size / 1e3 for name, size in sizes.items()},
        **{f"{name}_microseconds_per_step": 1e6 * statistics.median(times) for name, times in seconds.items()},
    }


def _standard(contract: TrajectoryContract, capacity: int, compress: bool) -> StandardReplay:
    context = ReplayContext(contract, BATCH_SIZE, 1, np.random.default_rng(1))
    return StandardReplay(ReplayConfig("standard", capacity, 1.0, compress=compress), context)


def program_figures(arguments: list[str], seconds: float) -> dict[str, Any]:
    """Return the peak memory of the program's processes in GB: PSS counts shared pages once, RSS in each process.

    Raises RuntimeError if the program ends by itself.
    """
    peaks = {"Pss": 0, "Rss": 0}
    with tempfile.TemporaryDirectory() as folder, training(*arguments, f"--results_dir={folder}", ENDLESS) as process:
        end = time.monotonic() + seconds
        processes = 0
        while time.monotonic() < end:
            if process.poll() is not None:
                raise RuntimeError(f"the program ended by itself with code {process.returncode}: {' '.join(arguments)}")
            pids = family_of(process.pid)
            processes = max(processes, len(pids))
            for name in peaks:
                peaks[name] = max(peaks[name], sum(memory_of(pid).get(name, 0) for pid in pids))
            time.sleep(POLL_SECONDS)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    return {"processes": processes, **{f"peak_{name.lower()}_gigabytes": peak / 1e9 for name, peak in peaks.items()}}


def memory_of(pid: int) -> dict[str, int]:
    """Return bytes by name from /proc/PID/smaps_rollup, {} if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def measure(env: str | None, arguments: list[str], steps: int, seconds: float) -> dict[str, Any]:
    """Return all results for these flags of main.py. env: an environment id that replaces theirs, or None."""
    settings = [*([f"--env={env}"] if env else []), *arguments]
    config = job_of(settings).config
    return {**replay_figures(config, steps), **program_figures(settings, seconds), "settings": settings}


def main() -> None:
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", help="environment id that replaces that of the settings")
    parser.add_argument("--steps", type=int, default=40_000, help="steps of the random policy that fill the replays")
    parser.add_argument("--seconds", type=float, default=40.0, help="seconds for which the program runs")
    add_json(parser)
    parser.add_argument("settings", nargs="*", help="flags of main.py, after --")
    arguments = parser.parse_args()
    result = measure(arguments.env, arguments.settings, arguments.steps, arguments.seconds)
    print_values(result)
    write_json(arguments.json, result)


if __name__ == "__main__":
    end_with(main)
