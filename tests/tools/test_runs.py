"""Runs are found, read, and named by their differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tools.support import HALF_REPLAYED, write_run, write_suite, write_summary
from tools.plan import SUITE_FILE, plan_runs, read_suite
from tools.runs import find_runs, load_runs


def test_run_directories_at_and_below_a_path_are_found_once(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a_1"), write_run(tmp_path / "deep" / "er" / "b_2")
    (tmp_path / "latest").symlink_to("a_1")
    assert find_runs([first, tmp_path, tmp_path / "latest"]) == [first, second]


def test_a_path_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got no folder"):
        find_runs([tmp_path / "none"])
    with pytest.raises(ValueError, match=r"wanted a run directory .* got neither"):
        find_runs([tmp_path])


def test_runs_of_a_suite_have_its_names_and_order_and_only_the_newest_counts(tmp_path: Path) -> None:
    file = write_suite(tmp_path, variants={"zebra": {}, "ant": {"network": "nature"}}, seeds=[2, 10])
    folder = tmp_path / "tiny"
    for plan in plan_runs(read_suite(file), folder):
        plan.write()
        write_run(plan.folder / "Catch-v0_9", seed=plan.seed)
        newest = write_run(plan.folder / "Catch-v0_10", seed=plan.seed)
    (folder / SUITE_FILE).write_text(file.read_text())
    runs = load_runs(find_runs([folder]))
    assert [(run.setting, run.seed) for run in runs] == [("zebra", 2), ("zebra", 10), ("ant", 2), ("ant", 10)]
    assert {run.path.name for run in runs} == {newest.name}


def test_two_suites_keep_their_names_apart(tmp_path: Path) -> None:
    for name in ("first", "second"):
        plan = plan_runs(read_suite(write_suite(tmp_path, name=name, variants={"queue": {}}, seeds=[1])), tmp_path / name)[0]
        plan.write()
        write_run(plan.folder / "Catch-v0_9")
    assert {run.setting for run in load_runs(find_runs([tmp_path]))} == {"first: queue", "second: queue"}


def test_other_runs_are_named_by_the_settings_that_differ(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a_1", seed=1, lr=0.1),
        write_run(tmp_path / "a_2", seed=2, lr=0.1, log_period=3.0, render=True),
        write_run(tmp_path / "b_1", seed=1, lr=0.2, replay_parameters=json.dumps(HALF_REPLAYED)),
    ]
    by_path = {run.path: run.setting for run in load_runs(paths)}
    assert by_path[paths[0]] == by_path[paths[1]] == "queue, lr=0.1"
    assert by_path[paths[2]] == "queue + standard, lr=0.2"


def test_runs_of_a_user_s_agent_are_compared_without_its_file(tmp_path: Path) -> None:
    agent = {"agent": f"{tmp_path}/none.py:Mine", "lr": 0.1}
    paths = [write_run(tmp_path / f"a_{weight}", **agent, my_weight=weight) for weight in (1, 2)]
    assert [run.setting for run in load_runs(paths)] == ["my_weight=1", "my_weight=2"]


def test_replays_that_differ_in_one_key_are_two_settings(tmp_path: Path) -> None:
    reservoir = [HALF_REPLAYED[0], {**HALF_REPLAYED[1], "retention": "reservoir"}]
    texts = (json.dumps(HALF_REPLAYED), json.dumps(HALF_REPLAYED, indent=1), json.dumps(reservoir))
    paths = [write_run(tmp_path / f"a_{number}", replay_parameters=text) for number, text in enumerate(texts)]
    paths.append(write_run(tmp_path / "queue"))
    names = {run.path.name: run.setting for run in load_runs(paths)}
    assert names["a_0"] == names["a_1"] == "queue 0.5 of 1 + standard 0.5 of 100"
    assert names["a_2"] == "queue 0.5 of 1 + standard 0.5 of 100 (retention=reservoir)"
    assert names["queue"] == "queue"


def test_defaults_are_left_out_of_names_with_several_settings(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a_1"),
        write_run(tmp_path / "b_1", lr=0.1),
        write_run(tmp_path / "c_1", lr=0.1, use_kl_mask=True),
    ]
    assert [run.setting for run in load_runs(paths)] == ["defaults", "lr=0.1", "lr=0.1, use_kl_mask"]


def test_equal_runs_are_named_by_their_network(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"a_{seed}", seed=seed) for seed in (1, 2)]
    assert {run.setting for run in load_runs(paths)} == {"nature"}


def test_a_setting_that_an_older_version_lacks_has_its_default(tmp_path: Path) -> None:
    old, new = write_run(tmp_path / "old_1"), write_run(tmp_path / "new_1")
    config = json.loads((old / "config.json").read_text())
    del config["settings"]["use_kl_mask"]
    (old / "config.json").write_text(json.dumps(config))
    assert len({run.setting for run in load_runs([old, new])}) == 1


def test_a_run_from_before_a_setting_was_renamed_has_the_same_setting(tmp_path: Path) -> None:
    old, new = write_run(tmp_path / "old_1", return_window=50), write_run(tmp_path / "new_1", return_window=50)
    file = old / "config.json"
    file.write_text(file.read_text().replace("return_window", "return_window"))
    assert len({run.setting for run in load_runs([old, new])}) == 1


def test_what_changes_no_learning_makes_no_setting(tmp_path: Path) -> None:
    changes = {"load": "x", "checkpoints_kept": 9, "greedy": True, "test_environments": 3, "seed": 7}
    runs = load_runs([write_run(tmp_path / "a_1"), write_run(tmp_path / "b_1", **changes)])
    assert len({run.setting for run in runs}) == 1


def test_the_curve_begins_at_the_first_ended_episode(tmp_path: Path) -> None:
    run = load_runs([write_run(tmp_path / "a_1", returns=(None, -1.0, 3.0), frames=300)])[0]
    assert run.frames.tolist() == [200, 300]
    assert run.steps.tolist() == [50, 75]
    assert run.seconds.tolist() == [20, 30]
    assert run.returns.tolist() == [-1, 3]
    assert run.finished


def test_two_rows_at_the_same_frame_are_one_point(tmp_path: Path) -> None:
    """An evaluation that ends after the last update has a row of its own."""
    run = write_run(tmp_path / "a_1", returns=(1.0, 2.0))
    metrics = run / "metrics.csv"
    metrics.write_text(f"{metrics.read_text()}10.5,25,100,40,2.0\n")
    (found,) = load_runs([run])
    assert (found.frames.tolist(), found.returns.tolist()) == ([50, 100], [1.0, 2.0])


def test_the_summary_of_an_earlier_command_does_not_finish_a_run(tmp_path: Path) -> None:
    resumed_for_more = write_run(tmp_path / "a_1", frames=400, environment_max_steps=200)
    gone_back = write_run(tmp_path / "a_2", frames=400)
    write_summary(gone_back, finished=True, steps=150)
    gone_on = write_run(tmp_path / "a_3", frames=400, environment_max_steps=50)
    write_summary(gone_on, finished=True, steps=50)
    ended = write_run(tmp_path / "a_4", frames=400)
    finished = {run.path: run.finished for run in load_runs([resumed_for_more, gone_back, gone_on, ended])}
    assert finished == {resumed_for_more: False, gone_back: False, gone_on: False, ended: True}


def test_an_unreadable_summary_does_not_finish_a_run(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"a_{number}") for number in range(3)]
    for path, text in zip(paths, ("", "[]", '{"finished": true}'), strict=True):
        (path / "summary.json").write_text(text)
    assert not any(run.finished for run in load_runs(paths))


def test_a_run_may_lie_near_the_root_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a_1")
    monkeypatch.chdir(tmp_path)
    assert [run.path.name for run in load_runs([Path("a_1")])] == ["a_1"]


@pytest.mark.parametrize("returns", [(), (None, None)])
def test_a_run_without_an_ended_episode_has_no_points(returns: tuple[None, ...], tmp_path: Path) -> None:
    run = load_runs([write_run(tmp_path / "a_1", returns=returns, finished=None)])[0]
    assert not len(run.returns)
    assert not len(run.frames)
    assert not run.finished


def test_a_run_without_metrics_has_no_points(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a_1", finished=None)
    (path / "metrics.csv").unlink()
    assert not len(load_runs([path])[0].returns)
