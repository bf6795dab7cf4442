"""The costs of a step are measured with the settings of the run, if they may decide something."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from learner.machine import measuring, timing
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.machine.measuring import fresh_part, measure_costs, random_frames, wants_preflight
from learner.machine.timing import TimedPart
from learner.plan import Plan, make_plan
from learner.settings.config import DEFAULTS, Config, make_config
from tests.support import small_config, small_plan
from wrappers.spaces import ACTION_MASK, Discrete, Leaf, Packing
from wrappers.spec import EnvSpec
from wrappers.toys.catch import Catch

HALF = '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "standard", "capacity": 40, "sample_ratio": 0.5}]'


class Known:
    """Parts of known cost, in place of real ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(timing.time, "perf_counter", self.read)
        monkeypatch.setattr(measuring, "prepare_torch", lambda threads: None)

    def read(self) -> float:
        return self.now

    def part(self, seconds: float) -> TimedPart:
        def call() -> None:
            self.now += seconds

        return TimedPart(call, 1, self.read)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    return Known(monkeypatch)


@pytest.mark.parametrize("place", ["the reset", "building the next part"])
def test_an_interrupted_measurement_closes_its_environments(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Catch, "close", lambda env: closed.append(env.num_envs))
    monkeypatch.setattr(*((Catch, "reset") if place == "the reset" else (measuring, "acting")), interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure_costs(small_plan(), 0.02, brief=True)
    assert closed == [2]


def test_a_central_policy_is_measured_with_a_group_of_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []

    def acting_for_all(plan: Plan, num_envs: int) -> TimedPart:
        at_once.append(num_envs)
        return real(plan, num_envs)

    real = measuring.acting_for_all
    monkeypatch.setattr(measuring, "acting_for_all", acting_for_all)
    config = small_config(worker_kind="central", worker_count=3, envs_per_worker=8)
    costs = measure_costs(make_plan(config), 0.02)
    assert at_once == [12, 24]
    assert 0 < costs.act < 1e-2
    assert not costs.gpu_acts
    measure_costs(small_plan(worker_kind="central", worker_count=100, envs_per_worker=8), 0.02, brief=True)
    assert at_once[2:] == [160, 320]


def test_every_part_is_measured() -> None:
    costs = measure_costs(small_plan(), 0.02)
    assert 0 < costs.env < 1e-2
    assert 0 < costs.act_doubled < 1e-2
    assert 0 < costs.act < 1e-2
    assert 0 < costs.learn < 1e-1
    assert costs.frames_per_step == 1


def test_learning_is_counted_for_fresh_steps(monkeypatch: pytest.MonkeyPatch, known: Known) -> None:
    monkeypatch.setattr(measuring, "stepping", lambda config, num_envs, threads: known.part(1.0))
    monkeypatch.setattr(measuring, "acting", lambda config, num_envs: known.part(num_envs))
    monkeypatch.setattr(measuring, "learning", lambda config, batch_size: known.part(batch_size))
    costs = measure_costs(small_plan(replay_parameters=HALF, batch_size=6), 0.02)
    assert fresh_part(small_config(replay_parameters=HALF)) == 0.5
    assert (costs.act, costs.act_doubled, costs.learn) == (4.0, 8.0, 12.0)


@pytest.mark.parametrize(
    ("settings", "brief", "wanted"),
    [
        ({}, False, (6, 64, 10)),
        ({}, True, (2, 16, 10)),
        ({"device": "cuda"}, True, (2, 64, 10)),
        ({"unroll_length": 4000}, True, (2, 1, 160)),  # otherwise seconds and gigabytes
        ({"batch_size": 2, "envs_per_worker": 1}, True, (1, 2, 10)),
    ],
)
def test_a_brief_measurement_takes_few_environments_and_steps(
    monkeypatch: pytest.MonkeyPatch, known: Known, settings: dict[str, Any], brief: bool, wanted: tuple[int, int, int]
) -> None:
    learned_from, stepped = [], []

    def stepping(config: Config, num_envs: int, threads: int) -> TimedPart:
        stepped.append(num_envs)
        return known.part(1.0)

    def learning(plan: Plan, batch_size: int) -> TimedPart:
        learned_from.append((batch_size, plan.config.training.unroll_length))
        return known.part(1.0)

    monkeypatch.setattr(measuring, "stepping", stepping)
    monkeypatch.setattr(measuring, "acting", lambda *_: known.part(1.0))
    monkeypatch.setattr(measuring, "learning", learning)
    measure_costs(small_plan(**{"batch_size": 64, "envs_per_worker": 6, **settings}), 0.02, brief=brief)
    assert [(*stepped, *learned_from[0])] == [wanted]


STANDARD = '[{"type": "standard", "capacity": 400, "sample_ratio": 1.0}]'


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, True),
        ({"worker_count": 2}, True),
        ({"envs_per_worker": 8}, True),
        ({"worker_count": 2, "envs_per_worker": 8}, True),
        ({"worker_count": 2, "envs_per_worker": 8, "learner_threads": 2}, False),
        ({"preflight": False}, False),
        ({"reproducible": True}, False),
        ({"worker_kind": "serial"}, False),
        ({"env": "Catch-v0", "network": "mlp"}, False),
        ({"replay_parameters": STANDARD}, False),
    ],
)
def test_a_measurement_is_made_only_if_it_may_decide_something(given: dict[str, Any], wanted: bool) -> None:
    settings = {**DEFAULTS, **given}
    settled, _ = fit_to_machine(settings, Machine(2, 10**10, None))
    assert wants_preflight(settings, make_config(settled), 2) == wanted


@pytest.mark.parametrize(("cores", "gpu"), [(16, None), (2, "GPU 9000")])
def test_learner_threads_alone_are_measured_only_on_a_small_machine(cores: int, gpu: str | None) -> None:
    settings = {**DEFAULTS, "worker_count": 2, "envs_per_worker": 8}
    config = make_config(fit_to_machine(settings, Machine(cores, 10**10, gpu))[0])
    assert not wants_preflight(settings, config, cores)
    assert wants_preflight({**settings, "worker_count": "auto"}, config, cores)


def test_random_frames_have_the_dtype_of_the_environment_and_legal_actions() -> None:
    leaves = (Leaf("vector", (3,), "float32"), Leaf("image", (4, 5), "uint8"), Leaf(ACTION_MASK, (2,), "uint8"))
    packing = Packing(leaves)
    packed = EnvSpec("x", (packing.size,), "uint8", 2, Discrete(2), leaves=leaves)
    frames = random_frames(packed, (6, 2))
    assert (frames.shape, frames.dtype) == ((6, 2, packing.size), np.uint8)
    parts = packing.unpack(frames)
    assert np.isfinite(parts["vector"]).all()
    assert np.abs(parts["vector"]).max() < 6
    assert parts["image"].std() > 30
    assert (parts[ACTION_MASK] == 1).all()
    numbers = random_frames(EnvSpec("x", (3,), "float32", 1, Discrete(2)), (500,))
    assert (numbers.dtype, abs(float(numbers.std()) - 1) < 0.1) == (np.float32, True)
    assert random_frames(EnvSpec("x", (8, 8), "uint8", 1, Discrete(2)), (50,)).max() > 250


def test_the_parts_of_a_run_on_numbers_are_measured() -> None:
    config = small_config(env="CartPole-v1", worker_kind="cpu", worker_count=2)
    costs = measure_costs(make_plan(config), 0.01, brief=True)
    assert min(costs.env, costs.act, costs.learn) > 0
