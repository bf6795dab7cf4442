"""The end of a run: summary.json, the learning curve and the closing lines."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from learner.metrics.bottleneck import Bottleneck
from learner.metrics.statistics import EndedEpisode, ReturnStatistics
from learner.metrics.summary import log_next_commands, log_result, write_summary
from learner.runs.checkpoint import Counters
from learner.runs.directory import RunDirectory
from tests.support import REPOSITORY, small_config

COUNTERS = Counters(steps=1000, frames=4000, updates=25, episodes=7, trajectories=100, seconds=8.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "Catch-v0")


@pytest.fixture
def episodes() -> ReturnStatistics:
    episodes = ReturnStatistics(window=10)
    episodes.add([EndedEpisode(1.0, 9), EndedEpisode(2.0, 9)])
    return episodes


def test_the_summary_holds_counters_speed_and_mean_return(run: RunDirectory, episodes: ReturnStatistics) -> None:
    checkpoint = run.checkpoint_path(25)
    assert not write_summary(run, small_config(), COUNTERS, episodes, checkpoint=checkpoint, interrupted=True)
    summary = json.loads(run.summary.read_text())
    assert (summary["steps"], summary["frames_per_second"], summary["mean_return"]) == (1000, 500.0, 1.5)
    assert (summary["finished"], summary["checkpoint"], summary["episodes_in_mean"]) == (False, checkpoint.name, 2)


def test_a_run_without_an_episode_or_a_second_has_a_summary(run: RunDirectory) -> None:
    write_summary(run, small_config(), Counters(), ReturnStatistics(window=10), checkpoint=None, interrupted=False)
    summary = json.loads(run.summary.read_text())
    assert (summary["mean_return"], summary["frames_per_second"], summary["checkpoint"]) == (None, 0.0, None)
    assert summary["evaluation"] is summary["best_evaluation"] is None


def test_the_summary_holds_the_newest_and_the_best_evaluation_of_its_protocol(run: RunDirectory) -> None:
    def line(update: int, protocol: str, *returns: float) -> str:
        mean = sum(returns) / len(returns)
        found = {"update": update, "steps": 40 * update, "mean_return": mean, "returns": returns, "protocol": {protocol: 1}}
        return json.dumps(found)

    later = line(26, "b", 50.0)  # the run was resumed from before it
    lines = [line(1, "a", 90.0), line(2, "b", 7.0, 9.0), line(3, "b", 5.0), later, line(4, "b", float("inf")), '{"upd']
    run.evaluations.write_text("\n".join(lines))
    write_summary(run, small_config(), COUNTERS, ReturnStatistics(window=10), checkpoint=None, interrupted=False)
    summary = json.loads(run.summary.read_text())
    assert summary["evaluation"] == {"update": 3, "steps": 120, "mean_return": 5.0, "episodes": 1}
    assert summary["best_evaluation"] == {"update": 2, "steps": 80, "mean_return": 8.0, "episodes": 2}


def test_a_summary_that_cannot_be_written_is_one_warning(
    run: RunDirectory, episodes: ReturnStatistics, lines: list[str]
) -> None:
    run.summary.mkdir()
    assert not write_summary(run, small_config(), COUNTERS, episodes, checkpoint=None, interrupted=False)
    (line,) = lines
    assert "Is a directory" in line


def test_the_result_ends_with_the_bottleneck(episodes: ReturnStatistics, lines: list[str]) -> None:
    log_result(COUNTERS, episodes, Bottleneck("learning", "Limited by the learner"), interrupted=False)
    assert lines[0].startswith("Finished after 0:08: 1,000 steps = 4,000 frames, 25 updates, 7 episodes")
    assert lines[0].endswith("1.50")
    assert lines[1:] == ["Limited by the learner"]


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_is_resumed_and_watched_only_from_a_checkpoint(run: RunDirectory, saved: bool, lines: list[str]) -> None:
    log_next_commands(run, run.checkpoint_path(25) if saved else None, curve=True, pictures=True)
    modes = [mode for mode in ("train_w_load", "test") if any(f"--op_mode={mode} " in line for line in lines)]
    assert modes == (["train_w_load", "test"] if saved else [])
    assert str(run.curve) in lines[0]


@pytest.mark.parametrize(("pictures", "last"), [(True, "Watch:  {} --render --load={}"), (False, "Test:   {} --load={}")])
def test_only_an_environment_with_pictures_is_said_to_be_shown(
    run: RunDirectory, pictures: bool, last: str, lines: list[str]
) -> None:
    log_next_commands(run, run.checkpoint_path(25), curve=False, pictures=pictures)
    assert lines[-1] == last.format("python main.py --op_mode=test", run.path)


def test_commands_name_the_program_from_any_folder(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, wanted in ((REPOSITORY, "main.py"), (REPOSITORY / "docs", "../main.py"), (run.path, None)):
        monkeypatch.chdir(folder)
        lines.clear()
        log_next_commands(run, run.checkpoint_path(25), curve=False, pictures=True)
        named = [shlex.split(line.partition("python ")[2])[0] for line in lines if "python " in line]
        assert len(named) == 2
        assert all(Path(name).resolve() == REPOSITORY / "main.py" for name in named)
        assert wanted in (None, *named)


def test_the_command_that_resumes_a_finished_run_works_in_a_shell(tmp_path: Path, lines: list[str]) -> None:
    run = RunDirectory.create(tmp_path / "my results", "Catch-v0")
    log_next_commands(run, run.checkpoint_path(25), curve=False, pictures=True, max_steps=2000)
    resume = next(line for line in lines if "train_w_load" in line).partition("python ")[2]
    assert shlex.split(resume) == ["main.py", "--op_mode=train_w_load", f"--load={run.path}", "--environment_max_steps=2000"]
