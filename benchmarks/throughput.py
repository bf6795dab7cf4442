"""Measures the speed of the whole system as a ratio to the limit that its parts, measured alone, allow.

    python -m benchmarks.throughput --windows=5 --window=30 -- --network=nature --batch_size=32
    python -m benchmarks.throughput -- --network=impala_shallow --frame_scale_resolution=42,42 --unroll_length=20 \
        --worker_count=2 --envs_per_worker=16 --replay_parameters='[{"type": "queue", "capacity": 1, "sample_ratio": 0.5},
        {"type": "elite", "capacity": 1000, "sample_ratio": 0.5}]'

Program and parts take turns, because the speed of a shared machine varies. In a window the program (`main.py
--op_mode=train` with the settings after `--`) runs in steady state. While it is suspended, stepping, acting and
learning are measured alone, and the native vector environment alone on all cores. Each window is compared with the
measurements right before and after it.

The results are medians over the windows: the limit, which is n / (c_env + c_act + c_learn) on n cores and n / c_env
with a GPU, the achieved speed, and its ratios to the limit and to the native environment. `cores_together` is the speed
of stepping on all cores at once, divided by n times that of one core. Below 1 the machine itself falls short of the
limit. For an environment of Gymnasium the speed of Stable-Baselines3's A2C follows, with 8 environments and with as many as the
run has, if that package is installed. `--json=FILE` also writes the results. Needs a system with SIGSTOP.
"""

from __future__ import annotations

import shlex
import statistics
import sys
from itertools import pairwise
from typing import Any

from benchmarks.jobs import job_of, refuse
from benchmarks.measured_program import ROW_SECONDS, MeasuredProgram
from benchmarks.output import show_windows
from benchmarks.sb3 import Sb3Job, is_installed, measure_sb3
from learner.launch import measured
from learner.machine.costs import Costs, limit
from learner.machine.measuring import acting, acting_at_once, fresh_part, learning, prepare_to_measure, stepping
from learner.metrics.progress import format_duration
from learner.plan import Plan
from learner.settings.config import Config
from learner.settings.schema import MEASURED_SETTINGS
from tools.termination import end_with, training_command
from wrappers import family_of, make_spec

Seconds = dict[str, float]
Result = dict[str, Any]

WARM_UP_SECONDS = 20.0  # after the first row of metrics
SETTLE_SECONDS = 3.0  # after a suspension, until caches and queues are filled as before
PART_SECONDS = 2.0  # of each part, each time
DECISION_SECONDS = 1.0  # of each part, for settings that the program chooses by measurement
ZOO_ENVIRONMENTS = 8  # of A2C in the settings that rl-baselines3-zoo publishes for classic control
NATIVE = "native"
FEWEST_NATIVE = 64  # environments; making each takes a fifth of a second


class Parts:
    """The parts of a run, built once and measured alone, several times."""

    def __init__(self, plan: Plan, cores: int) -> None:
        config = plan.config
        prepare_to_measure(config)
        self._fresh_part = fresh_part(config)
        self._parts = {
            "c_env": stepping(config, config.workers.envs_per_worker, 1),
            "c_act": acting(plan, acting_at_once(config)),
            "c_learn": learning(plan, config.training.batch_size),
            NATIVE: stepping(config, max(FEWEST_NATIVE, 8 * cores), cores),
        }

    def measure(self, seconds: float) -> Seconds:
        """Return the seconds per step of each part: learning per fresh step, the native environment on all cores."""
        found = {name: part.seconds_a_step(seconds) for name, part in self._parts.items()}
        return {**found, "c_learn": found["c_learn"] / self._fresh_part}


def take_turns(program: MeasuredProgram, parts: Parts, windows: int, seconds: float) -> tuple[list[float], list[Seconds]]:
    """Return the program's steps per second in each window, and the costs of the parts before, between and after them."""
    program.suspend()
    costs, speeds = [parts.measure(PART_SECONDS)], []
    for _ in range(windows):
        speeds.append(program.steps_per_second(seconds, SETTLE_SECONDS))
        program.suspend()
        costs.append(parts.measure(PART_SECONDS))
    return speeds, costs


def compare(speeds: list[float], costs: list[Seconds], cores: int, frames: int, *, gpu: bool) -> Result:
    """Return the results as medians over windows.

    Args:
        speeds: steps per second of each window.
        costs: seconds per step of the parts before each window and after the last one.
        cores: number of cores.
        frames: emulator frames per step.
        gpu: whether a GPU acts and learns, so that only stepping limits the speed.
    """
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
    """Return the duration of all measurements, without the start of the program."""
    parts, decided = 4 * PART_SECONDS, 3 * DECISION_SECONDS
    return decided + WARM_UP_SECONDS + (windows + 1) * parts + windows * (SETTLE_SECONDS + ROW_SECONDS + window)


def measure(arguments: list[str], windows: int, window: float) -> Result:
    """Make and return all measurements of one setting. First prints what is measured, and for how long."""
    job = job_of(arguments)
    if not fresh_part(job.config):
        refuse(ValueError("replay_parameters: wanted a queue among the replays, got none, so that no step would be fresh"))
    command = training_command(*arguments)
    print(
        f"Measuring {windows} x {window:g} s of {shlex.join(command[1:])}, and its parts alone in between: "
        f"about {format_duration(seconds_needed(windows, window))} on idle cores, plus the start of the program",
        file=sys.stderr,
        flush=True,
    )
    job = measured(job, DECISION_SECONDS)
    config, machine = job.config, job.machine
    fixed = [f"--{name}={job.settled[name]}" for name in MEASURED_SETTINGS]  # otherwise the program would measure again
    parts = Parts(job.plan, machine.cores)
    with MeasuredProgram([*command, *fixed]) as program:
        program.warm_up(WARM_UP_SECONDS)
        speeds, costs = take_turns(program, parts, windows, window)
    gpu = config.training.device == "cuda"
    found = compare(speeds, costs, machine.cores, job.plan.spec.frames_per_step, gpu=gpu)
    return {
        "cores": machine.cores,
        "device": machine.gpu if gpu else "cpu",
        **found,
        **compare_with_sb3(config, found["achieved_steps_per_second"], window),
        "settings": [*arguments, *fixed],
    }


def compare_with_sb3(config: Config, speed: float, seconds: float) -> Result:
    """The speed of Stable-Baselines3's A2C, with its usual number of environments and with as many as this run has.

    Nothing if it is not installed or does not make the environment.

    speed: our steps per second. seconds: length of each measurement.
    """
    if not is_installed() or family_of(config.env.env) != "gymnasium" or make_spec(config.env).leaves:
        return {}
    found: Result = {}
    for label, envs in ((f"{ZOO_ENVIRONMENTS}_envs", ZOO_ENVIRONMENTS), ("as_many_envs", config.workers.environments)):
        other = measure_sb3(Sb3Job("A2C", config.env.env, envs), seconds)
        found |= {f"sb3_a2c_{label}_steps_per_second": other, f"ratio_to_sb3_a2c_{label}": speed / other}
    return found


def main() -> None:
    show_windows(__doc__, measure, "windows", 5, 10.0)


if __name__ == "__main__":
    end_with(main)
