"""A checkpoint gives back what was saved, and what is damaged, foreign or of another version is refused in one line."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.runs.checkpoint import (
    Checkpoint,
    Counters,
    generator_states,
    load_checkpoint,
    load_replay,
    restore_generators,
    save_checkpoint,
    save_replay,
)
from tests.support import same


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "update_000000005.pt"


def make_checkpoint(updates: int = 5, seed: int = 0) -> Checkpoint:
    """Weights and RMSProp moments of a tiny network after one step."""
    torch.manual_seed(seed)
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.RMSprop(network.parameters(), lr=0.1)
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return Checkpoint(
        settings={"env": "Catch-v0", "seed": 7, "lr": 1e-3, "render": False},
        spec={"env": "Catch-v0", "action_count": 3, "frame_shape": [10, 5]},
        protocol={"sticky_actions": 0.25},
        counters=Counters(steps=2**40, frames=2**42, updates=updates, episodes=11, trajectories=12, seconds=13.5),
        agent={"network": network.state_dict(), "optimizer": optimizer.state_dict()},
        learning_rate=2.5e-4,
        generators=generator_states(np.random.default_rng(3)),
        returns=[1.0, -21.0, 0.5],
    )


def refused(path: Path) -> str:
    """The one line with which the file is refused; nothing else is said."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="wanted a checkpoint of this program") as caught:
            load_checkpoint(path)
    assert warned == []
    line = str(caught.value)
    assert line.splitlines() == [line]
    assert line.startswith(f"{path}: ")
    return line


def test_what_was_saved_comes_back(path: Path) -> None:
    checkpoint = replace(make_checkpoint(), replay="checksum")
    save_checkpoint(path, checkpoint)
    loaded = load_checkpoint(path)
    for name, wanted in vars(checkpoint).items():
        got = getattr(loaded, name)
        assert same(asdict(wanted), asdict(got)) if name == "counters" else same(wanted, got), name


def test_settings_have_the_names_of_today(path: Path) -> None:
    """Unknown ones stay, so that whoever uses them can say what is left out."""
    save_checkpoint(path, replace(make_checkpoint(), settings={"seed": 7, "avg_buff_size": 9, "no_longer_there": 1}))
    assert load_checkpoint(path).settings == {"seed": 7, "return_window": 9, "no_longer_there": 1}


