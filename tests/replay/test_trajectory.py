"""The data contract, and frames stored once that show again exactly what the environment showed."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.plan import make_plan
from replay.batch import Batch, HostBatch, hidden_frames, make_batch, stack_frames
from replay.trajectory import POISON, TrajectoryContract
from tests.builders import fresh_batch, trajectory_contract
from tests.support import small_config
from workers import serial
from workers.base import WorkerSetup
from wrappers import EnvConfig, Step, VectorEnv, make_spec, make_vector_env

CPU = torch.device("cpu")
SHAPES = ((3, 4), (2, 3, 3), (5,), ())


def contract_of(frame_shape: tuple[int, ...] = (2, 3), dtype: str = "uint8") -> TrajectoryContract:
    return trajectory_contract(unroll_length=5, frame_shape=frame_shape, frame_dtype=dtype, frames_stacked=4, action_count=3)


def shown_by_an_environment(
    before: list[np.ndarray], frames: np.ndarray, reset: np.ndarray, frames_stacked: int
) -> tuple[np.ndarray, np.ndarray]:
    """The slow way, for one environment: a deque of frames, filled with zeros at every reset.

    before: frames its episode has shown already, oldest first; at least one. frames: `[T, *F]`, the new one of each step.
    reset: bool `[T]`. Returns observations `[T+1, S, *F]`, and what a trajectory stores of them, `[T+S, *F]`.
    """
    nothing = [np.zeros_like(before[0])] * frames_stacked
    stack = deque([*nothing, *before], maxlen=frames_stacked)
    observations = [np.stack(stack)]
    for frame, is_first in zip(frames, reset, strict=True):
        if is_first:
            stack.extend(nothing)
        stack.append(frame)
        observations.append(np.stack(stack))
    return np.stack(observations), np.concatenate([observations[0], frames])


def random_frames(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Bytes, or floats of both signs among which are infinite ones."""
    if dtype == "uint8":
        return generator.integers(1, 256, shape, np.uint8)
    values = generator.standard_normal(shape).astype(dtype)
    return np.where(generator.random(shape) < 0.1, -np.inf, values).astype(dtype)


def check_stacking(
    unroll_length: int, stack: int, shape: tuple[int, ...], dtype: str, reset: np.ndarray, ages: list[int], seed: int = 0
) -> None:
    """reset: bool `[B, T]`; ages: for each column how many frames its running episode has shown at row 0."""
    generator = np.random.default_rng(seed)
    shown, stored = [], []
    for column, age in zip(reset, ages, strict=True):
        before = list(random_frames(generator, (age, *shape), dtype))
        frames = random_frames(generator, (unroll_length, *shape), dtype)
        observations, trajectory = shown_by_an_environment(before, frames, column, stack)
        shown.append(observations)
        stored.append(trajectory)
    wanted = np.stack(shown, axis=1)
    got = stack_frames(torch.from_numpy(np.stack(stored)), reset, stack).numpy()
    assert got.shape == wanted.shape == (unroll_length + 1, len(ages), stack, *shape)
    assert got.dtype == wanted.dtype
    assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(wanted).tobytes()
    check_hidden_frames(np.stack(stored), reset, wanted[-2])


