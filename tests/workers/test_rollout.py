"""The rollout writes exactly what happened: rows in place, no gaps, observations as the environment showed them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from learner.plan import make_plan
from replay.trajectory import RETURNS, Arrays, discount_returns, poison_arrays
from tests import leafy
from tests.builders import fresh_batch
from tests.support import golden, small_config
from workers.clocks import CLOCKS, cpu_seconds
from workers.policy import Acted
from workers.rollout import Rollout
from wrappers import ENVIRONMENTS, make_spec, make_vector_env
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
        step = Step(*(np.array(part) for part in step[:8]))
        self.observations.append(step.observations)
        self.steps.append(step)
        return step


STATE_SIZE = 2


class RandomPolicy:
    """Any action; logits, values and states that name the step, so that a row in the wrong place is seen."""

    def __init__(self, action_count: int) -> None:
        self.version = 40
        self.action_count = action_count
        self.asked: list[tuple[np.ndarray, np.ndarray]] = []
        self.acted: list[Acted] = []
        self.generator = np.random.default_rng(3)

    def refresh(self) -> None:
        self.version += 1

    def ask(self, observations: np.ndarray, first: np.ndarray, *, with_state: bool = False) -> None:
        self.asked.append((observations.copy(), first.copy()))
        self.with_state = with_state

    def answer(self) -> Acted:
        n, step = len(self.asked[-1][0]), len(self.acted)
        state = np.full((n, STATE_SIZE), step, np.float32) if self.with_state else None
        logits = np.full((n, self.action_count), step, np.float32) + np.arange(n, dtype=np.float32)[:, None]
        fields = {"behaviour_policy": logits, "behaviour_values": logits[:, 0] / 7}
        acted = Acted(self.generator.integers(self.action_count, size=n), fields, state)
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
    contract = make_plan(replace(config, env=env_config)).contract
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
    contract = make_plan(replace(small_config(unroll_length=unroll_length), env=env_config)).contract
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


class ReusingEnv(VectorEnv):
    """Writes every observation into the same memory, as an environment may."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.spec, self.num_envs = env, env.spec, env.num_envs
        self.memory = np.zeros(0)

    def reset(self, seed: int) -> np.ndarray:
        self.memory = self.env.reset(seed).copy()
        return self.memory

    def step(self, actions: np.ndarray) -> Step:
        step = self.env.step(actions)
        self.memory[:] = step.observations
        return step._replace(observations=self.memory)


@pytest.mark.parametrize("overlap", [0, 1, 4, 5, 13])
@pytest.mark.parametrize("env_config", [CATCH, ATARI])
def test_a_trajectory_begins_with_the_last_rows_of_the_one_before(env_config: EnvConfig, overlap: int) -> None:
    """More rows than a trajectory plays itself, too. Row t of trajectory k is step k*played + t, with its own observations."""
    played, blocks, num_envs = 5, 9, 3
    config = small_config(unroll_length=played)
    contract = replace(make_plan(replace(config, env=env_config)).contract, unroll_length=played + overlap, overlap=overlap)
    contract = replace(contract, state_size=STATE_SIZE)
    recorded = RecordingEnv(make_vector_env(env_config, num_envs))
    policy = RandomPolicy(make_spec(env_config).action.mask_size)
    slots = contract.allocate(num_envs, poison=True)
    ids = np.arange(num_envs)
    rollout = Rollout(ReusingEnv(recorded), policy, slots, np.zeros(len(CLOCKS)), seed=11, environment_ids=ids, overlap=overlap)
    lengths = []
    for block in range(blocks):
        rollout.collect(0)
        batch, steps = fresh_batch(slots, contract), recorded.steps[block * played :][: played + overlap]
        shown = np.stack(recorded.observations[block * played :][: played + overlap + 1])
        np.testing.assert_array_equal(batch.observations.numpy(), shown)
        for name in ("rewards", "terminated", "truncated", "reset", "action_used"):
            np.testing.assert_array_equal(slots[name], np.stack([getattr(step, name) for step in steps], 1), err_msg=name)
        values = [policy.acted[block * played + t].fields["behaviour_values"] for t in range(played + overlap)]
        np.testing.assert_array_equal(slots["behaviour_values"], np.stack(values, 1))
        assert (slots["recurrent_state"] == block * played).all()
        lengths.append(slots["episode_length"].copy())
        poison_arrays(slots)  # the learner takes them, and others are written there
    counted = np.concatenate(lengths, 1)
    ended = np.stack([step.episode_length for step in recorded.steps], 1)
    assert (ended > 0).any()
    assert sorted(counted[counted > 0]) == sorted(ended[ended > 0])


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
    slots = make_plan(replace(config, env=CATCH)).contract.allocate(2)
    seconds = np.zeros((1, len(CLOCKS)))
    Rollout(env, policy, slots, seconds[0], seed=11, environment_ids=np.arange(2)).collect(0)
    named = dict(zip(CLOCKS, seconds[0].tolist(), strict=True))
    assert named["act"] >= 6 * 0.02
    assert 0 < named["act_cpu"] < named["act"] / 2
    for stage in ("env", "write"):
        assert 0 < named[f"{stage}_cpu"] <= named[stage] + 1e-3
    assert cpu_seconds(seconds) == pytest.approx(named["env_cpu"] + named["act_cpu"] + named["write_cpu"])


CASES = golden("reward_scaling.json")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_discounted_returns_are_carried_as_in_the_golden_vectors(case: dict[str, Any]) -> None:
    returns, first = np.zeros(case["N"]), 0
    for count, after in zip(case["chunks"], case["outputs"]["after_chunk"], strict=True):
        rows = slice(first, first + count)
        columns = {name: np.array(values)[rows].T for name, values in case["inputs"].items()}
        columns[RETURNS] = np.full((case["N"], count), np.nan)
        returns = discount_returns(columns, returns, case["gamma"])
        np.testing.assert_allclose(columns[RETURNS].T, np.array(case["outputs"]["discounted_returns"])[rows], rtol=1e-12)
        np.testing.assert_allclose(returns, after["running_returns"], rtol=1e-12)
        first += count


def test_a_rollout_carries_the_returns_from_one_trajectory_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step has a reward, and episodes of four steps cross trajectories of three."""
    monkeypatch.setitem(ENVIRONMENTS, "leafy", leafy)
    config = small_config(env=leafy.VECTOR, unroll_length=3, normalise_rewards=True, clip_rewards=False)
    contract = make_plan(config).contract
    assert contract.return_discount == 0.99
    slots = contract.allocate(2 * 5, poison=True)
    env, ids = make_vector_env(config.env, 2), np.arange(2)
    rollout = Rollout(env, RandomPolicy(3), slots, np.zeros(len(CLOCKS)), seed=1, environment_ids=ids, return_discount=0.99)
    for block in range(5):
        rollout.collect(2 * block)
    rewards, reset, got = (slots[name].reshape(5, 2, 3).swapaxes(0, 1).reshape(2, 15) for name in ("rewards", "reset", RETURNS))
    for environment in range(2):
        running, wanted = 0.0, []
        for reward, fresh in zip(rewards[environment], reset[environment], strict=True):
            running = 0.0 if fresh else 0.99 * running + reward
            wanted.append(running)
        np.testing.assert_allclose(got[environment], wanted, rtol=1e-6, atol=1e-5)
