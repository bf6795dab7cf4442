"""Runs a suite, the product of named settings, environments and seeds, one run of main.py after another.

    python -m tools.suite tools/suites/replay_catch.json

Ctrl-C lets the present run save, and stops. The same command continues the suite: it skips finished runs and resumes an
interrupted run from its checkpoint. `python -m tools.report` compares the runs.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from checked_files import locked
from learner.metrics.progress import ProgressLine, format_duration, progress_text
from learner.metrics.writer import X_AXES, read_metrics
from learner.signals import StopSignals
from tools.plan import SUITE_FILE, PlannedRun, Suite, check_suite, plan_runs, read_suite
from tools.programs import CONSOLE, RunningProgram
from tools.summary import read_config
from tools.termination import REPOSITORY, end_with

LOOK_SECONDS = 1.0
STOPPING = "Stopping: the run saves first. Press Ctrl-C again to stop at once without saving."

Runner = Callable[[PlannedRun, Callable[[str], None], Callable[[], bool]], int]
"""Makes one run. Takes the plan, a function that shows progress, and one that says whether to stop. Returns the exit code."""


class ProgramRunner:
    """Runs main.py in its own process, with its output in console.txt."""

    def __init__(self) -> None:
        self._program: RunningProgram | None = None

    def __call__(self, plan: PlannedRun, show: Callable[[str], None], should_stop: Callable[[], bool]) -> int:
        self._program = program = RunningProgram(plan.arguments(), plan.folder / CONSOLE, REPOSITORY)
        try:
            while (code := program.wait(LOOK_SECONDS)) is None:
                if should_stop():
                    program.stop()
                show(progress_of(plan))
            return code
        finally:
            program.stop()  # after an error here: the run saves and ends by itself

    def kill(self) -> None:
        """End the running program at once, if there is one."""
        if self._program:
            self._program.kill()


def progress_of(plan: PlannedRun) -> str:
    """Return a line on the progress of a run, by its last row of metrics."""
    run = plan.run()
    try:
        columns = read_metrics(run.metrics, X_AXES) if run and run.metrics.is_file() else {}
        limit = read_config(run, {"environment_max_steps": int})["settings"]["environment_max_steps"] if run else 0
    except (OSError, ValueError):  # a file is being written
        columns, limit = {}, 0
    if not columns or not len(columns["steps"]):
        return "starting"
    row = {name: float(column[-1]) for name, column in columns.items()}
    if not all(math.isfinite(row[name]) and row[name] > 0 for name in ("steps", "frames")):
        return "starting"
    mean, speed = row.get("charts/episodic_return_mean", math.nan), row.get("charts/FPS", 0.0)
    left = (limit - row["steps"]) * row["frames"] / row["steps"] / speed if speed else 0.0
    return progress_text(
        mean_return=mean if mean == mean else None,
        steps=int(row["steps"]),
        max_steps=limit,
        frames=int(row["frames"]),
        frames_per_second=speed,
        left=max(0.0, left),
    )


def run_plans(plans: list[PlannedRun], runner: Runner, should_stop: Callable[[], bool]) -> int:
    """Make every run that is not finished, and print one line for each. Returns the number of failed runs."""
    failed = 0
    line = ProgressLine()
    for number, plan in enumerate(plans, 1):
        if should_stop():
            break
        head = f"[{number:{len(str(len(plans)))}}/{len(plans)}] {plan.title}"
        if plan.is_finished():
            print(f"{head}: {_outcome(plan)} (finished before)", flush=True)
            continue
        plan.write()
        code = runner(plan, lambda text, head=head: line.show(f"{head}: {text}"), should_stop)  # type: ignore[misc]
        line.clear()
        if code == 0 and plan.is_finished():
            print(f"{head}: {_outcome(plan)}", flush=True)
        elif should_stop():
            print(f"{head}: stopped, {_outcome(plan) if plan.summary() else 'nothing saved'}", flush=True)
        else:
            failed += 1
            print(f"{head}: failed with exit code {code}, see {plan.folder / CONSOLE}", flush=True)
    return failed


def _outcome(plan: PlannedRun) -> str:
    summary = plan.summary()
    mean = summary["mean_return"]
    shown = "no episode ended" if mean is None else f"return {mean:.2f}"
    return f"{shown} after {summary['steps']:,} steps in {format_duration(summary['seconds'])}"


def run_suite(file: Path, results: Path) -> int:
    """Make all runs that are not finished. Returns the exit code. Raises ValueError in one line for a bad suite file."""
    suite = read_suite(file)
    folder = results / suite.name
    check_suite(suite, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, lambda holder: f"wanted a suite that no other process runs, got {folder}, which {holder} runs"):
        return _run_suite(suite, file, folder)


def _run_suite(suite: Suite, file: Path, folder: Path) -> int:
    (folder / SUITE_FILE).write_text(file.read_text())
    plans = plan_runs(suite, folder)
    print(f"{suite.name}: {len(plans)} runs into {folder}" + (f"\n{suite.about}" if suite.about else ""), flush=True)
    runner = ProgramRunner()
    with StopSignals(at_once=runner.kill, first=STOPPING) as signals:
        failed = run_plans(plans, runner, lambda: signals.requested)
        stopped = signals.requested
    finished = sum(plan.is_finished() for plan in plans)
    print(f"{finished} of {len(plans)} runs are finished.")
    if finished < len(plans):
        print(f"Continue: python -m tools.suite {file} --results_dir={folder.parent}")
    if finished:
        print(f"Compare:  python -m tools.report {folder}")
    return 130 if stopped else int(failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a suite file, such as those in tools/suites/")
    parser.add_argument("--results_dir", type=Path, default=Path("results"), help="folder in which the suite's folder is made")
    arguments = parser.parse_args()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a lost terminal ends this process cleanly, except under nohup
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(128 + signal.SIGHUP))
    try:
        return run_suite(arguments.file, arguments.results_dir)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    end_with(main)
