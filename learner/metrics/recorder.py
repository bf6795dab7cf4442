"""The hook that turns a training into metrics, progress lines and the closing summary."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch

from agents import UpdateReport
from learner.building import agent_class
from learner.evaluation.evaluator import EvaluationResult
from learner.evaluation.reference_scores import mean_human_normalised
from learner.feeding.feeder import FEEDER_CLOCKS
from learner.hooks import Hook
from learner.machine.detect import available_cores
from learner.metrics.advice import reward_advice
from learner.metrics.bottleneck import BottleneckReport
from learner.metrics.cores import CoreUse
from learner.metrics.hardware import HardwareMeter
from learner.metrics.infos import PREFIX, success_rate
from learner.metrics.progress import ProgressLine, format_duration, progress_text
from learner.metrics.statistics import LagStatistics, Record, TimeFractions, UpdateMetrics
from learner.metrics.summary import log_next_commands, log_result, write_summary
from learner.metrics.trackers import Tracking
from learner.metrics.writer import MetricsWriter
from learner.parts import Parts
from learner.runs.directory import RunDirectory
from replay import replay_names
from replay.batch import HostBatch
from workers.base import RECORDED
from workers.clocks import CLOCKS, cpu_seconds
from wrappers import describe_env

log = logging.getLogger("springbok")

SHOW_PERIOD = 0.5  # seconds between two updates of the progress line in a terminal
ROWS = 20  # least rows of metrics of a whole run, so that a short run has a curve too


class MetricsRecorder(Hook):
    """Reports how a run proceeds.

    Args:
        parts: of the run; they report numbers.
        run: its directory.
        to_fill_in: trajectories that empty replays take in before there is a batch.
    """

    def __init__(self, parts: Parts, run: RunDirectory, to_fill_in: int = 0) -> None:
        config = parts.plan.config
        self.config = config
        self.counters = parts.counting.counters
        self.episodes = parts.counting.episodes
        self.run = run
        self._parts = parts
        self._frames_per_step = parts.plan.spec.frames_per_step
        self._replay_names = replay_names(config.replays)
        self._updates = UpdateMetrics()
        self._lag = LagStatistics(self._replay_names)
        worker_seconds, feeder_seconds = parts.workers.seconds, parts.feeder.seconds
        self._times = TimeFractions({"worker": (CLOCKS, worker_seconds), "feeder": (FEEDER_CLOCKS, feeder_seconds[None])})
        cores = available_cores()
        self._hardware = HardwareMeter(cores, torch.device(config.training.device))
        # Workers in a cluster may use the cores of other machines, which are not counted here.
        here = config.workers.uses_this_machine
        self._core_use = CoreUse(
            cores,
            lambda: cpu_seconds(worker_seconds) if here else 0.0,
            inside=config.workers.worker_kind in ("serial", RECORDED),
            others=lambda: parts.learners.cpu_seconds,
        )
        self._bottlenecks = BottleneckReport(config, cores)
        self._evaluation: Record = {}  # not yet in a record
        self._recorded = config.workers.worker_kind == RECORDED  # only evaluations play episodes
        self._last_evaluation: float | None = None
        self._repeated: Record = {}  # of the newest record: readers of the newest row look for it
        self._optimizer_steps: int | None = None
        self._advised = False  # on the size of rewards, once a run
        self._tracking = Tracking(config.output.track, run, config.settings)
        self._writer = MetricsWriter(run, self.counters.steps, agent_class(config).charts, self._tracking)
        self._progress = ProgressLine()
        self._at_start = self._at_last_record = replace(self.counters)
        self._frames_per_second = 0.0
        self._to_fill_in = to_fill_in
        self._started = self._last_record = self._last_shown = self._last_logged = time.monotonic()

    def on_start(self) -> None:
        if self.config.output.log_graph:
            self._writer.add_graph(self._parts.network, self._parts.plan.spec)

    def on_batch(self, batch: HostBatch, report: UpdateReport) -> None:
        # Rows of burn-in are not learned from, so their versions do not count.
        versions = batch.columns["policy_version"][:, self._parts.mixture.contract.overlap :]
        # The lag counts from the version that computed this update, which the counter does not count yet.
        self._lag.add(self.counters.updates, versions, batch.is_replay, batch.source)
        self._updates.add(report.scalars)
        self._optimizer_steps = report.optimizer_steps

    def add_evaluation(self, evaluation: EvaluationResult) -> None:
        """Log the result of an evaluation; the next record holds its numbers."""
        self._write_evaluation()
        self._last_evaluation = evaluation.mean_return
        self._evaluation = {
            "eval/episodic_return": evaluation.mean_return,
            "eval/standard_error": evaluation.standard_error,
            "eval/update": evaluation.update,
            "eval/steps": evaluation.steps,
            **{f"eval/{PREFIX}{name}": value for name, value in evaluation.infos.items()},
            **{f"eval/{task}/episodic_return": mean for task, mean in evaluation.tasks.items()},
            **self._normalised("eval", evaluation.tasks),
        }
        if evaluation.animation:
            self._writer.add_animation("eval/episode", evaluation.animation, evaluation.steps)
        self._progress.clear()
        rate = success_rate(evaluation.infos)
        log.info(
            "Evaluation of update %s: mean return %.2f, standard error %.2f, %d episodes%s",
            f"{evaluation.update:,}",
            evaluation.mean_return,
            evaluation.standard_error,
            len(evaluation.returns),
            "" if rate is None else f", success rate {rate:.2f}",
        )
        for task, mean in evaluation.tasks.items():
            log.info("  %s: mean return %.2f", task, mean)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._times.add(name, time.perf_counter() - started)

    def on_update(self) -> None:
        now = time.monotonic()
        if now - self._last_record >= self.config.output.log_period or self._has_come_far():
            self._write_record()
        elif self._progress.live and now - self._last_shown >= SHOW_PERIOD:
            self._progress.show(self._text())
            self._last_shown = now

    def _has_come_far(self) -> bool:
        """Whether the run has passed another `ROWS`th of its steps since the last record."""
        # Counted from step 0, so that a resumed run has the rows of one that was not interrupted.
        budget = max(1, self.config.training.environment_max_steps)
        done, before = (ROWS * counters.steps // budget for counters in (self.counters, self._at_last_record))
        return done > before

    def on_wait(self) -> None:
        """Show how far the replays are filled, before the first update."""
        arrived, now = self._parts.feeder.arrived, time.monotonic()
        if self.counters.updates > self._at_start.updates or not 0 < arrived < self._to_fill_in:
            return
        if now - self._last_shown < SHOW_PERIOD:
            return
        self._last_shown = now
        speed = arrived / (now - self._started)
        frames = speed * self.config.training.unroll_length * self._frames_per_step
        unit = "steps" if self._frames_per_step == 1 else "frames"
        text = (
            f"filling replays: {arrived:,} of {self._to_fill_in:,} trajectories | {frames:,.0f} {unit}/s | "
            f"left {format_duration((self._to_fill_in - arrived) / speed)}"
        )
        self._progress.show(text)
        if self._log_is_due():
            log.info("%s", text)

    def on_checkpoint(self) -> None:
        """Write a record, so that metrics and checkpoint describe the same moment."""
        self._write_record()

    def _write_record(self) -> None:
        """Write a record of the time since the last one; nothing if there was no step and no update since."""
        now, counters, before = time.monotonic(), self.counters, self._at_last_record
        if counters.steps and (counters.steps, counters.updates) == (before.steps, before.updates):
            return
        passed = max(now - self._last_record, 1e-9)
        self._frames_per_second = (counters.frames - before.frames) / passed
        counters.seconds = self._at_start.seconds + now - self._started
        record = self._record(passed)
        self._evaluation = {}
        self._repeated = {name: value for name, value in record.items() if name.startswith(("charts/", "updates/"))}
        self._at_last_record, self._last_record = replace(counters), now
        self._writer.write(asdict(counters), record)
        self._writer.add_histograms(self._parts.workers.histograms(), counters.steps)
        self._progress.clear()
        log.log(logging.INFO if self._log_is_due() else logging.DEBUG, "%s", self._text())
        if not self._advised and (advice := reward_advice(record, self.config)):
            self._advised = True
            log.info("%s", advice)
        if bottleneck := self._bottlenecks.add(record, passed):
            log.debug("%s", bottleneck.line)

    def _write_evaluation(self) -> None:
        """Write a result that no record holds: after the last update, or where another result follows."""
        if self._evaluation:
            self._writer.write(asdict(self.counters), {**self._repeated, **self._evaluation})
            self._evaluation = {}

    def on_end(self, saved: Path | None, *, interrupted: bool, asked: Callable[[], bool]) -> None:
        """Write summary and learning curve, and log the result."""
        self._progress.clear()
        self._write_evaluation()
        curve = write_summary(self.run, self.config, self.counters, self.episodes, checkpoint=saved, interrupted=interrupted)
        played = None if self._recorded else self.episodes
        log_result(self.counters, played, self._bottlenecks.overall(), interrupted=interrupted)
        steps, budget = self.counters.steps, self.config.training.environment_max_steps
        # A batch that is larger than the budget can overshoot twice the budget.
        further = None if interrupted else 2 * budget if 2 * budget > steps else steps + budget
        pictures = describe_env(self.config.env).has_pictures
        remote = self.config.is_remote
        log_next_commands(self.run, saved, curve=curve, pictures=pictures, remote=remote, max_steps=further)

    def close(self) -> None:
        self._progress.clear()
        self._writer.close()
        self._tracking.close()

    def _record(self, passed: float) -> Record:
        """All metrics over the last `passed` seconds."""
        hardware = self._hardware.read(passed)
        own_cores = hardware.get("hardware/cpu_percent", 0.0) / 100 * self._core_use.cores
        return {
            **self.episodes.read(),
            **self._normalised("charts", self.episodes.task_means),
            **self._updates.read(),
            **self._lag.read(),
            **self._replay_metrics(),
            **(self._parts.mixture.exchange.metrics() if self._parts.mixture.exchange else {}),
            **self._parts.feeder.metrics(),
            **self._times.read(passed),
            **hardware,
            **self._core_use.read(passed, own_cores),
            **self._evaluation,
            **self._parts.learners.metrics(),
            **self._parts.workers.metrics(),
            "workers/restarts": self._parts.workers.restarts + self._parts.learners.restarts,
            "updates/skipped": self._parts.skipped.count,
            **({} if self._optimizer_steps is None else {"updates/optimizer_steps": float(self._optimizer_steps)}),
            "charts/learning_rate": self._parts.counting.learning_rate,
            "charts/SPS": self._frames_per_second / self._frames_per_step,
            "charts/FPS": self._frames_per_second,
            "charts/updates_per_second": (self.counters.updates - self._at_last_record.updates) / passed,
        }

    def _normalised(self, group: str, means: Mapping[str, float]) -> Record:
        """The mean human-normalised score, if there are several tasks and all of them have one."""
        score = mean_human_normalised(means) if len(means) == len(self.episodes.recent_of_tasks) else None
        return {} if score is None else {f"{group}/human_normalised": score}

    def _replay_metrics(self) -> Record:
        reported = zip(self._replay_names, self._parts.mixture.metrics(), strict=True)
        return {f"replay/{name}/{metric}": value for name, metrics in reported for metric, value in metrics.items()}

    def _log_is_due(self) -> bool:
        """Whether the progress goes into the log now, because no terminal shows it."""
        now = time.monotonic()
        if self._progress.live or now - self._last_logged < self.config.output.progress_period:
            return False
        self._last_logged = now
        return True

    def _text(self) -> str:
        """The progress line. Its speed is that of the last record, or of the time since the start before the first one."""
        counters, limit = self.counters, self.config.training.environment_max_steps
        since_start = max(time.monotonic() - self._started, 1e-9)
        frames_per_second = self._frames_per_second or (counters.frames - self._at_start.frames) / since_start
        left = (limit - counters.steps) * self._frames_per_step / frames_per_second if frames_per_second > 0 else 0.0
        return progress_text(
            mean_return=self._last_evaluation if self._recorded else self.episodes.mean_return,
            steps=counters.steps,
            max_steps=limit,
            frames=counters.frames,
            frames_per_second=frames_per_second,
            left=max(0.0, left),
            evaluated=self._recorded,
            tasks=self.episodes.task_means,
        )
