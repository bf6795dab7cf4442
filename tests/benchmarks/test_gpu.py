"""What can be tried of the GPU's measurements without one."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks.gpu_parts import config_of, half_replayed, replaying
from learner.machine import Machine


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_half_replayed_batches_are_learned_from(place: str) -> None:
    """The learner's device is the CPU here, whatever the replay's is called."""
    arguments = Namespace(env="Catch-v0", network="mlp", device="cpu", batch_size=8)
    config = config_of(arguments, Machine(2, 8 * 10**9, None), replay_parameters=half_replayed(place))
    assert [replay.device for replay in config.replays] == ["cpu", place]
    result = replaying(config, 0.1)
    assert result["updates_per_second"] == pytest.approx(1e3 / result["milliseconds"])
