"""Two runs count as equal whatever their files' layout, and as different at the first bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import same_bits
from benchmarks.same_bits import SETTINGS, Parts, first_difference, flags_of, one_sided, read_run
from learner.settings.schema import SHARED
from main import prepare
from tests.support import REPOSITORY

PLAYING = [name for name, setting in SETTINGS.items() if "recording" not in setting]
"""Settings that need no recording."""
ROWS = "seconds,steps,losses/total_loss,charts/SPS,time/worker_env\n"


def network(bias: float = 0.5) -> dict[str, Tensor]:
    return {"torso.weight": torch.arange(6.0).reshape(2, 3), "torso.bias": torch.tensor([1.0, bias])}


def optimizer(moment: float = 0.25) -> dict[str, Any]:
    state = {0: {"step": torch.tensor(3.0), "square_avg": torch.full((2, 3), moment)}}
    return {"state": state, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}


def write_results(
    folder: Path,
    *,
    agent: dict[str, Any] | None = None,
    replayed: dict[str, Any] | None = None,
    cells: str = "1.5,80,0.25,53.0,0.1",
    **changes: Any,
) -> Path:
    """The files of a run as far as they are compared. changes: other keys of the checkpoint."""
    checkpoints = folder / "Catch-v0_1" / "checkpoints"
    checkpoints.mkdir(parents=True)
    counters = {"steps": 80, "updates": 2, "seconds": 1.5}
    generators = {"torch": torch.arange(4, dtype=torch.uint8), "numpy": '{"state": 7}'}
    rest = {"format": 2, "settings": "{}", "counters": counters, "generators": generators, "replay": "checksum", **changes}
    torch.save(
        {**rest, "agent": agent or {"network": network(), "optimizer": optimizer()}}, checkpoints / "update_000000002.pt"
    )
    torch.save({"agent": {}}, checkpoints / "update_000000001.pt")
    kept = {"settings": {"capacity": "5"}, "waiting": {"actions": torch.tensor([[1, 2]])}, "newest": {"0": 4, "1": 5}}
    torch.save({"format": 2, "replay": replayed or kept}, checkpoints / "replay_000000002.pt")
    (folder / "Catch-v0_1" / "metrics.csv").write_text(ROWS + cells + "\n")
    return folder


def compared(tmp_path: Path, **changes: Any) -> str | None:
    """The first difference between the run of `write_results` and one with these changes."""
    old, new = write_results(tmp_path / "old"), write_results(tmp_path / "new", **changes)
    return first_difference(read_run(old), read_run(new), "HEAD")


def test_what_may_differ_between_equal_runs(tmp_path: Path) -> None:
    """Time, settings, the replay's checksum (it covers its settings), and columns of metrics that depend on time."""
    counters = {"steps": 80, "updates": 2, "seconds": 9.5}
    changes = {"counters": counters, "format": 3, "settings": '{"new": 1}', "replay": "other"}
    replayed = {"settings": {"capacity": "6"}, "waiting": {"actions": torch.tensor([[1, 2]])}, "newest": {"0": 4, "1": 5}}
    assert compared(tmp_path, **changes, replayed=replayed, cells="9.5,80,0.25,8.4,0.9") is None


def test_an_agent_may_have_another_layout(tmp_path: Path) -> None:
    """Weights and moments under other names, in other dictionaries, the moments first."""
    renamed = {f"body.{name}": tensor for name, tensor in network().items()}
    agent = {"optimizers": {"network": optimizer()}, "modules": {"network": renamed}}
    assert compared(tmp_path, agent=agent) is None


def test_counters_and_replays_may_have_another_layout(tmp_path: Path) -> None:
    counters = {"progress": {"updates": 2, "steps": 80}}
    replayed = {"replays": [{"newest": {"8": 4, "9": 5}, "queue": {"actions": torch.tensor([[1, 2]])}}]}
    assert compared(tmp_path, counters=counters, replayed=replayed) is None


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            {"agent": {"network": network(0.5 + 2**-24), "optimizer": optimizer()}},
            ["weights", "torso.bias", "[1]", "0.5 at HEAD"],
        ),
        ({"agent": {"network": network(), "optimizer": optimizer(0.26)}}, ["moments", "square_avg", "[0, 0]", "6 of 6"]),
        ({"counters": {"steps": 80, "updates": 3}}, ["counters.updates", "2 at HEAD", "3 here"]),
        ({"generators": {"torch": torch.arange(1, 5, dtype=torch.uint8)}}, ["generators.torch", "[0]", "4 of 4"]),
        ({"generators": {"numpy": '{"state": 8}'}}, ["generators.numpy", "8"]),
        ({"replayed": {"actions": torch.tensor([[1, 3]])}}, ["replay", "actions", "[0, 1]", "2 at HEAD", "3 here"]),
        ({"replayed": {"newest": {"7": 4, "8": 6}}}, ["replay", "newest.8", "5 at HEAD", "6 here"]),
        ({"cells": "1.5,80,0.26,53.0,0.1"}, ["metrics", "losses/total_loss", "record 0", "'0.25' at HEAD", "'0.26' here"]),
        ({"cells": "1.5,80,0.25,53.0,0.1\n2.5,90,0.2,53.0,0.1"}, ["metrics", "1 values at HEAD", "2 here"]),
    ],
)
def test_one_bit_makes_a_difference(changes: dict[str, Any], wanted: list[str], tmp_path: Path) -> None:
    difference = compared(tmp_path, **changes)
    assert difference is not None
    assert all(part in difference for part in wanted), difference


