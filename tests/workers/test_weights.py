"""Weights in shared memory are the learner's, versioned, and never read half-written."""

from __future__ import annotations

import multiprocessing

import torch
from torch import nn

from replay.slot_store import SharedArrays
from workers.weights import SharedWeights, weights_layout

SIZE = 200_000
PUBLISHED = 400


def constant_network(value: float) -> nn.Module:
    network = nn.Linear(SIZE, 1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)
    return network


def publish_many(shared: SharedArrays) -> None:
    weights = SharedWeights(shared)
    for version in range(1, PUBLISHED + 1):
        weights.publish(constant_network(float(version)), version)


def test_a_reader_gets_what_was_published() -> None:
    source, reader = nn.Conv2d(3, 4, 2), nn.Conv2d(3, 4, 2)
    weights = SharedWeights(SharedArrays(weights_layout(source)))
    weights.publish(source, 7)
    assert weights.published_version == 7
    assert weights.read(reader) == 7
    torch.testing.assert_close(reader.weight, source.weight, rtol=0, atol=0)
    torch.testing.assert_close(reader.bias, source.bias, rtol=0, atol=0)


def test_no_read_is_torn_while_another_process_publishes() -> None:
    """The network holds one number everywhere: its version. A torn read would show two."""
    reader = constant_network(0.0)
    shared = SharedArrays(weights_layout(reader))
    weights = SharedWeights(shared)
    process = multiprocessing.get_context("spawn").Process(target=publish_many, args=(shared,))
    process.start()
    seen = set()
    while process.is_alive() or weights.published_version not in seen:
        version = weights.read(reader)
        values = torch.cat([p.detach().flatten() for p in reader.parameters()])
        assert float(values.min()) == float(values.max()) == version
        seen.add(version)
    process.join()
    assert process.exitcode == 0
    assert max(seen) == PUBLISHED
    assert len(seen) > 2
