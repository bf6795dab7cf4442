"""How fast the whole system is against what its parts cost alone, measured in one run.

    python -m benchmarks.throughput --windows=5 --window=30 -- --network=nature --batch_size=32
    python -m benchmarks.throughput -- --network=impala_shallow --frame_scale_resolution=42,42 --unroll_length=20 \
        --worker_count=2 --envs_per_worker=16 --replay_parameters='[{"type": "queue", "capacity": 1, "sample_ratio": 0.5},
        {"type": "elite", "capacity": 1000, "sample_ratio": 0.5}]'

Takes turns, because a shared machine is not always equally fast: a window of the program (`main.py --op_mode=train` with the
settings after `--`) in steady state, then, while the program is suspended, stepping, acting and learning alone, and the native
vector environment alone on all cores. Each window is compared with what was measured right before and right after it. Prints
the limit, n / (c_env + c_act + c_learn) on n cores and n / c_env beside a GPU, the achieved speed, and both ratios: medians
over the windows. `cores_together` is what stepping on all cores at once reaches of n times one core: below 1 the machine itself
falls short of the limit. `--json=FILE` writes them too. Needs a system with SIGSTOP.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.jobs import ENDLESS, job_of, refuse
from benchmarks.termination import REPOSITORY, end_with, unwind_when_terminated
from learner.launch import measured
from learner.machine.costs import Costs, limit
from learner.machine.measuring import acting, acting_at_once, fresh_part, learning, prepare_to_measure, stepping
from learner.metrics.metrics import read_metrics
from learner.metrics.progress import format_duration
from learner.settings.config import Config
from learner.settings.schema import MEASURED_SETTINGS
from wrappers import make_spec

Seconds = dict[str, float]
Result = dict[str, Any]

START_SECONDS = 300.0  # until the first row of metrics: imports, and replays that are filled in
WARM_UP_SECONDS = 20.0  # after it
SETTLE_SECONDS = 3.0  # after a suspension, until caches and queues are as before it
ROW_SECONDS = 1.0  # between rows of metrics
PART_SECONDS = 2.0  # of each part, each time
DECISION_SECONDS = 1.0  # of each part, for settings that the program would measure
LOOK_SECONDS = 0.05
NATIVE = "native"
FEWEST_NATIVE = 64  # environments; each is made after the other, in a fifth of a second


class Program:
    """A training without end, as a process of its own that can be suspended; a context manager that ends it.

    command: main.py with its flags, but for those that say where and how often it writes. Raises RuntimeError where it ends by
    itself or writes no metrics.
    """

    def __init__(self, command: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        output = (f"--results_dir={self._folder.name}", f"--log_period={ROW_SECONDS}", ENDLESS)
        self._process = subprocess.Popen([*command, *output], cwd=REPOSITORY, stdout=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # at once: nothing that it would save is wanted
        self._process.wait()
        self._folder.cleanup()

    def warm_up(self, seconds: float) -> None:
        """Until so many seconds after its first row of metrics."""
        self._newer_row((0.0, 0.0))
        self._sleep(seconds)

    def suspend(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def steps_per_second(self, seconds: float, settle: float) -> float:
        """Go on, and measure for so many seconds once it has settled."""
        before = self._newest_row()
        os.killpg(self._process.pid, signal.SIGCONT)
        self._sleep(settle)
        begin = self._newer_row(before)
        self._sleep(seconds)
        end = self._newest_row()
        if end == begin:
            raise RuntimeError(f"wanted several rows of metrics in {seconds:g} s, got none")
        return (end[1] - begin[1]) / (end[0] - begin[0])

    def _sleep(self, seconds: float) -> None:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise RuntimeError(f"the program ended by itself with code {code}")

    def _newer_row(self, row: tuple[float, float]) -> tuple[float, float]:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if (newest := self._newest_row()) > row:
                return newest
            self._sleep(LOOK_SECONDS)
        raise RuntimeError(f"no row of metrics within {START_SECONDS:.0f} s")

    def _newest_row(self) -> tuple[float, float]:
        """Its seconds and its steps; zeros before the first."""
        for path in Path(self._folder.name).glob("*_*/metrics.csv"):
            columns = read_metrics(path)
            return float(columns["seconds"][-1]), float(columns["steps"][-1])
        return 0.0, 0.0


class Parts:
    """What a run is made of, each alone, built once and measured as often as is wanted."""

    def __init__(self, config: Config, cores: int) -> None:
        prepare_to_measure(config)
        self._fresh_part = fresh_part(config)
        self._parts = {
            "c_env": stepping(config, config.workers.envs_per_worker, 1),
            "c_act": acting(config, acting_at_once(config)),
            "c_learn": learning(config, config.training.batch_size),
            NATIVE: stepping(config, max(FEWEST_NATIVE, 8 * cores), cores),
        }

    def measure(self, seconds: float) -> Seconds:
        """Each by name: learning for a fresh step, the native environment with all cores together."""
        found = {name: part.seconds_a_step(seconds) for name, part in self._parts.items()}
        return {**found, "c_learn": found["c_learn"] / self._fresh_part}


def take_turns(program: Program, parts: Parts, windows: int, seconds: float) -> tuple[list[float], list[Seconds]]:
    """The program's steps per second in each window, and what the parts cost before, between and after them."""
    program.suspend()
    costs, speeds = [parts.measure(PART_SECONDS)], []
    for _ in range(windows):
        speeds.append(program.steps_per_second(seconds, SETTLE_SECONDS))
        program.suspend()
        costs.append(parts.measure(PART_SECONDS))
    return speeds, costs


