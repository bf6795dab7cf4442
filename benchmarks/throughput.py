"""How fast the whole system is against what its parts cost alone, measured in one run.

    python -m benchmarks.throughput --seconds=150 --window=30 -- --network=nature --batch_size=32
    python -m benchmarks.throughput -- --network=impala_shallow --frame_scale_resolution=42,42 --unroll_length=20 \
        --worker_count=2 --envs_per_worker=16 --replay_parameters='[{"type": "queue", "capacity": 1, "sample_ratio": 0.5},
        {"type": "elite", "capacity": 1000, "sample_ratio": 0.5}]'

Measures, with the settings given after `--` (those of main.py): stepping, acting and learning alone, the native vector
environment alone on all cores, the program itself (`main.py --op_mode=train`) in steady state, then all parts once more: their
means count. Prints the limit, n / (c_env + c_act + c_learn) on n cores and n / c_env beside a GPU, the achieved speed, which is
the median over windows of time, and both ratios; `--json=FILE` writes them too.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from learner.config import Config, make_config
from learner.costs import Costs, limit
from learner.machine import detect_machine, fit_to_machine
from learner.measuring import environment_seconds, fresh_part, measure_costs
from learner.metrics import read_metrics
from learner.preflight import MEASURED
from option_flags import all_settings, define_flags
from wrappers import make_spec

REPOSITORY = Path(__file__).resolve().parent.parent
START_SECONDS = 300.0  # until the first row of metrics: imports, and replays that are filled in
WARM_UP_SECONDS = 20.0  # after it
PART_SECONDS = 4.0


def program_steps_per_second(arguments: list[str], seconds: float, window: float) -> np.ndarray:
    """Agent steps/s of the program in each `window` of `seconds` in steady state."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "main.py", "--op_mode=train", *arguments),
            *(f"--results_dir={folder}", f"--log_period={window}", "--environment_max_steps=1000000000"),
        ]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
        try:
            file = _first_row(Path(folder), process)
            process.wait(WARM_UP_SECONDS + seconds + window)
            raise RuntimeError(f"the program ended by itself with code {process.returncode}: {' '.join(command)}")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            if process.poll() is None:
                process.kill()
        return steady_steps_per_second(read_metrics(file), window)


def _first_row(results: Path, process: subprocess.Popen[bytes]) -> Path:
    """The metrics of the run in `results`, as soon as they have a row."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if found := list(results.glob("*_*/metrics.csv")):
            return found[0]
        time.sleep(0.1)
    raise RuntimeError(f"no metrics within {START_SECONDS:.0f} s; exit code {process.poll()}")


def steady_steps_per_second(metrics: Mapping[str, np.ndarray], window: float) -> np.ndarray:
    """Speed in the windows between rows, of those that begin `WARM_UP_SECONDS` after the first row, or later.

    Left out are the last one, in which the run stops, and short ones, which a checkpoint ends.
    """
    seconds, steps = metrics["seconds"], metrics["steps"]
    begin, long = seconds[:-1], np.diff(seconds)
    steady = (begin >= seconds[0] + WARM_UP_SECONDS) & (long >= window / 2)
    steady[-1:] = False
    if not steady.any():
        raise RuntimeError(f"wanted rows of metrics for {WARM_UP_SECONDS + 2 * window:.0f} s, got {seconds[-1]:.0f} s")
    return np.diff(steps)[steady] / long[steady]


def measure_parts(config: Config, cores: int) -> tuple[Costs, float]:
    """What the parts cost, and the steps per second of the native vector environment alone on all cores."""
    native = 1 / environment_seconds(config, 32 * cores, cores, PART_SECONDS)
    return measure_costs(config, PART_SECONDS), native


def mean_parts(before: tuple[Costs, float], after: tuple[Costs, float]) -> tuple[Costs, float]:
    """Means of what was measured before the program ran and after it: a shared machine is not always equally fast."""
    costs = {name: (value + asdict(after[0])[name]) / 2 for name, value in asdict(before[0]).items()}
    return replace(before[0], **{**costs, "frames_per_step": before[0].frames_per_step}), (before[1] + after[1]) / 2


def measure(arguments: list[str], seconds: float, window: float) -> dict[str, Any]:
    """All measurements of one setting, one after another."""
    values = flags.FlagValues()
    define_flags(values)
    values([sys.argv[0], *arguments])
    machine, given = detect_machine(), all_settings(values)
    config = make_config(fit_to_machine(given, machine)[0])
    if not fresh_part(config):
        raise SystemExit("error: replay_parameters: wanted a queue among the replays, got none: no step would be fresh")
    gpu = config.training.device == "cuda"
    frames = make_spec(config.env).frames_per_step
    before = measure_parts(config, machine.cores)
    settled, _ = fit_to_machine(given, machine, before[0])
    fixed = [f"--{name}={settled[name]}" for name in MEASURED]  # the program would measure again
    windows = program_steps_per_second([*arguments, *fixed], seconds, window)
    achieved = float(np.median(windows))
    costs, native = mean_parts(before, measure_parts(config, machine.cores))
    if settled["envs_per_worker"] != config.workers.envs_per_worker:
        costs = replace(costs, act=costs.act_doubled)
    most = limit(costs, machine.cores, gpu=gpu)
    parts = {"c_env": costs.env, "c_act": costs.act, "c_learn": costs.learn}
    return {
        "cores": machine.cores,
        "device": machine.gpu if gpu else "cpu",
        **{f"{name}_microseconds": 1e6 * value for name, value in parts.items()},
        "native_frames_per_second": native * frames,
        "limit": "n / c_env" if gpu else "n / (c_env + c_act + c_learn)",
        "limit_frames_per_second": most * frames,
        "achieved_frames_per_second": achieved * frames,
        "achieved_steps_per_second": achieved,
        "windows_frames_per_second": [round(speed * frames) for speed in windows],
        "ratio_to_limit": achieved / most,
        "ratio_to_native": achieved / native,
        "settings": [*arguments, *fixed],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="steady-state seconds of the whole system")
    parser.add_argument("--window", type=float, default=5.0, help="seconds of each of the windows that it is divided into")
    parser.add_argument("--json", type=Path, help="write the result here too")
    parser.add_argument("settings", nargs="*", help="flags of main.py, after --")
    arguments = parser.parse_args()
    result = measure(arguments.settings, arguments.seconds, arguments.window)
    for name, value in result.items():
        print(f"{name:28s} {value:,.3f}" if isinstance(value, float) else f"{name:28s} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
