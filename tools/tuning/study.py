"""A study: the settings that are searched, its folder, and the results of its trials.

The folder `RESULTS/NAME/` has study.json (what is searched), trials.json (the results), report.html, best.json (a preset), and
a folder `trials/NUMBER/seed_SEED/` for each run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from checked_files import is_plain_name, plain_name, read_json, replacing
from learner import launch
from learner.metrics.writer import X_AXES, read_metrics
from learner.settings.modes import unused_notes
from learner.settings.presets import apply_preset
from learner.settings.schema import SHARED, Settings, agent_of, default_settings
from learner.settings.tuning import TUNING, TuningConfig
from learner.stores.store import NO_STORE, redacted
from setting import AUTO, TUNE
from tools.plan import PlannedRun
from tools.programs import CONSOLE
from tools.summary import read_config
from tools.tuning.ranges import Ranges, described, ranges_of
from workers.base import NO_RECORDING, SERVED

STUDY_FILE, TRIALS_FILE, BEST_FILE, PAGE = "study.json", "trials.json", "best.json", "report.html"
TRAINING_RETURN, EVALUATION_RETURN = "charts/episodic_return_mean", "eval/episodic_return"
MARKS = 20
"""Points of a run at which trials are compared: the least rows of metrics that a run has."""
OF_THE_COMMAND = ("preset", "results_dir", "resume_if_exists", "verbosity")
"""Given settings that are not those of each trial."""
PBT = ("members", "member_steps", "exploit")
NOT_PBT = ("trials", "trial_seeds", "prune")
COMPLETE, PRUNED, FAILED, RUNNING = "complete", "pruned", "failed", "running"


@dataclass(frozen=True)
class StudyPlan:
    """The search that a command asks for.

    Args:
        name: of its folder.
        folder: for all of its files.
        env: environment of every run.
        seed: of the first run of each trial, and of the search.
        settings: of every run, beside environment and seed.
        ranges: the values that are searched, by setting.
        tuning: the settings of the search.
        score: the metric whose last value is the score of a run.
        ray_address: of the cluster on which trials run, if they do.
        notes: lines for the user.
    """

    name: str
    folder: Path
    env: str
    seed: int
    settings: Settings
    ranges: Ranges
    tuning: TuningConfig
    score: str
    ray_address: str
    notes: list[str]

    @property
    def agent(self) -> str:
        """The agent of every run."""
        return agent_of(self.settings)

    @property
    def defaults(self) -> Settings:
        """The settings of a run that the command does not give."""
        return default_settings(self.agent)

    @property
    def given_values(self) -> Settings:
        """The value that each searched setting has without a search."""
        return {name: self.settings.get(name, self.defaults[name]) for name in self.ranges}

    @property
    def searched(self) -> str:
        """The searched settings with their values on one line."""
        return ", ".join(f"{name} {described(search)}" for name, search in self.ranges.items())

    def trial_folder(self, number: int) -> Path:
        """The folder of a trial."""
        return self.folder / "trials" / f"{number:04d}"

    def planned(self, number: int, values: Mapping[str, Any]) -> list[PlannedRun]:
        """The runs of a trial, one for each seed. values: of the searched settings."""
        seeds = range(self.seed, self.seed + self.tuning.trial_seeds)
        settings = {**self.settings, **values, "preflight": False}
        folder = self.trial_folder(number)
        return [PlannedRun(self.name, f"trial {number}", self.env, seed, settings, folder / f"seed_{seed}") for seed in seeds]

    def begin(self) -> None:
        """Make the folder and write study.json. Raises ValueError if another study has begun there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, content = self.folder / STUDY_FILE, self._content()
        if path.is_file():
            before = _flat(read_json(path, "a study", {"settings": dict, "ranges": dict}))
            now = _flat(json.loads(json.dumps(content)))
            for name in sorted({*before, *now}):
                if before.get(name) != now.get(name):
                    raise ValueError(
                        f"{name}: wanted {before.get(name)}, with which the study {self.folder} began, got {now.get(name)}; "
                        "--study=NAME begins another one"
                    )
        with replacing(path) as new:
            new.write_text(json.dumps(content, indent=2) + "\n")

    def _content(self) -> dict[str, Any]:
        ranges = {name: described(search) for name, search in self.ranges.items()}
        names = PBT if self.tuning.method == "pbt" else ("trial_seeds",)
        own = {name: getattr(self.tuning, name) for name in ("method", *names)}
        return {"env": self.env, "seed": self.seed, "settings": self.settings, "ranges": ranges, **own}


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    settings, ranges = ({f"{key}{name}": value for name, value in content[part].items()} for key, part in _PARTS)
    return {**{name: value for name, value in content.items() if name not in ("settings", "ranges")}, **settings, **ranges}


