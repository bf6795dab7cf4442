"""The recursion that all targets share, row by row from the end."""

from __future__ import annotations

import torch
from torch import Tensor


def accumulate_backwards(errors: Tensor, decays: Tensor) -> Tensor:
    """`[T, B]` e_t = errors_t + decays_t e_{t+1} with e_T = 0: one fused operation a row."""
    rows = list(errors.unbind(0))
    decay_rows = decays.unbind(0)
    for t in range(len(rows) - 2, -1, -1):  # row T-1 has nothing behind it
        rows[t] = torch.addcmul(rows[t], decay_rows[t], rows[t + 1])
    return torch.stack(rows)
