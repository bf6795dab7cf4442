"""The rollout writes exactly what happened: rows in place, no gaps, observations as the environment showed them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from learner.building import make_contract
from replay.trajectory import Arrays, poison_arrays
from tests.builders import fresh_batch
from tests.support import small_config
from workers.clocks import CLOCKS, cpu_seconds
from workers.policy import Acted
from workers.rollout import Rollout
from wrappers import make_spec, make_vector_env
from wrappers.spec import EnvConfig, Step, VectorEnv


class RecordingEnv(VectorEnv):
    """Passes everything through and keeps a copy."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.spec, self.num_envs = env, env.spec, env.num_envs
        self.observations: list[np.ndarray] = []
        self.steps: list[Step] = []

    def reset(self, seed: int) -> np.ndarray:
        self.observations.append(self.env.reset(seed).copy())
        return self.observations[-1]

    def step(self, actions: np.ndarray) -> Step:
        step = self.env.step(actions)
        step = Step(*(np.array(part) for part in step))
        self.observations.append(step.observations)
        self.steps.append(step)
        return step


class RandomPolicy:
    """Any action; logits and values that name the step, so that a row in the wrong place is seen."""

    def __init__(self, action_count: int) -> None:
        self.version = 40
        self.action_count = action_count
        self.asked: list[tuple[np.ndarray, np.ndarray]] = []
        self.acted: list[Acted] = []
        self.generator = np.random.default_rng(3)

    def refresh(self) -> None:
        self.version += 1

    def ask(self, observations: np.ndarray, first: np.ndarray) -> None:
        self.asked.append((observations.copy(), first.copy()))

    def answer(self) -> Acted:
        n, step = len(self.asked[-1][0]), len(self.acted)
        logits = np.full((n, self.action_count), step, np.float32) + np.arange(n, dtype=np.float32)[:, None]
        fields = {"behaviour_policy": logits, "behaviour_values": logits[:, 0] / 7}
        acted = Acted(self.generator.integers(self.action_count, size=n), fields)
        self.acted.append(acted)
        return acted


class Collected(NamedTuple):
    env: RecordingEnv
    policy: RandomPolicy
    slots: Arrays
    seconds: np.ndarray


def collect(env_config: EnvConfig, unroll_length: int, blocks: int, num_envs: int = 3) -> Collected:
    config = small_config(unroll_length=unroll_length)
    spec = make_spec(env_config)
    contract = make_contract(replace(config, env=env_config))
    env = RecordingEnv(make_vector_env(env_config, num_envs))
    policy = RandomPolicy(spec.action.mask_size)
    slots = contract.allocate(blocks * num_envs)
    poison_arrays(slots)
    seconds = np.zeros(len(CLOCKS))
    rollout = Rollout(env, policy, slots, seconds, seed=11, environment_ids=20 + np.arange(num_envs))
    for block in range(blocks):
        rollout.collect(block * num_envs)
    return Collected(env, policy, slots, seconds)


CATCH = EnvConfig(env="Catch-v0", frames_stacked=4)
ATARI = EnvConfig(env="BreakoutNoFrameskip-v4", frame_scale_resolution="42,42", max_episode_frames=120, noop_threshold=3)


@pytest.mark.parametrize("env_config", [CATCH, ATARI, replace(ATARI, grayscaling_frames=False, frames_stacked=3)])
def test_batches_show_what_the_environment_showed(env_config: EnvConfig) -> None:
    """Frames are stored once; the rebuilt observations equal the environment's own byte for byte, episode ends included."""
    unroll_length, blocks, num_envs = 7, 12, 3
    env, _, slots, _ = collect(env_config, unroll_length, blocks, num_envs)
    contract = make_contract(replace(small_config(unroll_length=unroll_length), env=env_config))
    assert any(step.reset.any() for step in env.steps)
    for block in range(blocks):
        columns = {name: array[block * num_envs : (block + 1) * num_envs] for name, array in slots.items()}
        batch = fresh_batch(columns, contract)
        shown = np.stack(env.observations[block * unroll_length : (block + 1) * unroll_length + 1])
        np.testing.assert_array_equal(batch.observations.numpy(), shown)


def test_rows_hold_the_steps_in_order_without_a_gap() -> None:
    unroll_length, blocks, num_envs = 6, 5, 3
    env, policy, slots, _ = collect(CATCH, unroll_length, blocks, num_envs)
    for index, (step, acted) in enumerate(zip(env.steps, policy.acted, strict=True)):
        block, t = divmod(index, unroll_length)
        rows = slice(block * num_envs, (block + 1) * num_envs)
        for name in ("rewards", "terminated", "truncated", "reset", "action_used", "episode_length", "episode_return"):
            np.testing.assert_array_equal(slots[name][rows, t], getattr(step, name), err_msg=name)
        np.testing.assert_array_equal(slots["actions"][rows, t], acted.actions)
        np.testing.assert_array_equal(slots["behaviour_policy"][rows, t], acted.fields["behaviour_policy"])
        np.testing.assert_array_equal(slots["behaviour_values"][rows, t], acted.fields["behaviour_values"])
        assert (slots["policy_version"][rows, t] == 41 + block).all()
        np.testing.assert_array_equal(slots["environment_id"][rows], [20, 21, 22])


def test_clocks_count_stepping_acting_and_writing() -> None:
    _, _, _, seconds = collect(CATCH, 6, 2)
    named = dict(zip(CLOCKS, seconds.tolist(), strict=True))
    assert min(named["env"], named["act"], named["write"]) > 0
    assert named["wait"] == 0


def test_computing_is_counted_beside_waiting_for_a_core() -> None:
    """A policy that sleeps takes time and computes nothing."""
    env = make_vector_env(CATCH, 2)
    policy = RandomPolicy(env.spec.action.mask_size)
    answer = policy.answer

    def sleep_and_answer() -> Acted:
        time.sleep(0.02)
        return answer()

    policy.answer = sleep_and_answer  # type: ignore[method-assign]
    config = small_config(unroll_length=6)
    slots = make_contract(replace(config, env=CATCH)).allocate(2)
    seconds = np.zeros((1, len(CLOCKS)))
    Rollout(env, policy, slots, seconds[0], seed=11, environment_ids=np.arange(2)).collect(0)
    named = dict(zip(CLOCKS, seconds[0].tolist(), strict=True))
    assert named["act"] >= 6 * 0.02
    assert 0 < named["act_cpu"] < named["act"] / 2
    for stage in ("env", "write"):
        assert 0 < named[f"{stage}_cpu"] <= named[stage] + 1e-3
    assert cpu_seconds(seconds) == pytest.approx(named["env_cpu"] + named["act_cpu"] + named["write_cpu"])
