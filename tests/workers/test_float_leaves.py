"""Non-finite numbers are found in packed frames too."""

from __future__ import annotations

import numpy as np
import pytest

from workers.finite import NotFiniteError, check_environments
from workers.rollout import float_leaves
from wrappers.spaces import Discrete, Leaf, Packing
from wrappers.spec import EnvSpec

LEAVES = (Leaf("image", (2, 3), "uint8"), Leaf("vector", (3,), "float32"))


def spec_of(leaves: tuple[Leaf, ...], shape: tuple[int, ...], dtype: str) -> EnvSpec:
    return EnvSpec("x", shape, dtype, 2, Discrete(2), leaves=leaves)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_packed_vector_is_checked_and_its_environment_named(bad: float) -> None:
    packing = Packing(LEAVES)
    spec = spec_of(LEAVES, (packing.size,), "uint8")
    vector = np.zeros((2, 3), np.float32)
    frames = packing.pack({"image": np.full((2, 2, 3), 255, np.uint8), "vector": vector})
    [(name, part, dtype)] = float_leaves(spec)
    stacks = np.stack([frames, frames], 1)
    check_environments(name, np.ascontiguousarray(stacks[..., part]).view(dtype), np.array([4, 9]))
    vector[1, 2] = bad
    stacks[:, 1] = packing.pack({"image": np.full((2, 2, 3), 255, np.uint8), "vector": vector})
    with pytest.raises(NotFiniteError, match=rf"environment 9: wanted finite observations \(vector\), got {bad}"):
        check_environments(name, np.ascontiguousarray(stacks[..., part]).view(dtype), np.array([4, 9]))


def test_frames_of_bytes_need_no_check() -> None:
    assert float_leaves(spec_of((), (4, 4), "uint8")) == []
    assert [part[1:] for part in float_leaves(spec_of((), (4,), "float32"))] == [(slice(None), "float32")]
