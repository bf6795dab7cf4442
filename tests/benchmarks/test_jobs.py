"""Benchmarks read, settle and refuse flags as main.py does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import jobs
from benchmarks.jobs import job_of


def test_presets_and_protocols_are_applied() -> None:
    job = job_of(["--preset=pong_fast", "--protocol=machado"])
    assert (job.config.workers.envs_per_worker, job.config.env.frame_height) == (8, 60)
    assert (job.config.env.sticky_actions, job.config.env.episodic_life) == (0.25, False)


def test_a_benchmark_ignores_the_budget_of_the_flags() -> None:
    assert job_of(["--preset=pong_fast", "--environment_max_steps=10"]).config.training.environment_max_steps == 10**12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bach_size=8"], "bach_size"),
        (["--batch_size=many"], "batch_size: wanted"),
        (["--protocol=machado", "--sticky_actions=0.5"], "sticky_actions: wanted 0.25"),
        (["--env=Pong"], "env: wanted"),
        (["results"], "wanted flags such as"),
        (["--op_mode=export", "--load=/nowhere"], "load"),
    ],
)
def test_flags_that_the_program_would_refuse_are_refused_in_its_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        job_of(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert said in printed
    assert printed.count("\n") == 1


def test_other_modes_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(jobs, "prepare", lambda _: SimpleNamespace(op_mode="train_w_load"))
    with pytest.raises(SystemExit) as ended:
        job_of(["--op_mode=train_w_load"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: op_mode: wanted train, the only mode that is measured, got train_w_load\n"
