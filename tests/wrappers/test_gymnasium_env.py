"""Environments of Gymnasium follow the contract of all environments, whatever their autoreset mode and their spaces."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.wrappers.environments import HERE, LENGTH, Counting
from wrappers import EnvConfig, Step, VectorEnv, describe_env, env_notes, family_of, make_single_env, make_spec, make_vector_env
from wrappers.gymnasium_spaces import translate_actions
from wrappers.gymnasium_vector import GymnasiumLoop, NativeVector
from wrappers.spaces import ACTION_MASK, Box, Discrete, Leaf, MultiDiscrete, Packing


def config(env: str, **settings: Any) -> EnvConfig:
    """env: an id of the test environments, or any other id with a colon or a known name."""
    name = f"{HERE}:{env}" if env.startswith("Test") else env
    return EnvConfig(**{"env": name, "frames_stacked": 1, **settings})


def copies(step: Step) -> Step:
    return step._replace(**{name: field.copy() for name, field in step._asdict().items() if isinstance(field, np.ndarray)})


def play(env: VectorEnv, count: int, action: int = 1) -> list[Step]:
    return [copies(env.step(np.full(env.num_envs, action))) for _ in range(count)]


def rows(steps: list[Step], index: int = 0) -> list[list[float]]:
    """[episode, step, last action] of each row of one environment."""
    return [step.observations[index, 0].tolist() for step in steps]


WHOLE_EPISODES = [[1, 1, 6], [1, 2, 6], [1, 3, 6], [2, 0, 0], [2, 1, 6], [2, 2, 6], [2, 3, 6], [3, 0, 0]]
"""Rows of two episodes of three steps. The row after an end shows the episode's own last observation, then comes a reset."""


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    ("env", "mode"),
    [("TestCounting-v1", None), ("TestVector-v1", "NEXT_STEP"), ("TestVector-v1", "SAME_STEP"), ("TestVector-v1", "DISABLED")],
)
def test_every_autoreset_mode_becomes_next_step(env: str, mode: str | None, cut: bool) -> None:
    arguments = f'{{"cut": {str(cut).lower()}{"" if mode is None else f", {chr(34)}mode{chr(34)}: {chr(34)}{mode}{chr(34)}"}}}'
    vector = make_vector_env(config(env, env_args=arguments), 1)
    assert vector.reset(7)[0, 0].tolist() == [1, 0, 0]
    steps = play(vector, 8)
    assert rows(steps) == WHOLE_EPISODES
    ends = np.array([False, False, True, False] * 2)
    assert [bool(step.terminated[0]) for step in steps] == (ends & (not cut)).tolist()
    assert [bool(step.truncated[0]) for step in steps] == (ends & cut).tolist()
    assert [bool(step.reset[0]) for step in steps] == [False, False, False, True] * 2
    assert [bool(step.action_used[0]) for step in steps] == [True, True, True, False] * 2
    assert [float(step.rewards[0]) for step in steps] == [11, 12, 13, 0, 21, 22, 23, 0]
    assert [int(step.episode_length[0]) for step in steps] == [0, 0, 3, 0, 0, 0, 3, 0]
    assert float(steps[2].episode_return[0]) == 36
    assert np.isnan(steps[3].episode_return[0])


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_environments_that_end_at_different_steps_do_not_wait_for_each_other(mode: str) -> None:
    arguments = f'{{"mode": "{mode}"}}'
    vector = make_vector_env(config("TestVector-v1", env_args=arguments), 2)
    vector.reset(1)
    steps = play(vector, 5)
    assert rows(steps, 0)[:4] == WHOLE_EPISODES[:4]
    lengths = [step.episode_length.tolist() for step in steps]
    # As one vector environment, its environment 1 has episodes of 4 steps. Instances of one environment are all alike.
    assert lengths == [[0, 0], [0, 0], [3, 0 if mode == "NEXT_STEP" else 3], [0, 4 if mode == "NEXT_STEP" else 0], [0, 0]]


