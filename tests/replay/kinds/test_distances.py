"""Distances agree with reference values, are near zero for the same policy, and stay finite at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agents.distributions import ILLEGAL_LOGIT
from replay.kinds import distances
from replay.kinds.distances import (
    DISTANCES,
    POLICY_DISTANCES,
    cos_dist,
    kl_div,
    kl_policy,
    ln_norm,
    make_distance,
    state_distances,
)
from tests.support import golden

GOLDEN = golden("elite.json")


def features_of(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    inputs = case["inputs"]
    return np.array(inputs["target_features"], np.float32), np.array(inputs["behaviour_features"], np.float32)


def random_pair(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    pair = generator.standard_normal((2, 6, 5, 3)).astype(np.float32)
    return pair[0], pair[1]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_reference_values(case: dict[str, Any]) -> None:
    target, behaviour = features_of(case)
    wanted = case["outputs"]
    for got, name in (
        (ln_norm(target, behaviour), "ln_norm_p2"),
        (ln_norm(target, behaviour, 1), "ln_norm_p1"),
        (cos_dist(target, behaviour), "cos_dist"),
        (kl_div(target, behaviour), "kl_div"),
        (kl_policy(target, behaviour), "kl_div"),
    ):
        np.testing.assert_allclose(got, wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_trajectory_s_own_policy_is_the_nearest() -> None:
    target, behaviour = random_pair()
    for name in DISTANCES:
        distance = make_distance(name, 3.0)
        np.testing.assert_allclose(distance(target, target), 0, atol=1e-9, err_msg=name)
        assert (distance(target, behaviour) > 0.01).all(), name


def test_p_is_the_exponent_of_the_norm() -> None:
    target, behaviour = random_pair()
    for p in (1.0, 1.5, 3.0):
        wanted = np.sum(np.abs(target - behaviour).astype(np.float64) ** p, axis=(1, 2)) ** (1 / p)
        np.testing.assert_allclose(make_distance("ln_norm", p)(target, behaviour), wanted, rtol=1e-6)


@pytest.mark.parametrize("p", [1.0, 2.0, 7.0, 1e6])
def test_no_power_overflows_or_vanishes(p: float) -> None:
    target, behaviour = np.full((1, 2, 2), 1e30, np.float32), np.zeros((1, 2, 2), np.float32)
    assert ln_norm(target, behaviour, p)[0] == pytest.approx(1e30 * 4 ** (1 / p), rel=1e-5)
    assert ln_norm(np.full_like(target, 1e-30), behaviour, p)[0] == pytest.approx(1e-30 * 4 ** (1 / p), rel=1e-5)
    assert ln_norm(behaviour, behaviour, p)[0] == 0


def test_the_cosine_distance_ignores_lengths_and_is_2_for_opposite_directions() -> None:
    target, _ = random_pair()
    np.testing.assert_allclose(cos_dist(target, -target), 2)
    np.testing.assert_allclose(cos_dist(target, 5 * target), 0, atol=1e-7)


def test_zero_vectors_have_a_cosine_distance() -> None:
    zeros, ones = np.zeros((2, 1, 3), np.float32), np.ones((2, 1, 3), np.float32)
    assert cos_dist(zeros, ones).tolist() == [1, 1]
    assert cos_dist(zeros, zeros).tolist() == [0, 0]


def test_the_target_comes_first_in_the_divergence() -> None:
    """For p = (0.9, 0.1) and q = (0.5, 0.5), KL(p||q) is 0.368 and KL(q||p) 0.511. There are two steps."""
    peaked, flat = np.log([[[0.9, 0.1]] * 2]), np.zeros((1, 2, 2))
    assert kl_div(peaked, flat)[0] == pytest.approx(2 * 0.3681, abs=1e-4)
    assert kl_div(flat, peaked)[0] == pytest.approx(2 * 0.5108, abs=1e-4)


def test_huge_logits_stay_finite() -> None:
    target = np.array([[[1e4, 0.0, -1e4]]], np.float32)
    assert np.isfinite(kl_div(target, -target)).all()


def test_only_kl_policy_needs_no_features() -> None:
    assert POLICY_DISTANCES == ("kl_policy",)


@pytest.mark.parametrize("name", sorted(DISTANCES))
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_a_state_has_the_distance_of_a_trajectory_with_one_step(name: str, p: float) -> None:
    states, anchors = random_pair()[0].reshape(-1, 3), random_pair(1)[0][0]
    got = state_distances(name, p, states, anchors)
    assert got.shape == (len(states), len(anchors))
    for column, anchor in enumerate(anchors):
        repeated = np.broadcast_to(anchor, states.shape)
        np.testing.assert_allclose(
            got[:, column], make_distance(name, p)(states[:, None], repeated[:, None]), rtol=1e-9, atol=1e-12
        )


def plain_distances(states: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Returns Euclidean distances in float64, from explicit differences."""
    differences = states.astype(np.float64)[:, None] - anchors.astype(np.float64)[None]
    return np.sqrt(np.sum(differences**2, axis=2))


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_the_fast_euclidean_distance_equals_the_plain_one(offset: float, size: float) -> None:
    """Also if all points are far from zero."""
    states, anchors = (size * (offset + points) for points in np.random.default_rng(1).standard_normal((2, 30, 50)))
    got, wanted = state_distances("ln_norm", 2.0, states, anchors), plain_distances(states, anchors)
    np.testing.assert_allclose(got, wanted, rtol=1e-12 + 1e-15 * offset)


