"""A learner of rank 1 or up resumes from its own replay file, which it does not hold for longer than it needs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from learner.building import make_contract
from learner.ranks import member as module
from learner.ranks.member import Member
from learner.runs.checkpoint import generator_states, restore_generators, save_replay
from learner.runs.directory import RunDirectory
from learner.runs.saving import GENERATORS
from tests.learner.runs.support import is_mapped, make_checkpoint
from tests.support import small_config


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_its_random_states_do_not_hold_the_file(tmp_path: Path) -> None:
    config = small_config(save_replay=True)
    run = RunDirectory.create(tmp_path, "Catch-v0")
    torch.manual_seed(5)
    state = {
        "mixture": {"settings": {"contract": make_contract(config).signature()}},
        GENERATORS: generator_states(np.random.default_rng(6)),
    }
    wanted = torch.rand(1)
    path = run.replay_path(7, 1)
    checkpoint = replace(make_checkpoint(7), settings=config.settings, rank_replays=(save_replay(path, 7, state),))
    resumed, replay = module._saved(config, checkpoint, Member(1, config, run.path, run.checkpoint_path(7), 0, 0))
    assert replay is not None
    assert is_mapped(path)
    replay.clear()
    assert not is_mapped(path)
    generator = np.random.default_rng()
    restore_generators(resumed.generators, generator)
    assert torch.rand(1) == wanted
    assert generator.random() == np.random.default_rng(6).random()
