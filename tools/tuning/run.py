"""`--op_mode=tune`: makes the trials of a study side by side until there are enough of them."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from checked_files import locked
from learner.machine.detect import available_cores
from learner.metrics.progress import ProgressLine
from learner.runs.directory import shell_name_of_program
from learner.settings.config import Settings
from learner.settings.tuning import TuningConfig
from learner.signals import StopSignals
from setting import AUTO, listed
from tools.plan import PlannedRun
from tools.programs import CONSOLE, Program, RunningProgram, Starter, wait_until_free
from tools.summary import read_config
from tools.tuning.page import write_page
from tools.tuning.population import TunedPopulation
from tools.tuning.search import OptunaSearch
from tools.tuning.study import (
    BEST_FILE,
    COMPLETE,
    FAILED,
    MARKS,
    PAGE,
    PRUNED,
    RUNNING,
    StudyPlan,
    Trial,
    best_of,
    curve_of,
    make_study,
    reason_of,
    score_of,
    write_results,
)

LOOK_SECONDS = 0.5
MOST_FAILURES = 3
"""Trials that may fail before one is complete. After them the command ends: another cause than their values is likely."""
STOPPING = "Stopping: the runs save first. Press Ctrl-C again to stop at once without saving."
STOPPED = 130


def start_program(plan: PlannedRun, cores: Sequence[int]) -> Program:
    """Start main.py in the present folder, in which the paths of the command hold."""
    wait_until_free(plan)
    here = Path.cwd()
    return RunningProgram(plan.arguments(here), plan.folder / CONSOLE, here, cores)


def parts_of_cores(asked: int | str) -> list[list[int]]:
    """The cores of each trial. asked: trials at once, or auto. No cores are named where a process cannot choose them."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    usable = available_cores()
    count = max(min(2, usable), usable // 2) if asked == AUTO else int(asked)
    if count > len(cores):
        return [[] for _ in range(count)]
    return [cores[len(cores) * part // count : len(cores) * (part + 1) // count] for part in range(count)]


def machines(study: StudyPlan, joined: contextlib.ExitStack) -> tuple[Starter, Sequence[Sequence[int]]]:
    """A function that starts a run, and the cores of each run that trains at the same time. joined: leaves a cluster."""
    if study.tuning.trials_on == "here":
        return start_program, parts_of_cores(study.tuning.trials_at_once)
    from tools.tuning.on_ray import Cluster  # Ray is an optional package

    cluster = joined.enter_context(Cluster(study.ray_address, study.tuning.trials_at_once))
    return cluster.start, cluster.parts


def tune_settings(given: Settings, tuning: TuningConfig, command: Sequence[str]) -> int:
    """Search settings, or continue a search. Returns the exit code.

    Args:
        given: settings of the runs that the command gives.
        tuning: settings of the search.
        command: the command line, which continues the search.

    Raises ValueError with one line for bad input.
    """
    study = make_study(given, tuning)
    try:
        study.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"study: wanted a folder that can be made, got {study.folder}: {error.strerror}") from None
    refusal = "wanted a study that no other process searches, got {}, which {} does"
    with locked(study.folder, lambda holder: refusal.format(study.folder, holder)), contextlib.ExitStack() as joined:
        if given.get("verbosity") == 0:
            joined.enter_context(contextlib.redirect_stdout(joined.enter_context(Path(os.devnull).open("w"))))
        study.begin()
        start, parts = machines(study, joined)
        if tuning.method == "pbt":
            tuner: Tuner | PopulationTuner = PopulationTuner(study, start, parts)
        else:
            tuner = Tuner(study, OptunaSearch(study), start, parts)
        print(f"Study: {study.folder}\nSearched: {study.searched}", flush=True)
        for note in study.notes:
            print(f"  {note}", flush=True)
        ends = time.monotonic() + (tuning.tune_seconds or math.inf)
        with StopSignals(at_once=tuner.kill, first=STOPPING) as signals:
            tuner.make(lambda: signals.requested or time.monotonic() > ends)
            stopped = signals.requested
        code = tuner.finish(command)
    return STOPPED if stopped else code


class RunningTrial:
    """A trial whose runs are made, one seed after another.

    Args:
        study: of the trial.
        trial: its values, and its curve so far.
        cores: for its runs.
        start: starts a run.
    """

    def __init__(self, study: StudyPlan, trial: Trial, cores: Sequence[int], start: Starter) -> None:
        self.study, self.trial, self.cores = study, trial, cores
        self.prunes = False
        self._start = start
        self._plans = study.planned(trial.number, trial.settings)
        self._program = self._next()

    @property
    def plan(self) -> PlannedRun:
        """The run that is made now."""
        return next((plan for plan in self._plans if not plan.is_finished()), self._plans[-1])

    def _next(self) -> Program | None:
        plan = self.plan
        if plan.is_finished():
            return None
        plan.write()
        return self._start(plan, self.cores)

    def curve(self) -> dict[int, float]:
        """The trial's curve: the value at a mark is the mean of the scores of earlier seeds and of the present one."""
        found: dict[int, float] = {}
        ended: list[float] = []
        for number, plan in enumerate(self._plans):
            values = curve_of(plan, self.study.score)
            found |= {MARKS * number + mark: (sum(ended) + value) / (len(ended) + 1) for mark, value in values.items()}
            if not plan.is_finished() or (score := score_of(plan, self.study.score)) is None:
                break
            ended.append(score)
        return found

    def look(self, *, stopping: bool) -> bool:
        """Look whether the present run has ended, and start the next one. Returns whether the trial has ended."""
        code = self._program.wait(0) if self._program else 0
        if code is None:
            return False
        if code == 0 and all(plan.is_finished() for plan in self._plans):
            return self._complete()
        if self.prunes:
            self.trial.state, self.trial.score = PRUNED, self.trial.curve[max(self.trial.curve)]
            self.trial.reason = f"below the median after {self.part_done():.0%} of its runs"
            return True
        if stopping:
            return False
        if code != 0:
            self.trial.state, self.trial.reason = FAILED, reason_of(self.plan.folder, code)
            return True
        self._program = self._next()
        return False

    def _complete(self) -> bool:
        scores = [score_of(plan, self.study.score) for plan in self._plans]
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            self.trial.state, self.trial.reason = FAILED, "no episode has ended in one of its runs"
            return True
        self.trial.state, self.trial.score = COMPLETE, sum(known) / len(known)
        if run := self._plans[0].run():
            self.trial.batch_size = read_config(run)["settings"]["batch_size"]
        return True

    def part_done(self) -> float:
        """The part of all its runs that the trial has made."""
        return max(self.trial.curve, default=0) / (MARKS * len(self._plans))

    def stop(self) -> None:
        """Let the present run save and end."""
        if self._program:
            self._program.stop()

    def kill(self) -> None:
        """End the present run at once."""
        if self._program:
            self._program.kill()

    @property
    def runs(self) -> bool:
        """Whether a process of the trial runs."""
        return self._program is not None and self._program.wait(0) is None


class Tuner:
    """Makes the trials of a study.

    Args:
        study: what is searched.
        search: gives the values.
        start: starts a run.
        parts: see `machines`.
    """

    def __init__(self, study: StudyPlan, search: OptunaSearch, start: Starter, parts: Sequence[Sequence[int]]) -> None:
        self.study, self._search, self._start = study, search, start
        self._unfinished = search.unfinished()
        self._failed_before = self._failures  # by earlier commands, whose cause may be gone
        self._running: dict[int, RunningTrial] = {}  # part of the cores -> trial
        self._parts = parts
        self._line = ProgressLine()

    def make(self, should_stop: Callable[[], bool]) -> None:
        """Make trials until there are enough, until too many fail, or until a stop is asked for."""
        while True:
            stopping = should_stop() or self.hopeless
            for part, cores in enumerate(self._parts):
                if part not in self._running and not stopping and (trial := self._next()):
                    self._running[part] = RunningTrial(self.study, trial, cores, self._start)
            if not any(running.runs or not stopping for running in self._running.values()):
                return
            self._look(stopping=stopping)
            time.sleep(LOOK_SECONDS)

    def _next(self) -> Trial | None:
        if self._unfinished:
            return self._unfinished.pop(0)
        return self._search.ask() if len(self._search.trials()) < self.study.tuning.trials else None

    def _look(self, *, stopping: bool) -> None:
        for part, running in list(self._running.items()):
            if stopping:
                running.stop()
            elif self._search.report(running.trial, running.curve()) and running.part_done() < 1:
                running.prunes = True
                running.stop()
            if running.look(stopping=stopping):
                self._search.report(running.trial, running.curve())
                self._search.tell(running.trial)
                del self._running[part]
                self._say(running.trial)
        self._line.show(" | ".join(f"trial {each.trial.number}: {each.part_done():.0%}" for each in self._running.values()))

    def _say(self, trial: Trial) -> None:
        """Print the trial's end, and write the results so far."""
        trials = self._search.trials()
        write_results(self.study, trials)
        best = best_of(trials)
        self._line.clear()
        shown = f"{trial.state}, {trial.reason}"
        if trial.state == COMPLETE:
            shown = f"{trial.score:.2f}" + (" (best so far)" if best and best.number == trial.number else "")
        print(f"Trial {trial.number} of {self.study.tuning.trials}: {trial.text}: {shown}", flush=True)

    def finish(self, command: Sequence[str]) -> int:
        """Write the page, and print the result and the next commands. Returns the exit code."""
        self._line.clear()
        return conclude(self.study, self._search.trials(), command, self._search.importances())

    def kill(self) -> None:
        """End all runs at once."""
        for running in self._running.values():
            running.kill()

    @property
    def hopeless(self) -> bool:
        """Whether trials of this command have failed and none is complete."""
        complete = any(trial.state == COMPLETE for trial in self._search.trials())
        return not complete and self._failures - self._failed_before >= MOST_FAILURES

    @property
    def _failures(self) -> int:
        return sum(trial.state == FAILED for trial in self._search.trials())


class PopulationTuner:
    """Trains the members of a study's population. start and parts: see `machines`."""

    def __init__(self, study: StudyPlan, start: Starter, parts: Sequence[Sequence[int]]) -> None:
        self.study = study
        self.population = TunedPopulation(study, start, parts)

    def make(self, should_stop: Callable[[], bool]) -> None:
        """Train until the budget is used, or until a stop is asked for."""
        self.population.make(should_stop, LOOK_SECONDS)

    def finish(self, command: Sequence[str]) -> int:
        """Write the page, and print the result and the next commands. Returns the exit code."""
        return conclude(self.study, self.population.trials(), command, {})

    def kill(self) -> None:
        """End all runs at once."""
        self.population.kill()


def conclude(study: StudyPlan, trials: list[Trial], command: Sequence[str], importances: dict[str, float]) -> int:
    """Write results and page, and print the result and the next commands. Returns the exit code."""
    folder = study.folder
    write_results(study, trials)
    write_page(study, trials, importances)
    counts = Counter(trial.state for trial in trials)
    print(f"Trials: {listed([f'{count} {state}' for state, count in counts.items()] or ['none'], 'and')}")
    print(f"Page: {folder / PAGE}")
    if best := best_of(trials):
        print(f"Best: {best.score:.2f} with {best.text}, trial {best.number}")
        preset = shlex.quote(str(folder / BEST_FILE))
        print(f"Train with it: python {shell_name_of_program()} --op_mode=train --preset={preset}")
    wanted = study.tuning.members if study.tuning.method == "pbt" else study.tuning.trials
    if counts[RUNNING] or len(trials) < wanted:
        print(f"Continue: python {shlex.join(command)}")
    if not best and counts[FAILED]:
        reasons = [trial.reason for trial in trials if trial.state == FAILED]
        print(f"error: wanted a trial that is complete, got {counts[FAILED]} that failed: {reasons[-1]}", file=sys.stderr)
        return 1
    return 0
