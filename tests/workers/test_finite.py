"""A non-finite number stops the worker, and the message names the environment or the policy that made it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from learner.plan import make_plan
from replay.trajectory import Field
from tests import leafy
from tests.builders import network_of
from tests.support import small_config
from workers import SerialWorkers, WorkerError, WorkerSetup, random_observations, random_play, serial
from workers.clocks import CLOCKS
from workers.finite import NotFiniteError, check_environments, float_parts
from workers.policy import Acted, CpuPolicy
from workers.rollout import Rollout
from wrappers import ENVIRONMENTS
from wrappers.legal import random_actions
from wrappers.spaces import Box, MultiDiscrete
from wrappers.spec import EnvConfig, Step
from wrappers.toys.catch import Catch

CATCH = EnvConfig(env="Catch-v0", frames_stacked=2)
BAD = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
IDS = np.array([12, 13, 14])
LAST_OF_A_BLOCK = 5


class FloatCatch(Catch):
    """Catch with float32 frames. Environment 1 returns `bad` as its reward at step `bad_reward`, or in frame `bad_frame`."""

    def __init__(self, num_envs: int = 3, *, bad: float = math.nan, bad_reward: int = 0, bad_frame: int = 0) -> None:
        super().__init__(CATCH, num_envs)
        self.spec = replace(self.spec, frame_dtype="float32")
        self.bad, self.bad_reward, self.bad_frame = bad, bad_reward, bad_frame
        self.calls = 0

    def reset(self, seed: int) -> np.ndarray:
        return self._spoil(super().reset(seed))

    def step(self, actions: np.ndarray) -> Step:
        self.calls += 1
        step = super().step(actions)
        if self.calls == self.bad_reward:
            step.rewards[1] = self.bad
        return step._replace(observations=self._spoil(step.observations))

    def _spoil(self, frames: np.ndarray) -> np.ndarray:
        observations = frames.astype(np.float32)
        if self.calls == self.bad_frame - 1:
            observations[1, -1, 4, 2] = self.bad
        return observations


class StayingPolicy:
    """Always stays, and fails if an observation is not finite."""

    version = 0

    def refresh(self) -> None:
        pass

    def ask(self, observations: np.ndarray, first: np.ndarray, *, with_state: bool = False) -> None:
        assert np.isfinite(observations).all()

    def answer(self) -> Acted:
        return Acted(np.ones(3, np.int64), {})


def make_rollout(env: FloatCatch) -> Rollout:
    config = small_config(unroll_length=LAST_OF_A_BLOCK)
    frame = Field(env.spec.frame_shape, env.spec.frame_dtype)
    slots = replace(make_plan(replace(config, env=CATCH)).contract, frame=frame).allocate(3)
    return Rollout(env, StayingPolicy(), slots, np.zeros(len(CLOCKS)), seed=1, environment_ids=IDS)


@BAD
@pytest.mark.parametrize("at", [1, 3, LAST_OF_A_BLOCK])
def test_a_bad_reward_is_never_handed_over(bad: float, at: int) -> None:
    rollout = make_rollout(FloatCatch(bad=bad, bad_reward=at))
    with pytest.raises(NotFiniteError, match=f"^environment 13: wanted finite rewards, got {bad}$"):
        rollout.collect(0)


@BAD
@pytest.mark.parametrize("at", [2, 4, LAST_OF_A_BLOCK + 1])
def test_no_policy_acts_on_a_bad_observation(bad: float, at: int) -> None:
    rollout = make_rollout(FloatCatch(bad=bad, bad_frame=at))
    with pytest.raises(NotFiniteError, match=f"^environment 13: wanted finite observations, got {bad}$"):
        rollout.collect(0)


def test_a_bad_first_observation_is_refused() -> None:
    with pytest.raises(NotFiniteError, match="environment 13: wanted finite observations, got nan"):
        make_rollout(FloatCatch(bad_frame=1))


def test_finite_numbers_pass() -> None:
    make_rollout(FloatCatch()).collect(0)


@pytest.mark.parametrize("head", ["policy_head", "value_head"])
def test_a_policy_with_bad_outputs_is_named_by_its_update(head: str) -> None:
    network = network_of("mlp", (2, 10, 5), 3)
    with torch.no_grad():
        getattr(network, head).bias[0] = math.nan
    policy = CpuPolicy(network, weights=None, seed=1)  # type: ignore[arg-type]
    policy.version = 7
    with pytest.raises(NotFiniteError, match="^the policy of update 7: wanted finite outputs, got nan$"):
        policy.act(np.zeros((3, 2, 10, 5), np.uint8))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_action_never_reaches_an_environment(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it was drawn from finite parameters."""
    network = network_of("mlp", (1, 2), Box((-2.0,), (3.0,)))
    monkeypatch.setattr(network.distribution.__class__, "sample", lambda *_: torch.tensor([[0.5], [bad]]))
    policy = CpuPolicy(network, weights=None, seed=1)  # type: ignore[arg-type]
    with pytest.raises(NotFiniteError, match=f"wanted finite outputs, got {bad}$"):
        policy.act(np.zeros((2, 1, 2), np.float32))