_PARTS = (("", "settings"), ("tune ", "ranges"))


def make_study(given: Settings, tuning: TuningConfig) -> StudyPlan:
    """The study of a command, checked as its runs would be. given: settings of the command. Raises ValueError with one line."""
    whole = apply_preset(given)
    on_ray = tuning.trials_on == "ray"
    of_the_command = (*OF_THE_COMMAND, "ray_address") if on_ray else OF_THE_COMMAND
    settings = {name: value for name, value in whole.items() if name not in of_the_command}
    _check_given(settings)
    if on_ray:
        _check_ray(settings)
    _check_method(tuning)
    of_folder = {name: whole[name] for name in ("results_dir",) if name in whole}
    config = launch.prepare("train", {**settings, **of_folder, "preflight": False}, []).config
    if config.workers.recording != NO_RECORDING and not config.evaluation.evaluates:
        raise ValueError(
            f"eval_period: wanted evaluations with --op_mode={TUNE} and a recording, whose runs have no other score, got 0"
        )
    env, seed = config.env.env, config.training.seed
    name = plain_name(f"{TUNE}_{env}_{config.agent}") if tuning.study == AUTO else tuning.study
    if not is_plain_name(name):
        raise ValueError(f"study: wanted the name of a folder in --results_dir, got {name!r}")
    return StudyPlan(
        name=name,
        folder=Path(whole.get("results_dir", SHARED["results_dir"].default)) / name,
        env=env,
        seed=seed,
        settings={name: value for name, value in settings.items() if name not in ("env", "seed")},
        ranges=ranges_of(tuning.tune, config.agent, changing=tuning.method == "pbt"),
        tuning=tuning,
        score=EVALUATION_RETURN if config.evaluation.evaluates else TRAINING_RETURN,
        ray_address=whole.get("ray_address", SHARED["ray_address"].default),
        notes=[line.replace("--op_mode=train,", f"--op_mode={TUNE},") for line in unused_notes("train", given)],
    )


def _check_given(settings: Settings) -> None:
    """Raise ValueError if the runs of a study cannot have these settings."""
    if settings.get("worker_kind") == SERVED:
        shared = f"--op_mode={TUNE}, whose trials cannot share clients"
        raise ValueError(f"worker_kind: wanted another kind with {shared}, got {SERVED}")
    if (store := settings.get("checkpoint_store", NO_STORE)) != NO_STORE:
        shared = f"--op_mode={TUNE}, whose runs stay on this machine"
        raise ValueError(f"checkpoint_store: wanted {NO_STORE} with {shared}, got {redacted(store)}")
    if steps := settings.get("stop_at_steps"):
        shared = f"--op_mode={TUNE}, whose runs train to their end"
        raise ValueError(f"stop_at_steps: wanted 0 with {shared}, got {steps}; --environment_max_steps sets their length")


def _check_method(tuning: TuningConfig) -> None:
    """Raise ValueError if a setting of another method of the search is not at its default."""
    for name in NOT_PBT if tuning.method == "pbt" else PBT:
        if (got := getattr(tuning, name)) != (default := TUNING[name].default):
            raise ValueError(f"{name}: wanted {default} with method {tuning.method}, which does not use it, got {got}")


