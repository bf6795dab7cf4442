"""Weights on the learner's device: versioned, never half-written, and acting never waits for an update."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.workers.test_weights import constant_network
from workers.central import device_weights as module
from workers.central.device_weights import DeviceWeights


class SlowFence:
    """A fence of a device that is only as far as `SlowFence.done` says; notes who held whom back."""

    recorded: list[SlowFence] = []
    held_back: list[SlowFence] = []
    waited: list[SlowFence] = []
    done = 0  # so many of the recorded ones

    def __init__(self, device: torch.device) -> None:
        pass

    def record(self) -> None:
        SlowFence.recorded.append(self)

    @property
    def passed(self) -> bool:
        return self not in SlowFence.recorded[SlowFence.done :]

    def hold_back(self) -> None:
        SlowFence.held_back.append(self)

    def wait(self) -> None:
        if not self.passed:
            SlowFence.waited.append(self)
            SlowFence.done = max(index for index, other in enumerate(SlowFence.recorded) if other is self) + 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[SlowFence]:
    for name in ("recorded", "held_back", "waited"):
        monkeypatch.setattr(SlowFence, name, [])
    monkeypatch.setattr(SlowFence, "done", 0)
    monkeypatch.setattr(module, "Fence", SlowFence)
    return SlowFence


def value_of(weights: DeviceWeights) -> tuple[int, float]:
    """The version that is read, and what it holds."""
    reader = constant_network(-1.0)
    version = weights.read(reader)
    (value,) = {float(tensor.unique()) for tensor in reader.state_dict().values()}
    return version, value


def test_readers_get_the_newest_weights_in_their_own_precision() -> None:
    weights = DeviceWeights(constant_network(0.0))
    for version in (3, 4, 9):
        weights.publish(constant_network(float(version)), version)
        assert weights.published_version == version
        assert value_of(weights) == (version, float(version))
    half: nn.Module = constant_network(0.0).to(torch.bfloat16)
    assert weights.read(half) == 9
    assert {(float(tensor.unique()), tensor.dtype) for tensor in half.state_dict().values()} == {(9.0, torch.bfloat16)}


def test_readers_take_what_is_finished_and_are_not_overwritten(slow: type[SlowFence]) -> None:
    weights = DeviceWeights(constant_network(0.0))
    weights.publish(constant_network(5.0), 5)
    assert len(slow.waited) == 1  # there was nothing to act with before
    weights.publish(constant_network(6.0), 6)
    assert len(slow.waited) == 1
    assert weights.published_version == 5
    assert value_of(weights) == (5, 5.0)
    read_of_5 = slow.recorded[-1]
    weights.publish(constant_network(7.0), 7)  # over 5, once 6 is finished
    assert len(slow.waited) == 2
    assert slow.held_back == [read_of_5]
    assert value_of(weights) == (6, 6.0)
    slow.done = len(slow.recorded)
    assert weights.published_version == 7
    assert value_of(weights) == (7, 7.0)


def test_readers_of_an_on_policy_agent_wait_for_the_newest_weights_on_the_device(slow: type[SlowFence]) -> None:
    weights = DeviceWeights(constant_network(0.0), newest_only=True)
    weights.publish(constant_network(5.0), 5)
    weights.publish(constant_network(6.0), 6)
    assert len(slow.waited) == 1  # for the first version: there was nothing to act with before
    written = slow.recorded[-1]
    assert not written.passed
    assert weights.published_version == 6
    assert value_of(weights) == (6, 6.0)
    assert slow.held_back == [written]
