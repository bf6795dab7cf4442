"""Measures the program and its parts on a machine with a GPU, in one command of at most ten minutes.

    python -m benchmarks.gpu --out=gpu_results
    python -m benchmarks.gpu --device=cpu --minutes=2 --seconds=3 --workers=1 --network=mlp --env=Catch-v0 --out=/tmp/small

The parts are measured alone: stepping, acting by batch and precision, updates by precision, as CUDA graphs, kernel by kernel
and with torch.compile, and batches that are half replayed, with frames in host memory and on the device. The program is
measured with several numbers of workers, worker kinds and precisions. Its speed is compared with that of as many cores that
only step, all at the same time. With as many workers as cores it should reach 0.85 of that.

The most important measurements come first. Every result is written at once to `results.json` and as a table to
`results.md`; at the end the curve is drawn. A measurement for which there is no time left is listed as skipped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.compute import prepare_torch, set_tf32
from benchmarks.gpu_parts import (
    Result,
    acting,
    config_of,
    half_replayed,
    learning,
    repeating,
    replaying,
    stepping,
    stepping_together,
)
from benchmarks.measured_program import MeasuredProgram
from learner.machine.detect import Machine, detect_machine
from learner.machine.fit import SMALL_BATCH
from tools.termination import REPOSITORY, end_with, training_command, unwind_when_terminated

WINDOW_SECONDS = 2.0
START_SECONDS = 90.0  # until the first row of metrics: imports of PyTorch, torch.compile
MAKE_SECONDS = 0.2  # to make one environment: a game is loaded when it is made and when it is seeded
IMPORT_SECONDS = 8.0  # of PyTorch, in as many processes as there are cores
WANTED_OF_LIMIT = 0.85
PUBLISHED = {"Cleanba IMPALA": 128, "MonoBeast": 927}
"""Minutes for 200 million frames of Pong with one A100 and 10 cores, from main_10CPU_runtimes.csv of vwxyzjn/cleanba."""
PUBLISHED_FRAMES = 200e6
ACTING_BATCHES = (16, 64, 256, 512)
ALONE = "stepping one group, one core"
TOGETHER = "stepping one group on every core"
SHOWN = (
    "charts/policy_lag",
    *("time/worker_env", "time/worker_act", "time/worker_wait"),
    *("time/learner_wait", "time/learner_update", "time/learner_publish", "feeder/depth"),
)
"""Metrics of the program that show where its time goes."""


class Experiment:
    """Runs measurements until the time is up, and writes their results into files."""

    def __init__(self, out: Path, seconds: float, machine: Machine, device: str) -> None:
        self.out = out
        self._end = time.monotonic() + seconds
        gpu = torch.cuda.get_device_name(0) if device == "cuda" else None
        self.results: list[Result] = []
        self._head = {"cores": machine.cores, "gpu": gpu, "torch": torch.__version__, "python": sys.version.split()[0]}
        out.mkdir(parents=True, exist_ok=True)

    def measure(self, name: str, function: Callable[[], Result], needs: float) -> None:
        """Make a measurement that takes about `needs` seconds. An error becomes its result, so that the others still run."""
        started = time.monotonic()
        if started + needs > self._end:
            result: Result = {"skipped": f"needs {needs:.0f} s, {self._end - started:.0f} s are left"}
        else:
            try:
                result = function()
            except Exception as error:  # the next measurement may work
                result = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        self.results.append({"name": name, **result, "took_seconds": round(time.monotonic() - started, 1)})
        print(_line(self.results[-1]), flush=True)
        self._write()

    def found(self, name: str, value: str) -> float:
        """Return one value of an earlier measurement, NaN if it was skipped or failed."""
        return next((result.get(value, math.nan) for result in self.results if result["name"] == name), math.nan)

    def conclude(self, name: str) -> None:
        """Print and write whether the program's run of this name was fast enough."""
        reached = self.found(name, "of_limit")
        if math.isnan(reached):
            said = "was not measured"
        else:
            judged = "enough" if reached >= WANTED_OF_LIMIT else "too little"
            said = f"{reached:.3f} of the cores that only step, which is {judged}"
        self._head["conclusion"] = f"{name}: {said} (wanted: {WANTED_OF_LIMIT})"
        print(self._head["conclusion"], flush=True)
        self._write()

    def _write(self) -> None:
        (self.out / "results.json").write_text(json.dumps({**self._head, "results": self.results}, indent=2) + "\n")
        rows = ["| measurement | result |", "|---|---|", *(f"| {r['name']} | {_values(r)} |" for r in self.results)]
        (self.out / "results.md").write_text(f"{self._head}\n\n" + "\n".join(rows) + "\n")


