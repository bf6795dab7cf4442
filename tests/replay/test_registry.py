"""A replay kind of a user's, known by its class alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replay import REPLAYS, ReplayConfig, parse_replay_parameters, replay_bytes
from replay.kinds.ring_replay import RingReplay
from replay.kinds.standard import StandardReplay
from tests.replay.support import CONTRACT
from tests.support import small_config


class SampledActions(StandardReplay):
    """Keeps only some trajectories, and takes a key of another kind."""

    keys = ("alpha",)
    keeps_newest = False


class Whole(RingReplay):
    """Draws whole trajectories."""


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REPLAYS, "chosen", SampledActions)
    monkeypatch.setitem(REPLAYS, "whole", Whole)


def entry(kind: str, **keys: Any) -> str:
    return json.dumps([{"type": kind, "capacity": 40, "sample_ratio": 1.0, **keys}])


def test_a_kind_takes_the_keys_that_it_names() -> None:
    assert parse_replay_parameters(entry("chosen", alpha=0.5)) == (ReplayConfig("chosen", 40, 1.0, alpha=0.5),)
    with pytest.raises(ValueError, match=r"wanted keys of this chosen replay \(alpha, .*\), got retention$"):
        parse_replay_parameters(entry("chosen", retention="fifo"))


def test_a_kind_that_draws_windows_suits_agents_that_learn_from_them() -> None:
    assert small_config(agent="dqn", replay_parameters=entry("chosen")).replays[0].type == "chosen"
    with pytest.raises(
        ValueError, match="^replay_parameters: wanted standard, prioritised or chosen replays with agent dqn"
    ) as no:
        small_config(agent="dqn", replay_parameters=entry("whole"))
    assert str(no.value).endswith("got whole, which gives whole trajectories alone")


def test_a_kind_that_skips_trajectories_is_promised_no_shared_frames() -> None:
    newest, chosen = (replay_bytes([ReplayConfig(kind, 40)], CONTRACT, 8, 2)[0] for kind in ("standard", "chosen"))
    assert CONTRACT.shared_frames > 0
    assert chosen > newest
