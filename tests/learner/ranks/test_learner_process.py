"""A learner of rank 1 or up resumes from its own replay file. Others do not lose it while it reads, and it frees the file."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from learner.ranks import learner_process as module
from learner.ranks.learner_process import LearnerTask
from learner.runs.checkpoint import generator_states, restore_generators, save_checkpoint, save_replay
from learner.runs.directory import RunDirectory
from learner.runs.saving import GENERATORS
from tests.learner.runs.support import is_mapped, make_checkpoint
from tests.support import small_plan


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_its_random_states_do_not_hold_the_file(tmp_path: Path) -> None:
    plan = small_plan(save_replay=True)
    run = RunDirectory.create(tmp_path, "Catch-v0")
    torch.manual_seed(5)
    state = {
        "mixture": {"settings": {"contract": plan.contract.signature()}},
        GENERATORS: generator_states(np.random.default_rng(6)),
    }
    wanted = torch.rand(1)
    path = run.replay_path(7, 1)
    checkpoint = replace(make_checkpoint(7), settings=plan.config.settings, rank_replays=(save_replay(path, 7, state),))
    resumed, replay = module._saved(plan, checkpoint, LearnerTask(1, plan, run.path, run.checkpoint_path(7), 0, 0))
    assert replay is not None
    assert is_mapped(path)
    replay.clear()
    assert not is_mapped(path)
    generator = np.random.default_rng()
    restore_generators(resumed.generators, generator)
    assert torch.rand(1) == wanted
    assert generator.random() == np.random.default_rng(6).random()


def test_it_connects_before_it_reads_its_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading takes minutes, for which only connected learners wait."""
    tape: list[str] = []

    def record(name: str, result: Any = None) -> Any:
        return lambda *_, **__: (tape.append(name), result)[1]

    for name, result in (("LearnerGroup", Mock()), ("_saved", (make_checkpoint(), None)), ("train", 0)):
        monkeypatch.setattr(module, name, record(name, result))
    monkeypatch.setattr(module, "EarlyProcesses", record("EarlyProcesses", nullcontext()))
    monkeypatch.setattr(module, "SeveralLearners", Mock())
    monkeypatch.setattr(module.launcher, "start_fork_server", lambda: None)
    save_checkpoint(tmp_path / "checkpoint.pt", make_checkpoint())
    words = Mock(send=lambda word: tape.append(word))
    assert module._train(LearnerTask(1, small_plan(learner_count=2), tmp_path, tmp_path / "checkpoint.pt", 0, 0), words) == 0
    assert tape == ["EarlyProcesses", module.READY, "LearnerGroup", "_saved", "train"]
