"""What one agent step costs, and what follows from it: the speed that no run can pass, and how many workers are enough.

Decisions only; `learner.measuring` finds the costs out.
"""

from __future__ import annotations

from dataclasses import dataclass

HEADROOM = 1.5
"""Workers are enough when they could collect so many times what the learner can take: costs are measured without the others."""

WORTH_DOUBLING = 0.25
"""The part of a worker's step that twice the environments must save: they also double the policy lag."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one agent step, each part measured alone.

    env, act: stepping, and acting for it at a worker's batch, on one core. act_doubled: acting at twice that batch.
    learn: the updates for one fresh step, on one core or on the GPU. frames_per_step: emulator frames that a step lasts.
    """

    env: float
    act: float
    act_doubled: float
    learn: float
    frames_per_step: int

    @property
    def collect(self) -> float:
        """Stepping and acting."""
        return self.env + self.act


def limit(costs: Costs, cores: int, *, gpu: bool) -> float:
    """Steps per second that no design passes: without a GPU all parts share the cores, with one only stepping needs them."""
    return cores / costs.env if gpu else cores / (costs.collect + costs.learn)


def expected(costs: Costs, cores: int, *, gpu: bool) -> float:
    """The most steps per second of this design, whose workers act on the CPU: `limit`, or what a GPU learns from."""
    return min(cores / costs.collect, 1 / costs.learn) if gpu else limit(costs, cores, gpu=False)


def enough_workers(costs: Costs, cores: int, learner_threads: int, *, gpu: bool) -> int:
    """One worker a core, halved as long as half of them still collect `HEADROOM` times what the learner can take at most.

    Only halves, so that the noise of a measurement seldom changes how many environments a run has.
    """
    learner_speed = (1 if gpu else learner_threads) / costs.learn
    workers = cores
    while workers // 2 / costs.collect >= HEADROOM * learner_speed:
        workers //= 2
    return workers


def doubling_saves(costs: Costs) -> float:
    """The part of a worker's step that twice as many environments save."""
    return 1 - (costs.env + costs.act_doubled) / costs.collect
