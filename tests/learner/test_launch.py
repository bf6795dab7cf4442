"""A run resumes in its own directory or a new one, and log lines say which. A failure is one line."""

from __future__ import annotations

import errno
import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.vtrace.agent import VTraceAgent
from checked_files import LOCK_NAME
from learner import launch, parts, prepare
from learner.metrics import recorder
from learner.metrics.writer import read_metrics
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from learner.runs.lock import locked
from learner.skipping import SkippedUpdates
from tests.learner.launching import MIXTURE, command, resume, trained
from workers.processes.out_of_memory import describe


def test_a_run_resumes_in_its_own_directory_and_keeps_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path)
    before = json.loads(run.config.read_text())
    again, _ = resume(run, capsys)
    assert again.path == run.path
    assert json.loads((run.path / "config_1.json").read_text()) == before
    now = json.loads(run.config.read_text())
    assert (now["settings"]["environment_max_steps"], now["parent"]) == (600, None)


def test_a_run_resumes_in_a_new_directory_that_names_its_parent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path)
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    again, _ = resume(run, capsys, resume_in="new")
    assert again.path != run.path
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == files
    parent = run.checkpoint_paths()[-1]
    assert json.loads(again.config.read_text())["parent"] == str(parent)
    assert load_checkpoint(again.checkpoint_paths()[-1]).counters.steps >= 600
    steps = read_metrics(again.metrics)["steps"]
    assert steps[0] > load_checkpoint(parent).counters.steps
    assert load_checkpoint(again.checkpoint_paths()[-1]).settings["resume_in"] == "new"
    assert resume(again, capsys, environment_max_steps=700)[0].path == again.path  # it belongs to a command, not to a run


def test_a_locked_run_resumes_only_in_a_new_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path)
    given = {"load": str(run.path), "environment_max_steps": 600}
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with locked(run.path):
        with pytest.raises(ValueError, match="--resume_in=new"):
            command(tmp_path, "train_w_load", **given)
        with monkeypatch.context() as patch:
            patch.setattr(prepare, "check_run_folder", lambda run: None)  # the other one starts after the check
            job = command(tmp_path, "train_w_load", **given)
        assert launch.run(job) == 2
        assert "--resume_in=new" in capsys.readouterr().out.splitlines()[-1]
        again, _ = resume(run, capsys, resume_in="new")
    assert again.path != run.path
    now = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != LOCK_NAME}
    assert now == {path: content for path, content in files.items() if path.name != LOCK_NAME}


def test_the_best_is_tested_by_its_name(tmp_path: Path) -> None:
    run = trained(tmp_path, return_window=5, checkpoint_period=2, checkpoints_kept=1)
    job = command(tmp_path, "test", load=f"{run.path}/best")
    assert job.checkpoint_path == run.best
    assert job.checkpoint is not None
    assert len(job.checkpoint.returns) == 5


SHARED_WEIGHTS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.first = nn.Linear(shape[0] * shape[1] * shape[2], 128)
        self.blocks = nn.ModuleList([nn.Linear(128, 128)] * 8)

    def forward(self, inputs):
        features = torch.relu(self.first(inputs.flatten(1)))
        for block in self.blocks:
            features = torch.relu(block(features))
        return features
"""


def test_a_network_that_shares_weights_is_resumed_and_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_net.py").write_text(SHARED_WEIGHTS)
    run = trained(tmp_path, network=f"{tmp_path / 'my_net.py'}:Net")
    weights = load_checkpoint(run.checkpoint_paths()[-1]).agent["modules"]["network"]
    blocks = [weights[name] for name in weights if name.startswith("torso.module.blocks") and name.endswith("weight")]
    assert len(blocks) == 8
    again, said = resume(run, capsys)
    assert "Resuming from" in said
    assert launch.run(command(tmp_path, "test", load=str(again.path), test_episode_count=2)) == 0


def test_a_damaged_newest_checkpoint_is_skipped_and_renamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, checkpoint_period=2)
    older, newest = run.checkpoint_paths()[-2:]
    newest.write_bytes(newest.read_bytes()[:-100])
    _, said = resume(run, capsys)
    (line,) = [line for line in said.splitlines() if "skipped " in line]
    assert str(newest) in line
    assert f"Resuming from {older}" in said
    assert "now end at step 600 instead of 300" in said
    assert newest.with_name(f"left_behind_{newest.name}").is_file()


def test_a_path_that_is_not_utf8_trains_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TensorBoard takes no such path, which one line says. All other files are written."""
    results = tmp_path / os.fsdecode(b"results_\xff")
    run = trained(results, replay_parameters=MIXTURE, save_replay=True, log_period=0.01)
    said = capsys.readouterr().out
    escaped = str(run.path).encode(errors="backslashreplace").decode()
    assert f"Run directory: {escaped}" in said
    assert f"Run directory: {escaped}" in run.log.read_text()
    assert said.count("TensorBoard takes only paths in UTF-8") == 1
    assert read_metrics(run.metrics)["steps"][-1] >= 300
    _, said = resume(run, capsys)
    assert load_checkpoint(run.checkpoint_paths()[-1]).counters.steps >= 600
    assert "replay_0" in said


