"""Suite files, the runs that they plan, and the progress of each run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from option_flags import define_flags, op_mode, read_settings
from tests.support import REPOSITORY
from tests.tools.support import HALF_REPLAYED, add_checkpoint, settings_of, write_run, write_suite
from tools.plan import PLAN_FILE, check_suite, plan_runs, read_suite
from tools.runs import find_runs, load_runs


def test_every_variant_runs_on_every_environment_with_every_seed(tmp_path: Path) -> None:
    suite = read_suite(write_suite(tmp_path, envs=["Catch-v0", "PongNoFrameskip-v4"]))
    plans = plan_runs(suite, tmp_path)
    assert len(plans) == 8
    assert len({plan.folder for plan in plans}) == 8
    assert [plan.title for plan in plans[:3]] == [
        "Catch-v0, queue, seed 1",
        "Catch-v0, queue + standard, seed 1",
        "Catch-v0, queue, seed 2",
    ]
    assert plans[1].folder == tmp_path / "Catch-v0" / "queue_standard" / "seed_1"


def test_a_variants_settings_override_the_common_ones(tmp_path: Path) -> None:
    suite = read_suite(write_suite(tmp_path, variants={"a": {}, "b": {"network": "nature", "use_kl_mask": True}}))
    assert suite.variants["a"]["network"] == "mlp"
    assert suite.variants["b"] == {"network": "nature", "environment_max_steps": 2000, "use_kl_mask": True}


def test_the_program_takes_the_arguments(tmp_path: Path) -> None:
    from absl import flags

    plan = plan_runs(read_suite(write_suite(tmp_path)), tmp_path / "results")[1]
    values = flags.FlagValues()
    define_flags(values)
    values(["main.py", *plan.arguments()])
    given = read_settings(values)[0]
    assert op_mode(values) == "train"
    assert (given["env"], given["seed"], given["network"]) == ("Catch-v0", 1, "mlp")
    assert json.loads(given["replay_parameters"]) == HALF_REPLAYED
    assert Path(given["results_dir"]) == plan.folder


def test_old_names_of_settings_are_read(tmp_path: Path) -> None:
    suite = read_suite(write_suite(tmp_path, common={"avg_buff_size": 5}, variants={"a": {"save_model_period": 7}}))
    assert suite.variants == {"a": {"return_window": 5, "checkpoint_period": 7}}
    with pytest.raises(ValueError, match="common: return_window: wanted one value, got 6 and, under the name"):
        read_suite(write_suite(tmp_path, common={"avg_buff_size": 5, "return_window": 6}))


def test_a_run_begun_under_old_names_is_resumed(tmp_path: Path) -> None:
    plan = plan_runs(read_suite(write_suite(tmp_path, variants={"a": {"return_window": 5}})), tmp_path)[0]
    plan.write()
    write_run(plan.folder / "Catch-v0_100", **plan.settings, seed=plan.seed)
    file = plan.folder / PLAN_FILE
    file.write_text(file.read_text().replace("return_window", "avg_buff_size"))
    plan.check_begun()


def test_a_run_is_started_then_resumed_then_finished(tmp_path: Path) -> None:
    plan = plan_runs(read_suite(write_suite(tmp_path)), tmp_path)[0]
    assert settings_of(plan.arguments())["op_mode"] == "train"
    run = write_run(plan.folder / "Catch-v0_100", finished=None)
    assert settings_of(plan.arguments())["op_mode"] == "train"  # killed before its first checkpoint
    add_checkpoint(run)
    resumed = settings_of(plan.arguments())
    assert (resumed["op_mode"], resumed["load"]) == ("train_w_load", str(run))
    assert not plan.is_finished()
    again = write_run(plan.folder / "Catch-v0_200")
    assert plan.run() is not None
    assert plan.run().path == again  # type: ignore[union-attr]
    assert plan.is_finished()


@pytest.mark.parametrize("copy", ["Catch-v0_123 (copy)", "Catch-v0_123.bak", "Catch-v0_copy"])
def test_a_copy_of_a_run_directory_is_not_its_plans_newest_run(copy: str, tmp_path: Path) -> None:
    plan = plan_runs(read_suite(write_suite(tmp_path)), tmp_path)[0]
    write_run(plan.folder / copy)
    assert plan.run() is None
    own = {**plan.settings, "seed": plan.seed}
    _, newer = (write_run(plan.folder / f"Catch-v0_{stamp}", **own) for stamp in (99, 123))
    run = plan.run()
    assert run is not None
    assert run.path == newer
    plan.write()
    assert find_runs([plan.folder]) == [newer]


def test_an_interrupted_run_is_not_finished(tmp_path: Path) -> None:
    plan = plan_runs(read_suite(write_suite(tmp_path)), tmp_path)[0]
    write_run(plan.folder / "Catch-v0_100", finished=False)
    assert not plan.is_finished()


def test_a_run_resumed_for_more_steps_is_not_finished_by_its_earlier_summary(tmp_path: Path) -> None:
    plan = plan_runs(read_suite(write_suite(tmp_path)), tmp_path)[0]
    write_run(plan.folder / "Catch-v0_100", frames=400, environment_max_steps=200)
    assert plan.summary() == {}
    assert not plan.is_finished()


@pytest.mark.parametrize("other", [{"env": "Recall-v0"}, {"seed": 7}, {"network": "nature"}])
def test_another_run_in_the_folder_of_a_plan_does_not_count(other: dict[str, Any], tmp_path: Path) -> None:
    """It does not matter what its plan.json says, or whether there is one."""
    suite = read_suite(write_suite(tmp_path))
    plan = plan_runs(suite, tmp_path)[0]
    own = {**plan.settings, "env": plan.env, "seed": plan.seed}
    write_run(plan.folder / "Catch-v0_100", frames=8000, **own)
    check_suite(suite, tmp_path)
    assert plan.is_finished()
    write_run(plan.folder / "Catch-v0_200", frames=8000, **{**own, **other})
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^{plan.folder}: wanted {next(iter(other))}=") as refused:
            check_suite(suite, tmp_path)
        assert len(str(refused.value).splitlines()) == 1
        (plan.folder / PLAN_FILE).write_text(json.dumps(plan._content()))


@pytest.mark.parametrize("content", ["", "[]", "null", '{"settings": 1}', '{"settings": {"env": 3}}', "\x00"])
@pytest.mark.parametrize("name", ["config.json", PLAN_FILE])
def test_a_damaged_file_of_a_run_is_named(name: str, content: str, tmp_path: Path) -> None:
    suite = read_suite(write_suite(tmp_path))
    plan = plan_runs(suite, tmp_path)[0]
    plan.write()
    run = write_run(plan.folder / "Catch-v0_100", **plan.settings, seed=plan.seed)
    path = plan.folder / name if name == PLAN_FILE else run / name
    path.write_text(content)
    for refused in (lambda: check_suite(suite, tmp_path), lambda: load_runs(find_runs([tmp_path]))):
        with pytest.raises(ValueError, match=f"^{path}: wanted "):
            refused()


def test_a_run_with_other_settings_is_not_resumed(tmp_path: Path) -> None:
    plan = plan_runs(read_suite(write_suite(tmp_path)), tmp_path)[0]
    plan.write()
    changed = read_suite(write_suite(tmp_path, common={"network": "mlp", "environment_max_steps": 4000}))
    check_suite(changed, tmp_path)  # no run has started yet
    write_run(plan.folder / "Catch-v0_100", **plan.settings, seed=plan.seed)
    with pytest.raises(ValueError, match=r"wanted environment_max_steps=2000.* got 4000") as error:
        check_suite(changed, tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": None}, "'seeds' is missing"),
        ({"sedes": [1]}, "unknown key 'sedes'; known are about"),
        ({"name": "../x"}, "name: wanted letters"),
        ({"seeds": [1, 1]}, "seeds: wanted a list of different whole numbers"),
        ({"seeds": [1.5]}, "seeds: wanted a list of different whole numbers"),
        ({"seeds": [True]}, "seeds: wanted a list of different whole numbers"),
        ({"seeds": [-1]}, "seed: wanted a whole number"),
        ({"envs": []}, "envs: wanted a list of different environment ids"),
        ({"variants": {}}, "variants: wanted an object"),
        ({"variants": {"a": 3}}, "variants: a: wanted an object of settings, got 3"),
        ({"variants": {"a b": {}, "a+b": {}}}, "got 'a+b', which shares the folder 'a_b' with 'a b'"),
        ({"variants": {"+": {}}}, "got '+', which "),
        ({"variants": {"..": {}}}, "got '..', which gives an empty folder name"),
        ({"variants": {"a": {}, "A": {}}}, "got 'A', which shares the folder 'a' with 'a'"),
        ({"envs": ["my:X-v0", "my/X-v0"]}, "envs: wanted names that differ in letters or digits, got 'my/X-v0', which shares"),
        ({"envs": [".."]}, "got '..', which gives an empty folder name"),
        ({"envs": [["Catch-v0"]]}, "envs: wanted a list of different environment ids"),
        ({"variants": []}, "variants: wanted an object"),
        ({"common": {"seed": 3}}, "common: wanted no seed, because the suite sets it, got 3"),
        ({"common": {"netwrok": "mlp"}}, "common: unknown setting 'netwrok'"),
        ({"common": {"gamma": 2}}, "common: gamma: wanted a discount in [0, 1], got 2"),
        ({"variants": {"a": {"replay_parameters": []}}}, "variants: a: replay_parameters: wanted a JSON list"),
    ],
)
def test_a_bad_file_is_one_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_suite(write_suite(tmp_path, **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_file_that_is_no_suite_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json: wanted a "):
        read_suite(tmp_path / "x.json")
    with pytest.raises(ValueError, match=r"none\.json: wanted a suite file"):
        read_suite(tmp_path / "none.json")


def test_settings_that_the_program_would_refuse_are_refused_before_any_run(tmp_path: Path) -> None:
    suite = read_suite(write_suite(tmp_path, envs=["Catch-v1"]))
    with pytest.raises(ValueError, match=r"Catch-v1, queue: "):
        check_suite(suite, tmp_path)
    suite = read_suite(write_suite(tmp_path, variants={"clips": {"rho_bar": 0.5}}))
    with pytest.raises(ValueError, match=r"Catch-v0, clips: wanted the V-trace clip rho_bar >= c_bar"):
        check_suite(suite, tmp_path)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "tools" / "suites").iterdir()), ids=lambda path: path.name)
def test_the_suites_of_this_repository_can_be_run(path: Path, tmp_path: Path) -> None:
    suite = read_suite(path)
    assert suite.name == path.stem
    quick = {name: {**settings, "network": "impala_shallow"} for name, settings in suite.variants.items()}  # is built fast
    atari = all(env.endswith("NoFrameskip-v4") for env in suite.envs)
    check_suite(replace(suite, variants=quick if atari else suite.variants), tmp_path)
    assert list(tmp_path.iterdir()) == []
