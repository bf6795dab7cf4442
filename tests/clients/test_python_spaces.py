"""Spaces become the protocol's plain data, and values go to and fro as their space has them."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from springbok_client.spaces import SpaceError, decoder, describe, encoder, numbers_of

from tests.support import REPOSITORY
from wrappers.space_json import space_to_json

IMAGE = {"type": "box", "shape": [2, 2], "dtype": "uint8", "low": 0, "high": 255}


@pytest.mark.parametrize(
    ("space", "plain"),
    [
        (spaces.Box(0, 255, (2, 2), np.uint8), IMAGE),
        (
            spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, 2.0]), dtype=np.float64),
            {"type": "box", "shape": [2], "dtype": "float64", "low": [-1.0, None], "high": [1.0, 2.0]},
        ),
        (spaces.Discrete(4, start=-1), {"type": "discrete", "n": 4, "start": -1}),
        (spaces.MultiDiscrete([3, 2]), {"type": "multi_discrete", "nvec": [3, 2]}),
        (spaces.MultiDiscrete([3, 2], start=[1, 0]), {"type": "multi_discrete", "nvec": [3, 2], "start": [1, 0]}),
        (spaces.MultiBinary(5), {"type": "multi_binary", "shape": [5]}),
        (spaces.Text(8), {"type": "text", "max_length": 8}),
        (spaces.Tuple([spaces.Discrete(2)]), {"type": "tuple", "spaces": [{"type": "discrete", "n": 2, "start": 0}]}),
        (spaces.Dict({"camera": spaces.Box(0, 255, (2, 2), np.uint8)}), {"type": "dict", "spaces": {"camera": IMAGE}}),
        (IMAGE, IMAGE),
    ],
    ids=str,
)
def test_a_space_becomes_plain_data(space: Any, plain: dict[str, Any]) -> None:
    assert describe(space) == plain


class Mission(spaces.Space[str]):
    """Texts in a class of their own, as MiniGrid has them."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "open the door"


def test_texts_of_another_class_are_texts() -> None:
    mission = {"type": "text", "max_length": 4096}
    assert describe(spaces.Dict({"mission": Mission()})) == {"type": "dict", "spaces": {"mission": mission}}
    assert space_to_json(Mission()) == mission


def test_a_space_that_the_protocol_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="observation_space/graph: wanted a space of Box, .*, got Graph"):
        describe(spaces.Dict({"graph": spaces.Graph(spaces.Discrete(2), None)}), "observation_space")
    with pytest.raises(ValueError, match="space: wanted the type box, .*, got 'cube'"):
        describe({"type": "cube"})


@pytest.mark.parametrize(
    ("space", "value", "wire"),
    [
        (IMAGE, [[0, 1], [2, 255]], [[0, 1], [2, 255]]),
        ({"type": "box", "shape": [2], "dtype": "float32"}, (1, 2.5), [1.0, 2.5]),
        ({"type": "box", "shape": [], "dtype": "float32"}, np.float64(0.5), 0.5),
        ({"type": "discrete", "n": 3}, np.int64(2), 2),
        ({"type": "multi_discrete", "nvec": [3, 2]}, np.array([2, 1], np.int32), [2, 1]),
        ({"type": "multi_binary", "shape": [2]}, [True, False], [1, 0]),
        ({"type": "text"}, np.str_("go"), "go"),
        ({"type": "dict", "spaces": {"a": {"type": "discrete", "n": 3}}}, {"a": 1, "unknown": 2}, {"a": 1}),
        ({"type": "tuple", "spaces": [{"type": "discrete", "n": 3}] * 2}, (1, 2), [1, 2]),
    ],
    ids=str,
)
def test_an_observation_is_written(space: dict[str, Any], value: Any, wire: Any) -> None:
    written = encoder(space, binary=False)(value)
    assert (written, type(written)) == (wire, type(wire))


def test_bytes_are_little_endian_with_the_last_dimension_innermost() -> None:
    space = {"type": "box", "shape": [2, 3], "dtype": "float32"}
    value = np.arange(6, dtype=">f8").reshape(3, 2).T
    written = encoder(space, binary=True)(value)
    assert (written["dtype"], written["shape"]) == ("float32", [2, 3])
    assert np.frombuffer(written["data"], "<f4").tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("value", [[[0, 1], [2, 256]], [[0, 1], [2, 0.5]], [["a", "b"]] * 2, [[0, 1]]], ids=str)