@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-6, 1e-3])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_errors_between_nearly_equal_points_are_below_float32_rounding(gap: float, offset: float) -> None:
    """Each point is near one anchor, and anchors are far from each other."""
    generator = np.random.default_rng(2)
    anchors = offset + 10 * generator.standard_normal((20, 64))
    states = anchors + gap * generator.standard_normal(anchors.shape)
    with np.errstate(all="raise"):
        got = state_distances("ln_norm", 2.0, states, anchors)
    rounding = np.linalg.norm(np.spacing(np.abs(anchors - offset).astype(np.float32)) / 2, axis=1).min()
    np.testing.assert_allclose(got, plain_distances(states, anchors), rtol=1e-9, atol=rounding)
    assert np.isfinite(got).all()
    assert (got >= 0).all()
    assert (got.argmin(axis=1) == np.arange(20)).all()


def test_states_equal_to_the_only_anchor_have_distance_zero() -> None:
    states = np.full((3, 5), 1234.567, np.float32)
    assert (state_distances("ln_norm", 2.0, states, states[:1]) == 0).all()


@pytest.mark.parametrize("p", [1.0, 1.999, 3.0])
def test_other_norms_are_computed_from_explicit_differences(p: float) -> None:
    """The bits equal those of `ln_norm` for trajectories of one step."""
    states, anchors = random_pair()[0].reshape(-1, 3), random_pair(1)[0][0]
    wanted = np.stack([ln_norm(states[:, None], np.broadcast_to(anchor, (len(states), 1, 3)), p) for anchor in anchors], axis=1)
    np.testing.assert_array_equal(state_distances("ln_norm", p, states, anchors), wanted)


def squared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A divergence of policies that has one parameter more than one would need: the last is not read."""
    return np.asarray(np.sum((one[..., :-1] - other[..., :-1]) ** 2, axis=-1, dtype=np.float64))


def test_other_policies_than_one_choice_are_compared_by_their_own_divergence() -> None:
    target, behaviour = random_pair()
    got = make_distance("kl_policy", 2.0, squared)(target, behaviour)
    np.testing.assert_allclose(got, np.sum((target - behaviour)[..., :-1] ** 2, axis=(1, 2)), rtol=1e-6)
    for name in DISTANCES:  # features are compared as before
        alike = np.array_equal(
            make_distance(name, 2.0, squared)(target, behaviour), make_distance(name, 2.0)(target, behaviour)
        )
        assert alike is (name != "kl_policy")


@pytest.mark.parametrize("pairs", [1, 7, 10**6])
def test_states_are_compared_with_anchors_by_the_same_divergence(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "PAIRS_AT_ONCE", pairs)
    states, anchors = random_pair()[0].reshape(-1, 3), random_pair(1)[0][0]
    got = state_distances("kl_policy", 2.0, states, anchors, squared)
    wanted = np.stack([make_distance("kl_policy", 2.0, squared)(states[:, None], anchor[None, None]) for anchor in anchors], 1)
    np.testing.assert_array_equal(got, wanted)


def test_an_action_that_an_anchor_alone_forbids_is_an_unlikely_one() -> None:
    """Masks alone would decide otherwise: the divergence of any state that allows one more action is some 1e6."""
    log = np.log(np.array([[0.99, 0.01, 1.0], [0.495, 0.495, 0.01]]))
    states, anchor = log.copy(), np.log(np.array([[0.5, 0.5, 1.0]]))
    states[0, 2] = anchor[0, 2] = ILLEGAL_LOGIT
    same_mask, other_mask = state_distances("kl_policy", 2.0, states.astype(np.float32), anchor.astype(np.float32))[:, 0]
    assert same_mask == pytest.approx(0.99 * np.log(1.98) + 0.01 * np.log(0.02), rel=1e-6)
    assert other_mask == pytest.approx(0.99 * np.log(0.99), rel=1e-6, abs=1e-6)  # its forbidden action has 0.01 too
    assert other_mask < same_mask
