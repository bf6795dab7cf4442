"""The native Atari environment: ids, spec, lives, FIRE, ends and statistics."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from ale_py import roms

from learner import launch
from wrappers import EnvConfig, Step, VectorEnv, atari, make_spec, make_vector_env, other_setting
from wrappers.atari import known_ids, matches, notes, rom_of
from wrappers.spaces import Discrete

NOOP = 0
BREAKOUT = EnvConfig(env="BreakoutNoFrameskip-v4", frame_scale_resolution="42,42")
BREAKOUT_LIVES = 5
BANK_HEIST_LIVES = 4


def _random_actions(env: VectorEnv, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(env.spec.action.mask_size, size=(steps, env.num_envs))


def _play(config: EnvConfig, steps: int, num_envs: int = 1, seed: int = 1, num_threads: int = 1) -> list[Step]:
    """Return the steps of random play. The native environment returns new arrays at every step, so none is copied."""
    env = make_vector_env(config, num_envs, num_threads)
    env.reset(seed)
    return [env.step(row) for row in _random_actions(env, steps)]


def _assert_same(first: list[Step], second: list[Step], rows: slice = slice(None)) -> None:
    """rows: the environments of `first` that `second` consists of."""
    for step, other in zip(first, second, strict=True):
        for field, other_field in zip(step, other, strict=True):
            np.testing.assert_array_equal(None if field is None else field[rows], other_field)


@pytest.mark.parametrize(
    "env_id",
    ["PongNoFrameskip-v4", "PongNoFrameskip-v0", "PongDeterministic-v4", "Pong-v4", "ALE/Pong-v5", "ALE/Pong"],
)
def test_every_spelling_of_pong_is_pong(env_id: str) -> None:
    assert rom_of(env_id) == "pong"


def test_ids_mean_the_games_that_gymnasium_means() -> None:
    gymnasium.register_envs(ale_py)
    registered = {i: s.kwargs["game"] for i, s in gymnasium.registry.items() if "ale_py" in str(s.entry_point)}
    assert len(set(registered.values())) > 100
    assert {env_id: rom_of(env_id) for env_id in registered} == registered


def test_every_game_for_one_player_has_an_id_and_no_other() -> None:
    assert {rom_of(env_id) for env_id in known_ids()} == set(roms.get_all_rom_ids()) - {
        "combat",
        "joust",
        "maze_craze",
        "warlords",
    }
    assert not matches("ALE/Combat-v5")
    assert not matches("pong")


@pytest.mark.parametrize(
    ("env_id", "full", "count"),
    [("PongNoFrameskip-v4", False, 6), ("BreakoutNoFrameskip-v4", False, 4), ("BreakoutNoFrameskip-v4", True, 18)],
)
def test_actions_are_those_of_the_game_asked_for(env_id: str, full: bool, count: int) -> None:
    spec = make_spec(EnvConfig(env=env_id, full_action_space=full))
    assert isinstance(spec.action, Discrete)
    assert spec.action.mask_size == count == len(spec.action.meanings)
    assert spec.action.meanings[:2] == (("NOOP", "FIRE"))


@pytest.mark.parametrize(("gray", "frame_shape"), [(True, (42, 50)), (False, (42, 50, 3))])
def test_observations_are_as_the_spec_says(gray: bool, frame_shape: tuple[int, ...]) -> None:
    config = EnvConfig(frame_scale_resolution="42,50", frames_stacked=3, skipped_frames=2, grayscaling_frames=gray)
    spec, env = make_spec(config), make_vector_env(config, 2)
    assert (spec.frame_shape, spec.frame_dtype, spec.frames_per_step) == (frame_shape, "uint8", 2)
    first, then = env.reset(1), env.step(np.zeros(2, dtype=np.int64)).observations
    assert first.shape == then.shape == (2, *spec.observation_shape)
    assert first.dtype == then.dtype == spec.frame_dtype
    assert not first[:, :-1].any()
    np.testing.assert_array_equal(then[:, -2], first[:, -1])


def test_the_same_seed_gives_the_same_bytes_for_any_number_of_threads() -> None:
    config = EnvConfig(env="SeaquestNoFrameskip-v4", sticky_actions=0.25, max_episode_frames=150)
    one = _play(config, 60, num_envs=4)
    _assert_same(one, _play(config, 60, num_envs=4, num_threads=2))
    _assert_same(one, _play(config, 60, num_envs=4, num_threads=4))


def test_environment_i_has_seed_plus_i() -> None:
    actions = _random_actions(make_vector_env(BREAKOUT, 3), 80)
    together = make_vector_env(BREAKOUT, 3)
    together.reset(5)
    steps = [together.step(row) for row in actions]
    assert not np.array_equal(steps[0].observations[0], steps[0].observations[1])
    for index in range(3):
        rows = slice(index, index + 1)
        alone = make_vector_env(BREAKOUT, 1)
        alone.reset(5 + index)
        _assert_same(steps, [alone.step(row[rows]) for row in actions], rows)


def test_a_second_reset_restarts_everything() -> None:
    env = make_vector_env(dataclasses.replace(BREAKOUT, max_episode_frames=130), 2)
    actions = _random_actions(env, 60)
    passes = []
    for _ in range(2):
        env.reset(9)
        passes.append([env.step(row) for row in actions])
    assert passes[0][32].episode_length.all()  # so the first pass stops in the middle of an episode
    _assert_same(passes[0], passes[1])


def test_a_reset_forgets_the_fire_that_was_due() -> None:
    env = make_vector_env(BREAKOUT, 1)
    env.reset(1)
    while not env.step(np.array([NOOP])).terminated[0]:
        pass
    env.reset(1)
    assert env.step(np.array([NOOP])).action_used[0]


def test_a_lost_life_terminates_for_the_learner_and_not_in_the_game() -> None:
    steps = _play(BREAKOUT, 400)
    over = next(t for t, step in enumerate(steps) if step.episode_length[0])
    lost = [t for t in range(over) if steps[t].terminated[0]]
    assert len(lost) == BREAKOUT_LIVES - 1
    assert steps[over].terminated[0]
    for t in lost:
        assert np.isnan(steps[t].episode_return[0])
        assert not steps[t + 1].reset[0]
        np.testing.assert_array_equal(steps[t + 1].observations[0, :-1], steps[t].observations[0, 1:])
    assert steps[over + 1].reset[0]
    assert not steps[over + 1].action_used[0]
    assert not steps[over + 1].observations[0, :-1].any()


def test_without_episodic_life_only_the_game_ends() -> None:
    whole = dataclasses.replace(BREAKOUT, episodic_life=False)
    steps, with_lives = _play(whole, 400), _play(BREAKOUT, 400)
    ends = [t for t, step in enumerate(steps) if step.terminated[0]]
    assert ends == [t for t, step in enumerate(steps) if step.episode_length[0]]
    assert len(ends) >= 1
    for step, other in zip(steps, with_lives, strict=True):
        _assert_same([step._replace(terminated=other.terminated)], [other])


def test_returns_are_raw_sums_over_whole_games() -> None:
    config = EnvConfig(env="SpaceInvadersNoFrameskip-v4", frame_scale_resolution="42,42")
    total, length, games, lives_lost, largest = 0.0, 0, 0, 0, 0.0
    for step in _play(config, 600, seed=3):
        total += float(step.rewards[0])
        length += not step.reset[0]
        largest = max(largest, float(step.rewards[0]))
        lives_lost += bool(step.terminated[0] and not step.episode_length[0])
        if step.episode_length[0]:
            assert (step.episode_return[0], step.episode_length[0]) == (total, length)
            total, length, games = 0.0, 0, games + 1
        else:
            assert np.isnan(step.episode_return[0])
    assert games >= 1
    assert lives_lost >= 2
    assert largest >= 5


def test_fire_is_pressed_after_every_lost_life() -> None:
    env = make_vector_env(BREAKOUT, 4)
    env.reset(1)
    due, presses, games = np.zeros(4, dtype=bool), 0, 0
    for _ in range(300):
        step = env.step(np.full(4, NOOP))
        np.testing.assert_array_equal(step.action_used, ~(due | step.reset))
        due = step.terminated & (step.episode_length == 0)
        presses, games = presses + due.sum(), games + (step.episode_length > 0).sum()
    assert games >= 4  # a policy that never fires still plays to the end
    assert presses >= games * (BREAKOUT_LIVES - 1)


def test_the_fire_that_is_pressed_replaces_the_action() -> None:
    asked_for_left, asked_for_fire = make_vector_env(BREAKOUT, 1), make_vector_env(BREAKOUT, 1)
    actions = asked_for_left.spec.action
    assert isinstance(actions, Discrete)
    left, fire = (actions.meanings.index(name) for name in ("LEFT", "FIRE"))
    asked_for_left.reset(1)
    asked_for_fire.reset(1)
    due = False
    for _ in range(120):
        step = asked_for_left.step(np.array([left if due else NOOP]))
        _assert_same([step], [asked_for_fire.step(np.array([fire if due else NOOP]))])
        due = bool(step.terminated[0])


def test_without_fire_reset_no_fire_is_pressed() -> None:
    config = dataclasses.replace(BREAKOUT, fire_reset=False)
    env = make_vector_env(config, 1)
    env.reset(1)
    assert not any(env.step(np.array([NOOP])).terminated[0] for _ in range(150))
    steps = _play(config, 150)
    assert any(step.terminated[0] for step in steps)
    assert all(step.action_used[0] for step in steps)


def test_a_count_of_lives_that_reaches_zero_in_play_ends_nothing() -> None:
    """Bank Heist plays its last life at a count of zero, and only the end of the game terminates then."""
    steps = _play(dataclasses.replace(BREAKOUT, env="BankHeistNoFrameskip-v4"), 700)
    over = next(t for t, step in enumerate(steps) if step.episode_length[0])
    assert sum(bool(step.terminated[0]) for step in steps[:over]) == BANK_HEIST_LIVES - 1


def test_a_new_game_with_fewer_lives_than_the_old_one_had_is_no_lost_life(monkeypatch: pytest.MonkeyPatch) -> None:
    class Native:
        """Starts with 5 lives, reaches its time limit, starts again with 3 lives and loses one."""

        lives, truncated = iter([5, 5, 3, 3, 2]), iter([False, True, False, False, False])

        def step(self, actions: np.ndarray) -> tuple[Any, ...]:
            info = {"lives": np.array([next(self.lives)], dtype=np.int32)}
            return np.zeros(1), np.zeros(1), np.zeros(1, dtype=bool), np.array([next(self.truncated)]), info

    env = make_vector_env(BREAKOUT, 1)
    env.reset(1)
    monkeypatch.setattr(env, "_native", Native())
    steps = [env.step(np.array([NOOP])) for _ in range(5)]
    assert [bool(step.terminated[0]) for step in steps] == [False, False, False, False, True]
    assert [bool(step.action_used[0]) for step in steps] == [True, True, False, True, True]


def test_a_game_without_fire_keeps_its_actions_after_a_lost_life() -> None:
    steps = _play(EnvConfig(env="MsPacmanNoFrameskip-v4", frame_scale_resolution="42,42"), 600)
    assert any(step.terminated[0] and not step.episode_length[0] for step in steps)
    assert all(step.action_used[0] or step.reset[0] for step in steps)


def test_a_time_limit_counts_emulator_frames_and_truncates() -> None:
    steps = _play(EnvConfig(max_episode_frames=401, frame_scale_resolution="42,42"), 102)
    assert [t for t, step in enumerate(steps, start=1) if step.truncated[0]] == [101]
    assert not steps[100].terminated[0]
    assert steps[100].episode_length[0] == 101
    assert steps[101].reset[0]
    assert not steps[101].action_used[0]
    assert steps[101].rewards[0] == 0


def test_a_life_lost_at_the_time_limit_is_a_termination() -> None:
    lost = 1 + next(t for t, step in enumerate(_play(BREAKOUT, 100)) if step.terminated[0])
    config = dataclasses.replace(BREAKOUT, max_episode_frames=4 * lost)
    steps = _play(config, lost + 1)
    assert (steps[lost - 1].terminated[0], steps[lost - 1].truncated[0]) == (True, False)
    assert steps[lost - 1].episode_length[0] == lost
    assert steps[lost].reset[0]
    steps = _play(dataclasses.replace(config, episodic_life=False), lost)
    assert (steps[lost - 1].terminated[0], steps[lost - 1].truncated[0]) == (False, True)


def test_sticky_actions_come_from_the_config_alone() -> None:
    plain = [_play(EnvConfig(env=env_id), 40) for env_id in ("PongNoFrameskip-v4", "Pong-v0", "ALE/Pong-v5")]
    _assert_same(plain[0], plain[1])
    _assert_same(plain[0], plain[2])
    sticky = _play(EnvConfig(env="PongNoFrameskip-v4", sticky_actions=0.25), 40)
    assert any(not np.array_equal(a.observations, b.observations) for a, b in zip(plain[0], sticky, strict=True))


def test_an_id_is_noted_exactly_where_gymnasium_repeats_actions_by_another_probability() -> None:
    gymnasium.register_envs(ale_py)
    registered = {
        env_id: gymnasium.registry[env_id].kwargs["repeat_action_probability"]
        for env_id in known_ids()
        if env_id in gymnasium.registry
    }
    assert set(registered.values()) == {0.0, 0.25}
    for sticky in (0.0, 0.25):
        noted = {env_id for env_id in registered if notes(EnvConfig(env=env_id, sticky_actions=sticky), given=())}
        assert noted == {env_id for env_id, probability in registered.items() if probability != sticky}


def test_the_note_has_both_probabilities_in_one_line_and_a_given_setting_needs_none() -> None:
    config = EnvConfig(env="ALE/Pong-v5")
    (line,) = notes(config, given=("env",))
    assert "\n" not in line
    assert "0.25" in line
    assert "sticky_actions=0 " in line
    assert notes(config, given=("sticky_actions",)) == notes(config, given=("protocol",)) == []


def test_the_program_prints_the_note(tmp_path: Path) -> None:
    def said(**given: Any) -> list[str]:
        given = {"env": "Pong-v0", "network": "nature", "results_dir": str(tmp_path), **given}
        found = launch.prepare("train", given, ["main.py"]).notes
        return [note for note in found if not note.startswith("network=")]  # which network was chosen is no note on the game

    assert said() == notes(EnvConfig(env="Pong-v0"), given=())
    assert said(sticky_actions=0.0) == said(protocol="classic") == said(env="Pong-v4") == []
    assert said(env="Catch-v0", network="mlp") == []


def test_bad_actions_and_seeds_are_refused_before_they_hang_the_emulator() -> None:
    env = make_vector_env(BREAKOUT, 2)
    with pytest.raises(ValueError, match="seed: wanted an integer from 1"):
        env.reset(0)
    env.reset(1)
    with pytest.raises(ValueError, match="actions: wanted values from 0 to 3"):
        env.step(np.array([0, 4]))


def test_a_closed_environment_refuses_to_step() -> None:
    env = make_vector_env(BREAKOUT, 1)
    env.reset(1)
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.step(np.array([NOOP]))


def test_evaluation_plays_whole_games_and_keeps_the_other_settings() -> None:
    trained = EnvConfig(env="PongNoFrameskip-v4", episodic_life=True, sticky_actions=0.25, frames_stacked=2)
    assert atari.describe(trained).evaluation_config == dataclasses.replace(trained, episodic_life=False)


def test_preprocessing_is_described_in_the_order_in_which_it_is_done() -> None:
    lines = atari.describe(EnvConfig(env="PongNoFrameskip-v4", skipped_frames=3, frame_scale_resolution="84,42")).preprocessing
    assert [line.split()[0] for line in lines] == ["repeat", "take", "convert", "resize"]
    assert "3" in lines[0]
    assert "84 x 42" in lines[-1]


def test_a_game_is_displayed_at_its_pace_and_as_wide_as_on_a_television() -> None:
    display = atari.describe(EnvConfig(env="ALE/Pong-v5", skipped_frames=2)).display
    assert (display.steps_per_second, display.aspect) == (30, 4 / 3)


@pytest.mark.parametrize("env_id", ["MsPacmanNoFrameskip-v4", "ALE/MsPacman-v5", "MsPacman-v0"])
def test_every_id_of_a_game_has_the_same_game_name(env_id: str) -> None:
    assert atari.describe(EnvConfig(env=env_id)).game_name == "ms_pacman"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ('{"repeat_action_probability": 0.2, "frameskip": 1}', ("--sticky_actions", "--skipped_frames")),
        ('{"mode": 1, "difficulty": 2}', ("ale_py:ALE/Pong-v5", "mode and difficulty")),
        ('{"obs_type": "ram"}', ("ale_py:ALE/Pong-v5", "RAM")),
        ("{}", ()),
    ],
)
def test_arguments_of_gymnasiums_games_name_our_settings(arguments: str, named: tuple[str, ...]) -> None:
    said = other_setting("ALE/Pong-v5", arguments)
    assert all(name in said for name in named)
    assert bool(said) is bool(named)
    assert other_setting("CartPole-v1", arguments) == ""


@pytest.mark.parametrize("env", ["Pong-ram-v5", "ALE/Pong-ram", "Pong-ramNoFrameskip-v4"])
def test_the_memory_of_a_game_is_learned_from_as_numbers(env: str) -> None:
    with pytest.raises(ValueError, match="^env: .*ale_py:ALE/Pong-v5 .*RAM"):
        make_spec(EnvConfig(env=env))
