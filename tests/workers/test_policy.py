"""The policy on the CPU: how observations get to its network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from replay.slot_store import SharedArrays
from tests.builders import network_of
from workers.policy import CpuPolicy
from workers.weights import SharedWeights, weights_layout


@pytest.mark.parametrize(
    ("shape", "dimensions"), [((4, 84, 84), (0, 2, 3, 1)), ((2, 84, 84, 3), (0, 2, 3, 4, 1)), ((4, 9), (0, 1, 2))]
)
def test_observations_reach_the_network_as_it_reads_them_without_a_copy(
    shape: tuple[int, ...], dimensions: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """dimensions: of what the network gets, from the outermost in memory to the innermost."""
    network = network_of("nature" if len(shape) > 2 else "mlp", shape, 3).only_act()
    policy = CpuPolicy(network, SharedWeights(SharedArrays(weights_layout(network))), seed=1)
    seen, features = [], network.features

    def look(observations: torch.Tensor) -> torch.Tensor:
        seen.append(observations)
        return features(observations)

    monkeypatch.setattr(network, "features", look)
    observations = np.random.default_rng(1).integers(0, 256, (5, *shape), np.uint8)
    acted = policy.act(observations)
    (given,) = seen
    assert np.array_equal(given, observations)
    assert given.permute(dimensions).is_contiguous()
    with torch.inference_mode():
        assert np.array_equal(acted.fields["behaviour_values"], network(torch.from_numpy(observations)).values)
