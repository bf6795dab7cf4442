"""A search makes trials side by side, prunes and averages them, and continues after a kill with the same trials."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import springbok
from agents import AGENTS
from learner.settings.presets import load_preset
from learner.settings.schema import default_settings, table_of
from learner.settings.tuning import TUNING, TuningConfig
from setting import AUTO, Linear, Log, OneOf
from tests.support import CATCH, REPOSITORY, run_main
from tests.tools.support import write_run, write_summary
from tools.plan import PlannedRun
from tools.tuning import run as module
from tools.tuning.page import write_page
from tools.tuning.ranges import ranges_of
from tools.tuning.run import Tuner, parts_of_cores
from tools.tuning.search import JOURNAL, OptunaSearch
from tools.tuning.study import BEST_FILE, COMPLETE, FAILED, PAGE, PRUNED, RUNNING, StudyPlan, Trial, make_study

optuna = pytest.importorskip("optuna", reason="optuna is an optional package (requirements-tune.txt)")

ROWS = 20
Curve = Callable[[PlannedRun], list[float]]


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


def study_in(folder: Path, tune: str = "lr=1e-4..1e-1,gamma=0.9:0.99", **tuning: Any) -> StudyPlan:
    settings = {**CATCH, "agent": "ppo", "results_dir": str(folder), "environment_max_steps": ROWS}
    known = {name: field.default for name, field in TUNING.items()}
    study = make_study(settings, TuningConfig(**{**known, "tune": tune, "trials_at_once": 2, "trials": 6, **tuning}))
    study.folder.mkdir(parents=True, exist_ok=True)
    study.begin()
    return study


class FakeProgram:
    """A run that writes one more row of its curve each time it is looked at."""

    def __init__(self, plan: PlannedRun, curve: list[float], code: int = 0) -> None:
        self.plan, self.curve, self.code = plan, curve, code
        self.rows, self.stopped, self.started = 0, False, not plan.run()
        settings = {**plan.settings, "seed": plan.seed, "environment_max_steps": ROWS, "network": "mlp", "batch_size": 4}
        if self.started:
            write_run(plan.folder / "Catch-v0_1", returns=(), finished=None, **settings)
        self.run = plan.folder / "Catch-v0_1"

    def wait(self, seconds: float) -> int | None:
        if self.stopped or (self.rows and self.code):
            return self.code
        self.rows += 1
        rows = [f"{row},{row},{row},40,{value}" for row, value in enumerate(self.curve[: self.rows], 1)]
        (self.run / "metrics.csv").write_text("\n".join(["seconds,steps,frames,charts/FPS,charts/episodic_return_mean", *rows]))
        if self.rows < ROWS:
            return None
        write_summary(self.run, finished=True, steps=ROWS, mean_return=self.curve[-1])
        return 0

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.stopped = True


def starter(curve: Curve, started: list[PlannedRun] | None = None, codes: Callable[[PlannedRun], int] = lambda plan: 0) -> Any:
    def start(plan: PlannedRun, cores: Sequence[int]) -> FakeProgram:
        if started is not None:
            started.append(plan)
        return FakeProgram(plan, curve(plan), codes(plan))

    return start


def by_rate(plan: PlannedRun) -> list[float]:
    """A curve that ends at 1 for the best learning rate, 0.01, and lower for others."""
    import math

    best = 1 - abs(math.log10(plan.settings["lr"]) + 2) / 3
    return [best * row / ROWS for row in range(1, ROWS + 1)]


def made(study: StudyPlan, start: Any, should_stop: Callable[[], bool] = lambda: False) -> OptunaSearch:
    search = OptunaSearch(study)
    Tuner(study, search, start, parts_of_cores(study.tuning.trials_at_once)).make(should_stop)
    return search


@pytest.mark.parametrize("agent", AGENTS)
def test_the_usual_settings_of_an_agent_have_ranges_within_their_bounds(agent: str) -> None:
    table = table_of(agent)
    found = ranges_of(AUTO, agent)
    assert list(found) == list(AGENTS[agent].tuned)
    for name, search in {**found, "unroll_length": table["unroll_length"].setting.search}.items():
        for value in search.values if isinstance(search, OneOf) else (search.low, search.high):  # type: ignore[union-attr]
            table[name].check(table[name].type(value))


def test_ranges_are_those_of_the_command_or_of_the_declaration() -> None:
    text = "lr, learning_starts=10..2000,epsilon_end=0.01..0.1,gamma=0.9:0.99,double,hidden_sizes=64,64:256,256"
    assert ranges_of(text, "dqn") == {
        "lr": Log(1e-5, 1e-2),
        "learning_starts": Log(10, 2000),
        "epsilon_end": Linear(0.01, 0.1),
        "gamma": OneOf((0.9, 0.99)),
        "double": OneOf((True, False)),
        "hidden_sizes": OneOf(("64,64", "256,256")),
    }


@pytest.mark.parametrize(
    ("tune", "line"),
    [
        ("clip", "tune: wanted settings that decide what agent dqn learns from, got 'clip'"),
        ("seed=1..5", "tune: wanted settings that decide what agent dqn learns from, got 'seed=1..5'"),
        ("worker_count=1..5", "tune: wanted settings that decide what agent dqn learns from, got 'worker_count=1..5'"),
        ("lr,lr", "tune: wanted each setting once, got lr twice"),
        ("lr=1e-2..1e-5", "tune: wanted a range of lr from a number to a larger one, got 1e-2..1e-5"),
        ("lr=1e-5..20", "lr: wanted a learning rate in [0, 10], got 20.0"),
        ("lr=0.1:0.1", "tune: wanted two different values of lr or more, got 0.1:0.1"),
        (
            "learning_starts",
            "tune: wanted a range of learning_starts, such as learning_starts=LOW..HIGH, got none: it declares",
        ),
    ],
)
def test_what_cannot_be_searched_is_one_line(tmp_path: Path, tune: str, line: str) -> None:
    done = run_main("--op_mode=tune", "--agent=dqn", "--env=Catch-v0", f"--tune={tune}", f"--results_dir={tmp_path}/none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--trials=0"], "trials: wanted a whole number"),
        (["--study=a/b"], "study: wanted the name of a folder"),
        (["--worker_kind=served", "--spaces=x.json"], "worker_kind: wanted another kind with --op_mode=tune"),
        (["--trials_on=ray", "--worker_kind=ray"], "worker_kind: wanted another kind with --trials_on=ray"),
        (["--trials_on=ray", "--ray_address=127.0.0.1:9"], "ray_address: wanted a Ray cluster that can be used"),
        (["--checkpoint_store=file:///tmp/x"], "checkpoint_store: wanted none with --op_mode=tune"),
        (["--stop_at_steps=400"], "stop_at_steps: wanted 0 with --op_mode=tune"),
        (["--stop_at_steps=400", "--method=pbt"], "stop_at_steps: wanted 0 with --op_mode=tune"),
        (["--gamma=2"], "gamma: wanted a discount"),
        (["--method=grid"], "method: wanted tpe"),
        (["--members=7"], "members: wanted 4 with method tpe, which does not use it, got 7"),
        (["--method=pbt", "--trial_seeds=3"], "trial_seeds: wanted 1 with method pbt, which does not use it, got 3"),
        (["--results_dir=/dev/null"], "results_dir: wanted a folder that can be written to"),
        (["--tune=unroll_length", "--method=pbt"], "tune: wanted numbers among the settings of agent vtrace"),
    ],
)
def test_a_search_that_cannot_be_is_one_line(tmp_path: Path, flags: list[str], said: str) -> None:
    done = run_main("--op_mode=tune", "--preset=quick", f"--results_dir={tmp_path}/none", *flags)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(f"error: {said}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert "ray_address" in said or not (tmp_path / "none").exists()


def test_a_study_whose_name_a_file_has_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    done = run_main("--op_mode=tune", "--preset=quick", f"--results_dir={tmp_path}", "--study=taken")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: study: wanted a folder that can be made, got {tmp_path}/taken: File exists\n"


def test_a_results_folder_counts_wherever_the_command_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").touch()
    monkeypatch.chdir(tmp_path)
    assert study_in(tmp_path / "others").folder.parent == tmp_path / "others"


@pytest.mark.parametrize("agent", AGENTS)
def test_a_population_has_usual_settings_that_may_change(agent: str) -> None:
    found = ranges_of(AUTO, agent, changing=True)
    assert 2 <= len(found) <= len(ranges_of(AUTO, agent))
    assert "unroll_length" not in found


@pytest.mark.parametrize("content", ["garbage\n", "[]\n", '{"a": 1}\n'])
def test_a_damaged_journal_is_one_line(tmp_path: Path, content: str) -> None:
    study = study_in(tmp_path)
    (study.folder / JOURNAL).write_text(content)
    with pytest.raises(ValueError, match=f"^{study.folder / JOURNAL}: wanted the journal of a search, got .*$"):
        OptunaSearch(study)


def test_trials_run_side_by_side_from_the_given_settings_on(tmp_path: Path) -> None:
    study, started = study_in(tmp_path, prune=False), list[PlannedRun]()
    trials = made(study, starter(by_rate, started)).trials()
    assert [trial.number for trial in trials] == [1, 2, 3, 4, 5, 6]
    defaults = default_settings("ppo")
    assert trials[0].settings == {"lr": defaults["lr"], "gamma": defaults["gamma"]}
    assert {trial.state for trial in trials} == {COMPLETE}
    assert [trial.score for trial in trials] == [pytest.approx(by_rate(plan)[-1]) for plan in started]
    assert all(1e-4 <= trial.settings["lr"] <= 1e-1 and trial.settings["gamma"] in (0.9, 0.99) for trial in trials)
    assert len(trials[0].curve) == ROWS


def test_a_part_of_the_cores_belongs_to_each_trial() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert [core for part in parts_of_cores(len(cores)) for core in part] == cores
    assert parts_of_cores(len(cores) + 1) == [[]] * (len(cores) + 1)


def test_a_trial_below_the_median_is_pruned(tmp_path: Path) -> None:
    """The sixth trial and later ones are compared with the first five."""
    study = study_in(tmp_path, trials=7, trials_at_once=1)

    def curve(plan: PlannedRun) -> list[float]:
        level = 1.0 if "trial 6" not in plan.variant else -1.0
        return [level + row / ROWS for row in range(ROWS)]

    *others, sixth, seventh = made(study, starter(curve)).trials()
    assert {trial.state for trial in [*others, seventh]} == {COMPLETE}
    assert (sixth.state, max(sixth.curve)) == (PRUNED, 5)
    assert sixth.score == sixth.curve[5] < 0
    assert "median" in sixth.reason


def test_seeds_are_averaged(tmp_path: Path) -> None:
    study, started = study_in(tmp_path, trials=1, trial_seeds=3), list[PlannedRun]()

    def of_seed(plan: PlannedRun) -> list[float]:
        return [float(plan.seed)] * ROWS

    (trial,) = made(study, starter(of_seed, started)).trials()
    assert [plan.seed for plan in started] == [1, 2, 3]
    assert trial.score == 2
    assert [trial.curve[mark] for mark in (1, ROWS + 1, 2 * ROWS + 1)] == [1, 1.5, 2]


def test_a_failed_trial_is_named_and_the_search_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_in(tmp_path)

    def codes(plan: PlannedRun) -> int:
        if plan.variant != "trial 2":
            return 0
        (plan.folder / "console.txt").write_text("Training\nerror: the loss is not finite\n")
        return 1

    trials = made(study, starter(by_rate, codes=codes)).trials()
    assert [trial.state == FAILED for trial in trials] == [False, True, False, False, False, False]
    assert trials[1].reason == "the loss is not finite"
    assert "failed, the loss is not finite" in capsys.readouterr().out


def test_a_search_ends_if_every_trial_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_in(tmp_path, trials_at_once=1)
    search = OptunaSearch(study)
    tuner = Tuner(study, search, starter(by_rate, codes=lambda plan: 1), [[]])
    tuner.make(lambda: False)
    assert [trial.state for trial in search.trials()] == [FAILED] * 3
    assert tuner.finish(["main.py"]) == 1
    assert capsys.readouterr().err == "error: wanted a trial that is complete, got 3 that failed: it ended with exit code 1\n"
    # Repeated where the cause is gone, the command makes the trials that are left.
    assert [trial.state for trial in made(study, starter(by_rate)).trials()] == [FAILED] * 3 + [COMPLETE] * 3


@pytest.mark.parametrize("cut", [False, True])
def test_a_search_that_was_killed_ends_with_the_same_trials(tmp_path: Path, cut: bool) -> None:
    whole = made(study_in(tmp_path / "whole", trials_at_once=1), starter(by_rate)).trials()

    class KilledError(Exception):
        pass

    def killed(plan: PlannedRun, cores: Sequence[int]) -> FakeProgram:
        program = FakeProgram(plan, by_rate(plan))
        if plan.variant == "trial 4":
            program.wait(0)
            raise KilledError
        return program

    study = study_in(tmp_path / "killed", trials_at_once=1)
    with pytest.raises(KilledError):
        made(study, killed)
    journal = study.folder / JOURNAL
    if cut:  # in the middle of a line
        journal.write_bytes(journal.read_bytes()[:-7])
    states = [trial.state for trial in OptunaSearch(study).trials()]
    assert states == [COMPLETE] * 3 + [RUNNING]
    started: list[PlannedRun] = []
    again = made(study, starter(by_rate, started)).trials()
    assert [plan.variant for plan in started] == ["trial 4", "trial 5", "trial 6"]
    assert [(trial.settings, trial.state, trial.score) for trial in again] == [
        (trial.settings, trial.state, trial.score) for trial in whole
    ]


def test_a_stopped_search_continues_its_running_trials(tmp_path: Path) -> None:
    study, looks = study_in(tmp_path), iter(range(100))
    search = made(study, starter(by_rate), lambda: next(looks) > 5)
    assert [trial.state for trial in search.trials()] == [RUNNING, RUNNING]
    assert [trial.state for trial in made(study, starter(by_rate)).trials()].count(RUNNING) == 0


def test_another_study_in_the_same_folder_is_refused_and_more_trials_are_not(tmp_path: Path) -> None:
    study_in(tmp_path)
    study_in(tmp_path, trials=9, tune_seconds=5.0)
    with pytest.raises(ValueError, match=r"^tune lr: wanted 0.0001..0.1 by logarithms, with which the study .* began, got 0.1"):
        study_in(tmp_path, tune="lr=0.1..0.2,gamma=0.9:0.99")
    with pytest.raises(ValueError, match="^trial_seeds: wanted 1, .*, got 2; --study=NAME begins another one$"):
        study_in(tmp_path, trial_seeds=2)


def test_the_best_settings_become_a_preset_and_the_page_has_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # the printed command holds here
    study = study_in(tmp_path, trials=8)
    search = OptunaSearch(study)
    tuner = Tuner(study, search, starter(by_rate), [[]])
    tuner.make(lambda: False)
    assert tuner.finish(["main.py"]) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Train with it: ")]
    assert Path(said.split()[4]).resolve() == REPOSITORY / "main.py"
    best = max((trial for trial in search.trials() if trial.state == COMPLETE), key=lambda trial: trial.score or 0)
    preset = load_preset(str(study.folder / BEST_FILE))
    assert {name: preset[name] for name in study.ranges} == best.settings
    assert (preset["agent"], preset["env"], preset["batch_size"]) == ("ppo", "Catch-v0", 4)
    assert not {"seed", "results_dir", "log_period"} & preset.keys()
    page = (study.folder / PAGE).read_text()
    assert page.count("<img ") == 4  # history, curves, importances, slices
    assert page.count("<tr>") == 9
    shown = springbok.Study(study.folder)
    assert shown.best is not None
    assert shown.best["settings"] == best.settings
    assert [trial["number"] for trial in shown.trials] == list(range(1, 9))


@pytest.mark.parametrize("state", [COMPLETE, PRUNED, FAILED, RUNNING])
def test_a_page_shows_trials_in_every_state(tmp_path: Path, state: str) -> None:
    study = study_in(tmp_path)
    write_page(study, [Trial(1, {"lr": 0.01, "gamma": 0.9}, state, 1.0, "", {1: 1.0})], {})
    assert f"<td>{state}</td>" in (study.folder / PAGE).read_text()


def test_a_page_of_no_trial_can_be_written(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    write_page(study, [], {})
    assert "<img" not in (study.folder / PAGE).read_text()


def test_a_missing_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = run_main("--op_mode=tune", "--preset=quick", f"--results_dir={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: op_mode: wanted the package optuna ")


def test_a_killed_program_continues_with_the_same_trials(tmp_path: Path) -> None:
    """A trial of a real run: the command is killed while it trains, and then repeated from Python."""
    settings = {**CATCH, "agent": "ppo", "results_dir": tmp_path, "environment_max_steps": 4000, "trials": 1, "prune": False}
    flags = [f"--{name}={value}" for name, value in {**settings, "tune": "lr=1e-3..1e-2", "trials_at_once": 1}.items()]
    command = [sys.executable, "main.py", "--op_mode=tune", *flags]
    folder = tmp_path / "tune_Catch-v0_ppo"
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL) as program:
        deadline = time.monotonic() + 120
        while not list(folder.glob("trials/0001/seed_1/*/metrics.csv")):
            assert program.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        program.send_signal(signal.SIGKILL)
    asked = [line for line in (folder / JOURNAL).read_text().splitlines() if '"param_name":"lr"' in line]
    assert len(asked) == 1
    study = springbok.tune(search=["lr=1e-3..1e-2"], trials_at_once=1, verbosity=0, **settings)
    assert [trial["state"] for trial in study.trials] == ["complete"]
    assert json.loads(asked[0])["param_value_internal"] == study.trials[0]["settings"]["lr"]
    assert study.best is not None
    assert load_preset(str(study.preset))["lr"] == study.best["settings"]["lr"]
