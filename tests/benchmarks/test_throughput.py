"""The program is compared with the costs of its parts at the same time, and its suspensions do not count."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import throughput
from benchmarks.measured_program import MeasuredProgram
from benchmarks.sb3 import Sb3Job
from benchmarks.throughput import NATIVE, Parts, compare, take_turns
from learner import launch
from learner.machine.costs import Costs
from learner.settings.config import AUTO, Config
from main import prepare
from tests.support import REPOSITORY, small_config, small_plan
from tools.termination import ENDLESS

HALF = '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "standard", "capacity": 40, "sample_ratio": 0.5}]'
SLOW = {"c_env": 2e-3, "c_act": 1e-3, "c_learn": 1e-3, NATIVE: 1e-3}
FAST = {"c_env": 1e-3, "c_act": 5e-4, "c_learn": 5e-4, NATIVE: 5e-4}
WORKS = """
import pathlib, sys, time
flags = dict(flag.lstrip("-").split("=") for flag in sys.argv[1:])
rows = pathlib.Path(flags["results_dir"]) / "Toy_1" / "metrics.csv"
rows.parent.mkdir()
started, steps, text = time.monotonic(), 0, "seconds,steps\\n"
while True:
    time.sleep(0.01)
    steps += 10
    text += f"{time.monotonic() - started},{steps}\\n"
    new = rows.with_suffix(".new")
    new.write_text(text)
    new.replace(rows)
"""


def program(code: str, start_seconds: float = 60.0) -> MeasuredProgram:
    return MeasuredProgram([sys.executable, "-c", code], start_seconds=start_seconds)


def test_each_window_is_compared_with_the_measurements_around_it() -> None:
    """The machine becomes twice as fast, and the program always reaches 0.8 of the limit."""
    limits = [2 / 4e-3, 2 / 3e-3, 2 / 2e-3]
    found = compare([0.8 * limit for limit in limits], [SLOW, SLOW, FAST, FAST], 2, 4, gpu=False)
    assert found["windows_ratio_to_limit"] == [0.8] * 3
    assert found["ratio_to_limit"] == pytest.approx(0.8)
    assert found["limit_frames_per_second"] == pytest.approx(4 * limits[1])
    assert found["achieved_frames_per_second"] == pytest.approx(3.2 * limits[1])
    assert found["c_env_microseconds"] == pytest.approx(1500)
    assert found["native_frames_per_second"] == pytest.approx(4 / 7.5e-4)
    assert found["cores_together"] == pytest.approx(1.0)
    assert found["ratio_to_native"] == pytest.approx(0.8 * limits[1] * 7.5e-4)


def test_with_a_gpu_only_stepping_limits() -> None:
    found = compare([800.0], [FAST, FAST], 2, 4, gpu=True)
    assert found["ratio_to_limit"] == pytest.approx(800 * 1e-3 / 2)
    assert found["limit"] == "n / c_env"


def test_parts_are_measured_before_between_and_after_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Spoken:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: said.append(name) or 1.0

    speeds, costs = take_turns(Spoken(), Spoken(), 2, 1.0)
    turn = ["steps_per_second", "suspend", "measure"]
    assert said == ["suspend", "measure", *turn, *turn]
    assert (len(speeds), len(costs)) == (2, 3)


def test_the_time_of_a_suspension_does_not_count() -> None:
    with program(WORKS) as working:
        working.warm_up(0.1)
        working.suspend()
        stands = working._newest_row()
        time.sleep(2.0)
        assert working._newest_row() == stands
        assert 300 < working.steps_per_second(0.5, settle=0.05) <= 1000  # 200 with the suspension


def test_the_measurements_and_their_duration_are_printed_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are printed before anything is measured. Another window adds its own time and that of the parts after it."""

    def begin(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "measure_costs", begin)
    with pytest.raises(KeyboardInterrupt):
        throughput.measure(["--worker_kind=cpu", "--network=mlp"], 5, 10.0)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "5 x 10 s of main.py --op_mode=train --worker_kind=cpu --network=mlp" in printed
    assert "about 2:21 on idle cores" in printed
    around = 8.0 + throughput.SETTLE_SECONDS + throughput.ROW_SECONDS + 4 * throughput.PART_SECONDS
    assert throughput.seconds_needed(12, 8.0) - throughput.seconds_needed(2, 8.0) == pytest.approx(10 * around)


