"""Minibatches of a batch: which steps or columns each takes. Only `shuffled` draws; the other functions are pure."""

from __future__ import annotations

import torch
from torch import Tensor

from agents.returns.advantages import EPSILON


def cut(order: Tensor, parts: int) -> tuple[Tensor, ...]:
    """A permutation `[n]` as `parts` runs whose lengths differ by at most one, the longer ones first.

    There are fewer runs if n is smaller, so none is empty. No remainder is dropped.
    """
    return tuple(order.tensor_split(min(parts, len(order)))) if len(order) else ()  # views of the order, no copies


def used_steps(mask: Tensor) -> Tensor:
    """Indices t * B + b of the used steps, int64 `[n]`, of a mask bool `[T, B]`. The host waits for a GPU."""
    return mask.flatten().nonzero().squeeze(-1)  # row-major: t * B + b; `nonzero` makes the host wait, since n decides shapes


def take_steps(tensor: Tensor, order: Tensor) -> Tensor:
    """Rows t * B + b of a tensor `[T, B, ...]`, `[n, ...]`.

    The stack of an observation stays innermost in memory, as `replay.batch.stack_frames` built it: a convolution reads it so.
    """
    flat = tensor.flatten(0, 1)  # [T * B, ...], step t of column b at t * B + b
    if flat.dim() < 3:
        return flat.index_select(0, order)
    return flat.movedim(1, -1).index_select(0, order).movedim(-1, 1)  # [T * B, S, *F] -> [n, S, *F]


def shuffled(members: Tensor) -> Tensor:
    """Members `[n]`, such as indices, in a random order, which PyTorch's global generator on the CPU draws."""
    # Drawn on the CPU, so that a seed gives the same minibatches on every device.
    return members[torch.randperm(len(members)).to(members.device, non_blocking=True)]


@torch.no_grad()
def normalised_runs(advantages: Tensor, parts: int) -> Tensor:
    """Each of the runs of `cut` normalised by itself, `[n]`: (A - mean) / (standard deviation + 1e-8).

    The standard deviation is that of the whole population. All runs of one length are normalised together.

    Args:
        advantages: `[n]` of used steps, in the order of the minibatches.
        parts: how many minibatches `cut` makes of them.
    """
    if not len(advantages):
        return advantages
    length, longer = divmod(len(advantages), min(parts, len(advantages)))  # as `tensor_split` cuts: `longer` runs have one more
    # At most two calls, however many minibatches there are.
    done = [_normalised_rows(each) for each in _of_one_length(advantages, longer * (length + 1), length)]
    return torch.cat(done)


def _of_one_length(advantages: Tensor, end_of_longer: int, length: int) -> list[Tensor]:
    """The longer runs and the shorter ones, `[runs, length]` each, without an empty one."""
    parts = ((advantages[:end_of_longer], length + 1), (advantages[end_of_longer:], length))
    return [part.view(-1, size) for part, size in parts if len(part)]


def _normalised_rows(advantages: Tensor) -> Tensor:
    """Rows `[runs, length]` normalised one by one, flat."""
    # The mean is computed in float64, as in `normalised`.
    centred = advantages - advantages.mean(1, keepdim=True, dtype=torch.float64).to(advantages.dtype)
    return (centred / (centred.square().mean(1, keepdim=True).sqrt() + EPSILON)).flatten()
