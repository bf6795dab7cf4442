"""Published scores of random play and of a human, and human-normalised scores."""

from __future__ import annotations

import pytest
from ale_py import roms

from learner.evaluation.reference_scores import RANDOM_AND_HUMAN, human_normalised, reference_scores


def test_the_57_games_are_roms_of_the_emulator() -> None:
    assert len(RANDOM_AND_HUMAN) == 57
    assert set(RANDOM_AND_HUMAN) <= set(roms.get_all_rom_ids())
    assert all(human > random for random, human in RANDOM_AND_HUMAN.values())


@pytest.mark.parametrize(
    ("game", "random", "human"),
    [
        ("pong", -20.7, 14.6),
        ("breakout", 1.7, 30.5),
        ("seaquest", 68.4, 42054.7),
        ("space_invaders", 148.0, 1668.7),
        ("beam_rider", 363.9, 16926.5),
        ("qbert", 163.9, 13455.0),
        ("boxing", 0.1, 12.1),
        ("freeway", 0.0, 29.6),
        ("enduro", 0.0, 860.5),
        ("ms_pacman", 307.3, 6951.6),
    ],
)
def test_published_scores(game: str, random: float, human: float) -> None:
    assert reference_scores(game) == (random, human)


def test_random_play_is_0_per_cent_and_human_play_100() -> None:
    for game, (random, human) in RANDOM_AND_HUMAN.items():
        assert human_normalised(game, random) == pytest.approx(0.0, abs=1e-9)
        assert human_normalised(game, human) == pytest.approx(100.0)


def test_scores_are_interpolated_and_extrapolated() -> None:
    assert human_normalised("breakout", 400.0) == pytest.approx(100 * 398.3 / 28.8)
    assert human_normalised("pong", 20.98) == pytest.approx(118.07, abs=0.01)
    assert human_normalised("skiing", -30_000.0) == pytest.approx(-101.1, abs=0.1)


@pytest.mark.parametrize("env_id", ["MsPacmanNoFrameskip-v4", "ALE/MsPacman-v5", "ms_pacman"])
def test_every_id_of_a_game_has_its_scores(env_id: str) -> None:
    assert reference_scores(env_id) == (307.3, 6951.6)


@pytest.mark.parametrize(
    "env_id",
    ["Catch-v0", "ALE/Adventure-v5", "no such game", "tests.wrappers.environments:TestClosing-v1"],
)
def test_without_published_scores_there_is_no_normalised_score(env_id: str) -> None:
    assert reference_scores(env_id) is None
    assert human_normalised(env_id, 1.0) is None


def test_an_environment_without_scores_is_not_made() -> None:
    assert reference_scores("tests.wrappers.environments:TestFailing-v1") is None
