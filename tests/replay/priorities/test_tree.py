"""The sum tree draws the leaf that a plain running sum would draw, whatever was written before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replay.priorities.tree import SumTree
from tests.support import golden

DRAWS = [case for case in golden("prioritised.json") if "stratified" in case["outputs"]]


def tree_of(weights: np.ndarray) -> SumTree:
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), weights)
    return tree


def slow_find(weights: np.ndarray, target: float) -> int:
    """The least i with target < leaf_0 + ... + leaf_i, one leaf after the other."""
    return next(i for i in range(len(weights)) if target < weights[: i + 1].sum())


@pytest.mark.parametrize("case", DRAWS, ids=lambda case: case["name"])
def test_targets_find_the_leaves_of_the_paper(case: dict[str, Any]) -> None:
    leaves, uniforms = (np.array(values) for values in (case["outputs"]["leaves"], case["inputs"]["uniforms"]))
    tree, wanted = tree_of(leaves), case["outputs"]
    assert tree.total == pytest.approx(wanted["total"], abs=1e-10)
    assert tree.find((np.arange(len(uniforms)) + uniforms) / len(uniforms) * tree.total).tolist() == wanted["stratified"]
    assert tree.find(uniforms * tree.total).tolist() == wanted["independent"]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 300, 5000])
def test_leaves_of_any_number_are_drawn_in_their_order(count: int) -> None:
    generator = np.random.default_rng(count)
    weights = generator.integers(0, 4, count).astype(float)  # whole numbers: no sum is rounded
    weights[0] = 1.0
    tree = tree_of(weights)
    targets = np.arange(0.0, weights.sum(), max(0.5, weights.sum() / 200))
    assert tree.find(targets).tolist() == [slow_find(weights, target) for target in targets]
    assert tree.total == weights.sum()


def test_the_last_of_repeated_leaves_counts_and_sums_follow() -> None:
    weights = np.random.default_rng(1).random(1000)
    tree = tree_of(weights)
    changed, values = np.array([3, 999, 3, 500]), np.array([5.0, 0.0, 7.0, 2.0])
    tree.set(changed, values)
    weights[[3, 999, 500]] = 7.0, 0.0, 2.0
    np.testing.assert_array_equal(tree.leaves, weights)
    assert tree.total == pytest.approx(weights.sum(), rel=1e-12)


def test_a_target_at_the_total_finds_the_last_leaf_that_is_not_empty() -> None:
    weights = np.array([0.0, 0.1, 0.0, 0.7, 0.2, 0.0] + 30 * [0.0])
    tree = tree_of(weights)
    assert tree.find(np.array([0.0, tree.total, 2 * tree.total])).tolist() == [1, 4, 4]


def test_sums_do_not_drift() -> None:
    """Weights of very different sizes come and go; in the end the sum is that of what is left."""
    generator, tree = np.random.default_rng(5), SumTree(500)
    for _ in range(300):
        tree.set(generator.integers(0, 500, 32), 10.0 ** generator.uniform(-12, 12, 32))
    tree.set(np.arange(1, 500), np.zeros(499))
    tree.set(np.array([0]), np.array([0.25]))
    assert tree.total == 0.25


def test_a_loaded_tree_is_the_same_to_the_bit() -> None:
    generator, tree = np.random.default_rng(6), SumTree(700)
    for _ in range(50):
        tree.set(generator.integers(0, 600, 32), generator.random(32))
    other = tree_of(np.ones(700))
    other.load(tree.leaves[:650], 700)
    targets = generator.random(500) * tree.total
    assert other.total == tree.total
    np.testing.assert_array_equal(other.find(targets), tree.find(targets))