def test_a_reproducible_run_warns_if_it_resumes_from_one_that_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, save_replay=True, prepared_batches=0)
    _, said = resume(run, capsys, reproducible=True)
    assert "bit-identical (the environments were not saved" in said


def test_a_saved_state_of_other_workers_ends_the_run_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, reproducible=True)
    given = {"environment_max_steps": 600, "envs_per_worker": 3, "load": str(run.path)}
    assert launch.run(command(tmp_path, "train_w_load", **given)) == 1
    assert "[worker_count, envs_per_worker] [1, 3]" in capsys.readouterr().out.splitlines()[-1]


def test_a_run_directory_without_room_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    job = command(tmp_path, "train")
    monkeypatch.setattr(RunDirectory, "write_config", full)
    assert launch.run(job) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("error: the run directory could not be written")


def test_a_failed_last_save_ends_the_run_with_exit_code_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("learner.runs.checkpoint.torch.save", full)
    assert launch.run(command(tmp_path, "train", checkpoint_period=5)) == 1
    said = capsys.readouterr().out.splitlines()
    assert sum("was not saved: No space left on device" in line for line in said) == 2  # after 5 updates of 8, and last
    assert said[-1] == "error: the last checkpoint could not be saved: No space left on device"
    assert not [line for line in said if "--load=" in line]


def test_processes_that_cannot_be_started_are_one_line_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_process() -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(launch.launcher, "start_fork_server", no_process)
    assert launch.run(command(tmp_path, "train", worker_kind="cpu")) == 1
    assert capsys.readouterr().out == "error: the run's processes could not be started: Resource temporarily unavailable\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError(), RuntimeError("can't allocate memory: 7 bytes")]
)
@pytest.mark.parametrize("place", ["EarlyProcesses", "load_saved_replay"])
def test_too_little_memory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, place: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(launch, place, fail)
    assert launch.run(command(tmp_path, "train")) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error")]
    assert lines == [launch.OUT_OF_MEMORY % describe(error)]