def test_a_native_vector_is_used_where_it_fits() -> None:
    assert isinstance(make_vector_env(config("CartPole-v1"), 2), NativeVector)
    assert isinstance(make_vector_env(config("TestBoth-v1"), 2), NativeVector)
    assert isinstance(make_vector_env(config("TestVector-v1", env_args='{"mode": "SAME_STEP"}'), 2), GymnasiumLoop)


USER_MODULE = """
import gymnasium
from tests.wrappers.environments import Counting
print("noise on the standard output")
gymnasium.register("Own-v3", Counting, kwargs={"length": 7})
"""


def test_a_module_in_the_current_folder_registers_its_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_environments.py").write_text(USER_MODULE)
    (tmp_path / "wrappers.py").write_text("raise RuntimeError('a file of the user hides ours')")
    monkeypatch.chdir(tmp_path)
    own = EnvConfig(env="own_environments:Own-v3", frames_stacked=1)
    assert make_spec(own).frame_shape == (3,)
    monkeypatch.setattr(sys, "path", list(sys.path))
    vector = make_vector_env(own, 1)
    vector.reset(1)
    assert [int(step.episode_length[0]) for step in play(vector, 7)] == [0] * 6 + [7]


def test_an_argument_that_only_the_single_environment_takes_makes_a_loop() -> None:
    assert isinstance(make_vector_env(config("TestBoth-v1", env_args='{"render_mode": "rgb_array"}'), 2), GymnasiumLoop)


def test_environment_i_gets_the_seed_of_the_run_and_i_once() -> None:
    vector = make_vector_env(config("TestCounting-v1"), 3)
    assert isinstance(vector, GymnasiumLoop)
    vector.reset(5)
    play(vector, 5)
    seeds = [env.unwrapped.seeds[-2:] for env in vector._envs]  # type: ignore[attr-defined]
    assert seeds == [[5, None], [6, None], [7, None]]


def test_an_environment_depends_on_its_own_seed_only() -> None:
    alone = make_vector_env(config("Acrobot-v1"), 1)
    together = make_vector_env(config("Acrobot-v1"), 3)
    np.testing.assert_array_equal(alone.reset(11), together.reset(9)[2:])
    for step, other in zip(play(alone, 30), play(together, 30), strict=True):
        np.testing.assert_array_equal(step.observations, other.observations[2:])


def test_the_native_cartpole_plays_like_gymnasiums_own() -> None:
    ours, own = make_vector_env(config("CartPole-v1"), 1), gymnasium.make("CartPole-v1")
    first, _ = own.reset(seed=3)
    np.testing.assert_array_equal(ours.reset(3)[0, 0], first)
    over = False
    for action in np.random.default_rng(0).integers(2, size=200):
        step = ours.step(np.array([action]))
        assert bool(step.reset[0]) is over
        if over:
            own.reset(seed=3)  # random starts differ from here on
            break
        observation, reward, terminated, _, _ = own.step(int(action))
        np.testing.assert_allclose(step.observations[0, 0], observation, rtol=1e-6)
        assert (float(step.rewards[0]), bool(step.terminated[0])) == (reward, terminated)
        over = terminated
    assert over


@pytest.mark.parametrize(("settings", "length"), [({}, 2), ({"max_episode_steps": 1}, 1), ({"max_episode_steps": 9}, LENGTH)])
def test_the_time_limit_is_that_of_the_id_or_of_the_setting(settings: dict[str, Any], length: int) -> None:
    vector = make_vector_env(config("TestLimited-v1", **settings), 1)
    vector.reset(1)
    ends = [step for step in play(vector, 6) if step.episode_length[0]]
    assert int(ends[0].episode_length[0]) == length
    assert bool(ends[0].truncated[0]) is (length < LENGTH)
    assert describe_env(config("TestLimited-v1", **settings)).protocol_settings["max_episode_steps"] == (settings or {}).get(
        "max_episode_steps", 2
    )