def check_hidden_frames(frames: np.ndarray, reset: np.ndarray, wanted: np.ndarray) -> None:
    """wanted: the observation that the last step acted on, `[B, S, *frame_shape]`."""
    stack = wanted.shape[1]
    observation = frames[:, -stack - 1 : -1].copy()
    hidden = hidden_frames(reset, stack)
    assert np.array_equal(hidden_frames(reset[:, -stack:], stack), hidden)
    observation[hidden] = 0
    assert observation.tobytes() == np.ascontiguousarray(wanted).tobytes()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_stack_is_rebuilt_byte_for_byte(data: st.DataObject) -> None:
    unroll_length, batch_size = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    resets = st.lists(st.booleans(), min_size=unroll_length, max_size=unroll_length)
    reset = np.array(data.draw(st.lists(resets, min_size=batch_size, max_size=batch_size)))
    stack = data.draw(st.integers(1, 5))
    ages = data.draw(st.lists(st.integers(1, stack + 1), min_size=batch_size, max_size=batch_size))
    shape, dtype = data.draw(st.sampled_from(SHAPES)), data.draw(st.sampled_from(("uint8", "float32")))
    check_stacking(unroll_length, stack, shape, dtype, reset, ages, seed=data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("rows", [[], [0], [5], [0, 5], [0, 1], [2, 4], [4, 5], [0, 1, 2, 3, 4, 5]])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_episodes_may_begin_in_any_row(rows: list[int], dtype: str) -> None:
    reset = np.zeros((3, 6), bool)
    reset[0, rows] = True
    reset[2, [5 - row for row in rows]] = True
    check_stacking(6, 4, (3, 4), dtype, reset, [1, 2, 9])


def test_one_frame_a_stack_hides_nothing() -> None:
    check_stacking(3, 1, (2, 2), "uint8", np.ones((2, 3), bool), [1, 1])


def test_the_stored_frames_stay_as_they_are() -> None:
    frames = torch.arange(1, 13, dtype=torch.uint8).reshape(1, 12, 1)
    before = frames.clone()
    stack_frames(frames, np.ones((1, 8), bool), 4)
    assert torch.equal(frames, before)


def test_grey_stacks_are_channels_last_for_the_network() -> None:
    frames = torch.randint(0, 256, (3, 6 + 4, 8, 7), dtype=torch.uint8)
    reset = np.zeros((3, 6), bool)
    reset[1, 2] = True
    observations = stack_frames(frames, reset, 4)
    flat = observations.flatten(0, 1)
    assert flat.shape == (21, 4, 8, 7)
    assert flat.is_contiguous(memory_format=torch.channels_last)
    assert flat.data_ptr() == observations.data_ptr()


def filled(contract: TrajectoryContract, count: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    return {
        name: (generator.random(array.shape) * 100).astype(array.dtype)
        if array.dtype != bool
        else generator.random(array.shape) < 0.3
        for name, array in contract.allocate(count).items()
    }


def test_a_batch_is_time_major_and_holds_every_value_in_its_place() -> None:
    contract = contract_of()
    columns = filled(contract, 3)
    batch = make_batch(HostBatch(columns, np.array([False, True, True]), np.array([0, 1, 1])), contract, CPU)
    assert batch.observations.shape == (6, 3, 4, 2, 3)
    assert batch.acting["behaviour_policy"].shape == (5, 3, 3)
    assert batch.acting.keys() == contract.acting.keys()
    for name in contract.batch_fields:
        moved = batch.acting[name] if name in batch.acting else getattr(batch, name)
        np.testing.assert_array_equal(moved.numpy(), np.swapaxes(columns[name], 0, 1), err_msg=name)
    assert batch.is_replay.tolist() == [False, True, True]
    assert batch.source.tolist() == [0, 1, 1]
    assert batch.environment_id is None
    host = HostBatch(columns, batch.is_replay.numpy(), batch.source.numpy())
    named = make_batch(host, replace(contract, environments=True), CPU).environment_id
    assert named is not None
    assert named.tolist() == columns["environment_id"].tolist()


def test_a_batch_declares_nothing_that_the_contract_does_not() -> None:
    contract = replace(contract_of(), return_discount=0.9, episodes=True)
    assert set(contract.batch_fields) <= set(contract.fields)
    fixed = set(contract.batch_fields) - set(contract.acting)
    assert {field.name for field in fields(Batch)} == {
        *(*fixed, "acting", "observations", "is_replay", "source"),
        *("recurrent_state", "overlap"),  # of networks with a core
        "discounted_returns",  # of runs that normalise rewards
        "episode_return",  # of agents that compare whole episodes
        "weights",  # of replays with priorities
        "whole",  # of a batch whose rows of burn-in are cut off
        *("environment_id", "intrinsic_rewards", "predictor_rows"),  # of agents with intrinsic rewards
    }


def test_every_field_has_one_row_a_step_but_for_frames_and_the_environment() -> None:
    contract = contract_of()
    shapes = {name: field.shape for name, field in contract.fields.items()}
    assert shapes.pop("frames") == (5 + 4, 2, 3)
    assert shapes.pop("environment_id") == ()
    assert shapes.pop("behaviour_policy") == (5, 3)
    assert set(shapes.values()) == {(5,)}


@pytest.mark.parametrize(("shape", "dtype"), [((84, 84), "uint8"), ((6, 6, 3), "uint8"), ((7,), "float32")])
def test_memory_is_what_the_contract_says(shape: tuple[int, ...], dtype: str) -> None:
    contract = contract_of(shape, dtype)
    arrays = contract.allocate(3)
    assert list(arrays) == list(contract.fields)
    for name, array in arrays.items():
        assert (array.shape, array.dtype) == ((3, *contract.fields[name].shape), contract.fields[name].dtype)
    assert sum(array.nbytes for array in arrays.values()) == 3 * contract.bytes_per_trajectory


def test_an_atari_trajectory_takes_a_quarter_of_its_stacks() -> None:
    contract = trajectory_contract(20, (84, 84), "uint8", 4, 6)
    assert contract.bytes_per_trajectory < 0.3 * 21 * 4 * 84 * 84


def test_poison_is_seen_in_every_field() -> None:
    for name, array in contract_of().allocate(2, poison=True).items():
        wanted = POISON[array.dtype.kind]
        assert np.isnan(array).all() if array.dtype.kind == "f" else (array == wanted).all(), name
        assert wanted != 0, "fresh shared memory is zero anyway"


class RecordingEnv(VectorEnv):
    """Passes everything through and keeps a copy of every observation."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.spec, self.num_envs = env, env.spec, env.num_envs
        self.shown: list[np.ndarray] = []
        self.resets: list[np.ndarray] = []

    def reset(self, seed: int) -> np.ndarray:
        observations = self.env.reset(seed)
        self.shown.append(observations.copy())
        return observations

    def step(self, actions: np.ndarray) -> Step:
        step = self.env.step(actions)
        self.shown.append(step.observations.copy())
        self.resets.append(step.reset.copy())
        return step


def atari(game: str, **settings: object) -> EnvConfig:
    short = EnvConfig(f"{game}NoFrameskip-v4", frame_scale_resolution="20,24", max_episode_frames=60)
    return replace(short, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "env",
    [
        EnvConfig("Catch-v0", frames_stacked=4),
        EnvConfig("Catch-v0", frames_stacked=4, max_episode_frames=1),
        atari("Pong"),
        atari("Breakout", noop_threshold=0, fire_reset=False),
        atari("Breakout", grayscaling_frames=False, frames_stacked=3),
        atari("Pong", max_episode_frames=8),
    ],
)
def test_a_batch_shows_what_the_environment_showed(env: EnvConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serial workers play; every observation of every batch equals the environment's own, byte for byte."""
    made: list[RecordingEnv] = []

    def make_recording_env(config: EnvConfig, num_envs: int, first: int) -> VectorEnv:
        made.append(RecordingEnv(make_vector_env(config, num_envs)))
        return made[-1]

    monkeypatch.setattr(serial, "make_vector_env", make_recording_env)
    config = replace(small_config(unroll_length=7, envs_per_worker=3, worker_count=1), env=env)
    spec = make_spec(env)
    plan = make_plan(config)
    setup = WorkerSetup(env, spec, plan.network, plan.contract, config.workers, (5,), poison=True)
    network = setup.make_network()
    workers = serial.SerialWorkers(setup, network)
    workers.weights.publish(network, 0)
    workers.start()
    try:
        for trajectory in range(8):
            (block,) = workers.poll(0.0)
            columns = {name: array[block.first_slot : block.first_slot + 3].copy() for name, array in workers.slots.items()}
            batch = fresh_batch(columns, setup.contract)
            wanted = np.stack(made[0].shown[7 * trajectory : 7 * trajectory + 8])
            assert np.ascontiguousarray(batch.observations.numpy()).tobytes() == wanted.tobytes()
            workers.release(block)
        assert np.any(made[0].resets)
    finally:
        workers.stop()


def test_features_are_stored_only_where_they_are_compared() -> None:
    contract = contract_of()
    assert "behaviour_features" not in contract.fields
    featured = replace(contract, feature_count=7)
    assert featured.fields["behaviour_features"] == ((5, 7), "float32")
    assert set(featured.fields) == {*contract.fields, "behaviour_features"}
    assert featured.bytes_per_trajectory == contract.bytes_per_trajectory + 5 * 7 * 4
    assert featured.allocate(2)["behaviour_features"].shape == (2, 5, 7)


def test_the_recurrent_state_is_stored_once_and_only_with_a_core() -> None:
    contract = contract_of()
    recurrent = replace(contract, state_size=6)
    assert "recurrent_state" not in contract.signature()
    assert recurrent.signature() == {**contract.signature(), "recurrent_state": [[6], "float32"]}
    assert recurrent.policy_fields == contract.policy_fields


def test_rows_of_burn_in_are_left_out() -> None:
    contract = replace(contract_of(), state_size=6, overlap=2)
    columns = filled(contract, 3)
    batch = make_batch(HostBatch(columns, np.array([False, True, True]), np.array([0, 1, 1])), contract, CPU)
    assert batch.recurrent_state is not None
    np.testing.assert_array_equal(batch.recurrent_state.numpy(), columns["recurrent_state"])
    learned, whole = batch.without_overlap(), replace(batch, overlap=0)
    assert whole.without_overlap() is whole
    assert (learned.overlap, learned.recurrent_state) == (0, None)
    for name in ("observations", "actions", "rewards", "terminated", "reset", "action_used"):
        assert torch.equal(getattr(learned, name), getattr(batch, name)[2:])
    assert {name: len(field) for name, field in learned.acting.items()} == dict.fromkeys(contract.acting, 3)
    assert torch.equal(learned.is_replay, batch.is_replay)
