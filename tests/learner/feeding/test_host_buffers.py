"""Memory of batches is reused: one user at a time, and no more memory than is in use at once."""

from __future__ import annotations

import pytest
import torch

from agents.engine.streams import Fence
from learner.feeding.host_buffers import HostBuffers
from tests.learner.support import CONTRACT


def test_memory_in_use_is_not_lent_again() -> None:
    buffers = HostBuffers(CONTRACT, 4)
    held = [buffers.take() for _ in range(3)]
    for number, columns in enumerate(held):
        for array in columns.values():
            array.fill(number % 2)
    for number, columns in enumerate(held):
        assert all((array == number % 2).all() for array in columns.values())
    assert {name: array.shape for name, array in held[0].items()} == {
        name: (4, *field.shape) for name, field in CONTRACT.fields.items()
    }


def test_returned_memory_is_lent_again() -> None:
    buffers = HostBuffers(CONTRACT, 4)
    first, second = buffers.take(), buffers.take()
    buffers.give_back(first)
    assert buffers.take() is first
    assert buffers.take() is not second
    assert buffers.allocated == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a GPU")
def test_pinned_memory_is_pinned() -> None:
    columns = HostBuffers(CONTRACT, 4, pinned=True).take()
    assert all(torch.from_numpy(array).is_pinned() for array in columns.values())


def test_memory_is_lent_again_only_after_its_copy_is_done() -> None:
    class Copy(Fence):
        waited = 0

        def wait(self) -> None:
            self.waited += 1

    buffers = HostBuffers(CONTRACT, 4)
    held = [buffers.take() for _ in range(2)]
    copies = [Copy(torch.device("cpu")) for _ in held]
    for columns, copied in zip(held, copies, strict=True):
        buffers.give_back(columns, copied)
    assert buffers.take() is held[0]
    assert [copied.waited for copied in copies] == [1, 0]
