"""A mixture that was saved and loaded goes on to the bit, whatever its replays are."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay import Encoded, Mixture, ReplayConfig, make_mixture
from replay.mixture import HostBatch
from replay.trajectory import Arrays, TrajectoryContract
from tests.replay.test_init import KINDS

CONTRACT = TrajectoryContract(
    unroll_length=2, frame_shape=(3,), frame_dtype="uint8", frames_stacked=2, action_count=2, feature_count=4
)
ENVIRONMENTS = 3
FORMS: dict[str, dict[str, Any]] = {
    "capacity": {"capacity": 20},
    "memory": {"capacity": 0, "memory": 15_000},
    "compressed": {"capacity": 20, "compress": True},
    "compressed_memory": {"capacity": 0, "memory": 30_000, "compress": True},
}


class Source:
    """Trajectories of several environments, each going on where the one before ended; every field is random."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.heads: dict[int, np.ndarray] = {}

    def next(self) -> Arrays:
        environment = int(self.generator.integers(ENVIRONMENTS))
        trajectory = {
            name: self.generator.integers(0, 2 if dtype == "bool" else 200, shape).astype(dtype)
            for name, (shape, dtype) in CONTRACT.fields.items()
        }
        stack = CONTRACT.frames_stacked
        if environment in self.heads:
            trajectory["frames"][:stack] = self.heads[environment]
        self.heads[environment] = trajectory["frames"][-stack:].copy()
        return {**trajectory, "environment_id": np.array(environment, np.int32)}


def mixture_of(name: str, form: str, seed: int = 1, **changes: Any) -> Mixture:
    kind, more = KINDS[name]
    size = FORMS[form] if kind != "queue" else {"capacity": 9}
    configs = [
        ReplayConfig(kind, sample_ratio=0.6, **{**size, **more, **changes}),
        ReplayConfig("queue", 12, 0.4),
    ]
    return make_mixture(configs, CONTRACT, 5, 0.2, np.random.default_rng(seed), encode=encode)


def encode(trajectories: Mapping[str, np.ndarray]) -> Encoded:
    """A network that sees each trajectory as its first reward says."""
    first = trajectories["rewards"][:, :1, None] + np.zeros((1, CONTRACT.unroll_length, 1), np.float32)
    return Encoded(np.repeat(first, CONTRACT.feature_count, axis=2), np.repeat(first, CONTRACT.action_count, axis=2))


def turn(mixture: Mixture, source: Source, inserts: int) -> HostBatch | None:
    """Some inserts and, where there is enough, one batch."""
    for _ in range(inserts):
        mixture.insert(source.next())
    return mixture.sample() if mixture.can_sample() else None


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=8, deadline=None)
@given(form=st.sampled_from(list(FORMS)), before=st.integers(0, 40), seed=st.integers(0, 1000))
def test_what_comes_back_goes_on_like_the_original(name: str, form: str, before: int, seed: int) -> None:
    original, source = mixture_of(name, form), Source(seed)
    for _ in range(before):
        turn(original, source, 1)
    copy, elsewhere = mixture_of(name, form, seed=99), Source(seed + 1)
    for _ in range(before // 4):
        turn(copy, elsewhere, 1)
    copy.load_state_dict(through_a_file(original.state_dict()))
    assert_same(copy.state_dict(), original.state_dict())
    other = Source(seed)
    other.generator.bit_generator.state = source.generator.bit_generator.state
    other.heads = dict(source.heads)
    for inserts in (1, 3, 0, 2) * 4:
        assert copy.can_insert() == original.can_insert()
        one, two = turn(original, source, inserts), turn(copy, other, inserts)
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            for field, column in one.columns.items():
                np.testing.assert_array_equal(column, two.columns[field])
            np.testing.assert_array_equal(one.source, two.source)
    assert_same(copy.state_dict(), original.state_dict())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"capacity": 21}, "replays"),
        ({"compress": True}, "replays"),
        ({"type": "elite"}, "replays"),
        ({"retention": "reservoir"}, "replays"),
    ],
)
def test_a_state_of_other_settings_is_refused_before_anything_is_changed(changes: dict[str, Any], said: str) -> None:
    original, source = mixture_of("standard", "capacity"), Source(1)
    for _ in range(9):
        original.insert(source.next())
    kind = changes.pop("type", "standard")
    other = mixture_of(kind if kind == "standard" else "elite_1", "capacity", **changes)
    empty = through_a_file(other.state_dict())
    with pytest.raises(ValueError, match=f"^replay state: wanted {said} .*, got ") as caught:
        other.load_state_dict(original.state_dict())
    assert len(str(caught.value).splitlines()) == 1
    assert_same(other.state_dict(), empty)


@pytest.mark.parametrize("name", ["elite_1", "attentive", "inserting"])
def test_a_custom_replay_of_an_earlier_version_is_the_kind_that_it_amounts_to(name: str) -> None:
    """Earlier versions saved settings as text, and `custom` as their type."""
    original, source = mixture_of(name, "capacity"), Source(1)
    for _ in range(30):
        original.insert(source.next())
    state = through_a_file(original.state_dict())
    settings = state["settings"]
    settings["replays"][0]["type"] = "custom"
    state["settings"] = {key: value if key == "contract" else str(value) for key, value in settings.items()}
    copy = mixture_of(name, "capacity", seed=9)
    copy.load_state_dict(state)
    assert_same(copy.state_dict(), original.state_dict())


@pytest.mark.parametrize(
    ("contract", "batch_size", "ratios", "said"),
    [
        (replace(CONTRACT, frame_shape=(4,)), 5, (0.5, 0.5), "field frames"),
        (CONTRACT, 6, (0.5, 0.5), "batch_size"),
        (CONTRACT, 5, (0.4, 0.6), "sample_ratio"),
        (CONTRACT, 5, (1.0,), "sample_ratio"),
    ],
)
def test_a_state_of_another_run_s_shape_is_refused(
    contract: TrajectoryContract, batch_size: int, ratios: tuple[float, ...], said: str
) -> None:
    def make(contract: TrajectoryContract, batch_size: int, ratios: tuple[float, ...]) -> Mixture:
        configs = [ReplayConfig("standard", 9, ratio) for ratio in ratios]
        return make_mixture(configs, contract, batch_size, 0.0, np.random.default_rng(0))

    with pytest.raises(ValueError, match=f"^(replay state|saved trajectories): wanted {said} .*, got "):
        make(contract, batch_size, ratios).load_state_dict(make(CONTRACT, 5, (0.5, 0.5)).state_dict())


def test_only_what_is_written_is_saved_and_nothing_is_copied() -> None:
    configs = [ReplayConfig("standard", 10**6, 1.0)]
    mixture, source = make_mixture(configs, CONTRACT, 5, 0.0, np.random.default_rng(0)), Source(3)
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