def test_progress_is_logged_now_and_then_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While replays are filled, and while the run trains."""
    monkeypatch.setattr(recorder, "SHOW_PERIOD", 0.01)
    fills = [{"type": "standard", "capacity": 2000, "sample_ratio": 1.0}]
    settings = {"environment_max_steps": 9000, "log_period": 0.05, "replay_parameters": json.dumps(fills)}
    assert launch.run(command(tmp_path, "train", progress_period=0.05, **settings)) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\nfilling replays: \d+ of 400 trajectories \| [\d,]+ steps/s \| left 0:0\d\n", printed)
    assert re.search(r"\n(no episode yet|return .*) \| steps [\d,]+ of 9,000 \|", printed)
    assert launch.run(command(tmp_path, "train", **settings)) == 0
    assert " of 400 trajectories |" not in (printed := capsys.readouterr().out)
    assert " of 9,000 |" not in printed


@pytest.mark.parametrize(("variable", "wanted"), [("", "g\\+\\+"), ("no-such-compiler -O2", "no-such-compiler -O2")])
def test_compiling_without_a_compiler_is_refused(
    variable: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", variable)
    with pytest.raises(ValueError, match=f"^compile: wanted a compiler .*, got a machine without {wanted}$"):
        command(tmp_path, "train", compile=True)
    command(tmp_path, "train", compile=False)


def test_cloned_values_want_rewards_of_a_fixed_scale_only_for_training(tmp_path: Path) -> None:
    both: dict[str, Any] = {"use_value_cloning_loss": True, "normalise_rewards": True, "clip_rewards": False}
    line = "^use_value_cloning_loss: wanted rewards of a fixed scale, .*, got normalise_rewards; .*--nouse_value_cloning_loss"
    with pytest.raises(ValueError, match=line):
        command(tmp_path, "train", **both)
    run = trained(tmp_path, **{**both, "use_value_cloning_loss": False})
    with pytest.raises(ValueError, match=line):
        command(tmp_path, "train_w_load", load=str(run.path), environment_max_steps=600, use_value_cloning_loss=True)
    for mode in ("test", "export"):  # checkpoints of earlier versions may have both
        job = command(tmp_path, mode, load=str(run.path), use_value_cloning_loss=True)
        assert job.settings["normalise_rewards"]
        assert job.settings["use_value_cloning_loss"]


@pytest.mark.parametrize("after_the_last_save", [True, False])
def test_a_signal_outside_the_loop_names_the_newest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, after_the_last_save: bool
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*((recorder.MetricsRecorder, "close") if after_the_last_save else (parts, "make_mixture")), interrupt)
    assert launch.run(command(tmp_path, "train")) == 130
    run = RunDirectory((tmp_path / "latest").resolve())
    last = capsys.readouterr().out.splitlines()[-1]
    if after_the_last_save:
        assert last.endswith(f"{run.checkpoint_paths()[-1]}.")
    else:
        assert last == "Stopped. No checkpoint was saved."


@pytest.mark.parametrize("works_afterwards", [True, False])
def test_a_gpu_that_is_full_ends_the_run_with_one_line_and_what_can_be_saved(
    works_afterwards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update, made = VTraceAgent.update, []

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore of it")

    def fail_after_some(agent: VTraceAgent, *arguments: Any) -> Any:
        if len(made) == 5:
            if not works_afterwards:
                monkeypatch.setattr(SkippedUpdates, "look", fail)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
        made.append(agent)
        return update(agent, *arguments)

    monkeypatch.setattr(VTraceAgent, "update", fail_after_some)
    assert launch.run(command(tmp_path, "train")) == 1
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[-1].startswith("error: the GPU's memory is full; use a smaller --batch_size")
    assert lines[-1].endswith("Tried to allocate 3.00 GiB.")
    run = RunDirectory((tmp_path / "latest").resolve())
    if works_afterwards:
        assert load_checkpoint(run.checkpoint_paths()[-1]).counters.updates == 5
        assert str(run.path) in lines[-2]
    else:
        assert lines[-2].startswith("error: the last checkpoint could not be saved: CUDA error: an illegal memory access")


def test_flags_that_a_mode_does_not_use_are_noted(tmp_path: Path) -> None:
    unused = {"load": "/nowhere", "load_optimizer": True, "resume_in": "same"}
    unused |= {"render": True, "test_episode_count": 3, "test_environments": 2}
    assert command(tmp_path, "train", greedy=True, eval_period=5).notes == []
    notes = command(tmp_path, "train", **unused).notes
    assert [line.split()[0] for line in notes] == list(unused)
    assert notes[0] == (
        "load is not used by --op_mode=train, which starts a new run; --op_mode=train_w_load resumes one from a checkpoint"
    )
    assert notes[3] == "render is not used by --op_mode=train, which plays no test games; --op_mode=test does"
    run = trained(tmp_path)
    modes = {"train_w_load": 3, "test": 2, "export": 5}  # how many of them each does not use
    for mode, count in modes.items():
        given = {**unused, "load": str(run.path), "environment_max_steps": 600}
        lines = [line for line in command(tmp_path, mode, **given).notes if "is not used by" in line]
        assert len(lines) == count, lines
        assert all(f"--op_mode={mode}, " in line for line in lines)


def test_unused_settings_of_a_preset_are_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.settings.presets.load_preset", lambda name: {"test_episode_count": 3})
    assert command(tmp_path, "train").notes == []


@pytest.mark.parametrize(
    ("given", "scaled"),
    [
        ({}, True),
        ({"agent": "ppo"}, True),
        ({"agent": "a2c", "env": "Pendulum-v1"}, True),
        ({"env": "envpool:CartPole-v1"}, True),
        ({"agent": "dqn"}, False),
        ({"agent": "sac", "env": "Pendulum-v1"}, False),
        ({"clip_rewards": True}, False),
        ({"normalise_rewards": False}, False),
        ({"use_value_cloning_loss": True}, False),  # which is refused with it
        ({"env": "PongNoFrameskip-v4"}, False),
        ({"env": "PongNoFrameskip-v4", "clip_rewards": False}, False),
        ({"env": "Catch-v0"}, False),
        ({"replay_parameters": '[{"type": "standard", "capacity": 50, "sample_ratio": 1.0}]'}, False),  # no fresh trajectories
        ({"preset": "ppo_cartpole"}, False),
    ],
)
def test_actor_critic_agents_scale_rewards_of_any_size(given: dict[str, Any], scaled: bool) -> None:
    if str(given.get("env")).startswith("envpool") and not find_spec("envpool"):
        pytest.skip("wanted the package envpool")
    job = launch.prepare("train", {"env": "CartPole-v1", **given}, ["main.py"])
    assert job.config.settings["normalise_rewards"] is scaled
    assert any(line.startswith("normalise_rewards=True (usual for ") for line in job.notes) == scaled


def test_a_run_without_a_preset_is_told_of_one() -> None:
    given = {"env": "CartPole-v1", "agent": "ppo"}
    hint = "--preset=ppo_cartpole has measured settings for CartPole-v1 with agent ppo"
    assert hint in launch.prepare("train", given, ["main.py"]).notes
    assert hint not in launch.prepare("train", {**given, "preset": "ppo_cartpole"}, ["main.py"]).notes


def test_a_run_from_before_resumes_with_raw_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, env="CartPole-v1", frames_stacked=1, clip_rewards=False, normalise_rewards=False)
    assert "normalise_rewards" not in resume(run, capsys)[1]


def test_settings_of_a_core_and_of_rewards_that_there_are_not_are_noted(tmp_path: Path) -> None:
    given = {"core_size": 64, "core_memory": 5, "predictor_share": 0.5}
    notes = ["core_size is not used without --core", "core_memory is not used without --core"]
    assert command(tmp_path, "train", **given).notes == [*notes, "predictor_share is not used without --intrinsic"]
    assert command(tmp_path, "train", **given, core="gru", intrinsic="rnd").notes == []


@pytest.mark.parametrize(
    ("agent", "given", "without"),
    [
        ("dqn", {"quantiles": 32}, "without --return_distribution=qrdqn"),
        ("dqn", {"munchausen_weight": 0.5}, "without --munchausen"),
        ("pqn", {"q_lambda": 0.5, "retrace_lambda": 1.0}, "with --retrace_lambda"),
        ("ppo", {"popart_rate": 0.1}, "without --popart"),
        ("vtrace", {"rmsprop_eps": 0.1, "optimizer": "adam"}, "without --optimizer=rmsprop"),
    ],
)
def test_settings_that_another_one_switches_off_are_noted(
    tmp_path: Path, agent: str, given: dict[str, Any], without: str
) -> None:
    assert f"{next(iter(given))} is not used {without}" in command(tmp_path, "train", agent=agent, **given).notes


def test_deviations_of_a_policy_without_any_are_noted(tmp_path: Path) -> None:
    given = {"env": "Reach-v0", "frames_stacked": 1, "log_std": "network", "initial_log_std": -1.0}
    assert command(tmp_path, "train", **given).notes == []
    beta = "is not used with the distribution beta, which has no standard deviations"
    notes = [f"log_std {beta}", f"initial_log_std {beta}"]
    assert command(tmp_path, "train", **given, action_distribution="beta").notes == notes
    (note,) = command(tmp_path, "train", initial_log_std=-1.0).notes
    assert note.startswith("initial_log_std is not used with the distribution categorical")


def test_an_optimizer_that_starts_anew_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path)
    note = "load_optimizer=False (the optimiser's moments start at zero)"
    assert note not in resume(run, capsys)[1]
    assert note in resume(run, capsys, load_optimizer=False, environment_max_steps=900)[1]


def test_the_log_file_begins_with_the_first_console_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "Training on Catch-v0"
    assert said[1].startswith("  device=")
    written = [line.split(" INFO ", 1)[1] for line in run.log.read_text().splitlines() if " INFO " in line]
    assert written == said


def test_an_export_names_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path)
    capsys.readouterr()
    monkeypatch.setattr("learner.export.export.export_policy", lambda *_: 0)
    assert launch.run(command(tmp_path, "export", load=str(run.path))) == 0
    assert capsys.readouterr().out.splitlines()[0] == "Exporting the policy for Catch-v0"
