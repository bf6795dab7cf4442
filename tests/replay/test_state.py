"""A mixture that was saved and loaded continues with the same bits, for every kind of replay."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay import Mixture, ReplayConfig, make_mixture
from replay.trajectory import Field, TrajectoryContract
from tests.replay.support import (
    FORMS,
    KINDS,
    STACKED_CONTRACT,
    Source,
    insert_and_sample,
    mixture_with_queue,
    through_a_file,
)
from tests.support import same


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=8, deadline=None)
@given(form=st.sampled_from(list(FORMS)), before=st.integers(0, 40), seed=st.integers(0, 1000))
def test_a_loaded_mixture_continues_like_the_original(name: str, form: str, before: int, seed: int) -> None:
    original, source = mixture_with_queue(name, form), Source(seed)
    for _ in range(before):
        insert_and_sample(original, source, 1)
    copy, elsewhere = mixture_with_queue(name, form, seed=99), Source(seed + 1)
    for _ in range(before // 4):
        insert_and_sample(copy, elsewhere, 1)
    copy.load_state_dict(through_a_file(original.state_dict()))
    assert same(copy.state_dict(), original.state_dict())
    other = Source(seed)
    other.generator.bit_generator.state = source.generator.bit_generator.state
    other.last_frames = dict(source.last_frames)
    for inserts in (1, 3, 0, 2) * 4:
        assert copy.can_insert() == original.can_insert()
        one, two = insert_and_sample(original, source, inserts), insert_and_sample(copy, other, inserts)
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            for field, column in one.columns.items():
                np.testing.assert_array_equal(column, two.columns[field])
            np.testing.assert_array_equal(one.source, two.source)
    assert same(copy.state_dict(), original.state_dict())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"capacity": 21}, "replays"),
        ({"compress": True}, "replays"),
        ({"type": "elite"}, "replays"),
        ({"retention": "reservoir"}, "replays"),
    ],
)
def test_a_state_of_other_settings_is_refused_and_changes_nothing(changes: dict[str, Any], said: str) -> None:
    original, source = mixture_with_queue("standard", "capacity"), Source(1)
    for _ in range(9):
        original.insert(source.next())
    kind = changes.pop("type", "standard")
    other = mixture_with_queue(kind if kind == "standard" else "elite_1", "capacity", **changes)
    empty = through_a_file(other.state_dict())
    with pytest.raises(ValueError, match=f"^replay state: wanted {said} .*, got ") as caught:
        other.load_state_dict(original.state_dict())
    assert len(str(caught.value).splitlines()) == 1
    assert same(other.state_dict(), empty)


@pytest.mark.parametrize("name", ["elite_1", "attentive", "inserting"])
def test_a_custom_replay_of_an_earlier_version_is_loaded_as_its_kind(name: str) -> None:
    """Earlier versions saved settings as text, and `custom` as their type."""
    original, source = mixture_with_queue(name, "capacity"), Source(1)
    for _ in range(30):
        original.insert(source.next())
    state = through_a_file(original.state_dict())
    settings = state["settings"]
    settings["replays"][0]["type"] = "custom"
    state["settings"] = {key: value if key == "contract" else str(value) for key, value in settings.items()}
    copy = mixture_with_queue(name, "capacity", seed=9)
    copy.load_state_dict(state)
    assert same(copy.state_dict(), original.state_dict())


@pytest.mark.parametrize(
    ("contract", "batch_size", "ratios", "said"),
    [
        (replace(STACKED_CONTRACT, frame=Field((4,), "uint8")), 5, (0.5, 0.5), "field frames"),
        (STACKED_CONTRACT, 6, (0.5, 0.5), "batch_size"),
        (STACKED_CONTRACT, 5, (0.4, 0.6), "sample_ratio"),
        (STACKED_CONTRACT, 5, (1.0,), "sample_ratio"),
    ],
)
def test_a_state_of_other_shapes_is_refused(
    contract: TrajectoryContract, batch_size: int, ratios: tuple[float, ...], said: str
) -> None:
    def make(contract: TrajectoryContract, batch_size: int, ratios: tuple[float, ...]) -> Mixture:
        configs = [ReplayConfig("standard", 9, ratio) for ratio in ratios]
        return make_mixture(configs, contract, batch_size, 0.0, np.random.default_rng(0))

    with pytest.raises(ValueError, match=f"^(replay state|saved trajectories): wanted {said} .*, got "):
        make(contract, batch_size, ratios).load_state_dict(make(STACKED_CONTRACT, 5, (0.5, 0.5)).state_dict())


def test_a_state_is_a_view_of_the_written_part() -> None:
    configs = [ReplayConfig("standard", 10**6, 1.0)]
    mixture, source = make_mixture(configs, STACKED_CONTRACT, 5, 0.0, np.random.default_rng(0)), Source(3)
    for _ in range(10):
        mixture.insert(source.next())
    file = io.BytesIO()
    state = mixture.state_dict()
    torch.save(state, file)
    assert file.tell() < 40_000
    storage = mixture.replays[0].ring.storage  # type: ignore[attr-defined]
    kept = state["replays"][0]["storage"]
    assert np.shares_memory(kept["pool"]["bytes"].numpy(), storage.pool.bytes)
    assert np.shares_memory(kept["columns"]["actions"].numpy(), storage.columns["actions"])
