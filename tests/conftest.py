"""Options of the tests, and how each finds this process."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
"""Tests see no GPU, so that they prove the same on every machine. With a GPU's number in it they run on that one."""

SLOW = (
    "tests/agents/dqn/test_agent.py::test_a_fixed_batch",
    "tests/agents/dqn/test_agent.py::test_several_choices_are_learned",
    "tests/agents/test_compute.py",
    "tests/agents/test_user_class.py::test_another_process",
    "tests/agents/engine/test_passes.py::test_a_compiled_pass",
    "tests/benchmarks/",
    "tests/tools/",
    "tests/clients/test_documentation.py",
    "tests/clients/test_javascript.py",
    "tests/clients/test_page.py",
    "tests/clients/test_python_command.py",
    "tests/clients/test_real_server.py",
    "tests/gpu/",
    "tests/learner/evaluation/",
    "tests/learner/metrics/test_curve.py::test_a_new_picture",
    "tests/learner/metrics/test_reported.py",
    "tests/learner/metrics/test_profiler.py",
    "tests/learner/metrics/test_trackers.py",
    "tests/learner/ranks/test_processes.py",
    "tests/learner/runs/test_checkpoint.py::test_every_wrong_byte",
    "tests/learner/runs/test_lock.py::test_a_killed_holder",
    "tests/learner/metrics/test_graph.py",
    "tests/learner/runs/test_resuming",
    "tests/learner/export/",
    "tests/learner/settings/test_help.py",
    "tests/learner/settings/test_modes.py::test_a_run",
    "tests/learner/stores/test_s3.py",
    "tests/learner/test_",
    "tests/replay/kinds/test_prioritised.py::test_windows_start",
    "tests/replay/ring/test_device_storage.py::test_any",
    "tests/replay/ring/test_device_storage.py::test_compaction",
    "tests/replay/ring/test_hindsight.py",
    "tests/replay/ring/test_retention.py::test_a_reservoir_is_a_uniform",
    "tests/replay/ring/test_storage.py::test_a_trajectory_that_moves",
    "tests/replay/ring/test_storage.py::test_any",
    "tests/replay/ring/test_storage.py::test_bytes_claimed",
    "tests/replay/ring/test_storage.py::test_compaction_returns_memory",
    "tests/replay/ring/test_storage.py::test_memory_holds",
    "tests/replay/ring/test_storage.py::test_postponed",
    "tests/replay/test_hammer.py",
    "tests/replay/test_parameters.py::test_any_text",
    "tests/replay/test_slot_store.py",
    "tests/replay/test_state.py::test_a_loaded",
    "tests/replay/test_trajectory.py::test_a_batch_shows",
    "tests/replay/test_trajectory.py::test_any_stack",
    "tests/springbok/test_",
    "tests/test_extending.py",
    "tests/test_imports.py::test_a_run",
    "tests/test_imports.py::test_a_worker",
    "tests/test_main.py",
    "tests/test_matrix.py",
    "tests/test_old_checkpoints.py",
    "tests/test_option_flags.py::test_importing",
    "tests/test_refusals.py::test_the_program",
    "tests/test_site.py",
    "tests/test_tutorials.py",
    "tests/workers/central/",
    "tests/workers/cluster/",
    "tests/workers/processes/",
    "tests/workers/served/test_seats.py::test_an_on_policy",
    "tests/workers/test_random_play.py",
    "tests/workers/test_recurrent.py",
    "tests/workers/test_rollout.py::test_a_trajectory_begins",
    "tests/workers/test_rollout.py::test_batches_show",
    "tests/workers/test_weights.py",
    "tests/wrappers/test_atari",
    "tests/wrappers/test_envpool_env.py",
    "tests/wrappers/test_facts.py",
    "tests/wrappers/test_goals.py::test_a_wrapper",
    "tests/wrappers/test_goals.py::test_an_environment_without",
    "tests/wrappers/test_goals.py::test_the_places",
    "tests/wrappers/test_gymnasium_env.py::test_a_driver",
    "tests/wrappers/test_gymnasium_env.py::test_a_rendered",
    "tests/wrappers/test_gymnasium_env.py::test_ids_of_minatar",
    "tests/wrappers/test_gymnasium_foreign.py::test_an_unknown",
    "tests/wrappers/test_journal.py",
)
"""Beginnings of the names of slow tests: they start processes, train, measure,
or take most of a second. `make quick` leaves them out."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files whose tests are all slow if no slow test is wanted: importing them takes seconds."""
    if config.option.markexpr != "not slow" or collection_path.is_dir():
        return None
    return collection_path.relative_to(config.rootpath).as_posix().startswith(SLOW) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests."""
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hammer_seconds", type=float, default=0.6, help="how long each replay kind is hammered by two threads")


@pytest.fixture(autouse=True)
def as_ever() -> Iterator[None]:
    """A run in this process sets PyTorch up and logs to the console of its test. One thread, because several that wait for each
    other crawl on a busy machine."""
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)
    log = logging.getLogger("springbok")
    log.handlers.clear()
    log.propagate = True


@pytest.fixture(autouse=True, scope="session")
def heeds_interrupts() -> Iterator[None]:
    """Tests and the programs that they start end on SIGINT. A job in the background of a script would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def heeds_hangup() -> Iterator[None]:
    """Programs that the test starts end on SIGHUP. Under nohup they would ignore it, as they should for a user."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads share every pass, even a small one that would take longer so."""
    monkeypatch.setattr("agents.engine.passes.WORTH_DIVIDING", 0)


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing its learning curve takes twice as long as a short run. Tests of the curve are marked `pictures`."""
    summary = sys.modules.get("learner.metrics.summary")
    if summary and not request.node.get_closest_marker("pictures"):
        monkeypatch.setattr(summary, "draw_learning_curve", lambda *arguments: None)


@pytest.fixture(autouse=True)
def no_onnx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing `policy.onnx` takes ten times as long as a short run. Tests that look at it are marked `onnx`."""
    export = sys.modules.get("learner.export.export")
    if export and not request.node.get_closest_marker("onnx"):
        monkeypatch.setattr(export, "ONNX_PACKAGES", ("onnx of a test",))


@pytest.fixture(autouse=True)
def brief_random_play(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random play in this process takes a third of a short run. Tests that count its steps are marked `random_play`."""
    random_play = sys.modules.get("workers.random_play")
    if not random_play or request.node.get_closest_marker("random_play"):
        return
    whole = random_play.random_observations

    def brief(*arguments: Any, **options: Any) -> torch.Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(random_play, "STEPS", random_play.STEPS // 10)
            return whole(*arguments, **options)

    for name in ("learner.early_processes", "learner.export.export"):
        if module := sys.modules.get(name):
            monkeypatch.setattr(module, "random_observations", brief)
