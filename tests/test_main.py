"""The program as users see it: its commands, its refusals, and how it stops."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from benchmarks.faulty_program import FAULTY_CATCH, FOLDER_VARIABLE
from benchmarks.observed_program import session_of
from learner.metrics.writer import read_metrics
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from learner.signals import SAME_REQUEST
from tests.support import REPOSITORY, catch_flags, run_main, run_program

FAULTY_PROGRAM = "benchmarks.faulty_program"
MIXTURE = '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "standard", "capacity": 100, "sample_ratio": 0.5}]'


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the program in the background. The program and its workers end with the test."""
    with ExitStack() as ends:

        def start_one(
            *arguments: str, module: tuple[str, ...] = ("main.py",), descriptors: int | None = None
        ) -> subprocess.Popen[str]:
            """`python main.py` with these arguments; descriptors: how many files it may open."""
            limit = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh"] if descriptors else []
            program = subprocess.Popen(
                [*limit, sys.executable, *module, *arguments],
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            ends.enter_context(program)
            ends.callback(program.kill)  # before that context waits for it
            return program

        yield start_one


def the_run(results: Path) -> RunDirectory:
    (path,) = [path for path in results.iterdir() if path.name != "latest"]
    return RunDirectory(path)


def test_the_commands_of_the_earlier_platform_run_on_real_pong(tmp_path: Path) -> None:
    results = f"--results_dir={tmp_path}"
    trained = run_program(
        "--op_mode=train",
        "--env=PongNoFrameskip-v4",
        "--environment_max_steps=600",
        "--batch_size=10",
        "--r_f_steps=10",
        "--worker_count=2",
        "--envs_per_worker=2",
        f"--replay_parameters={MIXTURE}",
        "--network=mlp",
        "--frame_scale_resolution=36,36",
        "--max_episode_frames=2000",
        results,
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    run = the_run(tmp_path)
    before = read_metrics(run.metrics)
    settings = json.loads(run.config.read_text())["settings"]
    assert (settings["unroll_length"], settings["batch_size"], settings["worker_count"]) == (10, 10, 2)

    resumed = run_main(
        "--op_mode=train_w_load",
        "--env=PongNoFrameskip-v4",
        "--environment_max_steps=1000",
        "--learner_threads=1",
        f"--load={run.path}",
        results,
    )
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "environment_max_steps=1000" in resumed.stdout
    after = read_metrics(run.metrics)
    assert before["steps"][-1] >= 600
    assert after["steps"][-1] >= 1000
    assert (np.diff(after["updates"]) >= 0).all()

    tested = run_main(
        "--op_mode=test",
        "--env=PongNoFrameskip-v4",
        "--test_episode_count=1",
        "--learner_threads=1",
        f"--load={run.checkpoint_paths()[-1]}",
        "--render=False",
        results,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert re.search(r"mean", tested.stdout)
    (result,) = run.path.glob("evaluation_*.json")
    assert -21 <= json.loads(result.read_text())["summary"]["mean_return"] <= 21


def test_the_earlier_platform_s_two_commands_train_the_same_number_of_steps_each(tmp_path: Path) -> None:
    results = f"--results_dir={tmp_path}"
    replays = MIXTURE.replace('"', "'").replace("standard", "STANDARD")
    small = ("--env=Catch-v0", "--network=mlp", "--multiprocessing_backend", "python_native", "--worker_kind=serial")
    half = ("--environment_max_steps=400", "--learner_thread_count=1", "--basic_verbose", "True", "--debug", "False", results)
    trained = run_main(
        *("--op_mode=train", *small, *half, "--batch_size=10", "--r_f_steps=10", "--worker_count=1", "--envs_per_worker=2"),
        f"--replay_parameters={replays}",
    )
    assert (trained.returncode, trained.stderr) == (0, "")
    assert "debug has no effect" in trained.stdout
    run = the_run(tmp_path)
    for ends in (800, 1200):
        resumed = run_main("--op_mode=train_w_load", *half, f"--load_model_url={run.path}")
        assert (resumed.returncode, resumed.stderr) == (0, "")
        assert "environment_max_steps=400 counts as --more_steps=400" in resumed.stdout
        assert load_checkpoint(run.checkpoint_paths()[-1]).counters.steps == ends
    resumed = run_main(f"--resume={run.path}", "--more-steps", "200", "--learner_threads=1", results)
    assert resumed.returncode == 0, resumed.stderr
    assert load_checkpoint(run.checkpoint_paths()[-1]).counters.steps == 1400
    refused = run_main(f"--resume={run.path}", results)
    assert refused.returncode == 2
    assert "--more_steps=1400" in refused.stderr


def test_a_foreign_checkpoint_and_one_of_other_actions_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.pt"
    foreign.write_bytes(b"not a checkpoint at all")
    refused = run_main("--op_mode=test", f"--load={foreign}")
    assert refused.returncode == 2
    assert "foreign.pt" in refused.stderr
    assert run_main("--op_mode=train", f"--results_dir={tmp_path / 'r'}", *catch_flags()).returncode == 0
    run = the_run(tmp_path / "r")
    kept = sorted(path.name for path in run.checkpoints.iterdir())
    other = run_main("--op_mode=train_w_load", f"--load={run.path}", "--env=PongNoFrameskip-v4")
    assert other.returncode == 2
    assert "3 actions" in other.stderr
    assert sorted(path.name for path in run.checkpoints.iterdir()) == kept


@pytest.mark.usefixtures("heeds_hangup")
@pytest.mark.parametrize(
    ("number", "whole_group"),
    [
        pytest.param(signal.SIGINT, True, id="SIGINT to the group"),  # Ctrl-C
        pytest.param(signal.SIGTERM, False, id="SIGTERM to the program"),  # kill
        pytest.param(signal.SIGHUP, True, id="SIGHUP to the group"),  # a closed terminal
    ],
)
def test_one_signal_saves_and_prints_how_to_resume(
    start: Start, tmp_path: Path, number: signal.Signals, whole_group: bool
) -> None:
    """The signal goes to the program alone, or to it and then to its whole process group, as `timeout` sends it."""
    flags = catch_flags(environment_max_steps=10**9, worker_kind="cpu", worker_count=2)
    program = start("--op_mode=train", f"--results_dir={tmp_path}", *flags, descriptors=256)
    _wait_for_metrics(tmp_path)
    assert_few_descriptors_and_no_room_in_dev_shm([program.pid, *_processes_of(program.pid)])
    asked = time.monotonic()
    program.send_signal(number)
    if whole_group:
        os.killpg(program.pid, number)
    printed, _ = program.communicate(timeout=60)
    assert time.monotonic() - asked < 30
    assert program.returncode == 0, printed
    assert "failure" not in printed
    run = the_run(tmp_path)
    assert len(run.checkpoint_paths()) == 1
    assert f"--op_mode=train_w_load --load={run.path}" in printed
    assert _processes_of(program.pid) == []


def assert_few_descriptors_and_no_room_in_dev_shm(processes: list[int]) -> None:
    """The program, its fork server and two workers run within the limit that they were started with."""
    assert len(processes) >= 4
    for pid in processes:
        assert "/dev/shm" not in Path(f"/proc/{pid}/maps").read_text()
        assert "256" in re.findall(r"Max open files +(\d+)", Path(f"/proc/{pid}/limits").read_text())


def test_a_signal_that_nothing_else_takes_claims_nothing_about_what_was_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("learner.launch.prepare", interrupt)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(REPOSITORY / "main.py"), run_name="__main__")
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Stopped.\n"


def test_a_training_without_standard_streams_ends_well(start: Start, tmp_path: Path) -> None:
    """Nothing that is written to the closed streams may reach a file of the run."""
    command = [
        "sh",
        "-c",
        'exec "$@" <&- >&- 2>&-',
        "sh",
        sys.executable,
        "main.py",
        "--op_mode=train",
        f"--results_dir={tmp_path}",
    ]
    flags = catch_flags(environment_max_steps=10**9, worker_kind="cpu", worker_count=1)
    with subprocess.Popen([*command, *flags], cwd=REPOSITORY, stdout=subprocess.PIPE, start_new_session=True) as program:
        try:
            _wait_for_metrics(tmp_path)
            program.send_signal(signal.SIGTERM)
            program.communicate(timeout=60)
        finally:
            program.kill()
    run = the_run(tmp_path)
    assert program.returncode == 0
    assert len(run.checkpoint_paths()) == 1
    for line in run.log.read_text().splitlines():
        assert re.match(r"\d{4}-\d\d-\d\d .* (DEBUG|INFO|WARNING) ", line), line


def test_another_signal_stops_a_run_that_hangs(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in the learner's own process never returns."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    results = tmp_path / "results"
    flags = catch_flags(env=FAULTY_CATCH, environment_max_steps=10**9, worker_kind="serial")
    program = start("--op_mode=train", f"--results_dir={results}", *flags, module=("-m", FAULTY_PROGRAM))
    _wait_for_metrics(results)
    (tmp_path / "hang").touch()
    _wait_until(lambda: not (tmp_path / "hang").exists())  # it is taken
    program.send_signal(signal.SIGTERM)
    time.sleep(2 * SAME_REQUEST)
    assert program.poll() is None
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    assert program.returncode == 128 + signal.SIGINT
    _wait_until(lambda: _processes_of(program.pid) == [])  # they die with it, not before it


def _wait_for_metrics(results: Path) -> None:
    _wait_until(lambda: bool(list(results.glob("*_*/metrics.csv"))))


def _processes_of(program: int) -> list[int]:
    """Running processes of the session that `program` leads, without itself."""
    return [process for process in session_of(program) if process != program]


def test_too_many_failures_save_and_end_the_run_with_the_first_cause_printed_last(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the environment of the only worker raises an error, then that of its successor hangs."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    flags = catch_flags(env=FAULTY_CATCH, environment_max_steps=10**9, worker_kind="cpu", worker_count=1)
    limits = ("--max_worker_restarts=1", "--worker_timeout=1")
    results = tmp_path / "results"
    program = start("--op_mode=train", f"--results_dir={results}", *limits, *flags, module=("-m", FAULTY_PROGRAM))
    _wait_for_metrics(results)
    run = the_run(results)
    (tmp_path / "raise").touch()
    _wait_until(lambda: "is at work" in run.log.read_text().partition("(failure 1 within an hour")[2])  # the successor
    _wait_until(lambda: read_metrics(run.metrics)["workers/restarts"][-1] == 1)
    (tmp_path / "hang").touch()
    printed, _ = program.communicate(timeout=60)
    assert program.returncode == 1
    lines = printed.strip().splitlines()
    assert lines[-1].startswith("worker 0 failed: RuntimeError: a requested fault (")
    assert lines[-2].startswith("RuntimeError: a requested fault")
    assert any("in raise_error" in line for line in lines[-10:])
    told = [line for line in lines if "within an hour, 1 allowed" in line]
    assert len(told) == 2
    assert re.match(r"worker 0 hung: no step for \d", told[1])
    assert re.search(r"faulty_program.py\", line \d+ in hang", run.log.read_text())
    assert read_metrics(run.metrics)["workers/restarts"][-1] == 1
    assert len(run.checkpoint_paths()) == 1
    assert _processes_of(program.pid) == []


def test_a_checkpoint_does_not_store_settings_fitted_to_the_machine(tmp_path: Path) -> None:
    flags = catch_flags(envs_per_worker="auto", batch_size="auto", learner_threads="auto")
    assert run_main("--op_mode=train", f"--results_dir={tmp_path}", *flags).returncode == 0
    run = the_run(tmp_path)
    used = json.loads(run.config.read_text())["settings"]
    carried = load_checkpoint(run.checkpoint_paths()[-1]).settings
    assert isinstance(used["envs_per_worker"], int)
    assert (carried["envs_per_worker"], carried["learner_threads"], carried["device"]) == ("auto", "auto", "auto")
    assert carried["batch_size"] == used["batch_size"]  # part of what is learned


def test_replays_that_take_the_whole_budget_to_fill_are_refused(tmp_path: Path) -> None:
    """A fifth of 1,000 trajectories of 10 steps is needed."""
    flags = catch_flags(environment_max_steps=2000, replay_parameters=MIXTURE.replace("100", "1000"))
    refused = run_main("--op_mode=train", f"--results_dir={tmp_path}", *flags)
    assert refused.returncode == 2
    assert "wanted more than the 2,000 steps of the 200 trajectories that fill the replays" in refused.stderr
    trained = run_main("--op_mode=train", f"--results_dir={tmp_path}", *flags, "--environment_max_steps=2001")
    assert trained.returncode == 0
    assert "200 trajectories fill the replays before training begins" in trained.stdout


def test_a_second_training_in_the_same_run_directory_is_refused(start: Start, tmp_path: Path) -> None:
    """The first one continues undisturbed. After it was killed, the next may train there."""
    flags = catch_flags(environment_max_steps=10**9, worker_kind="cpu", worker_count=1, checkpoint_period=20)
    first = start("--op_mode=train", f"--results_dir={tmp_path}", *flags)
    _wait_for_metrics(tmp_path)
    run = the_run(tmp_path)
    _wait_until(lambda: bool(run.checkpoint_paths()))
    config = run.config.read_text()
    resume = ("--op_mode=train_w_load", "--load=latest", f"--results_dir={tmp_path}")
    second = run_main(*resume)
    assert second.returncode == 2, second.stdout + second.stderr
    (line,) = second.stderr.strip().splitlines()
    assert line.startswith("error: load: ")
    assert f"process {first.pid} on " in line
    assert "--resume_in=new" in line
    assert run.config.read_text() == config
    first.send_signal(signal.SIGKILL)
    first.wait()
    steps = load_checkpoint(run.checkpoint_paths()[-1]).counters.steps
    again = run_main(*resume, f"--environment_max_steps={steps + 200}")
    assert again.returncode == 0, again.stdout + again.stderr
    assert load_checkpoint(run.checkpoint_paths()[-1]).counters.steps >= steps + 200


def _wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, "not within two minutes"
        time.sleep(0.05)
