"""Numbers of infos travel to the learner in the slots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from learner.plan import make_plan
from tests.support import small_config
from tests.workers.test_rollout import RandomPolicy
from tests.wrappers.environments import HERE
from workers.clocks import CLOCKS
from workers.infos import NAMES_BYTES, InfoWriter, info_fields, infos_of
from workers.rollout import Rollout
from wrappers import make_vector_env
from wrappers.infos import LONGEST_NAME, MOST_NAMES, Infos
from wrappers.spec import EnvConfig

NAN = np.nan


def slots_for(unroll_length: int, count: int) -> dict[str, np.ndarray]:
    """Slots with nonsense in them."""
    fields = info_fields(unroll_length)
    return {name: np.full((count, *shape), 77, dtype) for name, (shape, dtype) in fields.items()}


def numbers(slots: dict[str, np.ndarray], slot: int) -> Infos:
    infos = infos_of({name: array[slot] for name, array in slots.items()})
    assert infos is not None
    return infos


@pytest.mark.parametrize("overlap", [0, 2])
def test_each_step_is_in_one_trajectory(overlap: int) -> None:
    """A name that is seen late has no value in the rows before. Rows of burn-in have none at all."""
    env_config = EnvConfig(env=f"{HERE}:TestReporting-v1", frames_stacked=1)
    contract = make_plan(replace(small_config(unroll_length=5), env=env_config)).contract
    contract = replace(contract, overlap=overlap, state_size=2 if overlap else 0)
    slots = {**contract.allocate(4), **slots_for(5, 4)}
    env = make_vector_env(env_config, 2)
    policy, ids = RandomPolicy(3), np.arange(2)
    rollout = Rollout(env, policy, slots, np.zeros(len(CLOCKS)), seed=1, environment_ids=ids, overlap=overlap)
    rollout.collect(0)
    rollout.collect(2)
    first, second = numbers(slots, 1), numbers(slots, 3)
    assert first.names == second.names == ("is_success", "cost", "bad", "late")
    costs = [0.5, 1.0, 1.5, NAN] * 3
    np.testing.assert_array_equal(first.values[:, 1], costs[:5])
    np.testing.assert_array_equal(second.values[:, 1], [NAN] * overlap + costs[5 : 10 - overlap])
    np.testing.assert_array_equal(first.values[:, 3], [NAN, NAN, 7, NAN, NAN])


def test_rows_before_the_first_number_are_empty_and_another_workers_names_are_gone() -> None:
    slots, block = slots_for(3, 1), slice(0, 1)
    writer = InfoWriter(slots)
    writer.end(block)
    assert infos_of({name: array[0] for name, array in slots.items()}) is None
    writer.write(block, 1, Infos(("a",), np.full((1, MOST_NAMES), 2.0)))
    writer.end(block)
    found = numbers(slots, 0)
    assert found.names == ("a",)
    np.testing.assert_array_equal(found.values[:2, 0], [NAN, 2])


def test_names_that_do_not_fit_are_left_out_as_a_whole() -> None:
    slots = slots_for(1, 1)
    writer = InfoWriter(slots)
    names = tuple(f"{index:064d}" for index in range(40))
    writer.write(slice(0, 1), 0, Infos(names, np.zeros((1, MOST_NAMES))))
    writer.end(slice(0, 1))
    assert numbers(slots, 0).names == names[: NAMES_BYTES // (LONGEST_NAME + 1)]
    assert NAMES_BYTES // (LONGEST_NAME + 1) >= MOST_NAMES


def test_slots_without_room_for_infos_get_none() -> None:
    writer = InfoWriter({})
    writer.begin(slice(0, 1), 0)
    writer.write(slice(0, 1), 0, Infos(("a",), np.zeros((1, MOST_NAMES))))
    writer.end(slice(0, 1))
    assert infos_of({}) is None
