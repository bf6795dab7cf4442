"""Test mode: measures what was learned over whole episodes, under a protocol that is stated, and shows it on request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from agents.networks.actor_critic import make_network
from learner.evaluation.play import EpisodeResult, EvaluationPolicy, divide_episodes, play
from learner.evaluation.protocol import describe_protocol, evaluation_env, evaluation_protocol
from learner.evaluation.render import Screen, open_screen
from learner.evaluation.results import summarise, table, write_results
from learner.machine.machine import detect_machine
from learner.metrics.progress import ProgressLine, format_duration
from learner.runs.checkpoint import Checkpoint
from learner.runs.directory import RunDirectory, git_commit, package_versions
from learner.settings.config import Config
from learner.signals import StopSignals
from wrappers import make_single_env, make_spec, make_vector_env

log = logging.getLogger("springbok")

STOPS = "Stopping: reporting the episodes that are finished. Once more to stop at once without results."
SHOW_PERIOD = 0.2  # seconds between two progress lines
SEED_STREAM = 7  # sets the evaluation's random numbers apart from those of training with the same seed


class Seeds(NamedTuple):
    """What decides every game. Environment i has the seed `vector + i`, shown episode j has `shown + j`."""

    vector: int
    shown: int
    actions: int


class Tally:
    """The episodes that count so far, and the live line about them."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.episodes: list[dict[str, Any]] = []
        self._progress = ProgressLine()
        self._started = self._shown = time.monotonic()
        self._steps = 0

    @property
    def missing(self) -> int:
        return self.wanted - len(self.episodes)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def add(self, episode: EpisodeResult, *, first_seed: int, shown: bool) -> None:
        """Count an episode; first_seed: that of environment 0 of those it was played in."""
        self.episodes.append(
            {
                "return": episode.episode_return,
                "length": episode.length,
                "truncated": episode.truncated,
                "seed": first_seed + episode.environment,
                "shown": shown,
            }
        )

    def count_steps(self, steps: int) -> None:
        """Count steps and, now and then, show how far things are."""
        self._steps += steps
        if time.monotonic() - self._shown < SHOW_PERIOD:
            return
        self._shown = time.monotonic()
        returns = [episode["return"] for episode in self.episodes]
        mean = f"mean return {np.mean(returns):.2f}" if returns else "no episode yet"
        rate = self._steps / max(self.seconds, 1e-9)
        done = f"episodes {len(returns):,} of {self.wanted:,}"
        self._progress.show(f"{done} | {mean} | {rate:,.0f} steps/s | {format_duration(self.seconds)}")

    def clear_line(self) -> None:
        self._progress.clear()


def evaluate(config: Config, checkpoint: Checkpoint, checkpoint_path: Path, run: RunDirectory | None) -> int:
    """Play `test_episode_count` whole episodes and report them; returns the exit code.

    Every environment has a fixed quota of the episodes (see `learner.evaluation.play`), so that short ones are not
    counted too often. All that is played counts under one protocol, shown or not.
    The first Ctrl-C stops and reports what is there.
    """
    if not all(torch.isfinite(value).all() for value in checkpoint.agent["network"].values()):
        log.error("error: %s holds weights that are not finite: its training diverged", checkpoint_path)
        return 1
    torch.set_num_threads(config.training.learner_threads)
    seeds = make_seeds(config.training.seed)
    policy = load_policy(config, checkpoint, seeds.actions)
    folder = run.path if run else checkpoint_path.parent
    _announce(config, checkpoint, checkpoint_path)
    tally = Tally(config.evaluation.test_episode_count)
    video: Path | None = None
    with StopSignals(at_once=tally.clear_line, first=STOPS) as signals:
        stop = Stop(signals)
        try:
            if config.evaluation.render:
                video = _play_shown(config, policy, seeds.shown, tally, stop, folder, checkpoint.counters.updates)
            if tally.missing and not stop():
                _play_unseen(config, policy, seeds.vector, tally, stop)
        finally:
            tally.clear_line()
    if tally.missing:
        log.warning(
            "Stopped: %s of %s episodes are finished; those under way do not count, so short ones weigh too much",
            f"{len(tally.episodes):,}",
            f"{tally.wanted:,}",
        )
    if not tally.episodes:
        log.warning("No score: no episode is finished")
        return 0
    return _report(config, checkpoint, checkpoint_path, folder, seeds, tally, video)


