"""Stacks of frames with the stack axis innermost in memory.

Stacks of `[H, W]` frames are then channels-last, which CPUs convolve fastest.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

MOST_PLANES = 4  # OpenCV merges up to four planes with vector instructions
BITS = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.float64}
"""Bytes of an element -> dtype as which OpenCV moves it. The values do not matter."""


def interleave(planes: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Write `out[n, i, s] = planes[s][n, i]`.

    Args:
        planes: S arrays `[N, P]`.
        out: `[N, P, S]`, contiguous, of the planes' dtype.
    """
    if 1 < len(planes) <= MOST_PLANES and out.size:
        # A strided copy in numpy takes six times as long.
        bits = BITS[out.dtype.itemsize]
        merged = cv2.merge([plane.view(bits) for plane in planes], out.view(bits))  # S planes [N, P] to [N, P, S]
        assert np.shares_memory(merged, out)  # OpenCV allocates an array of its own if `out` does not fit
    else:
        for index, plane in enumerate(planes):
            out[..., index] = plane


def stack_innermost(observations: np.ndarray) -> np.ndarray:
    """Returns a copy of N observations `[N, S, *F]` in the same shape, with the stack innermost in memory."""
    count, stack, *frame = observations.shape
    planes = observations.reshape(count, stack, -1)  # [N, S, P], P pixels of a frame
    copy = np.empty((count, planes.shape[2], stack), observations.dtype)  # [N, P, S]
    interleave([planes[:, index] for index in range(stack)], copy)
    return np.moveaxis(copy.reshape(count, *frame, stack), -1, 1)  # a view [N, S, *F]; memory keeps S innermost
