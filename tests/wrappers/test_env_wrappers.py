"""Wrappers of Gymnasium around each environment (`--env_wrappers`)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.wrappers.environments import HERE
from tests.wrappers.test_gymnasium_env import config
from wrappers import describe_env, make_spec, make_vector_env
from wrappers.gymnasium_vector import GymnasiumLoop, NativeVector


def test_wrappers_are_applied_from_the_innermost_to_the_outermost() -> None:
    plain = make_vector_env(config("TestCounting-v1"), 2).reset(1)
    for order, wanted in ((("Doubled", "PlusOne"), 2 * plain + 1), (("PlusOne", "Doubled"), 2 * (plain + 1))):
        wrappers = ",".join(f"{HERE}:{name}" for name in order)
        vector = make_vector_env(config("TestCounting-v1", env_wrappers=wrappers), 2)
        np.testing.assert_array_equal(vector.reset(1), wanted)


def test_a_wrapped_environment_is_stepped_in_the_loop_and_named_in_its_protocol() -> None:
    wrapped = config("TestVector-v1", env_wrappers=f"{HERE}:PlusOne")
    assert isinstance(make_vector_env(config("TestVector-v1"), 2), NativeVector)
    with pytest.raises(ValueError, match="env_wrappers: wanted none for .*:TestVector-v1, which is made as a vector"):
        make_vector_env(wrapped, 2)
    both = config("TestBoth-v1", env_wrappers=f"{HERE}:PlusOne")
    assert isinstance(make_vector_env(both, 2), GymnasiumLoop)
    assert describe_env(both).protocol_settings["env_wrappers"] == f"{HERE}:PlusOne"
    assert "env_wrappers" not in describe_env(config("TestBoth-v1")).protocol_settings


@pytest.mark.parametrize(
    ("wrappers", "said"),
    [
        ("Doubled", "wanted none or module:Class"),
        (f"{HERE}:Doubled,", "wanted none or module:Class"),
        ("nix.nix:Doubled", "ModuleNotFoundError.*nix"),
        (f"{HERE}:Nix", "AttributeError.*Nix"),
        (f"{HERE}:Unwrappable", "RuntimeError: wall 9"),
    ],
)
def test_wrappers_that_do_not_wrap_are_refused_in_one_line(wrappers: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"env_wrappers: .*{said}") as caught:
        make_spec(config("TestCounting-v1", env_wrappers=wrappers))
    assert len(str(caught.value).splitlines()) == 1
