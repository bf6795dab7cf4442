"""Running moments equal the golden vectors, in any order of merges, and only sound fresh rows change them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.networks.inputs import normalised
from agents.networks.statistics import OLD_START, Moments, ObservationMoments, RunningMoments, merged, moments_of
from tests.agents.support import T, old_start, random_batch
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
    running.take(old_start(case["initial_count"], case["dimensions"]))
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_start_of_an_old_checkpoint_is_taken_off(case: dict[str, Any]) -> None:
    outputs, running = case["outputs"], RunningMoments(case["dimensions"], torch.device("cpu"))
    assert case["initial_count"] == OLD_START
    every = exact([row for batch in case["inputs"]["batches"] for row in batch])
    after = {name: exact(values) for name, values in outputs["after_batch"][-1].items()}
    running.load_state_dict(Moments(after["count"], after["mean"], after["var"] * after["count"])._asdict())
    torch.testing.assert_close(tuple(running.now), tuple(moments_of(every, everything(every))), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6, 2e7])
def test_an_offset_changes_no_deviation_from_the_first_batch_on(offset: float) -> None:
    network = network_of("mlp", (1, 6), 4, normalise_observations=True)
    moments, old = ObservationMoments(network), RunningMoments(6, torch.device("cpu"))
    old.take(old_start(OLD_START, 6))
    for _ in range(3):
        values = (offset + 8 * torch.randn(200, 1, 6)).float()
        moments.calibrate(values)
        old.take(old.with_batch(moments_of(values[:, 0], everything(values))))
        inputs = network.inputs_of(values, torch.float32)[0]
        torch.testing.assert_close(inputs.std(0, correction=0), torch.ones(1, 6), rtol=0.2, atol=0)
    old.load_state_dict(old.state_dict())
    torch.testing.assert_close(old.now.deviation, moments.now.deviation, rtol=1e-6, atol=0)


@pytest.mark.parametrize("constant", [0.0, 0.1, -3.0, 1e6])
def test_a_feature_that_has_never_varied_keeps_its_unit(constant: float) -> None:
    network = network_of("mlp", (1, 6), 4, normalise_observations=True)
    moments, values = ObservationMoments(network), torch.full((50, 1, 6), constant)
    assert torch.equal(moments.now.deviation, exact([1.0] * 6))
    for _ in range(3):
        moments.calibrate(values)
    assert torch.equal(network.inputs_of(values + 0.5, torch.float32)[0], (values + 0.5) - values)
    old = merged(old_start(OLD_START, 6), moments.now)
    moments.load_state_dict(old._asdict())
    assert torch.equal(moments.now.deviation, exact([1.0] * 6))


def test_rows_that_are_left_out_may_hold_anything() -> None:
    values = torch.tensor([[1.0], [float("nan")], [3.0]])
    assert moments_of(values, torch.tensor([True, False, True])) == Moments(exact(2.0), exact([2.0]), exact([2.0]))
    for some in (RunningMoments(1, torch.device("cpu")).now, moments_of(values[:1], torch.tensor([True]))):
        assert merged(some, moments_of(values, torch.zeros(3, dtype=torch.bool))) == some


def test_fresh_columns_are_merged_once_without_the_last_row() -> None:
    network = network_of("mlp", (2, 6), 4, normalise_observations=True)
    moments, batch = ObservationMoments(network), random_batch()
    moments.merge(batch, torch.tensor(True))
    fresh = batch.observations[:T, ~batch.is_replay, -1].flatten(0, 1)
    assert float(moments.now.weight) == len(fresh)
    torch.testing.assert_close(moments.now.mean, fresh.double().mean(0))
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


def test_moments_that_begin_with_almost_no_value_are_those_of_simba() -> None:
    """Its authors begin with 1e-4 values of mean 0 and variance 1, a run with none."""
    case = next(case for case in golden("simba.json") if case["name"] == "running_statistics")
    batches = [torch.tensor(batch, dtype=torch.float64) for batch in case["inputs"]["batches"]]
    start = torch.tensor(case["initial_count"], dtype=torch.float64)
    moments = Moments(start, torch.zeros(3, dtype=torch.float64), start * torch.ones(3, dtype=torch.float64))
    moments = merged(moments, moments_of(batches[0], torch.zeros(len(batches[0]), dtype=torch.bool)))  # of no row
    torch.testing.assert_close(moments.variance, torch.ones(3, dtype=torch.float64))
    for batch, mean, variance in zip(batches, case["outputs"]["means"], case["outputs"]["variances"], strict=True):
        moments = merged(moments, moments_of(batch, torch.ones(len(batch), dtype=torch.bool)))
        torch.testing.assert_close(moments.mean, torch.tensor(mean, dtype=torch.float64))
        torch.testing.assert_close(moments.variance, torch.tensor(variance, dtype=torch.float64))
