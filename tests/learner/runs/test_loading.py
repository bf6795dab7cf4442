"""Loading ends at the newest good checkpoint that fits what was asked for, or in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agents import AGENTS
from agents.networks.actor_critic import make_network
from learner.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from learner.runs.directory import RunDirectory
from learner.runs.loading import check_finite, check_fit, load_newest, merge_settings
from learner.settings.config import DEFAULTS, Config
from tests.learner.runs.test_checkpoint import make_checkpoint
from tests.support import small_config
from wrappers import make_spec


def make_run(results: Path, *updates: int) -> RunDirectory:
    run = RunDirectory.create(results, "Catch-v0")
    for update in updates:
        save_checkpoint(run.checkpoint_path(update), make_checkpoint(update))
    return run


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_newest_good_one_is_loaded_and_the_bad_ones_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 2, 3, 4)
    damage(run.checkpoint_path(4))
    run.checkpoint_path(3).write_bytes(run.checkpoint_path(3).read_bytes()[:500])
    path, checkpoint, said = load_newest(str(run.path), tmp_path)
    assert path == run.checkpoint_path(2)
    assert checkpoint.counters.updates == 2
    assert [line.split(": ")[0] for line in said] == [f"passed over {run.checkpoint_path(number)}" for number in (4, 3)]
    assert "checksum does not match" in said[0]
    assert all("\n" not in line for line in said)


def test_the_best_is_the_last_resort_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, 2)
    save_checkpoint(run.best, make_checkpoint(1))
    assert load_newest("latest", tmp_path)[1].counters.updates == 2
    damage(run.checkpoint_path(2))
    assert load_newest("latest", tmp_path)[1].counters.updates == 1


def test_a_bad_file_that_is_named_itself_is_an_error(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 2)
    damage(run.checkpoint_path(2))
    with pytest.raises(ValueError, match="checksum does not match") as caught:
        load_newest(str(run.checkpoint_path(2)), tmp_path)
    assert str(run.checkpoint_path(2)) in str(caught.value)


def test_a_run_with_bad_ones_only_is_an_error(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 2)
    for number in (1, 2):
        damage(run.checkpoint_path(number))
    with pytest.raises(ValueError, match="^load: wanted one good checkpoint .* got 2 bad ones") as caught:
        load_newest(str(run.path), tmp_path)
    assert str(run.checkpoint_path(2)) in str(caught.value)
    assert "\n" not in str(caught.value)


def best_of(run: RunDirectory, update: int) -> Path:
    save_checkpoint(run.best, make_checkpoint(update))
    return run.best.resolve()


@pytest.mark.parametrize(("best", "taken"), [(2, "best"), (1, 1), (0, 1)])
def test_where_the_newest_is_damaged_the_one_of_most_updates_is_taken(best: int, taken: int | str, tmp_path: Path) -> None:
    """Also where that is the best one, which is not said to be damaged where it is older."""
    run = make_run(tmp_path, 1, 3)
    damage(run.checkpoint_path(3))
    best_of(run, best)
    path, checkpoint, notes = load_newest(str(run.path), tmp_path)
    assert path == (run.best if taken == "best" else run.checkpoint_path(1)).resolve()
    assert checkpoint.counters.updates == max(best, 1)
    assert len(notes) == 1
    assert str(run.checkpoint_path(3)) in notes[0]


def test_a_damaged_best_is_passed_over_too(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 3)
    damage(run.checkpoint_path(3))
    damage(best_of(run, 2))
    path, _, notes = load_newest(str(run.path), tmp_path)
    assert path == run.checkpoint_path(1).resolve()
    assert [str(run.checkpoint_path(3)) in notes[0], str(run.best) in notes[1]] == [True, True]


def test_a_good_newest_is_taken_whatever_the_best_is(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 3)
    damage(best_of(run, 5))
    path, _, notes = load_newest(str(run.path), tmp_path)
    assert (path, notes) == (run.checkpoint_path(3).resolve(), [])


def test_the_command_line_goes_before_the_checkpoint_and_the_checkpoint_before_the_defaults() -> None:
    saved = {"lr": 0.1, "gamma": 0.5, "verbosity": 2}
    merged, notes = merge_settings({"lr": 0.3, "seed": 3}, saved)
    assert merged == {**DEFAULTS, "lr": 0.3, "gamma": 0.5, "seed": 3}
    assert notes == ["lr=0.3 (overrides the checkpoint's 0.1)"]


def test_unknown_settings_of_a_checkpoint_are_left_out_and_named() -> None:
    merged, notes = merge_settings({}, {"lr": 0.1, "momentum_of_old": 3, "zeta": None})
    assert merged == {**DEFAULTS, "lr": 0.1}
    (note,) = notes
    assert "momentum_of_old, zeta" in note


def test_another_agent_than_the_checkpoint_s_is_refused() -> None:
    with pytest.raises(ValueError, match="^agent: wanted vtrace as in the checkpoint, got other$"):
        merge_settings({"agent": "other"}, {"lr": 0.1})
    with pytest.raises(ValueError, match="^agent: wanted vtrace, got 'other'$"):
        merge_settings({}, {"agent": "other"})


def fitting(config: Config) -> Checkpoint:
    """A checkpoint of this config after one update."""
    spec = make_spec(config.env)
    agent = AGENTS["vtrace"](config.agent_settings, make_network(config.network, spec.observation_shape, spec.action_count))
    agent.optimizer.zero_grad()
    output = agent.network(torch.ones((3, *spec.observation_shape), dtype=torch.uint8))
    (output.logits.sum() + output.values.sum()).backward()
    agent.optimizer.step()
    return replace(
        make_checkpoint(),
        settings=config.settings,
        spec={"env": spec.env, "action_count": spec.action_count, "frame_shape": list(spec.frame_shape)},
        agent=agent.state_dict(),
    )


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_what_fits_is_taken(optimizer: str, tmp_path: Path) -> None:
    config = small_config(optimizer=optimizer)
    save_checkpoint(tmp_path / "x.pt", fitting(config))
    checkpoint = load_checkpoint(tmp_path / "x.pt")
    check_fit(config, checkpoint, load_optimizer=True)
    check_finite(checkpoint, tmp_path)


def test_another_optimizer_is_refused_unless_its_state_is_left_out() -> None:
    checkpoint = fitting(small_config(optimizer="rmsprop"))
    config = small_config(optimizer="adam")
    with pytest.raises(ValueError, match="^optimizer: wanted rmsprop .* got adam; .*--noload_optimizer"):
        check_fit(config, checkpoint, load_optimizer=True)
    check_fit(config, checkpoint, load_optimizer=False)


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "another network": ({"network": "impala_shallow", "env": "PongNoFrameskip-v4"}, "wanted a checkpoint for the 6 actions"),
    "other observations": ({"frames_stacked": 2}, "wanted weights of the network mlp"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_refused_in_one_line(name: str) -> None:
    changes, line = UNFIT[name]
    with pytest.raises(ValueError, match=line) as caught:
        check_fit(small_config(**changes), fitting(small_config()), load_optimizer=True)
    assert "\n" not in str(caught.value)


def first_moment(agent: dict[str, Any]) -> dict[str, Any]:
    return agent["optimizer"]["state"][0]


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "weights of another type": lambda agent: agent["network"].update(
        {name: value.double() for name, value in agent["network"].items()}
    ),
    "moments of another shape": lambda agent: first_moment(agent).update(square_avg=torch.zeros(3)),
    "moments that are text": lambda agent: first_moment(agent).update(square_avg="text"),
    "a moment missing": lambda agent: first_moment(agent).pop("step"),
    "a moment too many": lambda agent: first_moment(agent).update(more=torch.zeros(1)),
    "moments of one parameter": lambda agent: agent["optimizer"].update(state={0: first_moment(agent)}),
    "moments in a list": lambda agent: agent["optimizer"].update(state=[first_moment(agent)]),
    "moments of numbers": lambda agent: agent["optimizer"].update(state=dict.fromkeys(range(99), 1)),
    "no moments": lambda agent: agent["optimizer"].pop("state"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_state_that_does_not_fit_the_agent_is_refused_in_one_line(name: str) -> None:
    config = small_config()
    checkpoint = fitting(config)
    CHANGES[name](checkpoint.agent)
    with pytest.raises(ValueError, match="^load: wanted ") as caught:
        check_fit(config, checkpoint, load_optimizer=True)
    assert "\n" not in str(caught.value)


def test_diverged_weights_are_refused(tmp_path: Path) -> None:
    checkpoint = fitting(small_config())
    next(iter(checkpoint.agent["network"].values())).view(-1)[0] = float("nan")
    with pytest.raises(ValueError, match="finite"):
        check_finite(checkpoint, tmp_path)
