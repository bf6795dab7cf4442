"""What limits a run, and the setting that would move it, out of its metrics: rules without clocks or files.

Rules are asked one after another, and the first that has something to say speaks. Who holds the cores comes first: where none
is idle, the shares of wall time count the waiting for a core as work, and more processes would only wait more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from learner.settings.config import AUTO, Config

FULL = 0.9  # the part of the cores that must be busy to say that all are
CROWDED = 0.15  # the part of the cores that other programs may hold before they are the reason
WAITS = 0.15  # the part of its time that somebody waits before something limits him
HEAVY = 0.3  # the part of the learner's time that batches may take in its own thread
WORN = 0.7  # effective sample size of fresh trajectories below which their age costs too much

GUESSES = ("elite", "attentive", "custom")
"""Replays that draw candidates and compare them."""


@dataclass(frozen=True)
class Verdict:
    """limit: one of a few words. line: for people, with the shares it rests on and what to do."""

    limit: str
    line: str


class Seen:
    """A row of metrics (means over some time) beside the settings it came from. Shares are parts of wall time."""

    def __init__(self, row: Mapping[str, float], config: Config, cores: int) -> None:
        self.row = row
        self.config = config
        self.cores = cores
        self.idle = row["cores/idle"] + row["cores/beside"]  # evaluation has the lowest priority: it gives way
        self.full = self.idle <= (1 - FULL) * cores
        self.ahead = config.training.prepared_batches > 0
        self.gpu = config.training.device == "cuda"
        self.preparing = self.share("feeder_insert") + self.share("feeder_sample")

    def share(self, name: str) -> float:
        return self.row[f"time/{name}"]

    @property
    def starved(self) -> float:
        """The part of its time that the learner waits for trajectories, and not for their being made into a batch."""
        missing = self.share("feeder_wait_workers")
        return min(self.share("learner_wait"), missing) if self.ahead else missing

    @property
    def computed(self) -> dict[str, float]:
        """Cores that each part of the run keeps busy."""
        stepping, acting = (self.config.workers.worker_count * self.share(f"worker_{name}_cpu") for name in ("env", "act"))
        return {"stepping": stepping, "acting": acting, "learning": self.row["cores/learner"]}

    @property
    def free_cores(self) -> str:
        return f"{self.idle:.1f} of {self.cores} cores are idle"


def diagnose(row: Mapping[str, float], config: Config, cores: int) -> Verdict:
    """What limits the run that `row` tells of: means of the metrics over some time without start-up."""
    seen = Seen(row, config, cores)
    verdict = next(verdict for rule in RULES if (verdict := rule(seen)))
    return Verdict(verdict.limit, f"Limited by {verdict.line}{_worn(seen)}")


def _other_programs(seen: Seen) -> Verdict | None:
    others = seen.row.get("cores/others", 0.0)
    if not seen.full or others <= CROWDED * seen.cores:
        return None
    own = seen.cores - seen.idle - others
    line = f"other programs: they keep {others:.1f} of {seen.cores} cores busy, this run {own:.2f}; no flag changes that"
    return Verdict("other programs", line)


def _cores(seen: Seen) -> Verdict | None:
    if not seen.full:
        return None
    parts = seen.computed
    total = sum(parts.values())
    told = ", ".join(f"{name} {_percent(cores / total)}" for name, cores in parts.items())
    if seen.gpu:
        del parts["learning"]  # the process that waits for a GPU looks busy
    most = max(parts, key=lambda name: parts[name])
    advice = {"stepping": _less_stepping, "acting": _less_acting, "learning": _less_learning}[most](seen)
    return Verdict(most, f"the CPU, {_all(seen.cores)}: {told} of what this run computes; {advice}")


def _one_process(seen: Seen) -> Verdict | None:
    if seen.config.workers.worker_kind != "serial" or seen.cores == 1:
        return None
    told = ", ".join(f"{name} {_percent(cores)}" for name, cores in seen.computed.items())
    without = "without --reproducible" if seen.config.training.reproducible else "--worker_kind=cpu"
    return Verdict("one process", f"its one process: {told} of the time; {without} it would use {seen.cores} cores")


def _preparation(seen: Seen) -> Verdict | None:
    """Making batches keeps the learner from updating, though trajectories are there."""
    insert, sample, move = (seen.share(name) for name in ("feeder_insert", "feeder_sample", "learner_batch"))
    told = f"inserting {_percent(insert)}, drawing {_percent(sample)}"
    if not seen.ahead:
        if seen.preparing + move < HEAVY or seen.starved >= WAITS:
            return None
        told = f"{told}, moving {_percent(move)} of the learner's time"
        return Verdict("batch preparation", f"batch preparation: {told}; --prepared_batches=2 does it beside the updates")
    late = seen.share("learner_wait") - seen.starved
    if late < WAITS:
        return None
    return Verdict(
        "batch preparation",
        f"batch preparation: {told} of its thread's time, the learner waits {_percent(late)} for it; {_less_preparing(seen)}",
    )


def _learner(seen: Seen) -> Verdict | None:
    if seen.starved >= WAITS:
        return None
    work = seen.share("learner_update") + seen.share("learner_publish")
    told = f"workers wait {_percent(seen.share('worker_wait'))} of their time for it, updates take {_percent(work)} of its own"
    return Verdict("learning", f"the learner{' (GPU)' if seen.gpu else ''}: {told}; {_less_learning(seen)}")


def _turns(seen: Seen) -> Verdict | None:
    if seen.share("worker_wait") < WAITS:
        return None
    told = f"workers wait {_percent(seen.share('worker_wait'))}, the learner {_percent(seen.starved)}, {seen.free_cores}"
    advice = "more --worker_count" if seen.ahead else "--prepared_batches=2 lets both work at once"
    return Verdict("taking turns", f"taking turns: {told}; {advice}")


def _answers(seen: Seen) -> Verdict | None:
    """One policy acts for all, and its answers come too late."""
    act = seen.share("worker_act")
    if seen.config.workers.worker_kind != "central" or act < WAITS:
        return None
    told = f"workers wait {_percent(act)} of their time for it and step {_percent(seen.share('worker_env'))}"
    advice = f"--envs_per_worker={2 * seen.config.workers.envs_per_worker} gives it longer, a smaller --network needs less"
    return Verdict("answers", f"the policy that acts for all: {told}, the learner waits {_percent(seen.starved)}; {advice}")


def _workers(seen: Seen) -> Verdict:
    step, act, wait = (seen.share(f"worker_{name}") for name in ("env", "act", "wait"))
    name = "stepping" if step >= act else "acting"
    told = f"workers step {_percent(step)}, act {_percent(act)} and wait {_percent(wait)} of their time"
    learner = f"the learner waits {_percent(seen.starved)}"
    return Verdict(name, f"{name}: {told}, {learner}; more --worker_count helps ({seen.free_cores})")


RULES: tuple[Callable[[Seen], Verdict | None], ...] = (
    _other_programs,
    _one_process,
    _cores,
    _preparation,
    _learner,
    _turns,
    _answers,
    _workers,
)
"""In the order in which they are asked; the last one always answers."""


def _less_stepping(seen: Seen) -> str:
    replay = "" if _replayed(seen.config) else ", or replayed data (--replay_parameters) to learn more from each step"
    return f"stepping is most, and native: only more cores help{replay}"


def _less_acting(seen: Seen) -> str:
    return f"acting is most: a smaller --network or --frame_scale_resolution{_given_float32(seen.config)}"


def _less_learning(seen: Seen) -> str:
    training = seen.config.training
    threads = f"--learner_threads={min(seen.cores, training.learner_threads + 2)}"
    ways = [
        *([threads] if not seen.gpu and not seen.full and training.learner_threads < seen.cores else []),
        "a smaller --network or --frame_scale_resolution",
        *(["less replay"] if _replayed(seen.config) else []),
        *(["a larger --batch_size"] if seen.gpu else ["a GPU"]),
    ]
    most = "learning is most: " if seen.full else ""
    return f"{most}{', '.join(ways[:-1])} or {ways[-1]}{_given_float32(seen.config)}"


def _less_preparing(seen: Seen) -> str:
    if seen.share("feeder_wait_workers") + seen.share("feeder_wait_learner") >= WAITS:
        return f"--prepared_batches={2 * seen.config.training.prepared_batches}"
    replays = seen.config.replays
    ways = [
        *(["a smaller lambda_batch_multiplier"] if any(replay.type in GUESSES for replay in replays) else []),
        *(["--nocompress_replay"] if any(replay.compress for replay in replays) else []),
    ]
    return " or ".join(ways) or "a smaller --frame_scale_resolution"


def _given_float32(config: Config) -> str:
    asked = config.settings["precision"] == "float32"
    return f", --precision={AUTO} where the hardware multiplies bfloat16" if asked else ""


def _replayed(config: Config) -> bool:
    return any(replay.type != "queue" for replay in config.replays)


def _all(cores: int) -> str:
    return "its one core busy" if cores == 1 else f"all {cores} cores busy"


def _worn(seen: Seen) -> str:
    """Fresh data that is too old is a limit of its own. Clip fractions do not tell it: half of all ratios lie above 1, however
    near the policies are."""
    worth = seen.row.get("replay/queue/effective_sample_size", 1.0)
    if worth >= WORN:
        return ""
    told = f"Fresh data is {seen.row['charts/policy_lag']:.0f} updates old and worth {_percent(worth)} of its size"
    return f". {told}: fewer --envs_per_worker or a larger --batch_size"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"
