"""Members of a population copy better ones, change their settings only then, and continue after a kill."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.metrics.summary import evaluation_lines
from learner.runs.checkpoint import Checkpoint, load_checkpoint
from learner.settings.tuning import TUNING, TuningConfig
from setting import Linear, Log, OneOf
from tests.support import CATCH, run_main, same
from tools.plan import PlannedRun
from tools.tuning.population import JOURNAL, TunedPopulation, changed, choose_sources, drawn
from tools.tuning.run import conclude
from tools.tuning.study import COMPLETE, FAILED, PAGE, StudyPlan, best_of, make_study


def study_in(folder: Path, changed: Mapping[str, Any] | None = None, **tuning: Any) -> StudyPlan:
    own = {"agent": "ppo", "results_dir": str(folder), "environment_max_steps": 800, "log_period": 0.01}
    settings = {**CATCH, **own, **(changed or {})}
    known = {name: field.default for name, field in TUNING.items()}
    given = {"tune": "lr=1e-5..1e-1,epochs=1:2:4", "method": "pbt", "members": 3, "member_steps": 400}
    study = make_study(settings, TuningConfig(**{**known, **given, **tuning}))
    study.folder.mkdir(parents=True, exist_ok=True)
    study.begin()
    return study


class DoneProgram:
    """A run that has ended in this process."""

    def __init__(self, code: int) -> None:
        self.code = code

    def wait(self, seconds: float) -> int:
        return self.code

    def stop(self) -> None: ...
    def kill(self) -> None: ...


def start(plan: PlannedRun, cores: Sequence[int]) -> DoneProgram:
    done = run_main(*plan.arguments())
    (plan.folder / "console.txt").write_text(done.stderr)
    return DoneProgram(done.returncode)


def population(study: StudyPlan, starts: Callable[..., Any] = start) -> TunedPopulation:
    return TunedPopulation(study, starts, [[]])


def newest_of(plan: PlannedRun) -> Checkpoint:
    run = plan.run()
    assert run is not None
    return load_checkpoint(run.checkpoint_paths()[-1])


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> TunedPopulation:
    """Two members after two rounds of 16 steps, in which no episode ends. The second one copies the first if it may."""
    settings = {"unroll_length": 4, "environment_max_steps": 32}
    members = population(study_in(tmp_path_factory.mktemp("short"), settings, members=2, member_steps=16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tools.tuning.population.choose_sources", lambda *arguments: [None, 0])
        members.make(lambda: False, 0.0)
    return members


def test_a_member_is_copied_if_its_score_is_five_per_cent_better() -> None:
    for own, other, copies in ((100.0, 104.0, False), (100.0, 106.0, True), (-100.0, -96.0, False), (-100.0, -94.0, True)):
        assert choose_sources([own, other], "compare", np.random.default_rng(0)) == [1 if copies else None, None]
    assert choose_sources([None, 0.0], "compare", np.random.default_rng(0)) == [1, None]
    assert choose_sources([1.0, 100.0], "none", np.random.default_rng(0)) == [None, None]


def test_the_worst_fifth_copies_the_best_fifth() -> None:
    scores = [float(number) for number in range(10)]
    found = choose_sources(scores, "truncate", np.random.default_rng(0))
    assert {found[0], found[1]} <= {8, 9}
    assert found[2:] == [None] * 8
    assert choose_sources([1.0, 1.0, 1.0], "truncate", np.random.default_rng(0)) == [None] * 3


def test_values_stay_in_their_ranges_and_change_by_a_factor() -> None:
    generator = np.random.default_rng(0)
    assert {round(changed(1.0, Log(0.1, 10), generator), 9) for _ in range(20)} == {1.2, round(1 / 1.2, 9)}
    assert {changed(10.0, Linear(9.5, 10), generator) for _ in range(20)} == {9.5, 10.0}
    assert {changed(2, Log(1, 20), generator) for _ in range(20)} == {1, 3}  # whole: 2.4 and 1.67 would be 2 again
    assert {changed(10, Log(1, 20), generator) for _ in range(20)} == {8, 12}
    assert {changed(1, Linear(1, 20), generator) for _ in range(20)} == {1, 2}
    assert {changed(2, OneOf((1, 2, 4)), generator) for _ in range(20)} == {1, 4}
    assert {changed(4, OneOf((1, 2, 4)), generator) for _ in range(20)} == {2, 4}
    values = [drawn(Log(1e-4, 1), generator) for _ in range(400)]
    assert min(values) >= 1e-4
    assert max(values) <= 1
    assert abs(float(np.median(np.log10(values))) + 2) < 0.3


def test_a_copy_takes_the_weights_and_keeps_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_in(tmp_path, {"env": "Catch-v0,Avoid-v0"})
    members = population(study)
    first = [members.values(member) for member in range(3)]
    monkeypatch.setattr("tools.tuning.population.choose_sources", lambda *arguments: [None, 0, 1])
    members.make(lambda: len(members.rounds) == 1, 0.0)
    plans = [members.plan(member) for member in range(3)]
    before = [newest_of(plan) for plan in plans]
    assert [plan.seed for plan in plans] == [1, 2, 3]
    assert len({str(checkpoint.agent["modules"]) for checkpoint in before}) == 3
    assert len({str(checkpoint.task_returns) for checkpoint in before}) == 3
    again = population(study)  # a command that is repeated: what the first one had decided holds
    assert again.rounds == members.rounds
    again._copy(again.rounds[-1])
    again._copy(again.rounds[-1])  # once more, after a kill in between
    after = [newest_of(plan) for plan in plans]
    for member, source in ((0, 0), (1, 0), (2, 1)):
        for name in ("agent", "returns", "task_returns"):
            assert same(getattr(after[member], name), getattr(before[source], name)), name
    assert again.values(0) == first[0]
    for member, source in ((1, 0), (2, 1)):
        ratio = again.values(member)["lr"] / first[source]["lr"]
        assert any(math.isclose(ratio, factor) for factor in (1, 1.2, 1 / 1.2))
    again.make(lambda: False, 0.0)
    trials = again.trials()
    assert [trial.state for trial in trials] == [COMPLETE] * 3
    assert all((plan.summary()["steps"], plan.is_finished()) == (800, True) for plan in plans)
    best = best_of(trials)
    assert best is not None
    assert best.score == max(trial.score or -9 for trial in trials)


def test_nothing_is_copied_after_the_last_round(short: TunedPopulation) -> None:
    """The values of each trial are those with which it reached its score."""
    first, last = short.rounds
    assert (first.sources, last.sources) == ([None, 0], [None, None])
    assert last.values == first.values == [trial.settings for trial in short.trials()]


def test_members_without_an_episode_have_failed(short: TunedPopulation, capsys: pytest.CaptureFixture[str]) -> None:
    trials = short.trials()
    assert [(trial.state, trial.reason) for trial in trials] == [(FAILED, "no episode has ended in its run")] * 2
    assert conclude(short.study, trials, ["main.py"], {}) == 1
    assert "Continue" not in capsys.readouterr().out


def test_the_score_of_a_round_is_an_evaluation_at_its_end(tmp_path: Path) -> None:
    study = study_in(tmp_path, {"eval_period": 1000, "eval_episodes": 2}, members=2, member_steps=160)
    members = population(study)
    plans = [members.plan(member) for member in range(2)]
    members.make(lambda: len(members.rounds) == 1, 0.0)
    runs = [plan.run() for plan in plans]
    evaluations = [evaluation_lines(run.evaluations) for run in runs if run is not None]
    assert [[line["steps"] for line in lines] for lines in evaluations] == [[160], [160]]
    assert members.rounds[0].scores == [lines[-1]["mean_return"] for lines in evaluations]


def test_a_member_that_fails_at_once_is_left_out(tmp_path: Path) -> None:
    def fails(plan: PlannedRun, cores: Sequence[int]) -> DoneProgram:
        return start(plan, cores) if plan.seed != 2 else DoneProgram(1)

    study = study_in(tmp_path)
    members = population(study, fails)
    members.make(lambda: False, 0.0)
    assert members.trials()[1].reason == "it ended with exit code 1"
    for trials in (members.trials(), population(study).trials()):  # the latter: a command that is repeated
        assert [trial.state for trial in trials] == [COMPLETE, FAILED, COMPLETE]


def test_a_round_in_which_all_members_fail_is_made_again(tmp_path: Path) -> None:
    study, failing = study_in(tmp_path, {"unroll_length": 4, "environment_max_steps": 32}, members=2, member_steps=16), []

    def fails(plan: PlannedRun, cores: Sequence[int]) -> DoneProgram:
        failing.append(plan.seed)
        return DoneProgram(1)

    members = population(study, fails)
    members.make(lambda: False, 0.0)
    assert len(failing) == 2
    assert [trial.state for trial in members.trials()] == [FAILED] * 2
    again = population(study)
    again.make(lambda: False, 0.0)
    assert [ended.steps for ended in again.rounds] == [[16, 16], [32, 32]]
    assert all(trial.batch_size for trial in again.trials())


def test_a_run_that_stops_early_keeps_its_schedule_and_is_not_finished(tmp_path: Path) -> None:
    flags = [f"--{name}={value}" for name, value in {**CATCH, "environment_max_steps": 800, "results_dir": tmp_path}.items()]
    assert run_main("--op_mode=train", *flags, "--stop_at_steps=400", "--reproducible").returncode == 0
    (summary,) = tmp_path.glob("Catch*/summary.json")
    assert '"steps": 400' in summary.read_text()
    assert '"finished": false' in summary.read_text()
    assert run_main("--op_mode=train_w_load", f"--load={tmp_path}/latest").returncode == 0
    assert '"steps": 800' in summary.read_text()
    assert '"finished": true' in summary.read_text()


def test_settings_that_cannot_change_within_a_run_are_refused(tmp_path: Path) -> None:
    flags = ["--op_mode=tune", "--method=pbt", "--preset=quick", f"--results_dir={tmp_path}", "--tune=unroll_length"]
    done = run_main(*flags)
    assert done.returncode == 2
    line = "error: tune: wanted numbers among the settings of agent vtrace with method pbt, got unroll_length\n"
    assert done.stderr == line
    assert not list(tmp_path.glob(f"*/{PAGE}"))
    fixed = {"v_max=5..20": {"agent": "dqn", "return_distribution": "c51"}, "population=32..128": {"agent": "cem"}}
    for index, (ranges, settings) in enumerate(fixed.items()):
        with pytest.raises(
            ValueError, match="^tune: wanted settings that may change within a run with method pbt, got [a-z_]*$"
        ):
            study_in(tmp_path / str(index), settings, tune=ranges)


@pytest.mark.parametrize("line", ["garbage", "[]", '{"a": 1}', '{"scores": [1], "sources": [1], "values": [1], "steps": [1]}'])
def test_a_damaged_journal_is_one_line(tmp_path: Path, line: str) -> None:
    study = study_in(tmp_path, members=2)
    (study.folder / JOURNAL).write_text(f"{line}\n")
    with pytest.raises(ValueError, match=f"^{study.folder / JOURNAL}: wanted the round 1 of 2 members.*, got .*$"):
        population(study)
