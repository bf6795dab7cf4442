"""Runs whose agent is a class in a file of the user's own, with each kind of workers and from one command to the next."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from agents import find_agent
from learner.metrics.writer import read_metrics
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from option_flags import named_agent, with_files
from tests.agents.test_user_agent import HEAD, MINE, MY_PPO
from tests.learner.runs.reproducible import assert_a_kill_changes_nothing
from tests.support import catch_flags, run_main

AGENT = f"{MY_PPO}:MyPPO"


def train(results: Path, *arguments: str, **settings: object) -> RunDirectory:
    given = {"agent": AGENT, "environment_max_steps": 400, "preflight": False, "results_dir": results, **settings}
    done = run_main("--op_mode=train", *catch_flags(**given), *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return RunDirectory((results / "latest").resolve())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run whose command gives the agent's own settings, in two ways of writing them."""
    return train(tmp_path_factory.mktemp("results"), "--penalty-weight", "3", "--squared", "False")


def test_its_settings_are_flags_with_help(run: RunDirectory) -> None:
    assert {name: run.settings[name] for name in ("agent", "penalty_weight", "squared")} == {
        "agent": AGENT,
        "penalty_weight": 3.0,
        "squared": False,
    }
    assert "losses/penalty" in read_metrics(run.metrics)
    for arguments in (["--agent", AGENT], ["--op_mode=test", f"--load={run.path}"]):
        done = run_main("--help", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "  --penalty_weight=0.01  Weight of the penalty on logits. Wanted: a weight >= 0." in done.stdout
    assert "--penalty_weight" not in run_main("--help").stdout
    refused = run_main(f"--agent={AGENT}", "--penalty_weight=10")
    assert (refused.returncode, refused.stderr) == (2, "error: penalty_weight: wanted a weight >= 0, at most 9, got 10.0\n")


def test_commands_that_load_it_need_not_name_it(run: RunDirectory, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run.path, copied)
    done = run_main("--resume", str(copied), "--more_steps", "400", "--penalty_weight=2", f"--results_dir={tmp_path}")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    newest = load_checkpoint(RunDirectory(copied).checkpoint_paths()[-1])
    assert (newest.settings["penalty_weight"], newest.settings["squared"], newest.counters.steps) == (2.0, False, 800)
    assert run_main("--op_mode=test", f"--load={copied}", "--test_episode_count=2").returncode == 0
    assert run_main("--op_mode=export", f"--load={copied}").returncode == 0
    assert list(copied.glob("evaluation_*.json"))


def test_the_agent_of_a_command_is_that_of_its_run_its_preset_or_the_command(run: RunDirectory, tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("--agent=dqn\n")
    for arguments, wanted in (
        ([], "vtrace"),
        (["--agent", "sac"], "sac"),
        (["--seed", "3", "--agent=sac"], "sac"),
        (["--preset=ppo_cartpole"], "ppo"),
        ([f"--flagfile={file}"], "dqn"),
        ([f"--load={run.path}"], "vtrace"),
        ([f"--resume={run.path}"], AGENT),
        (["--op_mode=test", f"--load={run.checkpoint_paths()[-1]}"], AGENT),
        (["--op_mode=test", f"--results_dir={run.path.parent}"], AGENT),
        (["--op_mode=test", f"--load={tmp_path}/none"], "vtrace"),
    ):
        assert named_agent(with_files(["main.py", *arguments])) == wanted, arguments


def test_its_file_may_move(run: RunDirectory, tmp_path: Path) -> None:
    moved = tmp_path / "moved.py"
    shutil.copy(MY_PPO, moved)
    checkpoint = f"--load={run.checkpoint_paths()[-1]}"
    tested = run_main("--op_mode=test", checkpoint, f"--agent={moved}:MyPPO", "--test_episode_count=1")
    assert (tested.returncode, tested.stderr) == (0, "")
    other = run_main("--op_mode=test", checkpoint, f"--agent={moved}:Graphed")
    assert (other.returncode, other.stderr) == (2, f"error: agent: wanted {AGENT} as in the checkpoint, got {moved}:Graphed\n")


def test_a_file_that_is_gone_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    shutil.copy(MY_PPO, mine)
    run = train(tmp_path / "results", agent=f"{mine}:MyPPO")
    files = sorted(run.path.rglob("*"))
    del sys.modules[find_agent(f"{mine}:MyPPO").__module__]  # as in another process
    mine.unlink()
    done = run_main("--op_mode=train_w_load", f"--load={run.path}", "--environment_max_steps=800")
    assert done.returncode == 2
    assert done.stderr == f"error: agent {mine}:MyPPO: wanted a file that exists, got {mine}\n"
    assert sorted(run.path.rglob("*")) == files


@pytest.mark.parametrize("name", ["seed", "learning_rate", "debug", "op_mode", "flagfile"])
def test_a_setting_whose_name_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine.py"
    config = f"@dataclass(frozen=True)\nclass Config(PPOConfig):\n    {name}: Annotated[int, Setting('Mine.')] = 1\n\n"
    mine.write_text(HEAD + config + MINE)
    done = run_main(f"--agent={mine}:Mine")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {name}: wanted another name for a setting of agent {mine}:Mine")


def test_a_setting_that_another_agent_has_may_be_of_another_type(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    rho = "rho_bar: Annotated[str, Setting('Mine.', choices=('low', 'high'))] = 'low'"
    mine.write_text(f"{HEAD}@dataclass(frozen=True)\nclass Config(PPOConfig):\n    {rho}\n\n{MINE}")
    assert train(tmp_path / "results", agent=f"{mine}:Mine", rho_bar="high").settings["rho_bar"] == "high"


@pytest.mark.parametrize(
    "settings",
    [{"worker_kind": "central"}, {"worker_kind": "cpu", "learner_count": 2, "eval_period": 5, "eval_episodes": 1}],
    ids=["central", "two learners and evaluations"],
)
def test_all_processes_find_the_class(settings: dict[str, object], tmp_path: Path) -> None:
    columns = read_metrics(train(tmp_path, worker_count=1, calibrate_input=False, **settings).metrics)
    assert np.nanmin(columns["losses/penalty"]) > 0
    assert ("eval/episodic_return" in columns) == ("eval_period" in settings)


def test_a_killed_and_resumed_run_gives_the_same_bits(tmp_path: Path) -> None:
    settings = {
        "agent": AGENT,
        "batch_size": 8,
        "worker_count": 2,
        "unroll_length": 6,
        "reproducible": True,
        "penalty_weight": 0.5,
        "epochs": 2,
        "environment_max_steps": 960,
        "checkpoint_period": 10,
        "return_window": 2,
        "log_period": 1e5,
    }
    assert_a_kill_changes_nothing(tmp_path, **settings)
