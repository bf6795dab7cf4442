"""Planes of frames become stacks with the same values in another memory order."""

from __future__ import annotations

import numpy as np
import pytest

from replay.interleave import interleave, stack_innermost


def random_bits(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Returns random bits, so also NaNs. A bool is 0 or 1."""
    if dtype == "bool":
        return np.random.default_rng(1).random(shape) < 0.5
    return np.frombuffer(np.random.default_rng(1).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "uint16", "float16", "int32", "float32", "int64", "float64"])
@pytest.mark.parametrize("stack", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("pixels", [1, 7, 84 * 84])
def test_every_element_arrives_with_all_its_bits(dtype: str, stack: int, pixels: int) -> None:
    frames = random_bits((3, stack + 2, pixels), dtype)
    out = np.zeros((3, pixels, stack), dtype)
    interleave([frames[:, 1 + index] for index in range(stack)], out)  # rows that are not contiguous in memory
    wanted = np.moveaxis(frames[:, 1 : 1 + stack], 1, 2)
    assert out.tobytes() == np.ascontiguousarray(wanted).tobytes()


def test_zero_rows_are_accepted() -> None:
    out = np.zeros((0, 5, 4), np.uint8)
    interleave([np.zeros((0, 5), np.uint8)] * 4, out)
    assert out.shape == (0, 5, 4)


@pytest.mark.parametrize("shape", [(6, 4, 8, 7), (6, 1, 8, 7), (2, 4, 5, 3, 3)])
def test_a_copy_of_observations_has_the_stack_innermost(shape: tuple[int, ...]) -> None:
    observations = random_bits(shape, "uint8")
    copy = stack_innermost(observations)
    assert np.array_equal(copy, observations)
    assert np.moveaxis(copy, 1, -1).flags.c_contiguous
    assert not np.shares_memory(copy, observations)
