"""Loading finds the newest sound checkpoint, and refuses one that does not fit the command in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agents import AGENTS
from agents.networks.base import make_network
from learner.building import make_agent
from learner.plan import make_plan
from learner.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from learner.runs.directory import RunDirectory
from learner.runs.loading import check_finite, check_fit, load_newest, merge_settings
from learner.settings.config import DEFAULTS, Config
from setting import listed
from tests.builders import network_of
from tests.learner.runs.support import make_checkpoint
from tests.support import same, small_config, small_plan
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


def test_the_newest_sound_checkpoint_is_loaded_and_damaged_ones_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 2, 3, 4)
    damage(run.checkpoint_path(4))
    run.checkpoint_path(3).write_bytes(run.checkpoint_path(3).read_bytes()[:500])
    path, checkpoint, said = load_newest(str(run.path), tmp_path)
    assert path == run.checkpoint_path(2)
    assert checkpoint.counters.updates == 2
    assert [line.split(": ")[0] for line in said] == [f"skipped {run.checkpoint_path(number)}" for number in (4, 3)]
    assert "checksum does not match" in said[0]
    assert all("\n" not in line for line in said)


def test_the_best_checkpoint_is_loaded_if_all_others_are_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path, 2)
    save_checkpoint(run.best, make_checkpoint(1))
    assert load_newest("latest", tmp_path)[1].counters.updates == 2
    damage(run.checkpoint_path(2))
    assert load_newest("latest", tmp_path)[1].counters.updates == 1


def test_a_damaged_file_that_is_named_itself_is_an_error(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 2)
    damage(run.checkpoint_path(2))
    with pytest.raises(ValueError, match="checksum does not match") as caught:
        load_newest(str(run.checkpoint_path(2)), tmp_path)
    assert str(run.checkpoint_path(2)) in str(caught.value)


def test_a_run_with_damaged_checkpoints_only_is_an_error(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 2)
    for number in (1, 2):
        damage(run.checkpoint_path(number))
    with pytest.raises(ValueError, match="^load: wanted one sound checkpoint .* got 2 ") as caught:
        load_newest(str(run.path), tmp_path)
    assert str(run.checkpoint_path(2)) in str(caught.value)
    assert "\n" not in str(caught.value)


def best_of(run: RunDirectory, update: int) -> Path:
    save_checkpoint(run.best, make_checkpoint(update))
    return run.best.resolve()


@pytest.mark.parametrize(("best", "taken"), [(2, "best"), (1, 1), (0, 1)])
def test_if_the_newest_is_damaged_the_one_of_most_updates_is_loaded(best: int, taken: int | str, tmp_path: Path) -> None:
    """The best checkpoint counts too. It is not reported as damaged if it is older."""
    run = make_run(tmp_path, 1, 3)
    damage(run.checkpoint_path(3))
    best_of(run, best)
    path, checkpoint, notes = load_newest(str(run.path), tmp_path)
    assert path == (run.best if taken == "best" else run.checkpoint_path(1)).resolve()
    assert checkpoint.counters.updates == max(best, 1)
    assert len(notes) == 1
    assert str(run.checkpoint_path(3)) in notes[0]


def test_a_damaged_best_is_skipped_too(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 3)
    damage(run.checkpoint_path(3))
    damage(best_of(run, 2))
    path, _, notes = load_newest(str(run.path), tmp_path)
    assert path == run.checkpoint_path(1).resolve()
    assert [str(run.checkpoint_path(3)) in notes[0], str(run.best) in notes[1]] == [True, True]


def test_a_sound_newest_is_loaded_whatever_the_best_is(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 3)
    damage(best_of(run, 5))
    path, _, notes = load_newest(str(run.path), tmp_path)
    assert (path, notes) == (run.checkpoint_path(3).resolve(), [])


def test_the_command_overrides_the_checkpoint_which_overrides_defaults() -> None:
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
    with pytest.raises(ValueError, match=f"^agent: wanted {listed((*sorted(AGENTS), 'FILE.py:CLASS'))}, got 'other'$"):
        merge_settings({}, {"agent": "other"})


def test_families_have_defaults_of_their_own_that_everything_given_comes_before() -> None:
    merged, notes = merge_settings({"env": "CartPole-v1"}, {})
    assert (merged["clip_rewards"], merged["frames_stacked"]) == (False, 1)
    assert "clip_rewards=False (usual for CartPole-v1)" in notes
    assert merge_settings({"env": "CartPole-v1", "clip_rewards": True}, {})[0]["clip_rewards"] is True
    assert merge_settings({}, {"env": "CartPole-v1", "clip_rewards": True})[0]["clip_rewards"] is True
    assert merge_settings({"env": "Catch-v0"}, {})[0]["clip_rewards"] is True


def fitting(config: Config) -> Checkpoint:
    """A checkpoint of this config after one update."""
    spec = make_spec(config.env)
    agent = AGENTS["vtrace"](config.agent_settings, network_of(config.network, spec.observation_shape, spec.action))
    agent.stepper.optimizer.zero_grad()
    output = agent.network(torch.ones((3, *spec.observation_shape), dtype=torch.uint8))
    (output.policy.sum() + output.values.sum()).backward()
    agent.stepper.optimizer.step()
    return replace(
        make_checkpoint(),
        settings=config.settings,
        spec=spec.to_json(),
        agent=agent.state_dict(),
    )


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_a_fitting_checkpoint_is_accepted(optimizer: str, tmp_path: Path) -> None:
    config = small_config(optimizer=optimizer)
    save_checkpoint(tmp_path / "x.pt", fitting(config))
    checkpoint = load_checkpoint(tmp_path / "x.pt")
    check_fit(make_plan(config), checkpoint, load_optimizer=True)
    check_finite(checkpoint, tmp_path)
    agent = make_agent(config, make_network(make_plan(config).network))
    assert not same(agent.state_dict(), checkpoint.agent)
    agent.load_state_dict(checkpoint.agent, load_optimizer=True)
    assert same(agent.state_dict()["modules"], checkpoint.agent["modules"])
    assert same(agent.state_dict()["optimizers"]["network"]["state"], checkpoint.agent["optimizers"]["network"]["state"])


def test_another_optimizer_is_refused_unless_its_state_is_left_out() -> None:
    checkpoint = fitting(small_config(optimizer="rmsprop"))
    config = small_config(optimizer="adam")
    with pytest.raises(ValueError, match="^optimizer: wanted rmsprop .* got adam; .*--noload_optimizer"):
        check_fit(make_plan(config), checkpoint, load_optimizer=True)
    check_fit(make_plan(config), checkpoint, load_optimizer=False)


def test_another_activation_function_is_refused() -> None:
    with pytest.raises(ValueError, match="^activation: wanted relu as in the checkpoint, got tanh$"):
        check_fit(small_plan(activation="tanh"), fitting(small_config(activation="relu")), load_optimizer=True)


@pytest.mark.parametrize(
    ("name", "now", "saved"), [("popart", True, False), ("intrinsic", "none", "rnd"), ("core_inputs", True, False)]
)
def test_modules_that_come_or_go_are_refused_by_the_name_of_their_setting(name: str, now: Any, saved: Any) -> None:
    raw = {"clip_rewards": False}
    with pytest.raises(ValueError, match=f"^{name}: wanted {saved} as in the checkpoint, got {now}$"):
        check_fit(small_plan(**{**raw, name: now}), fitting(small_config(**{**raw, name: saved})), load_optimizer=True)


def test_other_strides_are_refused() -> None:
    small = {"network": "conv", "env": "PongNoFrameskip-v4"}
    with pytest.raises(ValueError, match="^conv: wanted 32x8x4,64x4x2,64x3x1 as in the checkpoint, got 32x8x4,64x4x2,64x3x2$"):
        check_fit(small_plan(**small, conv="32x8x4,64x4x2,64x3x2"), fitting(small_config(**small)), load_optimizer=True)


def test_another_number_of_actions_is_refused_with_both_environments() -> None:
    config = small_config(network="impala_shallow", env="PongNoFrameskip-v4")
    with pytest.raises(ValueError, match="^load: .* 6 actions of PongNoFrameskip-v4.* 3 actions of Catch-v0$"):
        check_fit(make_plan(config), fitting(small_config()), load_optimizer=True)


def test_other_weights_are_refused_by_the_first_tensor_that_differs() -> None:
    wanted, got = small_config(frames_stacked=2), small_config()
    shapes = [list(next(iter(fitting(config).agent["modules"]["network"].values())).shape) for config in (wanted, got)]
    assert shapes[0] != shapes[1]
    with pytest.raises(ValueError, match="^load: wanted .* mlp and Catch-v0, got one of mlp and Catch-v0") as caught:
        check_fit(make_plan(wanted), fitting(got), load_optimizer=True)
    name = next(iter(fitting(got).agent["modules"]["network"]))
    assert str(caught.value).endswith(f"wanted {name} as float32 {shapes[0]}, got float32 {shapes[1]}")


def first_moment(agent: dict[str, Any]) -> dict[str, Any]:
    return agent["optimizers"]["network"]["state"][0]


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "weights of another type": lambda agent: agent["modules"]["network"].update(
        {name: value.double() for name, value in agent["modules"]["network"].items()}
    ),
    "moments of another shape": lambda agent: first_moment(agent).update(square_avg=torch.zeros(3)),
    "moments that are text": lambda agent: first_moment(agent).update(square_avg="text"),
    "a moment missing": lambda agent: first_moment(agent).pop("step"),
    "a moment too many": lambda agent: first_moment(agent).update(more=torch.zeros(1)),
    "moments of one parameter": lambda agent: agent["optimizers"]["network"].update(state={0: first_moment(agent)}),
    "moments in a list": lambda agent: agent["optimizers"]["network"].update(state=[first_moment(agent)]),
    "moments of numbers": lambda agent: agent["optimizers"]["network"].update(state=dict.fromkeys(range(99), 1)),
    "no moments": lambda agent: agent["optimizers"]["network"].pop("state"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_state_that_does_not_fit_the_agent_is_refused_in_one_line(name: str) -> None:
    config = small_config()
    checkpoint = fitting(config)
    CHANGES[name](checkpoint.agent)
    with pytest.raises(ValueError, match="^load: wanted ") as caught:
        check_fit(make_plan(config), checkpoint, load_optimizer=True)
    assert "\n" not in str(caught.value)


def test_diverged_weights_are_refused(tmp_path: Path) -> None:
    checkpoint = fitting(small_config())
    next(iter(checkpoint.agent["modules"]["network"].values())).view(-1)[0] = float("nan")
    with pytest.raises(ValueError, match="finite"):
        check_finite(checkpoint, tmp_path)


@pytest.mark.parametrize(("saved", "env"), [("A-v0,B-v0", "B-v0,A-v0"), ("A-v0,B-v0", "A-v0"), ("A-v0", "A-v0,B-v0")])
def test_a_policy_of_several_environments_keeps_them(saved: str, env: str) -> None:
    with pytest.raises(ValueError, match=f"^env: wanted {saved} as in the checkpoint, .*, got {env}$"):
        merge_settings({"env": env}, {**DEFAULTS, "env": saved})
    same_tasks = {"env": saved.replace(",", ", ")}
    assert merge_settings(same_tasks, {**DEFAULTS, "env": saved})[0]["env"] == same_tasks["env"]