@pytest.mark.parametrize(
    "arguments", [["--preset=pong_fast"], ["--protocol=machado", "--envs_per_worker=4"], ["--preset=quick"]]
)
def test_the_parts_and_the_program_have_the_same_settings(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Config] = []
    started: list[list[str]] = []

    def start(command: list[str]) -> None:
        started.append(command)
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "measure_costs", lambda *_, **__: Costs(1e-4, 1e-4, 9e-5, 1e-4, 4))
    monkeypatch.setattr(throughput, "Parts", lambda plan, _: built.append(plan.config))
    monkeypatch.setattr(throughput, "MeasuredProgram", start)
    with pytest.raises(KeyboardInterrupt):
        throughput.measure(arguments, 1, 1.0)
    alone, started_with = prepare(["main.py", *arguments]), prepare([*started[0][1:], ENDLESS])
    names = ("env", "network", "agent_settings", "replays", "workers", "training")
    (parts,) = built
    assert [getattr(parts, name) for name in names] == [getattr(started_with.config, name) for name in names]
    for name in ("env", "agent_settings", "replays"):
        assert getattr(parts, name) == getattr(alone.config, name)
    for name in ("envs_per_worker", "batch_size", "learner_threads"):
        if alone.settings[name] != AUTO:
            assert started_with.settled[name] == alone.settings[name]


def test_replays_without_a_queue_are_one_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    replayed = '--replay_parameters=[{"type": "standard", "capacity": 100, "sample_ratio": 1.0}]'
    with pytest.raises(SystemExit) as ended:
        throughput.measure([replayed], 1, 1.0)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: replay_parameters: wanted a queue ")
    assert printed.count("\n") == 1


def test_a_program_that_ends_by_itself_is_an_error_with_its_exit_code() -> None:
    with program("raise SystemExit(3)") as ended, pytest.raises(RuntimeError, match="ended by itself with code 3"):
        ended.warm_up(0.1)


def test_a_program_without_metrics_is_an_error() -> None:
    with program("import time; time.sleep(60)", 0.2) as silent, pytest.raises(RuntimeError, match="no row of metrics within"):
        silent.warm_up(0.1)


def test_a_program_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    with program(WORKS) as working:
        working.warm_up(0.0)
        working.suspend()
        pid, folder = working._process.pid, working._folder.name
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not Path(folder).exists()


def test_learning_is_counted_per_fresh_step() -> None:
    class Second:
        def seconds_a_step(self, budget: float) -> float:
            return 1.0

    for given, wanted in (({}, 1.0), ({"replay_parameters": HALF}, 2.0)):
        parts = Parts(small_plan(**given), 1)
        assert sorted(parts._parts) == sorted(SLOW)
        parts._parts = dict.fromkeys(SLOW, Second())
        assert parts.measure(0.1) == {**dict.fromkeys(SLOW, 1.0), "c_learn": wanted}


def test_a_central_policy_acts_for_one_group_of_every_worker() -> None:
    parts = Parts(small_plan(worker_kind="central", worker_count=3, envs_per_worker=8), 1)._parts
    assert (parts["c_env"].steps, parts["c_act"].steps) == (8, 12)
    assert Parts(small_plan(worker_kind="cpu", worker_count=3, envs_per_worker=8), 1)._parts["c_act"].steps == 8


def test_parts_compute_in_one_thread() -> None:
    torch.set_num_threads(2)
    Parts(small_plan(), 1)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, ""), (signal.SIGINT, "Stopped before the end.\n")])
def test_a_stopped_benchmark_leaves_no_program(number: signal.Signals, said: str) -> None:
    script = (
        "import sys, time; from tools.termination import end_with, unwind_when_terminated;"
        "from benchmarks.measured_program import MeasuredProgram\n"
        "def main():\n"
        "    unwind_when_terminated()\n"
        "    with MeasuredProgram([sys.executable, '-c', 'import time; time.sleep(600)']) as program:\n"
        "        print(program._process.pid, flush=True); time.sleep(600)\n"
        "end_with(main)"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    benchmark = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, text=True, **pipes)  # type: ignore[call-overload]
    pid = int(benchmark.stdout.readline())
    try:
        os.kill(pid, 0)
        benchmark.send_signal(number)
        _, printed = benchmark.communicate(timeout=30)
        assert (benchmark.returncode, printed) == (128 + number, said)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        benchmark.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_only_environments_that_sb3_makes_are_compared_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def measure_sb3(*arguments: object) -> float:
        asked.append(arguments)
        return 500.0

    monkeypatch.setattr(throughput, "is_installed", lambda: True)
    monkeypatch.setattr(throughput, "measure_sb3", measure_sb3)
    assert throughput.compare_with_sb3(small_config(), 1000.0, 3.0) == {}
    found = throughput.compare_with_sb3(small_config(env="CartPole-v1", envs_per_worker=6), 1000.0, 3.0)
    assert found == {
        "sb3_a2c_8_envs_steps_per_second": 500.0,
        "ratio_to_sb3_a2c_8_envs": 2.0,
        "sb3_a2c_as_many_envs_steps_per_second": 500.0,
        "ratio_to_sb3_a2c_as_many_envs": 2.0,
    }
    assert asked == [(Sb3Job("A2C", "CartPole-v1", envs), 3.0) for envs in (8, 6)]
    monkeypatch.setattr(throughput, "is_installed", lambda: False)
    assert throughput.compare_with_sb3(small_config(env="CartPole-v1"), 1000.0, 3.0) == {}
