"""Ratios above 1 mean that the working tree is better, and each compares two measurements of the same turn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import against
from benchmarks.against import COSTS, KEYS, Figures, below, measure, medians, ratios, table, take_turn
from learner.settings.schema import every_setting
from main import prepare
from tools.termination import REPOSITORY

SLOW = {"c_env": 200.0, "c_act": 100.0, "c_learn": 400.0, "frames/s": 5000.0}
FAST = {"c_env": 100.0, "c_act": 50.0, "c_learn": 200.0, "frames/s": 10000.0}
THROUGHPUT = """
import json, os, pathlib, sys
flags = dict(one.split("=") for one in sys.argv[1:] if "=" in one)
pathlib.Path("seen.json").write_text(json.dumps(sys.argv[1:]))
if "--fails=1" in sys.argv:
    print("error: this tree fails")
    sys.exit(3)
costs = {"c_env_microseconds": 1, "c_act_microseconds": 2, "c_learn_microseconds": 3}
result = {**costs, "achieved_frames_per_second": 4, "cores": 2}
pathlib.Path(flags["--json"]).write_text(json.dumps(result))
"""


def test_above_one_the_working_tree_is_better() -> None:
    assert ratios((SLOW, FAST)) == dict.fromkeys(KEYS, 2.0)
    assert ratios((FAST, SLOW)) == dict.fromkeys(KEYS, 0.5)


def test_the_median_is_over_ratios_of_turns() -> None:
    """A machine that becomes twice as fast after two turns, between trees that are alike but for one turn."""
    turns = [(SLOW, SLOW), (SLOW, FAST), (FAST, FAST)]
    assert medians(turns) == dict.fromkeys(KEYS, 1.0)
    lines = {line.split()[0]: line.split()[1:] for line in table(turns)[1:]}
    assert lines["c_act"] == ["100.0", "50.0", "1.000", "1.000", "2.000", "1.000"]
    assert set(lines) == set(KEYS)


def test_only_what_is_below_the_bar_is_reported() -> None:
    lines = below({"c_env": 0.97, "c_act": 0.98, "frames/s": 1.5}, 0.98)
    assert len(lines) == 1
    assert "c_env" in lines[0]
    assert "0.970" in lines[0]


def test_trees_take_turns_at_being_first(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def fake(tree: Path, settings: Sequence[str], window: float) -> Figures:
        measured.append(tree.name)
        return {"c_env": float(tree.name == "new")}

    monkeypatch.setattr(against, "measure", fake)
    trees = (Path("old"), Path("new"))
    assert [take_turn(trees, number, [], 1.0) for number in range(3)] == [({"c_env": 0.0}, {"c_env": 1.0})] * 3
    assert measured == ["old", "new", "new", "old", "old", "new"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "throughput.py").write_text(THROUGHPUT)
    return tmp_path


def test_a_tree_is_measured_by_its_own_benchmark(tree: Path) -> None:
    found = measure(tree, ["--env=Catch-v0"], 2.5)
    assert found == {"c_env": 1.0, "c_act": 2.0, "c_learn": 3.0, "frames/s": 4.0}
    seen = (tree / "seen.json").read_text()
    assert '"--windows=1", "--window=2.5"' in seen
    assert '"--", "--env=Catch-v0"' in seen


def test_a_tree_that_fails_is_named(tree: Path) -> None:
    with pytest.raises(RuntimeError) as failed:
        measure(tree, ["--fails=1"], 1.0)
    assert "COMMIT" in str(failed.value)
    assert "got 3: error: this tree fails" in str(failed.value)


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["against", *arguments])
    return against.main()


@pytest.mark.parametrize(("new", "bar", "code"), [(0.99, "0.98", 0), (0.97, "0.98", 1), (0.97, "0.9", 0)])
def test_the_exit_code_is_that_of_the_bar(
    new: float, bar: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(tree: Path, settings: Sequence[str], window: float) -> Figures:
        factor = new if tree == REPOSITORY else 1.0
        assert (tree / "main.py").is_file()
        return {name: 100.0 / factor if name in COSTS else 100.0 * factor for name in KEYS}

    monkeypatch.setattr(against, "measure", fake)
    assert run_main(monkeypatch, "HEAD", "--turns=2", f"--bar={bar}") == code
    printed = capsys.readouterr()
    assert printed.out.count(f"{new:.3f}") == 3 * len(KEYS)
    assert printed.err.count("wanted a median ratio") == code * len(KEYS)


def test_how_long_it_takes_is_said_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def begin(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(against, "measure", begin)
    with pytest.raises(KeyboardInterrupt):
        run_main(monkeypatch, "HEAD", "--turns=3", "--window=10", "--", "--gamma=0.5")
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "--gamma=0.5" in told
    assert "about 5:18 on idle cores" in told


def test_a_failure_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no figures")

    monkeypatch.setattr(against, "measure", fail)
    assert run_main(monkeypatch, "HEAD") == 1
    assert capsys.readouterr().err.splitlines()[1:] == ["error: no figures"]


@pytest.mark.parametrize(
    ("arguments", "named"), [(["no_such_commit"], "'no_such_commit'"), (["HEAD", "--", "--gamma=2"], "gamma")]
)
def test_bad_input_is_one_line(
    arguments: list[str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_main(monkeypatch, *arguments)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert named in told


def test_fixed_settings_leave_nothing_to_the_machine_and_can_be_overridden() -> None:
    fixed = [f"--{name}={value}" for name, value in against.FIXED.items()]
    settings = prepare(["main.py", *fixed]).settings
    fitted = {name for name, field in every_setting().items() if field.setting.auto}
    assert {name for name in fitted if settings[name] == "auto"} == {"test_environments"}
    assert prepare(["main.py", *fixed, "--batch_size=32"]).config.training.batch_size == 32
