"""Workers, learner threads and expected speed follow from the costs of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from learner.machine.costs import (
    REACHED,
    Costs,
    answer_takes,
    doubling_saves,
    enough_threads,
    enough_workers,
    expected,
    larger_groups_help,
    limit,
)

COSTS = Costs(env=300e-6, act=100e-6, act_doubled=90e-6, learn=600e-6, frames_per_step=4)


def test_without_a_gpu_all_parts_share_the_cores() -> None:
    assert limit(COSTS, 2) == pytest.approx(2 / 1e-3)
    assert expected(COSTS, 2, 2) == pytest.approx(REACHED * 2000)


def test_with_a_gpu_only_stepping_needs_the_cores() -> None:
    assert limit(replace(COSTS, gpu_learns=True), 2) == pytest.approx(2 / 300e-6)


def test_with_a_gpu_the_slower_of_collecting_and_learning_decides() -> None:
    assert expected(replace(COSTS, learn=1e-6, gpu_learns=True), 2, 2) == pytest.approx(2 / 400e-6)
    assert expected(replace(COSTS, learn=1e-3, gpu_learns=True), 2, 2) == pytest.approx(1000)


def test_workers_only_step_if_the_gpu_acts() -> None:
    costs = replace(COSTS, act=10e-6, learn=20e-6, gpu_acts=True, gpu_learns=True)
    assert expected(costs, cores=16, workers=3) == pytest.approx(1 / (100e-6 + 10e-6 + 20e-6))
    assert expected(costs, cores=2, workers=3) == pytest.approx(1 / (150e-6 + 10e-6 + 20e-6))
    assert costs.collect == costs.env


@pytest.mark.parametrize(
    ("env", "act", "learn", "workers", "reached"),
    [(453e-6, 7e-6, 12e-6, 16, 19_300), (421e-6, 19e-6, 83e-6, 8, 5_800)],
)
def test_the_speed_of_an_h200_is_expected(env: float, act: float, learn: float, workers: int, reached: float) -> None:
    """Pong with 16 cores: the default settings, and those of the preset `pong_fast`."""
    costs = replace(COSTS, env=env, act=act, learn=learn, gpu_acts=True, gpu_learns=True)
    assert expected(costs, 16, workers) == pytest.approx(reached, rel=0.15)


@pytest.mark.parametrize(
    ("learn", "threads", "gpu", "wanted"),
    [
        (600e-6, 8, False, 16),  # eight threads learn from 13,333 steps/s, eight workers collect 20,000: just below 1.5 times
        (610e-6, 8, False, 8),
        (3000e-6, 8, False, 2),
        (9.0, 8, False, 1),
        (25e-6, 8, True, 16),  # the GPU alone takes all steps
        (100e-6, 1, True, 8),
        (700e-6, 8, True, 1),  # threads do not matter to a GPU
    ],
)
def test_workers_beyond_what_the_learner_can_take_are_left_out(learn: float, threads: int, gpu: bool, wanted: int) -> None:
    costs = replace(COSTS, learn=learn * 0.9999, gpu_learns=gpu)
    assert enough_workers(costs, 16, threads) == wanted


@pytest.mark.parametrize("noise", [0.9, 1.1])
def test_noise_of_a_tenth_does_not_move_the_count(noise: float) -> None:
    assert enough_workers(replace(COSTS, learn=1500e-6 * noise), 16, 8) == 4


@pytest.mark.parametrize(
    ("learn", "cores", "wanted"),
    [
        (200e-6, 2, 1),  # two thirds of a core
        (390e-6, 2, 1),
        (660e-6, 2, 1),  # 1.25 cores: one thread learns from 0.8 of what both could give
        (670e-6, 2, 2),
        (600e-6, 4, 2),  # 2.4 cores
        (1600e-6, 4, 3),  # 3.2 cores
        (9.0, 4, 4),
    ],
)
def test_as_few_learner_threads_as_learn_from_most_of_what_the_cores_can_give(learn: float, cores: int, wanted: int) -> None:
    assert enough_threads(replace(COSTS, learn=learn), cores) == wanted


MEASURED = [
    (289e-6, 118e-6, 301e-6),  # --preset=pong_fast
    (269e-6, 105e-6, 377e-6),  # the same on a busy machine
    (286e-6, 111e-6, 536e-6),  # half replayed, 84 x 84, batches of 8: one thread was 8 % faster than two
]


@pytest.mark.parametrize(("env", "act", "learn"), MEASURED)
@pytest.mark.parametrize("noise", [0.93, 1.0, 1.07])
def test_runs_that_one_thread_made_faster_have_one_in_any_noise(env: float, act: float, learn: float, noise: float) -> None:
    assert enough_threads(replace(COSTS, env=env, act=act, learn=noise * learn), 2) == 1


def test_twice_the_environments_save_a_part_of_acting() -> None:
    assert doubling_saves(COSTS) == pytest.approx(10 / 400)
    assert doubling_saves(replace(COSTS, act=300e-6, act_doubled=150e-6)) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("act", "act_doubled", "workers", "wanted"),
    [
        (15e-6, 9e-6, 16, True),  # answers take 0.8 of their time, 0.48 in larger groups
        (14e-6, 9e-6, 16, False),  # 0.75 and less is soon enough
        (15e-6, 9e-6, 8, False),
        (15e-6, 12e-6, 16, False),  # nearly all of it is per environment: a larger group would be as late
    ],
)
def test_groups_are_larger_where_answers_would_often_come_too_late(
    act: float, act_doubled: float, workers: int, wanted: bool
) -> None:
    costs = replace(COSTS, act=act, act_doubled=act_doubled, gpu_acts=True, gpu_learns=True)
    assert answer_takes(act, costs, workers) == pytest.approx(workers * act / 300e-6)
    assert larger_groups_help(costs, workers) == wanted
    assert not larger_groups_help(replace(costs, gpu_acts=False), workers)