def _line(result: Result) -> str:
    return f"{result['name']:44s} {_values(result)}"


def _values(result: Result) -> str:
    left_out = ("name", "took_seconds", "traceback", "workers")
    shown = {name: value for name, value in result.items() if name not in left_out}
    return ", ".join(f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items())


def run_name(workers: int, kind: str) -> str:
    """Return the name of the program's run with these workers and otherwise usual settings."""
    return f"program, {workers} workers, {kind}"


def limit(experiment: Experiment, workers: int) -> float:
    """Return the steps per second of workers that only step. All cores together may be slower than as many alone."""
    alone, together = (experiment.found(name, "steps_per_second") for name in (ALONE, TOGETHER))
    return min(workers * alone, together)


def program(arguments: argparse.Namespace, settings: dict[str, Any]) -> Result:
    """Run main.py and return medians over its rows of metrics, without the rows of the warm-up."""
    given = {"env": arguments.env, "network": arguments.network, "device": arguments.device, "batch_size": arguments.batch_size}
    flags = [f"--{name}={value}" for name, value in {**given, **settings, "verbosity": 0}.items()]
    with MeasuredProgram(training_command(*flags), WINDOW_SECONDS, START_SECONDS) as running:
        running.warm_up(arguments.warm_up + arguments.seconds)
        columns, settled = running.metrics(), running.settings()
    after = columns["seconds"] > columns["seconds"][0] + arguments.warm_up
    steady = {name: column[after] for name, column in columns.items()}
    found = {name: float(np.nanmedian(steady[name])) for name in SHOWN if name in steady}
    environments = settled["envs_per_worker"]
    speeds = {
        "steps_per_second": float(np.median(steady["charts/SPS"])),
        "frames_per_second": float(np.median(steady["charts/FPS"])),
    }
    return {**speeds, "envs_per_worker": environments, **found, **settings}


def run_all(arguments: argparse.Namespace, experiment: Experiment, machine: Machine) -> None:
    """Make all measurements, the most important ones first."""
    prepare_torch(threads=1)
    if arguments.device == "cuda":
        set_tf32(allowed=True)
    budget, cores = arguments.part_seconds, machine.cores
    config = config_of(arguments, machine, worker_kind="central")
    group = config.workers.envs_per_group
    making = MAKE_SECONDS * group
    experiment.measure(ALONE, partial(stepping, config, group, budget), budget + making)
    together = partial(stepping_together, config, group, cores, budget)
    experiment.measure(TOGETHER, together, budget + making + IMPORT_SECONDS)
    for precision in arguments.precisions:
        each = config_of(arguments, machine, worker_kind="central", precision=precision)
        for count in ACTING_BATCHES:
            experiment.measure(f"acting {count}, {precision}", partial(acting, each, count, budget), budget + 2)
        experiment.measure(f"learning, {precision}", partial(learning, each, budget), budget + 5)
    best = arguments.precisions[-1]
    by_kernel = config_of(arguments, machine, worker_kind="central", precision=best, cuda_graphs=False)
    experiment.measure(f"learning, {best}, kernel by kernel", partial(learning, by_kernel, budget), budget + 5)
    for place in dict.fromkeys(("cpu", arguments.device)):
        each = config_of(arguments, machine, worker_kind="central", precision=best, replay_parameters=half_replayed(place))
        experiment.measure(f"half replayed, frames on the {place}", partial(replaying, each, budget), budget + 10)

    def run(workers: int, kind: str, needs: float = 0.0, **settings: Any) -> None:
        given = {"worker_count": workers, "worker_kind": kind, "precision": best, **settings}
        changed = ", ".join(f"{name} {value}" for name, value in settings.items())
        name = run_name(workers, kind) + (f", {changed}" if changed else "")
        seconds = arguments.warm_up + arguments.seconds + 20 + needs

        def measure() -> Result:
            result = program(arguments, given)
            return {"of_limit": result["steps_per_second"] / limit(experiment, workers), **result, "workers": workers}

        experiment.measure(name, measure, seconds)

    most = arguments.workers[-1]
    run(most, "central")
    run(most, "cpu")
    for kind in ("central", "cpu"):  # many small updates: who acts in the learner's process has a larger part of its time
        run(most, kind, batch_size=SMALL_BATCH, envs_per_worker=SMALL_BATCH)
    run(most, "cpu", batch_size=SMALL_BATCH, envs_per_worker=SMALL_BATCH, cuda_graphs=False)
    for workers in reversed(arguments.workers[:-1]):
        run(workers, "central")
    run(most, "central", envs_per_worker=64)
    run(most, "central", precision=arguments.precisions[0])
    for workers in reversed(arguments.workers[:-1]):
        run(workers, "cpu")
    experiment.measure("three updates, twice", lambda: repeating(config), 5)
    compiled = config_of(arguments, machine, worker_kind="central", precision=best, compile=True)
    experiment.measure(f"learning, {best}, compiled", lambda: learning(compiled, budget), budget + 60)
    experiment.measure(f"acting 256, {best}, compiled", lambda: acting(compiled, 256, budget), budget + 60)
    run(most, "central", needs=60, compile=True)


