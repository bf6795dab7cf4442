"""Finds what limits the speed of a run, and the setting that would change it, from its metrics.

The rules read no clocks and no files. They are tried in order, and the first that applies decides. The use of the cores comes
first: if no core is idle, fractions of wall time count waiting for a core as work, and more processes would only wait more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from learner.metrics.statistics import Record
from learner.settings.config import AUTO, Config
from learner.settings.schema import SHARED
from wrappers import family_of

FULL = 0.9  # fraction of the cores that must be busy before all count as busy
CROWDED = 0.15  # fraction of the cores that other programs may use before they are the bottleneck
WAITS = 0.15  # fraction of its time that a part waits for another part that limits it
HEAVY = 0.3  # fraction of the learner's time that making batches in its own thread may take
STALE = 0.7  # effective sample size of fresh trajectories below which their age costs too much

COMPARING_REPLAYS = ("elite", "attentive")
"""Replays that draw candidates and compare them, which takes time."""

NATIVE_FAMILIES = ("atari", "envpool")
"""Families whose environments are native code, which no setting makes faster."""

MIN_SECONDS = 5.0
"""Seconds that metrics must cover: an update of a large network takes seconds."""


@dataclass(frozen=True)
class Bottleneck:
    """The part that limits a run.

    name: one of a few words. line: one sentence with the numbers behind it and what to change.
    """

    name: str
    line: str


class Evidence:
    """A record of metrics together with the settings of its run. All fractions are of wall time.

    Args:
        record: one record, or means over several.
        config: of the run.
        cores: that the run may use.
    """

    def __init__(self, record: Mapping[str, float], config: Config, cores: int) -> None:
        self.record = record
        self.config = config
        self.cores = cores
        self.idle = self.number("cores/idle") + self.number("cores/evaluation")  # evaluation has the lowest priority
        self.full = self.idle <= (1 - FULL) * cores
        self.ahead = config.training.prepared_batches > 0
        self.gpu = config.training.device == "cuda"
        self.preparing = self.fraction("feeder_insert") + self.fraction("feeder_sample")

    def number(self, name: str, default: float = 0.0) -> float:
        """A number of the record, or the default: a run does not report every number in every record."""
        return self.record.get(name, default)

    def fraction(self, name: str) -> float:
        return self.number(f"time/{name}")

    @property
    def starved(self) -> float:
        """Fraction of its time that the learner waits for trajectories; waits for the preparation of batches do not count."""
        missing = self.fraction("feeder_wait_workers")
        # With batches prepared ahead, the feeder may wait for trajectories while the learner still has batches.
        return min(self.fraction("learner_wait"), missing) if self.ahead else missing

    @property
    def computed(self) -> dict[str, float]:
        """Cores that each part of the run keeps busy."""
        count = self.config.workers.worker_count * self.config.training.learner_count
        stepping, acting = (count * self.fraction(f"worker_{name}_cpu") for name in ("env", "act"))
        return {"stepping": stepping, "acting": acting, "learning": self.number("cores/learner")}

    @property
    def idle_cores(self) -> str:
        return f"{self.idle:.1f} of {self.cores} cores are idle"


def find_bottleneck(record: Mapping[str, float], config: Config, cores: int) -> Bottleneck:
    """The bottleneck of a run.

    Args:
        record: means of the metrics over some time, start-up left out.
        config: of the run.
        cores: that the run may use.
    """
    evidence = Evidence(record, config, cores)
    found = next(bottleneck for rule in RULES if (bottleneck := rule(evidence)))
    return Bottleneck(found.name, f"Limited by {found.line}{_staleness(evidence)}")


class BottleneckReport:
    """Finds the bottleneck of each record and of the whole run. The first record is start-up and does not count.

    cores: that the run may use.
    """

    def __init__(self, config: Config, cores: int) -> None:
        self._config = config
        self._cores = cores
        self._started = False
        self._sums: Record = {}
        self._seconds: Record = {}  # time over which each number was reported

    def add(self, record: Mapping[str, float], seconds: float) -> Bottleneck | None:
        """The bottleneck of a record that covers so many seconds; None if it is the first one or too short."""
        if not self._started:
            self._started = True
            return None
        for name, value in record.items():
            self._sums[name] = self._sums.get(name, 0.0) + seconds * value
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        return find_bottleneck(record, self._config, self._cores) if seconds >= MIN_SECONDS else None

    def overall(self) -> Bottleneck | None:
        """The bottleneck of all records, weighted by their seconds; None if they cover too little time."""
        # Every record has this number, so its seconds are those of all records.
        if self._seconds.get("cores/idle", 0.0) < MIN_SECONDS:
            return None
        means = {name: total / self._seconds[name] for name, total in self._sums.items()}
        return find_bottleneck(means, self._config, self._cores)


def _other_programs(evidence: Evidence) -> Bottleneck | None:
    others = evidence.number("cores/others")
    # Other programs take nothing from the run while cores are idle.
    if not evidence.full or others <= CROWDED * evidence.cores:
        return None
    own = max(0.0, evidence.cores - evidence.idle - others)  # they were read at different moments
    line = f"other programs: they use {others:.1f} of {evidence.cores} cores and this run {own:.1f}; no setting changes that"
    return Bottleneck("other programs", line)


def _another_learner(evidence: Evidence) -> Bottleneck | None:
    """This learner has its batches, and waits for another one that has none."""
    waits = {rank: evidence.number(f"ranks/wait_{rank}") for rank in range(evidence.config.training.learner_count)}
    if len(waits) == 1 or waits[0] < WAITS:
        return None
    # The others wait for the learner that waits least itself.
    slowest = min(waits, key=lambda rank: waits[rank])
    line = (
        f"the learner of rank {slowest}: rank 0 waits {_percent(waits[0])} of its time for batches of others, rank {slowest} "
        f"{_percent(waits[slowest])}; learners should have equal cores and GPUs, and larger batches even out chance"
    )
    return Bottleneck("another learner", line)


def _one_process(evidence: Evidence) -> Bottleneck | None:
    if evidence.config.workers.worker_kind != "serial" or evidence.cores == 1:
        return None
    parts = ", ".join(f"{name} {_percent(cores)}" for name, cores in evidence.computed.items())
    without = "without --reproducible" if evidence.config.training.reproducible else "with --worker_kind=cpu"
    return Bottleneck("one process", f"its single process: {parts} of the time; {without} it would use {evidence.cores} cores")


def _on_policy(evidence: Evidence) -> Bottleneck | None:
    """Workers and learner wait for each other, because each batch must be acted by the version that learns from it."""
    if not evidence.config.workers.on_policy:
        return None
    update = evidence.fraction("learner_update") + evidence.fraction("learner_publish")
    step, act = (evidence.fraction(f"worker_{name}") for name in ("env", "act"))
    parts = {"learning": update, "stepping": step, "acting": act}
    largest = max(parts, key=lambda name: parts[name])
    more = "use more --worker_count" if evidence.idle > (1 - FULL) * evidence.cores else "only more cores help"
    advice = {
        "learning": _less_learning(evidence),
        "stepping": more,
        "acting": f"{more}, or {_smaller_network(evidence.config)}",
    }
    shown = ", ".join(f"{name} {_percent(fraction)}" for name, fraction in parts.items())
    line = (
        f"turns of workers and learner, which agent {evidence.config.agent} needs: {shown} of the time, the learner waits "
        f"{_percent(evidence.starved)}; {advice[largest]}"
    )
    return Bottleneck(largest, line)


def _pace(evidence: Evidence) -> Bottleneck | None:
    """Workers wait for the learner on purpose, because each step is learned from a fixed number of times."""
    needs = evidence.config.needs
    waits = evidence.fraction("worker_wait")
    if needs.updates_per_step is None or waits < WAITS or evidence.starved >= WAITS:
        return None
    work = evidence.fraction("learner_update") + evidence.fraction("learner_publish")
    line = (
        f"the pace of {needs.updates_per_step:g} updates a step: workers wait on purpose {_percent(waits)} of their time, "
        f"updates take {_percent(work)} of the learner's; use a smaller --updates_per_step, to learn less from each step, or "
        f"{_less_learning(evidence).removeprefix('learning takes most: ').removeprefix('use ')}"
    )
    return Bottleneck("pace", line)


def _cores(evidence: Evidence) -> Bottleneck | None:
    if not evidence.full:
        return None
    parts = evidence.computed
    total = sum(parts.values()) or 1.0
    fractions = ", ".join(f"{name} {_percent(cores / total)}" for name, cores in parts.items())
    if evidence.gpu:
        del parts["learning"]  # a process that waits for a GPU looks busy
    largest = max(parts, key=lambda name: parts[name])
    advice = {"stepping": _less_stepping, "acting": _less_acting, "learning": _less_learning}[largest](evidence)
    busy = "its one core is busy" if evidence.cores == 1 else f"all {evidence.cores} cores are busy"
    return Bottleneck(largest, f"the CPU ({busy}): {fractions} of this run's CPU time; {advice}")


def _batch_preparation(evidence: Evidence) -> Bottleneck | None:
    """Trajectories are there, but making batches of them keeps the learner from updating."""
    insert, sample, move = (evidence.fraction(name) for name in ("feeder_insert", "feeder_sample", "learner_batch"))
    parts = f"inserting {_percent(insert)}, drawing {_percent(sample)}"
    if not evidence.ahead:
        # A learner that has to wait for trajectories gains nothing from faster preparation.
        if evidence.preparing + move < HEAVY or evidence.starved >= WAITS:
            return None
        parts = f"{parts}, moving {_percent(move)} of the learner's time"
        line = f"batch preparation: {parts}; --prepared_batches=2 prepares batches during updates"
        return Bottleneck("batch preparation", line)
    late = evidence.fraction("learner_wait") - evidence.starved
    if late < WAITS:
        return None
    line = f"{parts} of its thread's time, the learner waits {_percent(late)} for it; use {_less_preparing(evidence)}"
    return Bottleneck("batch preparation", f"batch preparation: {line}")


def _learner(evidence: Evidence) -> Bottleneck | None:
    if evidence.starved >= WAITS:
        return None
    work = evidence.fraction("learner_update") + evidence.fraction("learner_publish")
    waits = f"workers wait for it {_percent(evidence.fraction('worker_wait'))} of their time"
    gpu = " (GPU)" if evidence.gpu else ""
    line = f"the learner{gpu}: {waits}, updates take {_percent(work)} of its own; {_less_learning(evidence)}"
    return Bottleneck("learning", line)


def _taking_turns(evidence: Evidence) -> Bottleneck | None:
    """Workers and learner wait for each other while cores are idle."""
    if evidence.fraction("worker_wait") < WAITS:
        return None
    waits = f"workers wait {_percent(evidence.fraction('worker_wait'))}, the learner {_percent(evidence.starved)} of the time"
    advice = "use more --worker_count" if evidence.ahead else "--prepared_batches=2 lets both work at once"
    return Bottleneck("taking turns", f"turns of workers and learner: {waits}, {evidence.idle_cores}; {advice}")


def _central_policy(evidence: Evidence) -> Bottleneck | None:
    """One policy acts for all workers, and its answers come too late."""
    act, workers = evidence.fraction("worker_act"), evidence.config.workers
    if workers.worker_kind != "central" or act < WAITS:
        return None
    waits = f"workers wait for it {_percent(act)} of their time and step {_percent(evidence.fraction('worker_env'))}"
    advice = f"--envs_per_worker={2 * workers.envs_per_worker} gives it more time, a smaller --network needs less"
    line = f"the central policy: {waits}, the learner waits {_percent(evidence.starved)}; {advice}"
    return Bottleneck("central policy", line)


def _workers(evidence: Evidence) -> Bottleneck:
    step, act, wait = (evidence.fraction(f"worker_{name}") for name in ("env", "act", "wait"))
    name = "stepping" if step >= act else "acting"
    workers = f"workers step {_percent(step)}, act {_percent(act)} and wait {_percent(wait)} of their time"
    learner = f"the learner waits {_percent(evidence.starved)}"
    return Bottleneck(name, f"{name}: {workers}, {learner}; use more --worker_count ({evidence.idle_cores})")


RULES: tuple[Callable[[Evidence], Bottleneck | None], ...] = (
    _other_programs,
    _another_learner,
    _one_process,
    _on_policy,
    _pace,
    _cores,
    _batch_preparation,
    _learner,
    _taking_turns,
    _central_policy,
    _workers,
)
"""The rules in the order in which they are tried. The last one always applies."""


def _less_stepping(evidence: Evidence) -> str:
    replay = "" if _replays(evidence.config) else ", or replayed data (--replay_parameters) to learn more from each step"
    what = " and is native code" if family_of(evidence.config.env.env) in NATIVE_FAMILIES else ""
    return f"stepping takes most{',' if what else ''}{what}: only more cores help{replay}"


def _less_acting(evidence: Evidence) -> str:
    smaller = _smaller_network(evidence.config)
    return f"acting takes most: use {smaller}{_precision_advice(evidence.config)}"


def _less_learning(evidence: Evidence) -> str:
    training = evidence.config.training
    threads = f"--learner_threads={min(evidence.cores, training.learner_threads + 2)}"
    ways = [
        *([threads] if not evidence.gpu and not evidence.full and training.learner_threads < evidence.cores else []),
        _smaller_network(evidence.config),
        *(["less replay"] if _replays(evidence.config) and not evidence.config.pace else []),
        *(["a larger --batch_size"] if evidence.gpu else ["a GPU"]),
    ]
    most = "learning takes most: " if evidence.full else ""
    return f"{most}use {', '.join(ways[:-1])} or {ways[-1]}{_precision_advice(evidence.config)}"


def _less_preparing(evidence: Evidence) -> str:
    # A thread that is idle at times is fast enough on average, so a greater depth evens out its delays.
    if evidence.fraction("feeder_wait_workers") + evidence.fraction("feeder_wait_learner") >= WAITS:
        return f"--prepared_batches={2 * evidence.config.training.prepared_batches}"
    replays = evidence.config.replays
    ways = [
        *(["a smaller lambda_batch_multiplier"] if any(replay.type in COMPARING_REPLAYS for replay in replays) else []),
        *(["--nocompress_replay"] if any(replay.compress for replay in replays) else []),
    ]
    scales = _takes_resolution(evidence.config)
    return " or ".join(ways) or ("a smaller --frame_scale_resolution" if scales else "a smaller --batch_size")


def _smaller_network(config: Config) -> str:
    return f"a smaller --network{' or --frame_scale_resolution' if _takes_resolution(config) else ''}"


def _takes_resolution(config: Config) -> bool:
    """Whether the size of a frame is a setting."""
    return family_of(config.env.env) in SHARED["frame_scale_resolution"].setting.families


def _precision_advice(config: Config) -> str:
    """Advice for a run whose user asked for float32; in a reproducible run `auto` is float32 too."""
    asked = config.settings["precision"] == "float32" and not config.training.reproducible
    return f", --precision={AUTO} if the hardware is faster in bfloat16" if asked else ""


def _replays(config: Config) -> bool:
    return any(replay.type != "queue" for replay in config.replays)


def _staleness(evidence: Evidence) -> str:
    """Advice if fresh data is too old, whatever the bottleneck.

    The effective sample size shows it. Clip fractions do not: half of all importance ratios are above 1, however near the two
    policies are. An agent that reports no effective sample size gets no advice.
    """
    size = evidence.number("replay/queue/effective_sample_size", 1.0)
    if size >= STALE:
        return ""
    lag = evidence.number("charts/policy_lag")
    fresh = f"Fresh data is {lag:.0f} updates old, its effective sample size is {_percent(size)}"
    return f". {fresh}: use fewer --envs_per_worker or a larger --batch_size"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"
