"""Test mode: measures the policy of a checkpoint over whole episodes, under a stated protocol, and shows it on request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from agents.networks.base import make_network
from learner.evaluation.play import EpisodeResult, divide_episodes, play, shared_equally
from learner.evaluation.protocol import describe_protocol
from learner.evaluation.recording import recorder_of
from learner.evaluation.render import Screen, open_screen
from learner.evaluation.results import info_lines, mean_of_tasks, summarise, table, task_table, write_results
from learner.machine.detect import detect_machine
from learner.metrics.infos import Sums, added, means, note_left_out, success_rate
from learner.metrics.progress import ProgressLine, format_duration, steps_and_frames
from learner.plan import Plan
from learner.runs.checkpoint import ACTING_MODULE, Checkpoint
from learner.runs.directory import RunDirectory, git_commit, package_versions
from learner.signals import StopSignals
from replay.recordings.recorder import EpisodeRecorder
from workers import WorkerError
from workers.evaluation_policy import EvaluationPolicy
from workers.failures import failures_of
from workers.finite import NotFiniteError
from workers.processes.out_of_memory import describe
from wrappers import close_quietly, describe_env, make_single_env, make_vector_env
from wrappers.infos import MOST_NAMES

log = logging.getLogger("springbok")

STOP_MESSAGE = "Stopping. The finished episodes are reported. Press Ctrl-C again to stop at once without results."
PROGRESS_PERIOD = 0.2  # seconds between two progress lines
SEED_STREAM = 7  # separates the random numbers of test mode from those of training with the same seed


class Seeds(NamedTuple):
    """The seeds that decide every game. Environment i has the seed `vector + i`, shown episode j the seed `shown + j`."""

    vector: int
    shown: int
    actions: int


@dataclass(frozen=True)
class CheckpointTest:
    """One call of test mode: the checkpoint under test and where its results go.

    path: the file of the checkpoint. folder: the folder for the results and the video.
    """

    plan: Plan
    checkpoint: Checkpoint
    path: Path
    folder: Path
    seeds: Seeds


class PlayedEpisodes:
    """The finished episodes, and the progress line about them.

    wanted: number of episodes to play, of all tasks together. tasks: ids of the environments, if there are several.
    """

    def __init__(self, wanted: int, tasks: Sequence[str] = ()) -> None:
        self.wanted, self.tasks = wanted, tasks
        self.episodes: list[dict[str, Any]] = []
        self._sums: Sums = {}  # of the numbers in infos
        self._progress = ProgressLine()
        self._started = self._shown = time.monotonic()
        self._steps = 0

    @property
    def missing(self) -> int:
        """Number of episodes still to play."""
        return self.wanted - len(self.episodes)

    @property
    def missing_of_tasks(self) -> list[int]:
        """The same of each task; one number if there is one environment. Those that were shown may be uneven."""
        done = [sum(episode["env"] == task for episode in self.episodes) for task in self.tasks] or [len(self.episodes)]
        return [self.wanted // len(done) - own for own in done]

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def infos(self) -> dict[str, float]:
        """`NAME_at_end` and `NAME_mean` of the numbers in infos, see `learner.metrics.infos`."""
        return means((episode.get("info", {}) for episode in self.episodes), self._sums)

    def add(self, episode: EpisodeResult, *, first_seed: int, shown: bool) -> None:
        """Count an episode. first_seed: seed of environment 0 of the environments that played it."""
        count = len(self.tasks) or 1
        # An environment that is shown plays the task of its seed; see `wrappers.many`.
        task = (first_seed if shown else episode.environment) % count
        self.episodes.append(
            {
                "return": episode.episode_return,
                "length": episode.length,
                "truncated": episode.truncated,
                "seed": first_seed + episode.environment // count,
                "shown": shown,
                **({"env": self.tasks[task]} if self.tasks else {}),
                **({"info": episode.infos} if episode.infos else {}),
            }
        )
        if len(self._sums) < len(episode.sums) and (left_out := list(episode.sums)[MOST_NAMES:]):
            note_left_out(left_out)
        self._sums = added((self._sums, episode.sums))

    def count_steps(self, steps: int) -> None:
        """Count steps, and update the progress line every `PROGRESS_PERIOD` seconds."""
        self._steps += steps
        if time.monotonic() - self._shown < PROGRESS_PERIOD:
            return
        self._shown = time.monotonic()
        returns = [episode["return"] for episode in self.episodes]
        mean = f"mean return {np.mean(returns):.2f}" if returns else "no episode yet"
        rate = self._steps / max(self.seconds, 1e-9)
        done = f"episodes {len(returns):,} of {self.wanted:,}"
        self._progress.show(f"{done} | {mean} | {rate:,.0f} steps/s | {format_duration(self.seconds)}")

    def clear_line(self) -> None:
        """Remove the progress line from the terminal."""
        self._progress.clear()


class Stop:
    """Whether to stop playing: a signal arrived, or the window was closed."""

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals
        self.screen: Screen | None = None

    def __call__(self) -> bool:
        return self._signals.requested or (self.screen is not None and self.screen.closed)


def evaluate(plan: Plan, checkpoint: Checkpoint, checkpoint_path: Path, run: RunDirectory | None) -> int:
    """Play `test_episode_count` whole episodes, of each task if there are several, and report them. Returns the exit code.

    All episodes count under one protocol, whether they are shown or not. Every environment has a fixed quota of the episodes,
    so that short episodes are not over-represented (see `learner.evaluation.play`). The first Ctrl-C stops and reports the
    finished episodes, and so does an environment that fails.

    Raises ValueError in one line, or OSError, if the episodes cannot be added to the recording of `record_to`.

    Args:
        checkpoint_path: the file of the checkpoint.
        run: the run of the checkpoint; if there is none, the results are written next to the checkpoint.
    """
    if not all(torch.isfinite(value).all() for value in checkpoint.agent["modules"][ACTING_MODULE].values()):
        log.error("error: %s contains non-finite weights: its training diverged", checkpoint_path)
        return 1
    config = plan.config
    # No agent divides the passes here, so PyTorch's own threads share them.
    torch.set_num_threads(config.training.learner_threads)
    folder = run.path if run else checkpoint_path.parent
    test = CheckpointTest(plan, checkpoint, checkpoint_path, folder, make_seeds(config.training.seed))
    policy = load_policy(plan, checkpoint, test.seeds.actions)
    _announce(test)
    played = PlayedEpisodes(config.evaluation.test_episode_count * len(plan.spec.tasks), plan.network.tasks)
    video: Path | None = None
    failed = False
    with ExitStack() as exits:
        recorder = exits.enter_context(recorder_of(plan, _about(test)))
        signals = exits.enter_context(StopSignals(at_once=played.clear_line, first=STOP_MESSAGE))
        stop = Stop(signals)
        try:
            with failures_of("the test"):
                if config.evaluation.render:
                    video = _play_shown(test, policy, played, stop)
                if played.missing and not stop():
                    _play_unseen(test, policy, played, stop, recorder)
        except WorkerError as error:
            # Numbers that are not finite are named already; other errors have a traceback in the detailed log.
            log.error(
                "error: %s%s", error, "" if isinstance(error.__cause__, NotFiniteError) else " (--verbosity=2 shows where)"
            )
            failed = True
        finally:
            played.clear_line()
    if played.missing:
        log.warning(
            "Stopped after %s of %s episodes. Unfinished episodes do not count, so short episodes are over-represented.",
            f"{len(played.episodes):,}",
            f"{played.wanted:,}",
        )
    if not played.episodes:
        log.warning("There is no score: no episode was finished.")
        return int(failed)
    return _report(test, played, video) or int(failed)


def make_seeds(seed: int) -> Seeds:
    """Independent seeds derived from the run's. Environment seeds are in [1, 2^30], so that counting up stays below 2^31."""
    vector, shown, actions = np.random.SeedSequence((seed, SEED_STREAM)).generate_state(3)
    return Seeds(int(vector) % 2**30 + 1, int(shown) % 2**30 + 1, int(actions))


