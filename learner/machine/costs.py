"""Decides from the costs of one agent step: the speed to expect, and how many workers and learner threads are enough.

`learner.machine.measuring` measures the costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HEADROOM = 1.5
"""Workers are enough if they could collect this many times what the learner can take: each cost is measured alone."""

REACHED = 0.9
"""The fraction of `limit` that runs on two cores reach: most windows of measurement had 0.80 to 0.94 (docs/results.md)."""

KEPT_UP = 0.8
"""The fraction of all steps that learner threads must be able to learn from: low enough that noise does not move the count."""

WORTH_DOUBLING = 0.25
"""The fraction of a step, or of the wait for the policy, that twice the environments must save: they double the policy lag."""

OFTEN_LATE = 0.75
"""If the answer of the policy takes this fraction of the time that it has, it often comes too late: both times vary."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one agent step, each part measured alone.

    Args:
        env: stepping the environment, on one core.
        act: acting, on one core with a worker's batch, or on the GPU with one group of every worker.
        act_doubled: acting with twice that batch.
        learn: the updates for one fresh step, on one core or on the GPU.
        frames_per_step: emulator frames of a step.
        gpu_acts: whether the GPU acts.
        gpu_learns: whether the GPU learns.
    """

    env: float
    act: float
    act_doubled: float
    learn: float
    frames_per_step: int
    gpu_acts: bool = False
    gpu_learns: bool = False

    @property
    def collect(self) -> float:
        """Seconds that a worker computes for a step."""
        return self.env if self.gpu_acts else self.env + self.act


def limit(costs: Costs, cores: int) -> float:
    """Steps per second that no design exceeds. Without a GPU all parts share the cores; with one, only stepping needs them."""
    return cores / costs.env if costs.gpu_learns else cores / (costs.collect + costs.learn)


def expected(costs: Costs, cores: int, workers: int) -> float:
    """About the steps per second of a run: most of `limit`, or with a GPU what its parts take one after another.

    A policy and a learner that share a GPU and an interpreter hardly overlap. On an H200 with 16 cores this was 1.1 times the
    speed of Pong with two settings; the slowest part alone had 1.8 and 2.1 times that speed.
    """
    if not costs.gpu_learns:
        return REACHED * limit(costs, cores)
    collect = costs.collect / min(cores, workers)
    return 1 / (collect + costs.act + costs.learn) if costs.gpu_acts else min(1 / collect, 1 / costs.learn)


def enough_workers(costs: Costs, cores: int, learner_threads: int) -> int:
    """One worker per core, halved as long as half of them still collect `HEADROOM` times what the learner can take.

    The count is only ever halved, so that the noise of a measurement seldom changes how many environments a run has.
    """
    learner_speed = (1 if costs.gpu_learns else learner_threads) / costs.learn
    workers = cores
    while workers // 2 / costs.collect >= HEADROOM * learner_speed:
        workers //= 2
    return workers


def enough_threads(costs: Costs, cores: int) -> int:
    """The fewest learner threads on a CPU that learn from `KEPT_UP` of the steps that all cores together can give.

    Each further thread casts the weights and sums the gradients once more, and takes a core from the workers. Near the bound
    one thread was 10 % faster than two, and 8 % faster where it can learn from 0.87 of the steps (batches of 8, two cores).
    """
    return math.ceil(KEPT_UP * limit(costs, cores) * costs.learn)


def doubling_saves(costs: Costs) -> float:
    """The fraction of a worker's step that twice as many environments save."""
    return 1 - (costs.env + costs.act_doubled) / costs.collect


def answer_takes(act: float, costs: Costs, workers: int) -> float:
    """Time in which the policy on the GPU answers one group of every worker, as a fraction of the time that it has.

    It has the time in which a worker steps its other group. act: `costs.act` or `costs.act_doubled`.
    """
    return workers * act / costs.env


def larger_groups_help(costs: Costs, workers: int) -> bool:
    """Whether answers often come too late, and groups twice as large would have them in time more often."""
    saves = 1 - costs.act_doubled / costs.act
    return costs.gpu_acts and answer_takes(costs.act, costs, workers) >= OFTEN_LATE and saves >= WORTH_DOUBLING
