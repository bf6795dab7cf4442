"""Numbers in infos: what counts as one, which are recorded, and the same from every kind of environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.wrappers.environments import HERE, LENGTH
from wrappers import make_vector_env
from wrappers.gymnasium_vector import NativeVector
from wrappers.infos import MOST_LEFT_OUT, MOST_NAMES, InfoCollector, number_of
from wrappers.spec import EnvConfig, VectorEnv

NAN = np.nan


class Shaped:
    """Has a shape as an array has, and no value."""

    shape = ()


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (np.False_, 0.0),
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.array(2), 2.0),
        (np.array([True]), 1.0),
        (torch.tensor([1.5]), 1.5),
        ("1", None),
        (np.str_("1"), None),
        (None, None),
        ([1.0], None),
        ({"a": 1.0}, None),
        (np.ones(2), None),
        (np.ones((1, 1)), None),
        (1j, None),
        (10**400, None),
        (Shaped(), None),
    ],
)
def test_numbers_are_scalars_and_arrays_of_one(value: Any, number: float | None) -> None:
    assert number_of(value) == number


def test_names_are_made_safe_and_get_columns_in_order() -> None:
    infos = InfoCollector(2, ignored=("lives",))
    infos.put(0, {"text": "x", "lives": 3})
    assert infos.take() is None
    infos.put(1, {"is success?": True, "reward/a.b-c": 2})
    infos.put(0, {"reward/a.b-c": 1, 5: 4.0})
    taken = infos.take()
    assert taken is not None
    assert taken.names == ("is_success_", "reward/a.b-c", "5")
    np.testing.assert_array_equal(taken.values[:, :3], [[NAN, 1, 4], [1, 2, NAN]])
    again = infos.take()
    assert again is not None
    assert again.names is taken.names
    assert np.isnan(again.values).all()  # each step has its own numbers


def test_further_names_are_known_without_a_column_and_their_number_is_limited() -> None:
    infos = InfoCollector(1)
    for index in range(100):
        infos.put(0, {f"name{index}": float(index)})
    taken = infos.take()
    assert taken is not None
    assert taken.names == tuple(f"name{index}" for index in range(MOST_NAMES + MOST_LEFT_OUT))
    assert taken.values[0].tolist() == list(range(MOST_NAMES))


def test_masks_of_a_vector_environment_are_no_numbers() -> None:
    infos = InfoCollector(3)
    mask = np.array([True, True, False])
    info = {"cost": np.array([1, 2, 3]), "_cost": mask, "text": np.array(["a"] * 3, object), "wide": np.ones((3, 2))}
    infos.put_all({**info, "one": np.array([[4.0], [5.0], [6.0]])}, np.array([False, True, True]))
    taken = infos.take()
    assert taken is not None
    assert taken.names == ("cost", "one")
    np.testing.assert_array_equal(taken.values[:, :2], [[NAN, NAN], [2, 5], [NAN, 6]])


def reported(env: VectorEnv, steps: int) -> dict[str, list[float]]:
    """Name -> the numbers of environment 0 in each step."""
    found: dict[str, list[float]] = {}
    env.reset(3)
    for t in range(steps):
        infos = env.step(np.zeros(env.num_envs, np.int64)).infos
        assert infos is not None
        for column, name in enumerate(infos.names):
            found.setdefault(name, [NAN] * t).append(float(infos.values[0, column]))
    return found


@pytest.mark.parametrize(
    ("env", "arguments"),
    [("Reporting", "{}"), ("ReportingBoth", "{}")]
    + [("ReportingVector", f'{{"mode": "{mode}"}}') for mode in ("NEXT_STEP", "SAME_STEP")],
)
@pytest.mark.parametrize("core_inputs", [False, True])
def test_every_kind_of_environment_reports_the_same_and_nothing_at_an_autoreset(
    env: str, arguments: str, core_inputs: bool
) -> None:
    config = EnvConfig(env=f"{HERE}:Test{env}-v1", frames_stacked=1, env_args=arguments, core_inputs=core_inputs)
    vector = make_vector_env(config, 2)
    if not core_inputs:
        assert isinstance(vector, NativeVector) == (env != "Reporting" and "SAME_STEP" not in arguments)
    found = reported(vector, 2 * LENGTH + 2)
    assert list(found) == ["is_success", "cost", "bad", "late"]
    np.testing.assert_array_equal(found["is_success"], [0, 0, 1, NAN] * 2)
    np.testing.assert_array_equal(found["cost"], [0.5, 1.0, 1.5, NAN] * 2)
    np.testing.assert_array_equal(found["late"], [NAN, NAN, 7, NAN] * 2)
    assert np.isnan(found["bad"]).all()


def test_envpool_reports_numbers_of_the_task_only() -> None:
    pytest.importorskip("envpool")
    env = make_vector_env(EnvConfig(env="envpool:CartPole-v1", frames_stacked=1), 2)
    env.reset(1)
    assert env.step(np.zeros(2, np.int64)).infos is None