def content_of(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def test_the_first_format_is_still_read(path: Path) -> None:
    """It had no checksum, and nothing about replays."""
    checkpoint = make_checkpoint()
    save_checkpoint(path, checkpoint)
    content = content_of(path)
    del content["replay"]
    torch.save({**content, "format": 1}, path)
    loaded = load_checkpoint(path)
    assert loaded.counters == checkpoint.counters
    assert same(loaded.agent, checkpoint.agent)
    assert loaded.replay is None


FOREIGN: dict[str, object] = {
    "weights": torch.nn.Linear(2, 2).state_dict(),
    "tensor": torch.ones(3),
    "list": [1, 2],
    "text": "format",
    "none": None,
    "number": 3,
    "dictionary": {"format": 1},
    "other_format": {"format": 99},
    "format of tensors": {"format": torch.ones(3)},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_torch_file_is_refused(name: str, path: Path) -> None:
    torch.save(FOREIGN[name], path)
    refused(path)


def test_another_format_is_named(path: Path) -> None:
    torch.save(FOREIGN["other_format"], path)
    assert refused(path).endswith("(wanted format 2, got 99)")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "nowhere.pt")
    assert "Is a directory" in refused(tmp_path)


PARTS = ["settings", "spec", "protocol", "counters", "agent", "learning_rate", "generators", "returns"]


@pytest.mark.parametrize("missing", PARTS)
def test_a_file_with_a_part_missing_is_refused(missing: str, path: Path) -> None:
    save_checkpoint(path, make_checkpoint())
    content = content_of(path)
    del content[missing]
    torch.save({**content, "format": 1}, path)
    assert missing in refused(path)


def test_a_file_whose_checksum_was_cut_off_is_refused(path: Path) -> None:
    save_checkpoint(path, make_checkpoint())
    path.write_bytes(path.read_bytes()[:-73])
    assert refused(path).endswith("(damaged: its checksum is missing)")


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "settings that are no JSON": lambda content: content.update(settings="{"),
    "settings that are no table": lambda content: content.update(settings="[1]"),
    "settings of a million brackets": lambda content: content.update(settings="[" * 10**6),
    "a spec without actions": lambda content: content.update(spec=json.dumps({"env": "x", "frame_shape": []})),
    "actions that are text": lambda content: content.update(
        spec=json.dumps({"env": "x", "frame_shape": [], "action_count": "3"})
    ),
    "a network of numbers": lambda content: content["agent"].update(network={"a": 1}),
    "an agent that is a list": lambda content: content.update(agent=[1]),
    "an optimizer that is a tensor": lambda content: content["agent"].update(optimizer=torch.ones(1)),
    "counters below zero": lambda content: content["counters"].update(steps=-1),
    "counters beyond all bounds": lambda content: content["counters"].update(frames=10**30),
    "counters with a fraction": lambda content: content["counters"].update(updates=1.5),
    "counters nobody knows": lambda content: content["counters"].update(apples=1),
    "seconds that are no number": lambda content: content["counters"].update(seconds=float("nan")),
    "an infinite learning rate": lambda content: content.update(learning_rate=float("inf")),
    "returns of text": lambda content: content.update(returns=["1"]),
    "a returns tensor": lambda content: content.update(returns=torch.ones(1)),
    "a random state of three bytes": lambda content: content["generators"].update(torch=torch.zeros(3, dtype=torch.uint8)),
    "a random state of another kind": lambda content: content["generators"].update(numpy=json.dumps({"bit_generator": "X"})),
    "a random state that is no JSON": lambda content: content["generators"].update(numpy="?"),
    "no random state": lambda content: content.update(generators={}),
    "a replay that is a number": lambda content: content.update(replay=3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_part_that_is_not_as_it_was_written_is_refused(name: str, path: Path) -> None:
    save_checkpoint(path, make_checkpoint())
    content = content_of(path)
    CHANGES[name](content)
    torch.save({**content, "format": 1}, path)
    refused(path)


def test_damage_is_refused(path: Path) -> None:
    """Whichever bytes are wrong, and always in one line."""
    save_checkpoint(path, make_checkpoint())
    whole = path.read_bytes()
    generator = random.Random(0)
    for _ in range(100):
        damaged = bytearray(whole)
        first = generator.randrange(len(damaged) - 8)
        damaged[first : first + 8] = bytes(byte ^ 0xFF for byte in damaged[first : first + 8])
        path.write_bytes(damaged)
        refused(path)


def test_random_states_go_on_where_they_were(path: Path) -> None:
    sampling = np.random.default_rng(5)
    sampling.random(3)
    torch.manual_seed(8)
    save_checkpoint(path, replace(make_checkpoint(), generators=generator_states(sampling)))
    wanted = (sampling.random(4).tolist(), torch.rand(4).tolist())
    other = np.random.default_rng(99)
    torch.manual_seed(1)
    restore_generators(load_checkpoint(path).generators, other)
    assert (other.random(4).tolist(), torch.rand(4).tolist()) == wanted


def test_a_replay_belongs_to_its_checkpoint_alone(tmp_path: Path) -> None:
    file, state = tmp_path / "replay.pt", {"frames": torch.arange(100)}
    mine = replace(make_checkpoint(), replay=save_replay(file, 5, state))
    assert same(load_replay(file, mine), state)
    with pytest.raises(ValueError, match="belongs to another checkpoint"):
        load_replay(file, replace(mine, replay="0" * 64))
    with pytest.raises(ValueError, match="belongs to another checkpoint"):
        load_replay(file, make_checkpoint())
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum does not match"):
        load_replay(file, mine)
    file.unlink()
    with pytest.raises(ValueError, match="No such file"):
        load_replay(file, mine)