def test_a_native_vector_keeps_the_time_limit_too() -> None:
    vector = make_vector_env(config("CartPole-v1", max_episode_steps=4), 3)
    vector.reset(1)
    steps = play(vector, 5)
    assert [step.truncated.all() for step in steps] == [False, False, False, True, False]
    assert steps[4].reset.all()


def test_an_end_at_the_time_limit_is_no_truncation() -> None:
    vector = make_vector_env(config("TestLimited-v1", max_episode_steps=LENGTH), 1)
    vector.reset(1)
    end = play(vector, LENGTH)[-1]
    assert (end.terminated[0], end.truncated[0]) == (True, False)


def test_a_stack_holds_the_last_frames_and_zeros_before_the_first() -> None:
    vector = make_vector_env(config("TestCounting-v1", frames_stacked=3), 2)
    assert vector.reset(1)[:, :, 1:].tolist() == [[[0, 0]] * 3] * 2
    stacks = [step.observations[1, :, :2].tolist() for step in play(vector, 5)]
    assert stacks[2] == [[1, 1], [1, 2], [1, 3]]
    assert stacks[3] == [[0, 0], [0, 0], [2, 0]]
    assert stacks[4] == [[0, 0], [2, 0], [2, 1]]


def mixed() -> EnvConfig:
    return config("TestMixed-v1", ignored_observations="text")


def test_several_leaves_are_one_frame_of_bytes() -> None:
    spec = make_spec(mixed())
    vector, camera = Leaf("vector", (15,), "float32"), Leaf("camera", (6, 5, 3), "uint8")
    assert spec.leaves == (vector, camera, Leaf(ACTION_MASK, (3,), "uint8"))
    assert (spec.frame_dtype, spec.frame_shape) == ("uint8", (4 * 15 + 90 + 3,))
    env = make_vector_env(mixed(), 2)
    assert env.spec == spec
    env.reset(1)
    leaves = Packing(spec.leaves).unpack(play(env, 1)[0].observations)
    place = [0, 1, 0, 0, 0, 1, 0, 0, 1]  # one of 4 from 1 on, one of 2, one of 3
    assert leaves["vector"][1, 0].tolist() == [*place, 0.5, 0.5, 0.5, 0.5, 0, 1]
    assert leaves["camera"][0, 0].tolist() == np.moveaxis(np.arange(1, 91).reshape(3, 6, 5), 0, -1).tolist()
    assert leaves[ACTION_MASK].tolist() == [[[1, 1, 1]]] * 2


def test_a_mask_in_info_becomes_a_leaf_also_after_resets() -> None:
    vector = make_vector_env(config("TestMaskInInfo-v1"), 1)
    packing = Packing(vector.spec.leaves)
    masks = [packing.unpack(vector.reset(1))[ACTION_MASK]]
    masks += [packing.unpack(step.observations)[ACTION_MASK] for step in play(vector, 4)]
    assert [int(mask[0, 0, 0]) for mask in masks] == [1, 0, 1, 0, 1]


def test_no_mask_is_taken_where_none_is_wanted() -> None:
    assert make_spec(config("TestMaskInInfo-v1", action_mask="none")).leaves == ()
    assert make_spec(config("TestMixed-v1", ignored_observations="text", action_mask="none")).leaves[-1].name == "camera"