@pytest.mark.parametrize(
    ("was", "value", "equal"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.zeros(2, 3), torch.zeros(3, 2), False),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32), False),
        (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16), True),
        (torch.ones(1).expand(2), torch.ones(2), True),
        (torch.arange(4.0).reshape(2, 2).T, torch.tensor([[0.0, 2.0], [1.0, 3.0]]), True),
        (torch.zeros(0), torch.zeros(0), True),
        (0.0, -0.0, False),
        (1, 1.0, False),
        (True, 1, False),
    ],
)
def test_values_are_equal_to_the_bit(was: Any, value: Any, equal: bool) -> None:
    old, new = ({"weights": {"tensors": [("a", one)]}} for one in (was, value))
    assert (first_difference(old, new, "HEAD") is None) == equal


def test_runs_without_a_common_name_are_not_equal() -> None:
    old: Parts = {"replay": {"frames": [("frames", 1)]}}
    new: Parts = {"replay": {"pictures": [("pictures", 1)]}}
    assert first_difference(old, new, "HEAD") is not None
    empty: Parts = {"moments": {"tensors": []}}
    assert first_difference(empty, empty, "HEAD") is None  # an agent without an optimiser
    assert one_sided(old, new, "HEAD") == " (only at HEAD: replay frames; only here: replay pictures)"
    assert one_sided(old, old, "HEAD") == ""


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"update_\*\.pt"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", PLAYING)
def test_no_setting_depends_on_the_machine(name: str) -> None:
    """Flags that would are given, so nothing has to be chosen that matters in a training without evaluation."""
    job = prepare(["main.py", *flags_of(SETTINGS[name], same_bits.STEPS)])
    unsettled = {setting for setting, field in SHARED.items() if field.setting.auto and job.settings[setting] == "auto"}
    assert unsettled == {"test_environments"}
    assert not job.settings["preflight"]
    assert job.config.training.reproducible


def test_settings_cover_every_kind_of_replay() -> None:
    replays = [
        replay for name in PLAYING for replay in prepare(["main.py", *flags_of(SETTINGS[name], same_bits.STEPS)]).config.replays
    ]
    assert {replay.type for replay in replays} == {"queue", "standard", "elite", "attentive", "circular", "prioritised"}
    assert {replay.retention for replay in replays} == {"fifo", "reservoir"}
    assert {"elite_insertion"} <= {replay.insert_strategy for replay in replays}
    assert {replay.compress for replay in replays} == {False, True}


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["same_bits", *arguments])
    return same_bits.main()


def test_a_line_for_each_setting_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same = read_run(write_results(tmp_path / "same"))
    other = read_run(write_results(tmp_path / "other", counters={"steps": 90}))

    def both(trees: Any, setting: dict[str, Any], steps: int) -> list[Parts]:
        assert (list(trees), steps) == (["HEAD", "the working tree"], 7)
        assert (trees["HEAD"] / "main.py").is_file()
        return [same, other if setting == SETTINGS["elite"] else same]

    monkeypatch.setattr(same_bits, "run_both", both)
    monkeypatch.setattr(same_bits, "record", lambda *_: str(tmp_path))
    assert run_main(monkeypatch, "HEAD", "--steps=7", "--only=queue", "--only=pong") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["queue", "equal"], ["pong", "equal"]]
    assert run_main(monkeypatch, "HEAD", "--steps=7") == 1
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in lines] == list(SETTINGS)
    assert [name for name, word in lines if word != "equal"] == ["elite"]


def test_an_unknown_commit_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_main(monkeypatch, "no_such_commit")
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "'no_such_commit'" in told


def test_settings_are_listed_with_their_flags(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(SETTINGS)
    assert all(f"--environment_max_steps={same_bits.STEPS}" in line for line in lines)


def test_a_tree_that_cannot_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import sys; sys.exit('error: Unknown command line flag')")
    equal, line = same_bits.verdict({"HEAD": tmp_path, "here": tmp_path}, SETTINGS["queue"], 1)
    assert not equal
    assert "HEAD" in line
    assert "Unknown command line flag" in line


def test_the_same_tree_computes_the_same_bits() -> None:
    """The real program, in small."""
    setting = {**SETTINGS["standard"], "replay_fill_fraction": 0.1}
    trees = {"HEAD": REPOSITORY, "the working tree": REPOSITORY}
    first, second = same_bits.run_both(trees, setting, 400)
    assert first_difference(first, second, "HEAD") is None
    assert one_sided(first, second, "HEAD") == ""
    names = {"checkpoint": "numpy", "replay": "behaviour_policy", "metrics": "losses/total_loss"}
    assert all(name in first[kind] for kind, name in names.items())
    assert len(first["weights"]["tensors"]) == 10
    assert len(first["moments"]["tensors"]) == 16
    assert [value for _, value in first["checkpoint"]["steps"]] == [400]
    assert len(first["metrics"]["updates"]) > 2
