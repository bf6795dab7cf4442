"""RND and ICM against recorded cases: errors, the running scale, returns over the ends of episodes, and gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from agents.intrinsic.modules import CuriousErrors, curious_errors, curious_loss, encoded, prediction_errors
from agents.intrinsic.scale import RewardFilter, deviation_or
from agents.intrinsic.streams import stream_of
from agents.losses import used_mean
from agents.networks.statistics import Moments, RunningMoments, moments_of
from agents.returns.gae import advantages_of
from replay.batch import Batch
from tests.agents.support import each_golden_case, old_start, random_batch
from wrappers.spaces import Discrete

CPU, TRUE = torch.device("cpu"), torch.ones((), dtype=torch.bool)
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def exact(part: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in part.items() if name != "columns"}


def batch_of(steps: dict[str, Tensor]) -> Batch:
    """A batch of fresh columns with these rows `[T, B]`."""
    used, ended = steps["action_used"].bool(), steps["terminated"].bool()
    fresh = torch.zeros(used.shape[1], dtype=torch.bool)
    return replace(
        random_batch(), rewards=steps["rewards"], terminated=ended, reset=~used, action_used=used, is_replay=fresh, source=fresh
    )


def filter_of(case: dict[str, Any], columns: int, gamma: float) -> RewardFilter:
    running = RewardFilter(columns, gamma, CPU)
    running.take(old_start(case["initial_count"], 1))
    return running


@each_golden_case("rnd.json", only=lambda case: "T" in case)
def test_rewards_returns_and_the_predictors_loss_are_those_recorded(case: dict[str, Any]) -> None:
    running = filter_of(case, case["B"], gamma := case["gamma_intrinsic"])
    for given, raw, wanted in zip(
        case["inputs"]["batches"], case["outputs"]["raw_rewards"], case["outputs"]["batches"], strict=True
    ):
        steps, found = exact(given), exact(wanted)
        batch = batch_of(steps)
        used = batch.action_used
        predicted = steps["predicted_features"].requires_grad_()
        errors = torch.where(used, prediction_errors(steps["target_features"], predicted), 0.0)
        torch.testing.assert_close(errors, torch.tensor(raw, dtype=torch.float64), **EXACT)
        filtered, _ = running.fold(errors.detach(), used, torch.arange(case["B"]))
        torch.testing.assert_close(filtered[used], found["filtered"][used], **EXACT)
        rewards = running.scaled(errors.detach(), used, torch.arange(case["B"]))
        running.settle(TRUE)
        torch.testing.assert_close(running.now.mean[0], found["mean"], **EXACT)
        torch.testing.assert_close(running.now.variance[0], found["variance"], **EXACT)
        torch.testing.assert_close(rewards, found["intrinsic_rewards"], **EXACT)
        stream = stream_of(batch, rewards, steps["values_intrinsic"], gamma, episodic=False)
        returns = advantages_of(stream.batch, stream.values, gamma, case["lambda"])
        intrinsic = torch.where(used, stream.back(returns.advantages), 0.0)
        torch.testing.assert_close(intrinsic, found["advantages_intrinsic"], **EXACT)
        targets = stream.back(returns.targets)
        torch.testing.assert_close(targets[used], found["value_targets_intrinsic"][used], **EXACT)
        extrinsic = advantages_of(batch, steps["values_extrinsic"], case["gamma_extrinsic"], case["lambda"]).advantages
        torch.testing.assert_close(extrinsic, found["advantages_extrinsic"], **EXACT)
        together = case["coefficient_intrinsic"] * intrinsic + case["coefficient_extrinsic"] * extrinsic
        torch.testing.assert_close(together, found["advantages"], **EXACT)
        loss = used_mean(errors, used & steps["keep"].bool())
        torch.testing.assert_close(loss.detach(), found["predictor_loss"], **EXACT)
        loss.backward()
        torch.testing.assert_close(predicted.grad, found["grad_predictor_loss_wrt_predicted"], **EXACT)


@each_golden_case("rnd.json", only=lambda case: case["name"] == "observations")
def test_frames_are_normalised_before_they_are_merged(case: dict[str, Any]) -> None:
    running, first, second = RunningMoments(3, CPU), *exact(case["inputs"]).values()
    running.take(old_start(case["initial_count"], 3))
    running.take(running.with_batch(moments_of(first, TRUE.expand(len(first)))))

    def normalised(moments: Moments) -> Tensor:
        return ((second - moments.mean) / deviation_or(moments, 1.0)).clamp(-case["clip"], case["clip"])

    wanted = exact(case["outputs"])
    torch.testing.assert_close(normalised(running.now), wanted["second_normalised"], **EXACT)
    running.take(running.with_batch(moments_of(second, TRUE.expand(len(second)))))
    torch.testing.assert_close(running.now.variance, wanted["variance_after"], **EXACT)
    torch.testing.assert_close(normalised(running.now), wanted["second_normalised_after"], **EXACT)


@each_golden_case("icm.json", only=lambda case: "M" in case)
def test_icm_is_the_recorded_one(case: dict[str, Any]) -> None:
    given, wanted = exact(case["inputs"]), exact(case["outputs"])
    weights = {name: given[name].requires_grad_() for name in ("encoder", "inverse", "forward")}
    action, actions, used = Discrete(case["A"]), given["actions"].long(), given["action_used"].bool()

    def errors(*, into_next: bool) -> tuple[CuriousErrors, Tensor]:
        before, after = (given[name] @ weights["encoder"] for name in ("observations", "next_observations"))
        logits = torch.cat([before, after], 1) @ weights["inverse"]
        predicted = torch.cat([before, encoded(action, actions).double()], 1) @ weights["forward"]
        found = curious_errors(action, actions, logits, after if into_next else after.detach(), predicted)
        return found, used_mean(curious_loss(found, case["beta"]), used)

    found, loss = errors(into_next=True)
    for got, name in ((found.inverse, "inverse_loss"), (found.forward, "forward_loss"), (case["eta"] * found.forward, "bonus")):
        torch.testing.assert_close(got.detach()[used], wanted[name][used], **EXACT)
    torch.testing.assert_close(loss.detach(), wanted["loss"], **EXACT)
    for name, gradient in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
        torch.testing.assert_close(gradient, wanted[f"grad_{name}"], **EXACT)
    (of_encoder,) = torch.autograd.grad(errors(into_next=False)[1], [weights["encoder"]])
    torch.testing.assert_close(of_encoder, wanted["grad_encoder_next_features_constant_in_forward"], **EXACT)


@each_golden_case("icm.json", only=lambda case: case["name"] == "running_scale")
def test_a_bonus_is_scaled_as_rnds_is(case: dict[str, Any]) -> None:
    running = filter_of(case, case["B"], case["gamma"])
    for given, wanted in zip(case["inputs"]["batches"], case["outputs"]["batches"], strict=True):
        steps = exact(given)
        used = steps["action_used"].bool()
        scaled = running.scaled(torch.where(used, steps["bonus"], 0.0), used, torch.arange(case["B"]))
        running.settle(TRUE)
        torch.testing.assert_close(scaled[used], exact(wanted)["scaled"][used], **EXACT)