@pytest.mark.parametrize(
    ("env", "shape", "dtype", "action"),
    [
        ("Blackjack-v1", (32 + 11 + 2,), "float32", Discrete(2)),
        ("FrozenLake-v1", (16,), "float32", Discrete(4)),
        ("Pendulum-v1", (3,), "float32", Box((-2.0,), (2.0,))),
        ("MountainCarContinuous-v0", (2,), "float32", Box((-1.0,), (1.0,))),
    ],
)
def test_specs_of_known_environments(env: str, shape: tuple[int, ...], dtype: str, action: Any) -> None:
    spec = make_spec(config(env))
    assert (spec.frame_shape, spec.frame_dtype, spec.action, spec.leaves) == (shape, dtype, action, ())
    vector = make_vector_env(config(env), 2)
    assert vector.spec == spec
    observations = vector.reset(1)
    assert (observations.shape, observations.dtype) == ((2, *spec.observation_shape), spec.frame_dtype)
    step = vector.step(spec.action.sample(np.random.default_rng(0), 2))
    assert np.isfinite(step.observations).all()


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("LunarLander-v2", "LunarLander-v3"),
        ("Pendulum-v0", "Pendulum-v1"),
        ("HalfCheetah-v3", "HalfCheetah-v5"),
        ("Cartpole-v1", "CartPole-v1"),
        ("nomodule:Foo-v0", "nomodule"),
        ("TestFailing-v1", "no licence"),
        (f"{HERE}:Nix-v1", "Nix-v1"),
    ],
)
def test_an_environment_that_cannot_be_made_is_one_line(env: str, said: str) -> None:
    with pytest.raises(ValueError, match="env") as caught:
        make_spec(config(env))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_texts_are_left_out_unless_every_entry_is_wanted() -> None:
    assert make_spec(config("TestMixed-v1")) == make_spec(mixed())
    texts, camera = env_notes(config("TestMixed-v1"), ())
    assert texts == "ignored_observations=text (a policy reads no texts)"
    assert camera.startswith("observation camera: image 6x5 with 3 channels (channels first; ")
    assert env_notes(mixed(), ()) == [camera]
    with pytest.raises(ValueError, match="got Text in its entry text; --ignored_observations=text leaves it out"):
        make_spec(config("TestMixed-v1", ignored_observations="none"))


MINATAR = """
import gymnasium

def register_envs():
    gymnasium.register("MinAtar/Breakout-v1", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)
"""


