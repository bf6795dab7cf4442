"""Ladders of epsilon, random legal actions, and the state that exploration keeps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from agents.networks.exploration import begun, epsilon_ladder, legal_choices, repeated, with_probability, zeta_cumulative
from tests.support import golden

COUNTS = (3, 2)
LEGAL = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 0, 1], [1, 0, 1, 1, 0]], dtype=torch.bool)
DRAWS = 3000


@pytest.mark.parametrize(
    "case", [case for case in golden("apex.json") if "epsilons" in case["outputs"]], ids=lambda case: case["name"]
)
def test_the_ladder_is_that_of_ape_x(case: dict[str, Any]) -> None:
    count = case["inputs"]["workers"]
    torch.testing.assert_close(epsilon_ladder(torch.arange(count), count), torch.tensor(case["outputs"]["epsilons"]))
    torch.testing.assert_close(
        epsilon_ladder(torch.tensor([count - 1]), count)[0], torch.tensor(case["outputs"]["epsilons"][-1])
    )


def test_each_legal_choice_is_equally_frequent_and_no_other_is_made() -> None:
    drawn = legal_choices(LEGAL.repeat(DRAWS, 1), COUNTS, torch.Generator().manual_seed(1)).view(DRAWS, 3, 2)
    for row, legal in enumerate(LEGAL):
        for component, part in enumerate(legal.split(COUNTS)):
            frequencies = torch.bincount(drawn[:, row, component], minlength=len(part)) / DRAWS
            torch.testing.assert_close(frequencies, part / part.sum(), rtol=0, atol=0.04)


def test_each_environment_explores_with_its_own_probability() -> None:
    epsilon = torch.tensor([0.0, 0.25, 1.0]).repeat(DRAWS)
    best, explored = torch.zeros(3 * DRAWS, 2), torch.ones(3 * DRAWS, 2)
    taken = with_probability(epsilon, explored, best, torch.Generator().manual_seed(2)).view(DRAWS, 3, 2)
    assert torch.equal(taken[..., 0], taken[..., 1])  # all components of an action together
    torch.testing.assert_close(taken[..., 0].mean(0), torch.tensor([0.0, 0.25, 1.0]), rtol=0, atol=0.03)


def test_a_random_choice_lasts_as_long_as_the_zeta_distribution_says() -> None:
    generator, cumulative = torch.Generator().manual_seed(3), zeta_cumulative(2.0)
    count, best = 4 * DRAWS, torch.zeros(4 * DRAWS, 2, dtype=torch.int64)
    legal, epsilon = torch.ones(count, dtype=torch.bool), torch.tensor([0.0, 0.5, 1.0, 1.0]).repeat(DRAWS)
    taken, state = repeated(torch.zeros(count, 3), legal, epsilon, best + 1, best, cumulative, generator)
    began = taken[:, 0] == 1
    torch.testing.assert_close(began.view(-1, 4).float().mean(0), torch.tensor([0.0, 0.5, 1.0, 1.0]), rtol=0, atol=0.03)
    lengths = 1 + state[began, 0]
    for steps in (1, 2, 3, 10):  # zeta(2) = pi^2 / 6
        assert (lengths == steps).float().mean() == pytest.approx(6 / (math.pi * steps) ** 2, abs=0.015)
    assert lengths.max() > 100
    # Until a repeat ends, neither epsilon nor another random choice matters. It then takes the best choice again.
    none = torch.zeros(count)
    for step in range(2, 6):
        taken, state = repeated(state, legal, none, best + 2, best, cumulative, generator)
        assert torch.equal(taken[began], (lengths >= step).long().unsqueeze(-1).expand(-1, 2))
        assert not taken[~began].any()


def test_a_repeat_ends_where_its_choice_is_illegal() -> None:
    state = torch.tensor([[5.0, 3.0], [5.0, 3.0], [0.0, 3.0]])
    best, explored, legal = (
        torch.zeros(3, 1, dtype=torch.int64),
        torch.ones(3, 1, dtype=torch.int64),
        torch.tensor([True, False, True]),
    )
    taken, after = repeated(state, legal, torch.zeros(3), explored, best, zeta_cumulative(2.0), None)
    assert taken.tolist() == [[3], [0], [0]]
    assert after.tolist() == [[4, 3], [0, 0], [0, 0]]


def test_only_the_state_begins_anew_with_an_episode() -> None:
    exploration, first = torch.arange(1.0, 7.0).view(2, 3), torch.tensor([True, False])
    assert begun(exploration, first, 2).tolist() == [[1, 0, 0], [4, 5, 6]]
    assert begun(exploration, first, 0) is exploration