def test_the_serial_kind_names_the_worker_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block stays free, so the saved state is complete and the block can be filled again."""
    envs = [FloatCatch(4), FloatCatch(4, bad_reward=13)]
    monkeypatch.setattr(serial, "make_vector_env", lambda config, num_envs, first: envs.pop(0))
    config = small_config(frames_stacked=2, worker_count=2)
    spec = envs[0].spec
    learned = network_of("mlp", spec.observation_shape, spec.action)
    setup = WorkerSetup(config.env, spec, learned.config, make_plan(config).contract, config.workers, (1, 2))
    workers = SerialWorkers(setup, learned)
    workers.weights.publish(learned, 0)
    workers.start()
    for _ in range(2):
        (block,) = workers.poll(0.0)
        workers.release(block)
    (block,) = workers.poll(0.0)
    with pytest.raises(WorkerError, match="^worker 1 failed: environment 5: wanted finite rewards, got nan$"):
        workers.poll(0.0)
    assert workers.state_dict()["free"] == [1]
    assert [again.worker for again in workers.poll(0.0)] == [1]
    workers.stop()


def test_random_play_refuses_bad_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_play, "make_vector_env", lambda config, num_envs, _: FloatCatch(num_envs, bad_frame=18))
    with pytest.raises(WorkerError, match="wanted finite observations"):
        random_observations(CATCH, 1)


@BAD
def test_a_bad_number_in_a_packed_leaf_is_found(bad: float) -> None:
    observations = np.zeros((3, 2, leafy.PACKING.size), np.uint8)
    assert all(np.isfinite(values).all() for _, values in float_parts(leafy.PACKING, observations))
    observations[1, -1, leafy.PACKING.parts["vector"]][4:] = np.float32([bad]).view(np.uint8)
    ((name, values),) = float_parts(leafy.PACKING, observations)
    with pytest.raises(NotFiniteError, match=f"^environment 13: wanted finite vector, got {bad}$"):
        check_environments(name, values, IDS)


def test_a_rollout_refuses_a_bad_number_in_a_packed_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENTS, "leafy", leafy)
    config = small_config(env=leafy.LEAFY, network="mlp")
    env = leafy.Guess(config.env, 3)
    env.noise = math.nan
    slots = make_plan(config).contract.allocate(3)
    with pytest.raises(NotFiniteError, match="^environment 12: wanted finite vector, got nan$"):
        Rollout(env, StayingPolicy(), slots, np.zeros(len(CLOCKS)), seed=1, environment_ids=IDS)


def test_random_actions_are_legal_and_each_legal_one_is_drawn() -> None:
    spec = leafy.make_spec(EnvConfig(env=leafy.LEAFY, frames_stacked=1))
    masks = np.array([[1, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0]], np.uint8)
    leaves = {leaf.name: np.zeros((4, *leaf.shape), leaf.dtype) for leaf in leafy.LEAVES}
    observations = leafy.PACKING.pack({**leaves, "action_mask": masks})[:, None]
    generator = np.random.default_rng(1)
    drawn = np.stack([random_actions(spec, observations, generator) for _ in range(100)])
    assert [sorted(set(column.tolist())) for column in drawn.T[:3]] == [[0, 1], [2], [0, 1, 2]]
    several = replace(spec, action=MultiDiscrete((2, 1)))
    drawn = np.stack([random_actions(several, observations[1:2], generator) for _ in range(20)])
    assert drawn.shape == (20, 1, 2)
    assert spec.action.check(random_actions(spec, observations, generator), 4).dtype == np.int64
