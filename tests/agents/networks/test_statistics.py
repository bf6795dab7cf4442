"""Running moments equal the golden vectors, in any order of merges, and only sound fresh rows change them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.networks.inputs import normalised
from agents.networks.statistics import Moments, ObservationMoments, RunningMoments, merged, moments_of
from tests.agents.support import T, random_batch
from tests.builders import network_of
from tests.support import golden

CASES = golden("running_moments.json")


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def everything(values: Tensor) -> Tensor:
    return torch.ones(len(values), dtype=torch.bool)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_moments_are_those_of_the_golden_vectors(case: dict[str, Any]) -> None:
    running = RunningMoments(case["dimensions"], torch.device("cpu"))
    outputs = case["outputs"]
    for batch, own, after in zip(
        case["inputs"]["batches"], outputs["own_moments_of_batch"], outputs["after_batch"], strict=True
    ):
        alone = moments_of(exact(batch), everything(exact(batch)))
        torch.testing.assert_close(tuple(alone), (exact(own["count"]), exact(own["mean"]), exact(own["m2"])))
        running.take(merged(running.now, alone))
        torch.testing.assert_close(running.now.weight, exact(after["count"]))
        torch.testing.assert_close(running.now.mean, exact(after["mean"]))
        torch.testing.assert_close(running.now.variance, exact(after["var"]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_inputs_are_normalised_as_in_the_golden_vectors(case: dict[str, Any]) -> None:
    after = case["outputs"]["after_batch"][-1]
    probe = exact(case["inputs"]["probe"]).unsqueeze(1)
    scale = 1.0 / (exact(after["var"]) + case["epsilon"]).sqrt()
    got = normalised(probe.float(), exact(after["mean"]).float(), scale.float(), torch.float32)[:, 0]
    torch.testing.assert_close(got.double(), exact(case["outputs"]["probe_normalized"]), rtol=1e-4, atol=1e-4)
    assert got.abs().max() <= case["clip"]


def test_the_order_of_merges_does_not_matter() -> None:
    parts = [torch.randn(count, 3, dtype=torch.float64) * 5 + 100 for count in (1, 7, 4)]
    wanted = moments_of(torch.cat(parts), everything(torch.cat(parts)))
    for order in itertools.permutations(parts):
        first, *others = [moments_of(part, everything(part)) for part in order]
        for other in others:
            first = merged(first, other)
        torch.testing.assert_close(tuple(first), tuple(wanted))


def test_rows_that_are_left_out_may_hold_anything() -> None:
    values = torch.tensor([[1.0], [float("nan")], [3.0]])
    assert moments_of(values, torch.tensor([True, False, True])) == Moments(exact(2.0), exact([2.0]), exact([2.0]))
    running = RunningMoments(1, torch.device("cpu"))
    before = [value.clone() for value in running.now]
    running.take(merged(running.now, moments_of(values, torch.zeros(3, dtype=torch.bool))))
    assert all(map(torch.equal, running.now, before))


def test_fresh_columns_are_merged_once_without_the_last_row() -> None:
    network = network_of("mlp", (2, 6), 4, normalise_observations=True)
    moments, batch = ObservationMoments(network), random_batch()
    moments.merge(batch, torch.tensor(True))
    fresh = batch.observations[:T, ~batch.is_replay, -1].flatten(0, 1)
    assert float(moments.now.weight) == pytest.approx(len(fresh) + 1e-4)
    torch.testing.assert_close(moments.now.mean, fresh.double().mean(0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(network.input_mean, moments.now.mean.float().expand(2, 6))
    torch.testing.assert_close(network.input_scale, ((moments.now.variance + 1e-8) ** -0.5).float().expand(2, 6))
    inputs = network.inputs_of(fresh.unsqueeze(1).expand(-1, 2, -1), torch.float32)[0]
    torch.testing.assert_close(inputs.std(0, correction=0), torch.ones(2, 6), rtol=1e-3, atol=1e-3)


def test_an_update_that_is_skipped_merges_nothing() -> None:
    network = network_of("mlp", (2, 6), 4, normalise_observations=True)
    moments, batch = ObservationMoments(network), random_batch()
    moments.merge(batch, torch.tensor(True))
    before = [tensor.clone() for tensor in (*moments.now, network.input_mean, network.input_scale)]
    bad = replace(batch, observations=batch.observations.clone().fill_(float("nan")))
    moments.merge(bad, torch.tensor(False))
    assert all(map(torch.equal, (*moments.now, network.input_mean, network.input_scale), before))


def test_saved_moments_continue_to_the_bit_and_others_are_refused() -> None:
    one, other = (RunningMoments(3, torch.device("cpu")) for _ in range(2))
    values = torch.randn(20, 3)
    one.take(merged(one.now, moments_of(values, everything(values))))
    other.check_state_dict(one.state_dict())
    other.load_state_dict(one.state_dict())
    assert all(map(torch.equal, one.now, other.now))
    with pytest.raises(ValueError, match=r"wanted mean of running moments as float64 \[2\], got another"):
        RunningMoments(2, torch.device("cpu")).check_state_dict(one.state_dict())


def test_images_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^normalise_observations: wanted vectors, got images \[4, 42, 42\]; --calibrate"):
        network_of("nature", (4, 42, 42), 3, normalise_observations=True)
