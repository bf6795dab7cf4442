"""Stacks of frames with the stack innermost in memory: `[H, W]` frames are channels-last then, which CPUs convolve fastest."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

MOST_PLANES = 4  # that OpenCV takes with vector instructions
BITS = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.float64}
"""What an element of so many bytes is to OpenCV, which only moves it."""


def interleave(planes: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Write `out[n, i, p] = planes[p][n, i]`. planes: S of `[N, P]`; out: `[N, P, S]`, contiguous; all of one dtype.

    A strided copy takes six times as long.
    """
    if 1 < len(planes) <= MOST_PLANES and out.size:
        bits = BITS[out.dtype.itemsize]
        merged = cv2.merge([plane.view(bits) for plane in planes], out.view(bits))
        assert np.shares_memory(merged, out)  # OpenCV makes an array of its own where one does not fit
    else:
        for index, plane in enumerate(planes):
            out[..., index] = plane


def stack_innermost(observations: np.ndarray) -> np.ndarray:
    """A copy of N observations `[N, S, *F]`, in the same shape, with the stack innermost in memory."""
    count, stack, *frame = observations.shape
    planes = observations.reshape(count, stack, -1)
    copy = np.empty((count, planes.shape[2], stack), observations.dtype)
    interleave([planes[:, index] for index in range(stack)], copy)
    return np.moveaxis(copy.reshape(count, *frame, stack), -1, 1)