def draw(results: list[Result], path: Path, *, published: bool) -> None:
    """Draw frames per second over workers: a line for each worker kind, and one for as many cores that only step.

    published: whether published speeds on Pong are drawn too.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for kind in ("central", "cpu"):
        plain = {
            result["workers"]: result
            for result in results
            if result.get("worker_kind") == kind and result["name"] == run_name(result["workers"], kind)
        }
        line = sorted(plain.items())
        axes.plot([workers for workers, _ in line], [result["frames_per_second"] for _, result in line], "o-", label=kind)
        if kind == "central" and line:
            limits = [result["frames_per_second"] / result["of_limit"] for _, result in line]
            axes.plot([workers for workers, _ in line], limits, "--", color="grey", label="cores that only step")
    for (platform, minutes), style in zip(PUBLISHED.items() if published else (), (":", "-."), strict=False):
        label = f"{platform}, published, A100 and 10 cores"
        axes.axhline(PUBLISHED_FRAMES / (60 * minutes), linestyle=style, color="black", linewidth=1, label=label)
    axes.set_xticks(sorted({result["workers"] for result in results if "workers" in result}))
    axes.set_xlabel("workers")
    axes.set_ylabel("frames per second")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> None:
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), help="folder of the results")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--minutes", type=float, default=9.3, help="no measurement starts that would end later")
    parser.add_argument("--seconds", type=float, default=14.0, help="seconds of steady state of each run of the program")
    parser.add_argument("--warm-up", type=float, default=6.0, help="seconds of warm-up after the first row of metrics")
    parser.add_argument("--part-seconds", type=float, default=1.5, help="seconds for each part that is measured alone")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="numbers of workers, ascending")
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"], help="the curve uses the last one")
    parser.add_argument("--env", default="PongNoFrameskip-v4")
    parser.add_argument("--network", default="impala_deep")
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as main.py does
    arguments.out = arguments.out.resolve()
    os.chdir(REPOSITORY)
    machine = detect_machine()
    if arguments.device == "cuda" and machine.gpu is None:
        raise SystemExit(
            "error: wanted a machine with a CUDA GPU, got one on which PyTorch sees none; --device=cpu runs without one"
        )
    experiment = Experiment(arguments.out, 60 * arguments.minutes, machine, arguments.device)
    try:
        run_all(arguments, experiment, machine)
    finally:  # with the results so far, if the experiment is ended early
        experiment.conclude(run_name(arguments.workers[-1], "central"))
        draw(experiment.results, arguments.out / "curve.png", published=arguments.env.startswith("Pong"))


if __name__ == "__main__":
    end_with(main)
