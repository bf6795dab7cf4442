"""What follows from the costs of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from learner.costs import Costs, doubling_saves, enough_workers, expected, limit

COSTS = Costs(env=300e-6, act=100e-6, act_doubled=90e-6, learn=600e-6, frames_per_step=4)


def test_without_a_gpu_all_parts_share_the_cores() -> None:
    assert limit(COSTS, 2, gpu=False) == pytest.approx(2 / 1e-3)
    assert expected(COSTS, 2, gpu=False) == pytest.approx(2000)


def test_with_a_gpu_only_stepping_is_left_to_the_cores() -> None:
    assert limit(COSTS, 2, gpu=True) == pytest.approx(2 / 300e-6)


def test_workers_that_act_on_the_cpu_feed_a_gpu_as_fast_as_they_can_and_it_learns() -> None:
    assert expected(replace(COSTS, learn=1e-6), 2, gpu=True) == pytest.approx(2 / 400e-6)
    assert expected(replace(COSTS, learn=1e-3), 2, gpu=True) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("learn", "threads", "gpu", "wanted"),
    [
        (600e-6, 8, False, 16),  # eight threads learn from 13,333 steps/s, and eight workers collect 20,000: just not 1.5 times
        (610e-6, 8, False, 8),
        (3000e-6, 8, False, 2),
        (9.0, 8, False, 1),
        (25e-6, 8, True, 16),  # the GPU alone takes all that there is
        (100e-6, 1, True, 8),
        (700e-6, 8, True, 1),  # threads are not what a GPU learns with
    ],
)
def test_workers_beyond_what_the_learner_can_take_are_left_out(learn: float, threads: int, gpu: bool, wanted: int) -> None:
    costs = replace(COSTS, learn=learn * 0.9999)
    assert enough_workers(costs, 16, threads, gpu=gpu) == wanted


@pytest.mark.parametrize("noise", [0.9, 1.1])
def test_noise_of_a_tenth_hardly_moves_the_count(noise: float) -> None:
    assert enough_workers(replace(COSTS, learn=1500e-6 * noise), 16, 8, gpu=False) == 4


def test_twice_the_environments_save_what_acting_saves() -> None:
    assert doubling_saves(COSTS) == pytest.approx(10 / 400)
    assert doubling_saves(replace(COSTS, act=300e-6, act_doubled=150e-6)) == pytest.approx(0.25)
