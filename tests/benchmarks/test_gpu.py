"""The parts of the GPU benchmark that run without a GPU."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.gpu_parts import Result, config_of, half_replayed, replaying, stepping_together
from learner.machine.detect import Machine
from tests.support import REPOSITORY


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_half_replayed_batches_are_learned_from(place: str) -> None:
    """The learner's device is the CPU here, also for a replay on `cuda`."""
    arguments = Namespace(env="Catch-v0", network="mlp", device="cpu", batch_size=8)
    config = config_of(arguments, Machine(2, 8 * 10**9, None), replay_parameters=half_replayed(place))
    assert [replay.device for replay in config.replays] == ["cpu", place]
    result = replaying(config, 0.1)
    assert result["updates_per_second"] == pytest.approx(1e3 / result["milliseconds"])


def test_processes_that_only_step_do_it_at_the_same_time() -> None:
    arguments = Namespace(env="Catch-v0", network="mlp", device="cpu", batch_size=8)
    config = config_of(arguments, Machine(2, 8 * 10**9, None))
    result = stepping_together(config, 4, 2, 0.1)
    assert result["steps_per_second"] > 1000
    assert result["microseconds_a_step"] == pytest.approx(2e6 / result["steps_per_second"])


@pytest.mark.parametrize(("workers", "wanted"), [(1, 2000), (8, 16_000), (16, 23_000)])
def test_the_limit_is_what_the_cores_can_step(workers: int, wanted: float, tmp_path: Path) -> None:
    """Many workers share what is less than as many cores alone: two threads of a core, or the clock of a busy processor."""
    experiment = gpu.Experiment(tmp_path, 60, Machine(16, 128 * 10**9, None), "cpu")
    for name, speed in ((gpu.ALONE, 2000.0), (gpu.TOGETHER, 23_000.0)):
        experiment.measure(name, lambda speed=speed: {"steps_per_second": speed}, 1)
    assert gpu.limit(experiment, workers) == wanted


def run_main(monkeypatch: pytest.MonkeyPatch, out: Path, run_all: Callable[..., None]) -> None:
    """Run the command with another experiment."""
    monkeypatch.setattr(gpu, "unwind_when_terminated", lambda: None)
    monkeypatch.setattr(gpu, "run_all", run_all)
    monkeypatch.setattr(sys, "argv", ["gpu", "--device=cpu", f"--out={out}"])
    monkeypatch.chdir(REPOSITORY)
    gpu.main()


def test_an_experiment_that_is_ended_early_has_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`timeout 600` ends it like this."""

    def ended(arguments: Namespace, experiment: gpu.Experiment, machine: Machine) -> None:
        experiment.measure("stepping", lambda: {"steps_per_second": 4000.0}, 1)
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        run_main(monkeypatch, tmp_path, ended)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "results.json", "results.md"]


def test_environments_are_made_in_the_time_that_is_planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Environments are made one after another on any machine, so few are made, which leaves time for the rest."""
    planned: dict[str, float] = {}
    made: list[int] = []
    arguments = Namespace(env="Catch-v0", network="mlp", device="cpu", batch_size=8, part_seconds=1.5)
    arguments = Namespace(**vars(arguments), precisions=["float32"], workers=[16], warm_up=6.0, seconds=14.0)

    def measure(name: str, function: Callable[[], Result], needs: float) -> None:
        planned[name] = needs
        if name.startswith("stepping"):
            function()

    def stepping(config: Any, environments: int, *rest: Any) -> Result:
        made.append(environments)
        return {}

    machine = Machine(16, 128 * 10**9, None)
    experiment = gpu.Experiment(tmp_path, 558, machine, "cpu")
    monkeypatch.setattr(experiment, "measure", measure)
    monkeypatch.setattr(gpu, "stepping", stepping)
    monkeypatch.setattr(gpu, "stepping_together", stepping)
    monkeypatch.setattr(gpu, "prepare_torch", lambda threads: None)
    gpu.run_all(arguments, experiment, machine)
    stepped = [needs for name, needs in planned.items() if name.startswith("stepping")]
    assert stepped == [1.5 + 0.2 * 16, 1.5 + 0.2 * 16 + gpu.IMPORT_SECONDS]
    assert made == [16, 16]  # a group


def test_a_failed_measurement_has_its_reason_in_the_results(tmp_path: Path) -> None:
    """The program that failed is repeated with its output: the results may be all that comes back from the machine."""
    arguments = Namespace(env="Catch-v0", network="mlp", device="cpu", batch_size=8, warm_up=1.0, seconds=1.0)
    experiment = gpu.Experiment(tmp_path, 60, Machine(2, 8 * 10**9, None), "cpu")
    experiment.measure("program", lambda: gpu.program(arguments, {"unroll_length": 0}), 1)
    experiment.measure("part", lambda: {"of_nothing": 1 / 0}, 1)
    program, part = json.loads((tmp_path / "results.json").read_text())["results"]
    assert "code 2" in program["error"]
    assert "unroll_length: wanted" in program["error"]
    assert "1 / 0" in part["traceback"]
    assert "Traceback" not in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize(
    ("of_limit", "conclusion"),
    [
        (0.85, "program, 16 workers, central: 0.850 of the cores that only step, which is enough (wanted: 0.85)"),
        (0.84, "program, 16 workers, central: 0.840 of the cores that only step, which is too little (wanted: 0.85)"),
        (None, "program, 16 workers, central: was not measured (wanted: 0.85)"),
    ],
)
def test_the_conclusion_says_whether_the_program_is_fast_enough(
    of_limit: float | None, conclusion: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is about the largest number of workers."""

    def measured(arguments: Namespace, experiment: gpu.Experiment, machine: Machine) -> None:
        for workers, reached in ((16, of_limit), (8, 0.99)):
            result = {"of_limit": reached, "frames_per_second": 5e4, "worker_kind": "central", "workers": workers}
            if reached is not None:
                experiment.measure(gpu.run_name(workers, "central"), lambda result=result: result, 1)

    run_main(monkeypatch, tmp_path, measured)
    assert json.loads((tmp_path / "results.json").read_text())["conclusion"] == conclusion
    assert capsys.readouterr().out.splitlines()[-1] == conclusion
    assert (tmp_path / "curve.png").is_file()


def test_a_machine_without_a_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "unwind_when_terminated", lambda: None)
    monkeypatch.setattr(gpu, "detect_machine", lambda: Machine(2, 8 * 10**9, None))
    monkeypatch.setattr(sys, "argv", ["gpu", f"--out={tmp_path / 'results'}"])
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises(SystemExit, match=r"^error: wanted a machine with a CUDA GPU, got one on which PyTorch sees none"):
        gpu.main()
    assert not (tmp_path / "results").exists()