@pytest.mark.parametrize("binary", [True, False])
def test_values_that_the_space_lacks_are_refused(value: Any, binary: bool) -> None:
    with pytest.raises(ValueError, match="^observation: wanted .*, got "):
        encoder(IMAGE, binary=binary)(value)


NUMBER = {"type": "discrete", "n": 3}


@pytest.mark.parametrize(
    ("space", "value", "line"),
    [
        (NUMBER, 1.9, "observation: wanted a whole number, got '1.9'"),
        (NUMBER, np.inf, "observation: wanted a whole number, got 'inf'"),
        (NUMBER, "1", "observation: wanted a whole number, got '1'"),
        (NUMBER, np.zeros((2, 2)), r"observation: wanted a whole number, got '[[0. 0.]\n [0. 0.]]'"),
        ({"type": "dict", "spaces": {"a": NUMBER, "b": NUMBER}}, {"a": 1}, "observation: wanted the entry 'b', got 'a'"),
        ({"type": "dict", "spaces": {"a": NUMBER}}, {}, "observation: wanted the entry 'a', got none"),
        ({"type": "dict", "spaces": {"a": NUMBER}}, [1], "observation: wanted a dict, got list"),
        ({"type": "dict", "spaces": {"a": NUMBER}}, {"a": None}, "observation/a: wanted a whole number, got 'None'"),
        ({"type": "tuple", "spaces": [NUMBER]}, (1, 2), "observation: wanted a tuple of 1 values, got 2 values"),
        ({"type": "tuple", "spaces": [NUMBER] * 2}, [1], "observation: wanted a tuple of 2 values, got 1 values"),
        ({"type": "tuple", "spaces": [NUMBER]}, 1, "observation: wanted a tuple of 1 values, got int"),
        (
            {"type": "box", "shape": [2], "dtype": "float32"},
            [1e39, 0],
            "observation: wanted numbers of float32, got float64 with",
        ),
        (
            {"type": "box", "shape": [2], "dtype": "float16"},
            [70000, 0],
            "observation: wanted numbers of float16, got int64 with",
        ),
        (
            {"type": "box", "shape": [2], "dtype": "uint8"},
            [np.nan, 0],
            "observation: wanted numbers of uint8, got float64 with",
        ),
        ({"type": "box", "shape": [2], "dtype": "float32"}, [[1, 2], [3]], "observation: wanted an array of float32, got none"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.filterwarnings("error")
def test_a_value_that_cannot_be_written_whole_is_refused(space: dict[str, Any], value: Any, line: str) -> None:
    with pytest.raises(SpaceError) as error:
        encoder(space, binary=True)(value)
    assert str(error.value).startswith(line)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.filterwarnings("error")
def test_numbers_that_are_rounded_or_endless_before_are_written() -> None:
    written = encoder({"type": "box", "shape": [3], "dtype": "float32"}, binary=False)([0.1, -np.inf, 2**24 + 1])
    assert written == [np.float32(0.1), -np.inf, 2**24]


@pytest.mark.parametrize(
    ("space", "wire", "action"),
    [
        ({"type": "box", "shape": [1, 2], "dtype": "float32"}, [[0.5, 1]], np.array([[0.5, 1]], np.float32)),
        ({"type": "multi_discrete", "nvec": [3, 2]}, [2, 1], np.array([2, 1], np.int64)),
        ({"type": "multi_binary", "shape": [2]}, [1, 0], np.array([1, 0], np.int8)),
    ],
    ids=str,
)
def test_an_action_is_as_the_space_has_it(space: dict[str, Any], wire: Any, action: np.ndarray) -> None:
    read = decoder(space)(wire)
    assert (read.dtype, read.shape, read.tolist()) == (action.dtype, action.shape, action.tolist())


def test_numbers_of_an_info_are_taken() -> None:
    info = {"won": True, "count": np.int64(3), "zero": np.array(0.5), "many": np.ones(2), "text": "x", "endless": np.inf}
    assert numbers_of(info) == {"won": True, "count": 3, "zero": 0.5}


def test_the_client_is_written_in_the_language_of_python_3_9() -> None:
    files = sorted((REPOSITORY / "clients" / "python" / "springbok_client").glob("*.py"))
    assert len(files) > 4
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 9))
        assert "from __future__ import annotations" in file.read_text() or file.name == "__init__.py"
        imported = {name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert not imported & {"torch", "wrappers", "serve"}