def load_policy(plan: Plan, checkpoint: Checkpoint, seed: int) -> EvaluationPolicy:
    """The policy of the checkpoint's network. seed: of the action sampling."""
    config, network = plan.config, make_network(plan.network)
    network.load_state_dict(checkpoint.agent["modules"][ACTING_MODULE])
    device, greedy = torch.device(config.training.device), config.evaluation.greedy
    return EvaluationPolicy(network, device, greedy=greedy, seed=seed, epsilon=config.epsilon or 0.0)


def _about(test: CheckpointTest) -> dict[str, Any]:
    """The player, for the readers of a recording."""
    return {"checkpoint": test.path.name, "updates": test.checkpoint.counters.updates, "seeds": test.seeds._asdict()}


def _play_unseen(
    test: CheckpointTest,
    policy: EvaluationPolicy,
    played: PlayedEpisodes,
    stop: Callable[[], bool],
    recorder: EpisodeRecorder | None,
) -> None:
    """Play the missing episodes in many environments together. recorder: keeps them, if there is one."""
    count = shared_equally(min(test.plan.config.evaluation.test_environments, played.missing), len(test.plan.spec.tasks))
    env = make_vector_env(describe_env(test.plan.config.env).evaluation_config, count, num_threads=detect_machine().cores)
    seed, quotas = test.seeds.vector, np.zeros(count, np.int64)
    for task, missing in enumerate(played.missing_of_tasks):
        quotas[task :: len(played.missing_of_tasks)] = divide_episodes(missing, count // len(played.missing_of_tasks))
    try:
        play(
            env,
            policy,
            quotas,
            seed,
            on_episode=lambda episode: played.add(episode, first_seed=seed, shown=False),
            on_step=played.count_steps,
            stop=stop,
            recorder=recorder,
        )
    finally:
        close_quietly(env)


def _play_shown(test: CheckpointTest, policy: EvaluationPolicy, played: PlayedEpisodes, stop: Stop) -> Path | None:
    """Show episodes one after the other. Returns the path of the video, or None if there is none."""
    config = test.plan.config.env
    env = make_single_env(describe_env(config).evaluation_config, "rgb_array")
    screen, episodes = open_screen(config, test.folder, test.checkpoint.counters.updates, played.wanted)
    stop.screen = screen

    def show_step(steps: int) -> None:
        played.count_steps(steps)
        if screen.full:
            return
        try:
            screen.show(env.render())
        except Exception as error:  # drivers and users' code may raise anything; the score still counts
            played.clear_line()
            log.warning("The environment could not be drawn, so no more pictures are shown: %s", describe(error))
            screen.full = True

    try:
        for first_seed in range(test.seeds.shown, test.seeds.shown + episodes):
            # An episode is finished even if the video becomes full during it. Otherwise whether an episode counts would
            # depend on its length, and long ones would be under-represented.
            if screen.full or stop():
                break

            def count(episode: EpisodeResult, first_seed: int = first_seed) -> None:
                played.add(episode, first_seed=first_seed, shown=True)

            play(env, policy, np.ones(1, dtype=np.int64), first_seed, on_episode=count, on_step=show_step, stop=stop)
    finally:
        played.clear_line()
        if not screen.closed:
            stop.screen = None  # the program closes it, which is no request to stop
        video = screen.close()
        close_quietly(env)
    return video


def _announce(test: CheckpointTest) -> None:
    """Print which policy is measured, and how."""
    counters = test.checkpoint.counters
    log.info(
        "Checkpoint: %s after %s updates, %s of training",
        test.path.name,
        f"{counters.updates:,}",
        steps_and_frames(counters.steps, counters.frames),
    )
    log.info("Protocol: %s", describe_protocol(test.plan.config.env, test.plan.spec, test.plan.protocol))


def _report(test: CheckpointTest, played: PlayedEpisodes, video: Path | None) -> int:
    """Print the table and write the results. Returns the exit code."""
    config, counters = test.plan.config, test.checkpoint.counters
    summary = summarise(played.episodes, config.env.env)
    tasks = {task: [each for each in played.episodes if each["env"] == task] for task in played.tasks}
    of_tasks = {task: summarise(episodes, task) for task, episodes in tasks.items() if episodes}
    lines = task_table(of_tasks) if of_tasks else table(summary, config.env.env)
    for line in (*lines, *info_lines(played.infos)):
        log.info("%s", line)
    content = {
        "env": config.env.env,
        "checkpoint": test.path.name,
        "training": asdict(counters),
        "protocol": test.plan.protocol,
        "summary": summary,
        **({"tasks": of_tasks, "human_normalised": mean_of_tasks(of_tasks)} if of_tasks else {}),
        "success_rate": success_rate(played.infos),
        "info": played.infos,
        "episodes_wanted": played.wanted,
        "complete": played.missing == 0,
        "seconds": round(played.seconds, 3),
        "seed": config.training.seed,
        "seeds": test.seeds._asdict(),
        "environments": min(config.evaluation.test_environments, played.wanted),
        "device": config.training.device,
        "network": config.network,
        "video": video.name if video else None,
        "versions": package_versions(),
        "git_commit": git_commit(),
        "episodes": played.episodes,
    }
    try:
        path = write_results(test.folder, counters.updates, content)
    except OSError as error:
        log.error("error: the results were not saved: %s", error)
        return 1
    log.info("Results: %s", path)
    return 0