def test_ids_of_minatar_are_registered_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of this name stands for the package, whether that is installed or not."""
    config = EnvConfig(env="MinAtar/Breakout-v1", frames_stacked=1)
    if find_spec("minatar") is None:
        with pytest.raises(ValueError, match=r"^env: wanted the module minatar\.gym .*; pip install minatar$"):
            make_spec(config)
    (tmp_path / "minatar").mkdir()
    (tmp_path / "minatar" / "__init__.py").touch()
    (tmp_path / "minatar" / "gym.py").write_text(MINATAR)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert make_spec(config).frame_shape == (4,)


def test_ids_of_minigrid_need_no_module() -> None:
    pytest.importorskip("minigrid", reason="optional: pip install -r requirements-envs.txt")
    named = make_spec(EnvConfig(env="MiniGrid-MemoryS9-v0", frames_stacked=1))
    assert (named.frame_dtype, [leaf.name for leaf in named.leaves]) == ("uint8", ["vector", "image"])


@pytest.mark.parametrize(
    ("where", "said"),
    [("reset", "level 9"), ("exit", "SystemExit: 7"), ("exit in reset", "SystemExit: 8"), ("import", "requirements-envs.txt")],
)
def test_an_environment_that_fails_says_why(where: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_spec(config("TestFailing-v1", env_args=f'{{"where": "{where}"}}'))


@pytest.mark.parametrize(
    "settings",
    [
        {"action_mask": "nix"},
        {"ignored_observations": "nix"},
        {"env_args": '{"nix": 1}'},
        {"env_args": '{"where": "init"}'},
    ],
)
def test_settings_that_do_not_fit_the_environment_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="nix|init"):
        make_spec(config("TestCounting-v1", **settings))


def test_arguments_that_are_no_object_are_refused() -> None:
    with pytest.raises(ValueError, match="env_args: wanted"):
        config("CartPole-v1", env_args="[1]")


def test_the_probe_takes_less_than_a_second_and_only_once() -> None:
    started = time.perf_counter()
    first = make_spec(config("TestCounting-v1", env_args='{"length": 4}'))
    once = time.perf_counter() - started
    assert make_spec(config("TestCounting-v1", env_args='{"length": 4}')) == first
    assert time.perf_counter() - started < once + 0.01


def test_a_rendered_environment_plays_the_same_and_shows_its_picture() -> None:
    plain, shown = make_single_env(config("TestCounting-v1")), make_single_env(config("TestCounting-v1"), "rgb_array")
    np.testing.assert_array_equal(plain.reset(4), shown.reset(4))
    assert rows(play(plain, 6)) == rows(play(shown, 6))
    assert (shown.render().shape, int(shown.render()[0, 0, 0])) == ((8, 10, 3), 2)
    assert describe_env(config("TestCounting-v1")).display.steps_per_second == 20


def test_an_environment_without_a_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="rgb_array"):
        make_single_env(config("TestVector-v1"), "rgb_array")


def test_close_reaches_every_environment() -> None:
    vector = make_vector_env(config("TestCounting-v1"), 2)
    assert isinstance(vector, GymnasiumLoop)
    vector.close()
    inner = [env.unwrapped for env in vector._envs]
    assert all(isinstance(env, Counting) and env.closed for env in inner)
    assert vector.needs_close


@pytest.mark.parametrize(
    ("env", "family"),
    [
        ("PongNoFrameskip-v4", "atari"),
        ("Catch-v0", "toy"),
        ("CartPole-v1", "gymnasium"),
        ("a.b:C-v0", "gymnasium"),
        ("ALE/Combat-v5", None),
        ("nix", None),
    ],
)
def test_each_id_has_one_family(env: str, family: str | None) -> None:
    assert family_of(env) == family


def test_actions_reach_the_environment_as_it_takes_them() -> None:
    space, decode = translate_actions(spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [2, 3]])))
    assert space == MultiDiscrete((2, 3, 4, 5))
    assert np.asarray(decode(np.array([[1, 2, 3, 4]]))).tolist() == [[[1, 3], [5, 7]]]
    space, decode = translate_actions(spaces.MultiBinary(3))
    assert space == MultiDiscrete((2, 2, 2))
    assert spaces.MultiBinary(3).contains(decode(np.array([[1, 0, 1]]))[0])
    box = spaces.Box(np.array([[0.0, -1.0]]), np.array([[0.1, np.inf]]), dtype=np.float64)
    space, decode = translate_actions(box)
    assert space.shape == (2,)
    assert box.contains(decode(np.array([[5.0, 7.5]], np.float32))[0])
    assert np.asarray(decode(np.array([[0.0, 7.5]], np.float32)))[0, 0].tolist() == pytest.approx([0.05, 7.5])
    with pytest.raises(ValueError, match="wanted actions"):
        translate_actions(spaces.Dict(a=spaces.Discrete(2)))


def test_a_single_real_number_is_an_array_as_in_samples_of_its_space() -> None:
    box = spaces.Box(-2.0, 2.0, (), np.float32)
    _, decode = translate_actions(box)
    action = decode(np.array([[0.5], [1.0]], np.float32))[0]
    assert (type(action), action.shape, action.dtype, float(action)) == (np.ndarray, (), np.float32, 1.0)


def test_a_driver_that_cannot_draw_is_one_line_with_the_packages_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="MuJoCo is an optional package (requirements-envs.txt)")
    monkeypatch.setenv("MUJOCO_GL", "no such driver")
    with pytest.raises(ValueError, match="render: wanted .*MUJOCO_GL=egl"):
        make_single_env(config("InvertedPendulum-v5"), "rgb_array")


def test_mujoco_neither_prints_nor_writes_a_file_for_each_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mujoco", reason="MuJoCo is an optional package (requirements-envs.txt)")
    monkeypatch.chdir(tmp_path)
    make_vector_env(EnvConfig(env="HalfCheetah-v5", frames_stacked=1), 2).close()
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
