"""Keeps the run's counters and turns what happens into metrics, the progress line, the summary and the last words."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from learner.evaluation.evaluator import Evaluation
from learner.feeding.feeder import FEEDER_CLOCKS, Arrivals, Feeder
from learner.machine.machine import available_cores
from learner.metrics.bottleneck_report import Doctor
from learner.metrics.cores import CoreUse
from learner.metrics.curve import draw_learning_curve
from learner.metrics.hardware import HardwareMeter
from learner.metrics.metrics import EpisodeStatistics, LagStatistics, MetricsWriter, Row, TimeShares, UpdateMetrics
from learner.metrics.profiler import UpdateProfiler
from learner.metrics.progress import ProgressLine, format_duration, progress_text
from learner.runs.checkpoint import Checkpoint, Counters
from learner.runs.directory import RunDirectory
from learner.settings.config import Config
from learner.skipping import SkippedUpdates
from replay import replay_names
from replay.mixture import HostBatch, Mixture
from workers import Workers
from workers.rollout import CLOCKS, cpu_seconds

log = logging.getLogger("springbok")

SHOW_PERIOD = 0.5  # seconds between two looks of the progress line
TELL_PERIOD = 60.0  # seconds between two such lines where output is no terminal


class Recorder:
    """Everything that is counted in one place; `counters` is what a checkpoint carries."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        counters: Counters,
        workers: Workers,
        mixture: Mixture,
        feeder: Feeder,
        skipped: SkippedUpdates,
        frames_per_step: int,
        resumed: Checkpoint | None,
        to_fill_in: int = 0,
    ) -> None:
        """to_fill_in: trajectories that empty replays take in before there is a batch."""
        self.config = config
        self.run = run
        self.counters = counters
        self.learning_rate = resumed.learning_rate if resumed else config.agent_settings.lr
        self.episodes = EpisodeStatistics(config.output.return_window)
        self.episodes.recent.extend(resumed.returns if resumed else [])
        self._frames_per_step = frames_per_step
        self._workers = workers
        self._mixture = mixture
        self._feeder = feeder
        self._skipped = skipped
        self._replay_names = replay_names(config.replays)
        self._updates = UpdateMetrics()
        self._lag = LagStatistics(self._replay_names)
        self._shares = TimeShares({"worker": (CLOCKS, workers.seconds), "feeder": (FEEDER_CLOCKS, feeder.seconds[None])})
        cores = available_cores()
        self._hardware = HardwareMeter(cores, torch.device(config.training.device))
        self._core_use = CoreUse(cores, lambda: cpu_seconds(workers.seconds), inside=config.workers.worker_kind == "serial")
        self._doctor = Doctor(config, cores)
        self._profiler = UpdateProfiler(config.output.profile, run, gpu=config.training.device == "cuda")
        self._evaluation: Row = {}
        self._writer = MetricsWriter(run, counters.steps)
        self._progress = ProgressLine()
        self._at_start = replace(counters)
        self._at_last_row = replace(counters)
        self._frames_per_second = 0.0
        self._to_fill_in = to_fill_in
        self._started = self._last_row = self._last_shown = self._last_told = time.monotonic()

    def add_arrivals(self, arrivals: Arrivals) -> None:
        """Count the fresh trajectories that came in for a batch."""
        self.episodes.add(arrivals.episodes)
        counters = self.counters
        steps = arrivals.trajectories * self.config.training.unroll_length
        counters.trajectories += arrivals.trajectories
        counters.steps += steps
        counters.frames += steps * self._frames_per_step
        counters.episodes = self._at_start.episodes + self.episodes.count

    def add_update(self, scalars: Mapping[str, Tensor], batch: HostBatch) -> None:
        """Count an update: its scalars and the lag of what it saw."""
        self._lag.add(self.counters.updates, batch.columns["policy_version"], batch.is_replay, batch.source)
        self._updates.add(scalars)
        self.counters.updates += 1

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Say what an evaluation found; its figures stand in the next row."""
        self._evaluation = {
            "eval/episodic_return": evaluation.mean_return,
            "eval/standard_error": evaluation.standard_error,
            "eval/update": evaluation.update,
            "eval/steps": evaluation.steps,
        }
        if evaluation.animation:
            self._writer.add_animation("eval/episode", evaluation.animation, evaluation.steps)
        self._progress.clear()
        log.info(
            "Evaluation of update %s: mean return %.2f, standard error %.2f, %d episodes",
            f"{evaluation.update:,}",
            evaluation.mean_return,
            evaluation.standard_error,
            len(evaluation.returns),
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of a stage of the loop."""
        started = time.perf_counter()
        with self._profiler.stage(name):
            yield
        self._shares.add(name, time.perf_counter() - started)

    def report(self) -> None:
        """Once an update: the profile, the progress line and a row of metrics, each when its time has come."""
        self._profiler.end_update(self.counters.updates)
        now = time.monotonic()
        if now - self._last_row >= self.config.output.log_period:
            self.write_row()
        elif self._progress.live and now - self._last_shown >= SHOW_PERIOD:
            self._progress.show(self._text())
            self._last_shown = now

    def show_filling(self) -> None:
        """While the first batch is waited for: how far the replays are filled that give none before."""
        arrived, now = self._feeder.arrived, time.monotonic()
        if self.counters.updates > self._at_start.updates or not 0 < arrived < self._to_fill_in:
            return
        if now - self._last_shown < SHOW_PERIOD:
            return
        self._last_shown = now
        speed = arrived / (now - self._started)
        frames = speed * self.config.training.unroll_length * self._frames_per_step
        text = (
            f"filling replays: {arrived:,} of {self._to_fill_in:,} trajectories | {frames:,.0f} frames/s | "
            f"left {format_duration((self._to_fill_in - arrived) / speed)}"
        )
        self._progress.show(text)
        if self._must_tell():
            log.info("%s", text)

    def _must_tell(self) -> bool:
        """Now and then a person whose output is no terminal gets a line too."""
        now = time.monotonic()
        if self._progress.live or now - self._last_told < TELL_PERIOD:
            return False
        self._last_told = now
        return True

    def write_row(self) -> None:
        """One row of metrics over the time since the last one; none where nothing has happened since."""
        now, counters, before = time.monotonic(), self.counters, self._at_last_row
        if counters.steps and (counters.steps, counters.updates) == (before.steps, before.updates):
            return
        passed = max(now - self._last_row, 1e-9)
        self._frames_per_second = (counters.frames - before.frames) / passed
        counters.seconds = self._at_start.seconds + now - self._started
        hardware = self._hardware.read(passed)
        own_cores = hardware.get("hardware/cpu_percent", 0.0) / 100 * self._core_use.cores
        row: Row = {
            **self.episodes.read(),
            **self._updates.read(),
            **self._lag.read(),
            **self._replays(),
            **self._feeder.metrics(),
            **self._shares.read(passed),
            **hardware,
            **self._core_use.read(passed, own_cores),
            **self._evaluation,
            "workers/restarts": self._workers.restarts,
            "updates/skipped": self._skipped.count,
            "charts/learning_rate": self.learning_rate,
            "charts/SPS": self._frames_per_second / self._frames_per_step,
            "charts/FPS": self._frames_per_second,
            "charts/updates_per_second": (counters.updates - before.updates) / passed,
        }
        self._evaluation = {}
        self._at_last_row, self._last_row = replace(counters), now
        self._writer.write(asdict(counters), row)
        self._progress.clear()
        log.log(logging.INFO if self._must_tell() else logging.DEBUG, "%s", self._text())
        if verdict := self._doctor.add(row, passed):
            log.debug("%s", verdict.line)

    def finish(self, checkpoint: Path | None, *, interrupted: bool) -> None:
        """Picture and summary, and how to go on; checkpoint: the last one, None where it could not be saved."""
        self._progress.clear()
        counters = self.counters
        mean = self.episodes.mean_return
        drawn = self._write_summary(checkpoint, mean, interrupted=interrupted)
        log.info(
            "%s after %s: %s steps = %s frames, %s updates, %s episodes, %s",
            "Stopped" if interrupted else "Finished",
            format_duration(counters.seconds),
            f"{counters.steps:,}",
            f"{counters.frames:,}",
            f"{counters.updates:,}",
            f"{counters.episodes:,}",
            "no episode has ended yet" if mean is None else f"mean return of the last {len(self.episodes.recent)}: {mean:.2f}",
        )
        if verdict := self._doctor.verdict():
            log.info("%s", verdict.line)
        if drawn:
            log.info("Learning curve: %s", self.run.curve)
        if checkpoint:
            log.info("Checkpoint: %s", checkpoint)
            log.info("Go on:    python main.py --op_mode=train_w_load --load=%s", self.run.path)
            log.info("Watch it: python main.py --op_mode=test --render --load=%s", self.run.path)

    def _write_summary(self, checkpoint: Path | None, mean: float | None, *, interrupted: bool) -> bool:
        """summary.json and the learning curve. Returns whether there is a curve; what cannot be written is said in one line."""
        counters = self.counters
        title = f"{self.config.env.env}, {self.config.network}, seed {self.config.training.seed}"
        summary = {
            "env": self.config.env.env,
            **asdict(counters),
            "mean_return": mean,
            "episodes_in_mean": len(self.episodes.recent),
            "frames_per_second": (counters.seconds and counters.frames / counters.seconds) or 0.0,
            "finished": not interrupted,
            "checkpoint": checkpoint.name if checkpoint else None,
        }
        try:
            self.run.summary.write_text(json.dumps(summary, indent=2) + "\n")
            return self.run.metrics.is_file() and draw_learning_curve(self.run.metrics, self.run.curve, title)
        except OSError as error:
            log.warning("Summary and learning curve were not written: %s", error.strerror or error)
            return False

    def close(self) -> None:
        self._progress.clear()
        self._profiler.stop(self.counters.updates)
        self._writer.close()

    def _replays(self) -> Row:
        """What each replay says of what it gave since the last row."""
        told = zip(self._replay_names, self._mixture.metrics(), strict=True)
        return {f"replay/{name}/{metric}": value for name, metrics in told for metric, value in metrics.items()}

    def _text(self) -> str:
        """The progress line; its speed is that of the last row, or of all there is before the first."""
        counters, limit = self.counters, self.config.training.environment_max_steps
        since_start = max(time.monotonic() - self._started, 1e-9)
        frames_per_second = self._frames_per_second or (counters.frames - self._at_start.frames) / since_start
        left = (limit - counters.steps) * self._frames_per_step / frames_per_second if frames_per_second > 0 else 0.0
        return progress_text(
            mean_return=self.episodes.mean_return,
            steps=counters.steps,
            max_steps=limit,
            frames=counters.frames,
            frames_per_second=frames_per_second,
            left=max(0.0, left),
        )