def _report(
    config: Config, checkpoint: Checkpoint, checkpoint_path: Path, folder: Path, seeds: Seeds, tally: Tally, video: Path | None
) -> int:
    """Print the table and write the file; returns the exit code."""
    summary = summarise(tally.episodes, config.env.env)
    for line in table(summary, config.env.env):
        log.info("%s", line)
    content = {
        "env": config.env.env,
        "checkpoint": checkpoint_path.name,
        "training": asdict(checkpoint.counters),
        "protocol": evaluation_protocol(config.env, config.evaluation.greedy),
        "summary": summary,
        "episodes_wanted": tally.wanted,
        "complete": tally.missing == 0,
        "seconds": round(tally.seconds, 3),
        "seed": config.training.seed,
        "seeds": seeds._asdict(),
        "environments": min(config.evaluation.test_environments, tally.wanted),
        "device": config.training.device,
        "network": config.network,
        "video": video.name if video else None,
        "versions": package_versions(),
        "git_commit": git_commit(),
        "episodes": tally.episodes,
    }
    try:
        path = write_results(folder, checkpoint.counters.updates, content)
    except OSError as error:
        log.error("error: the results were not saved: %s", error)
        return 1
    log.info("Results: %s", path)
    return 0


class Stop:
    """Whether to stop playing: a signal came, or the person closed the window."""

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals
        self.screen: Screen | None = None

    def __call__(self) -> bool:
        return self._signals.requested or (self.screen is not None and self.screen.closed)


def make_seeds(seed: int) -> Seeds:
    """Independent seeds for all that is random here; environments need one in [1, 2^31) with room to count up."""
    vector, shown, actions = np.random.SeedSequence((seed, SEED_STREAM)).generate_state(3)
    return Seeds(int(vector) % 2**30 + 1, int(shown) % 2**30 + 1, int(actions))


def load_policy(config: Config, checkpoint: Checkpoint, seed: int) -> EvaluationPolicy:
    """The checkpoint's network, ready to act."""
    spec = make_spec(config.env)
    network = make_network(config.network, spec.observation_shape, spec.action_count)
    network.load_state_dict(checkpoint.agent["network"])
    return EvaluationPolicy(network, torch.device(config.training.device), greedy=config.evaluation.greedy, seed=seed)


def _play_unseen(config: Config, policy: EvaluationPolicy, seed: int, tally: Tally, stop: Callable[[], bool]) -> None:
    """Play what is missing, many environments at once."""
    count = min(config.evaluation.test_environments, tally.missing)
    env = make_vector_env(evaluation_env(config.env), count, num_threads=detect_machine().cores)
    try:
        play(
            env,
            policy,
            divide_episodes(tally.missing, count),
            seed,
            on_episode=lambda episode: tally.add(episode, first_seed=seed, shown=False),
            on_step=tally.count_steps,
            stop=stop,
        )
    finally:
        env.close()


def _play_shown(
    config: Config, policy: EvaluationPolicy, seed: int, tally: Tally, stop: Stop, folder: Path, update: int
) -> Path | None:
    """Play before a person's eyes, one episode after the other; returns the video where one was made.

    An episode that has begun is played to its end, also when the video takes no more, so that what is counted does not
    depend on how it went.
    """
    env = make_single_env(evaluation_env(config.env), "rgb_array")
    screen, episodes = open_screen(env.spec, folder, update, tally.wanted)
    stop.screen = screen

    def show_step(steps: int) -> None:
        tally.count_steps(steps)
        if not screen.full:
            screen.show(env.render())

    try:
        for first_seed in range(seed, seed + episodes):
            if screen.full or stop():
                break

            def count(episode: EpisodeResult, first_seed: int = first_seed) -> None:
                tally.add(episode, first_seed=first_seed, shown=True)

            play(env, policy, np.ones(1, dtype=np.int64), first_seed, on_episode=count, on_step=show_step, stop=stop)
    finally:
        tally.clear_line()
        video = screen.close()
        env.close()
    return video


def _announce(config: Config, checkpoint: Checkpoint, checkpoint_path: Path) -> None:
    counters = checkpoint.counters
    log.info(
        "Checkpoint: %s, after %s updates, %s steps = %s frames of training",
        checkpoint_path.name,
        f"{counters.updates:,}",
        f"{counters.steps:,}",
        f"{counters.frames:,}",
    )
    log.info("Protocol: %s", describe_protocol(evaluation_protocol(config.env, config.evaluation.greedy)))