def compare(speeds: list[float], costs: list[Seconds], cores: int, frames: int, *, gpu: bool) -> Result:
    """Medians over windows. costs: of the parts, before each window and after the last one."""
    around = [{name: (before[name] + after[name]) / 2 for name in before} for before, after in pairwise(costs)]
    limits = [limit(_costs(cost, frames, gpu=gpu), cores) for cost in around]
    of_limit = [speed / most for speed, most in zip(speeds, limits, strict=True)]
    of_native = [speed * cost[NATIVE] for speed, cost in zip(speeds, around, strict=True)]
    middle = {name: statistics.median(cost[name] for cost in around) for name in around[0]}
    return {
        **{f"{name}_microseconds": 1e6 * value for name, value in middle.items() if name != NATIVE},
        "native_frames_per_second": frames / middle[NATIVE],
        "cores_together": statistics.median(cost["c_env"] / (cores * cost[NATIVE]) for cost in around),
        "limit": "n / c_env" if gpu else "n / (c_env + c_act + c_learn)",
        "limit_frames_per_second": frames * statistics.median(limits),
        "achieved_frames_per_second": frames * statistics.median(speeds),
        "achieved_steps_per_second": statistics.median(speeds),
        "windows_frames_per_second": [round(frames * speed) for speed in speeds],
        "windows_ratio_to_limit": [round(ratio, 3) for ratio in of_limit],
        "ratio_to_limit": statistics.median(of_limit),
        "ratio_to_native": statistics.median(of_native),
    }


def _costs(cost: Seconds, frames: int, *, gpu: bool) -> Costs:
    return Costs(cost["c_env"], cost["c_act"], cost["c_act"], cost["c_learn"], frames, gpu_learns=gpu)


def seconds_needed(windows: int, window: float) -> float:
    """How long all measurements take, but for the start of what is measured."""
    parts, decided = 4 * PART_SECONDS, 3 * DECISION_SECONDS
    return decided + WARM_UP_SECONDS + (windows + 1) * parts + windows * (SETTLE_SECONDS + ROW_SECONDS + window)


def measure(arguments: list[str], windows: int, window: float) -> Result:
    """All measurements of one setting; first says what they are, and how long they take."""
    job = job_of(arguments)
    if not fresh_part(job.config):
        refuse(ValueError("replay_parameters: wanted a queue among the replays, got none: no step would be fresh"))
    command = ["main.py", "--op_mode=train", *arguments]
    print(
        f"Measuring {windows} x {window:g} s of {shlex.join(command)}, and its parts alone in between: "
        f"about {format_duration(seconds_needed(windows, window))} on idle cores, beside its start",
        file=sys.stderr,
        flush=True,
    )
    job = measured(job, DECISION_SECONDS)
    config, machine = job.config, job.machine
    fixed = [f"--{name}={job.settled[name]}" for name in MEASURED_SETTINGS]  # the program would measure again
    parts = Parts(config, machine.cores)
    with Program([sys.executable, *command, *fixed]) as program:
        program.warm_up(WARM_UP_SECONDS)
        speeds, costs = take_turns(program, parts, windows, window)
    gpu = config.training.device == "cuda"
    return {
        "cores": machine.cores,
        "device": machine.gpu if gpu else "cpu",
        **compare(speeds, costs, machine.cores, make_spec(config.env).frames_per_step, gpu=gpu),
        "settings": [*arguments, *fixed],
    }


def main() -> None:
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=5, help="how many windows of the program in steady state")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of each")
    parser.add_argument("--json", type=Path, help="write the result here too")
    parser.add_argument("settings", nargs="*", help="flags of main.py, after --")
    arguments = parser.parse_args()
    if arguments.windows < 1:
        parser.error(f"--windows: wanted 1 or more, got {arguments.windows}")
    result = measure(arguments.settings, arguments.windows, arguments.window)
    for name, value in result.items():
        print(f"{name:28s} {value:,.3f}" if isinstance(value, float) else f"{name:28s} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    end_with(main)