def _check_ray(settings: Settings) -> None:
    """Raise ValueError if trials with these settings cannot run on a cluster."""
    if find_spec("ray") is None:
        raise ValueError(
            "trials_on: wanted the package ray with trials_on ray, got an installation without it; run "
            "pip install -r requirements-ray.txt"
        )
    if settings.get("worker_kind") == "ray":
        raise ValueError(
            "worker_kind: wanted another kind with --trials_on=ray, whose trials have a part of one machine, got ray"
        )


@dataclass
class Trial:
    """A trial and its result so far.

    Args:
        number: counted from 1.
        settings: the values of the searched settings.
        state: complete, pruned, failed or running.
        score: mean over the seeds; of a trial that was pruned its last value.
        reason: why it was pruned or failed, on one line.
        curve: score at each mark of its runs, by the mark, which counts on from seed to seed.
        batch_size: that its runs had.
    """

    number: int
    settings: Settings
    state: str = RUNNING
    score: float | None = None
    reason: str = ""
    curve: dict[int, float] = field(default_factory=dict)
    batch_size: int | None = None

    @property
    def text(self) -> str:
        """The values of the searched settings on one line."""
        return assigned(self.settings)


def assigned(settings: Mapping[str, Any]) -> str:
    """Settings on one line, numbers with four digits."""
    return ", ".join(f"{name}={shown(value)}" for name, value in settings.items())


def shown(value: Any) -> str:
    """A value, numbers with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The complete trial with the highest score, the first of several; None without one."""
    complete = [trial for trial in trials if trial.state == COMPLETE and trial.score is not None]
    return max(complete, key=lambda trial: (trial.score, -trial.number), default=None)


def curve_of(plan: PlannedRun, score: str) -> dict[int, float]:
    """The score of a run at each of its `MARKS` marks that it has passed: the first finite value from there on."""
    run = plan.run()
    try:
        columns = read_metrics(run.metrics, X_AXES) if run and run.metrics.is_file() else {}
        budget = read_config(run, {"environment_max_steps": int})["settings"]["environment_max_steps"] if run else 1
    except (OSError, ValueError):  # a file is being written
        return {}
    found: dict[int, float] = {}
    for steps, value in zip(columns.get("steps", ()), columns.get(score, ()), strict=False):
        mark = min(MARKS, int(MARKS * steps / budget))
        if mark and math.isfinite(value):
            found.setdefault(mark, float(value))
    return found


def score_of(plan: PlannedRun, score: str) -> float | None:
    """The last finite value of the score of a run that has ended."""
    run = plan.run()
    values = read_metrics(run.metrics).get(score, ()) if run and run.metrics.is_file() else ()
    finite = [float(value) for value in values if math.isfinite(value)]
    return finite[-1] if finite else None


def reason_of(folder: Path, code: int) -> str:
    """Why a run failed: the last error in its console output, or else its exit code."""
    try:
        lines = (folder / CONSOLE).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    errors = [line.partition("error: ")[2] for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else f"it ended with exit code {code}"


def write_results(study: StudyPlan, trials: Sequence[Trial]) -> None:
    """Write trials.json, and best.json once a trial is complete."""
    content = [asdict(trial) for trial in trials]
    with replacing(study.folder / TRIALS_FILE) as new:
        new.write_text(json.dumps(content, indent=2) + "\n")
    if best := best_of(trials):
        with replacing(study.folder / BEST_FILE) as new:
            new.write_text(json.dumps(preset_of(study, best), indent=4) + "\n")


def preset_of(study: StudyPlan, best: Trial) -> dict[str, Any]:
    """A preset with the settings of a trial."""
    given = {name: value for name, value in study.settings.items() if name not in SHARED or SHARED[name].setting.kind == "run"}
    batch = {} if best.batch_size is None else {"batch_size": best.batch_size}
    return {
        "about": f"Found by --op_mode={TUNE}: {study.score} {best.score:.6g}, trial {best.number} of the study {study.name}.",
        "settings": {"agent": study.agent, "env": study.env, **batch, **given, **best.settings},
    }
