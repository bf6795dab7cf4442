"""Minari datasets as recordings."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from replay.recordings.recording import open_recording
from tests.matrix_env import ACTIONS, EPISODE_STEPS
from tests.support import run_main
from tests.test_matrix import newest
from workers.minari_import import import_dataset, recording_of
from wrappers import make_spec, make_vector_env
from wrappers.gymnasium_spaces import from_gymnasium, translate_actions
from wrappers.minari_data import load_dataset, replayed
from wrappers.spec import EnvConfig

minari = pytest.importorskip("minari", reason="Minari is not installed")

EPISODES = 4


@pytest.fixture(autouse=True)
def own_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def stacked(observations: list[Any]) -> Any:
    """Observations of an episode by the entries of their space."""
    if isinstance(observations[0], dict):
        return {name: stacked([each[name] for each in observations]) for name in observations[0]}
    return np.stack(observations)


def collect(env_id: str, name: str = "test/set-v0", episodes: int = EPISODES) -> Any:
    """Play at random and keep it as a Minari dataset."""
    module, _, registered = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    env = gymnasium.make(registered, disable_env_checker=True)
    env.action_space.seed(1)
    buffers = []
    for episode in range(episodes):
        seen, rows = [env.reset(seed=1 if episode == 0 else None)[0]], []
        while not rows or not (rows[-1][2] or rows[-1][3]):
            masked = isinstance(seen[-1], dict) and "action_mask" in seen[-1]
            action = env.action_space.sample(seen[-1]["action_mask"].astype(np.int8) if masked else None)
            observation, *row = env.step(action)
            seen.append(observation)
            rows.append((action, *row))
        actions, rewards, terminated, truncated, _ = map(list, zip(*rows, strict=True))
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                observations=stacked(seen),
                actions=np.stack(actions),
                rewards=rewards,
                terminations=terminated,
                truncations=truncated,
                infos={},
            )
        )
    # Minari cannot keep the registration of Matrix, whose entry point is a class.
    spaces_of = {"observation_space": env.observation_space, "action_space": env.action_space}
    return minari.create_dataset_from_buffers(name, buffers, **({"env": env} if not module else spaces_of))


def imported(config: EnvConfig, folder: Path) -> Path:
    """The recording of `test/set-v0`, made below a folder unless it is there."""
    spec = make_spec(config)
    target = recording_of("test/set-v0", config, spec, folder)
    import_dataset("test/set-v0", config, spec, target)
    return target


@pytest.mark.parametrize("name", ["vector-discrete", "image-multi", "dict-box", "dict-discrete-mask"])
@pytest.mark.parametrize("core_inputs", [False, True])
def test_episodes_are_what_an_environment_would_have_shown(tmp_path: Path, name: str, core_inputs: bool) -> None:
    config = EnvConfig(env=f"tests.matrix_env:Matrix-{name}-v0", frames_stacked=1, core_inputs=core_inputs)
    dataset = collect(config.env)
    recording = open_recording(imported(config, tmp_path / "recordings"))
    (records,) = recording.streams
    assert recording.episodes == EPISODES
    assert len(records) - 1 == EPISODES * EPISODE_STEPS + EPISODES - 1
    # The same environment, played with the recorded actions, shows the same.
    env, spec = make_vector_env(config, 1), make_spec(config)
    observations = env.reset(1)
    for record in records[:-1]:
        assert np.array_equal(observations[0, -1], record["frames"])
        if record["reset"]:
            assert not record["action_used"]
        step = env.step(record["actions"][None])
        assert np.array_equal(step.reset[0], record["reset"])
        for field in ("rewards", "terminated", "truncated", "action_used"):
            assert getattr(step, field)[0] == record[field], field
        observations = step.observations
    assert np.array_equal(observations[0, -1], records[-1]["frames"])
    assert spec.to_json()["action"] == recording.spec["action"]
    total = sum(float(episode.rewards.sum()) for episode in dataset.iterate_episodes())
    assert recording.mean_return == pytest.approx(total / EPISODES)
    env.close()


def test_an_episode_that_was_never_ended_is_cut(tmp_path: Path) -> None:
    """Or a value would be bootstrapped from another episode."""
    space = spaces.Box(-1.0, 1.0, (2,))
    buffers = [
        minari.data_collector.EpisodeBuffer(
            observations=np.full((4, 2), 0.1 * episode, np.float32),
            actions=np.array([0, 1, 0]),
            rewards=[1.0, 2.0, 3.0],
            terminations=[False] * 3,
            truncations=[False] * 3,
            infos={},
        )
        for episode in range(2)
    ]
    dataset = minari.create_dataset_from_buffers(
        "test/cut-v0", buffers, observation_space=space, action_space=spaces.Discrete(2)
    )
    env, _ = replayed(dataset, EnvConfig(env="Cut-v0", frames_stacked=1))
    env.reset(1)
    steps = [env.step(np.zeros(1, np.int64)) for _ in range(7)]
    assert [bool(step.truncated[0]) for step in steps] == [False, False, True, False, False, False, True]
    assert [bool(step.reset[0]) for step in steps] == [False, False, False, True, False, False, False]


def test_actions_beyond_a_bound_are_at_the_bound() -> None:
    found = from_gymnasium(spaces.Box(0.0, 2.0, (2,)), np.array([[2.5, -1.0], [1.0, 2.0]]))
    assert found.tolist() == [[1.0, -1.0], [0.0, 1.0]]


def test_a_dataset_is_turned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EnvConfig(env="tests.matrix_env:Matrix-vector-discrete-v0", frames_stacked=1)
    collect(config.env)
    folder = imported(config, tmp_path / "recordings")
    before = (folder / "recording.json").stat().st_mtime_ns
    assert imported(config, tmp_path / "recordings") == folder
    assert (folder / "recording.json").stat().st_mtime_ns == before


def test_a_dataset_that_was_made_anew_is_turned_again(tmp_path: Path) -> None:
    config = EnvConfig(env="tests.matrix_env:Matrix-vector-discrete-v0", frames_stacked=1)
    collect(config.env)
    folder = imported(config, tmp_path / "recordings")
    minari.delete_dataset("test/set-v0")
    collect(config.env, episodes=EPISODES + 2)
    again = imported(config, tmp_path / "recordings")
    assert [open_recording(each).episodes for each in (folder, again)] == [EPISODES, EPISODES + 2]


def test_an_import_that_did_not_end_and_one_that_runs_harm_none(tmp_path: Path) -> None:
    config = EnvConfig(env="tests.matrix_env:Matrix-vector-discrete-v0", frames_stacked=1)
    collect(config.env)
    folder = imported(config, tmp_path / "recordings")
    left = folder.rename(folder.with_name(f".{folder.name}"))
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(imported, config, tmp_path / "recordings") for _ in range(2)]
        assert [each.result() for each in found] == [folder, folder]
    assert open_recording(folder).episodes == EPISODES
    assert not left.exists()


@pytest.mark.parametrize("name", ["../x-v0", "a/../../x-v0", "/x-v0", ""])
def test_a_name_that_leaves_the_folder_is_no_dataset(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="^recording: wanted the name of a Minari dataset"):
        recording_of(name, EnvConfig(env="Catch-v0"), make_spec(EnvConfig("Catch-v0")), tmp_path / "recordings")
    assert not (tmp_path / "recordings").exists()


@pytest.mark.parametrize(
    "space", [*ACTIONS.values(), spaces.Discrete(3, start=5), spaces.MultiBinary(4), spaces.Box(-np.inf, 1.0, (3,))]
)
def test_actions_come_back_from_the_environments(space: spaces.Space[Any]) -> None:
    ours, decode = translate_actions(space)
    actions = ours.sample(np.random.default_rng(1), 20)
    if isinstance(space, spaces.Box):
        actions = np.clip(actions, -1, 1)
    found = from_gymnasium(space, np.array(decode(actions)))
    assert found.dtype == ours.dtype
    np.testing.assert_allclose(found, actions, atol=1e-6)


def test_what_is_no_dataset_of_the_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EnvConfig(env="tests.matrix_env:Matrix-vector-discrete-v0", frames_stacked=1)
    with pytest.raises(
        ValueError, match="^recording: wanted a Minari dataset .*, got no/set-v0: .*; minari download no/set-v0$"
    ):
        load_dataset("no/set-v0")
    collect("tests.matrix_env:Matrix-image-box-v0")
    with pytest.raises(ValueError, match="^recording: wanted a dataset of .*, got test/set-v0, whose .* another environment$"):
        imported(config, tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(ValueError, match=r"^recording: wanted the package minari .*; pip install 'minari\[hdf5\]'$"):
        load_dataset("x")


def test_the_program_learns_from_a_dataset(tmp_path: Path) -> None:
    collect("CartPole-v1", "cartpole/random-v0", 3)
    flags = ["--env=CartPole-v1", "--agent=bcq", "--environment_max_steps=300", "--learning_starts=50", "--eval_seconds=0"]
    done = run_main("--op_mode=train", f"--results_dir={tmp_path}", "--recording=minari:cartpole/random-v0", *flags)
    assert done.returncode == 0, done.stderr
    assert "(made of minari:cartpole/random-v0)" in done.stdout
    assert newest(tmp_path).counters.updates > 0
