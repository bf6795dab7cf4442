"""The report on made-up runs: scores, notes, pictures and the page."""

from __future__ import annotations

import base64
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.image import imread as read_picture

from learner.evaluation.reference_scores import human_normalised, reference_scores
from tests.tools.support import HALF_REPLAYED, write_comparison, write_run
from tools.comparison import choose_runs, compare, median_steps, notes_on, over_games, published_scores
from tools.report import main, write_report
from tools.runs import find_runs, load_runs
from tools.tables import game_table, markdown

PONG = "PongNoFrameskip-v4"


def report(folder: Path, threshold: float | None = None, *, with_unfinished: bool = False) -> str:
    return write_report([folder], folder / "report", threshold, with_unfinished=with_unfinished)


def test_scores_are_compared_where_the_shortest_run_ends(tmp_path: Path) -> None:
    write_run(tmp_path / "a_1", returns=(0.0, 2.0), frames=100, lr=0.1)
    write_run(tmp_path / "b_1", returns=(0.0, 10.0, 20.0, 30.0), frames=200, lr=0.2)
    games = compare(load_runs(find_runs([tmp_path])), threshold=10.0)
    assert [game.horizon for game in games] == [100]
    scores = {result.setting: result.scores.tolist() for result in games[0].results}
    assert scores == {"lr=0.1": [2.0], "lr=0.2": [10.0]}
    assert {result.setting: result.areas.tolist() for result in games[0].results} == {"lr=0.1": [0.5], "lr=0.2": [2.5]}
    assert {result.setting: result.minutes.tolist() for result in games[0].results} == {"lr=0.1": [1 / 6], "lr=0.2": [1 / 6]}
    notes = notes_on(games)
    (length,) = (note for note in notes if "200 frames" in note)
    assert "100 frames" in length
    assert all(note.startswith("Catch-v0: ") for note in notes)
    assert len(notes) == 2, "one note on the lengths, one on the single seeds"


def test_steps_to_a_threshold_are_a_median_and_the_number_of_runs_that_reached_it(tmp_path: Path) -> None:
    write_run(tmp_path / "a_1", returns=(0.0, 1.0, 1.0, 1.0), frames=400, seed=1)
    write_run(tmp_path / "a_2", returns=(0.0, 0.0, 1.0, 1.0), frames=400, seed=2)
    write_run(tmp_path / "a_3", returns=(0.0, 0.0, 0.0, 0.0), frames=400, seed=3)
    game = compare(load_runs(find_runs([tmp_path])), threshold=1.0)[0]
    assert median_steps(game.results[0]) == (75.0, 2)
    assert game_table(game, 1.0).rows[0][5] == "75 (2 of 3)"
    half = compare(load_runs(find_runs([tmp_path / "a_1", tmp_path / "a_3"])), threshold=1.0)[0]
    assert median_steps(half.results[0]) == (math.inf, 1)
    unreached = compare(load_runs(find_runs([tmp_path])), threshold=2.0)[0]
    assert game_table(unreached, 2.0).rows[0][5] == "- (0 of 3)"


def test_unfinished_runs_and_runs_without_episodes_are_left_out_with_a_note(tmp_path: Path) -> None:
    write_run(tmp_path / "good_1", frames=100)
    write_run(tmp_path / "cut_1", frames=50, finished=False, seed=2)
    write_run(tmp_path / "killed_1", frames=50, finished=None, seed=3)
    write_run(tmp_path / "empty_1", returns=(None,), seed=4)
    runs = load_runs(find_runs([tmp_path]))
    chosen, notes = choose_runs(runs, with_unfinished=False)
    assert [run.path.name for run in chosen] == ["good_1"]
    assert sum(note.startswith("Left out, unfinished at 50 frames: Catch-v0, nature, seed") for note in notes) == 2
    assert sum(note.startswith("Left out, no episode has ended: Catch-v0, nature, seed 4") for note in notes) == 1
    chosen, notes = choose_runs(runs, with_unfinished=True)
    assert {run.path.name for run in chosen} == {"good_1", "cut_1", "killed_1"}
    assert sum(note.startswith("Unfinished, used up to 50 frames: Catch-v0, nature, seed") for note in notes) == 2


def test_runs_that_cannot_be_compared_are_one_error_line(tmp_path: Path) -> None:
    write_run(tmp_path / "cut_1", finished=False)
    with pytest.raises(ValueError, match="wanted .* got 1 .*--unfinished"):
        report(tmp_path)
    assert not (tmp_path / "report").exists()
    assert "(cut_1)" in report(tmp_path, with_unfinished=True)


def test_differences_that_affect_the_comparison_have_a_note(tmp_path: Path) -> None:
    write_run(tmp_path / "a_1", seed=1, lr=0.1)
    write_run(tmp_path / "a_2", seed=1, lr=0.1, commit="def")
    write_run(tmp_path / "b_1", seed=1, lr=0.2)
    notes = notes_on(compare(load_runs(find_runs([tmp_path])), None))
    assert sum(note.startswith("Catch-v0: ") for note in notes) == 2, "numbers of seeds, and a single seed"
    assert sum(note.startswith("Catch-v0, lr=0.1: ") for note in notes) == 1, "equal seeds"
    assert sum("2 different commits" in note for note in notes) == 1
    assert len(notes) == 4


def test_comparable_runs_have_no_note(tmp_path: Path) -> None:
    write_comparison(tmp_path, "Catch-v0", {"0.1": (0.5, 0.7), "0.2": (1.0, 1.0)})
    assert notes_on(compare(load_runs(find_runs([tmp_path])), None)) == []


def test_several_games_are_combined_by_human_normalised_scores(tmp_path: Path) -> None:
    pong, breakout = reference_scores("pong"), reference_scores("breakout")
    assert pong is not None
    assert breakout is not None
    write_comparison(tmp_path, PONG, {"0.1": (pong.human, pong.human), "0.2": (pong.random, pong.random)})
    write_comparison(tmp_path, "ALE/Breakout-v5", {"0.1": (breakout.random, breakout.random)})
    write_comparison(tmp_path, "Catch-v0", {"0.1": (1.0,)})
    overall = over_games(compare(load_runs(find_runs([tmp_path])), None))
    assert [(each.setting, each.games, each.runs) for each in overall] == [("lr=0.1", 2, 4)]
    assert overall[0].mean == pytest.approx((50, 50, 50), abs=1e-3)
    assert overall[0].interquartile_mean.value == pytest.approx(50, abs=1e-3)
    text = report(tmp_path)
    assert "### All games, human-normalised" in text
    assert (tmp_path / "report" / "all_games.png").is_file()


def test_the_page_needs_no_other_file(tmp_path: Path) -> None:
    write_comparison(tmp_path, PONG, {"0.1": (-20.0, -19.0), "0.2": (5.0, 15.0)})
    report(tmp_path, 0.0)
    out = tmp_path / "report"
    assert sorted(path.name for path in out.iterdir()) == [f"{PONG}_curves.png", f"{PONG}_scores.png", "report.html"]
    page = (out / "report.html").read_text()
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert [base64.b64decode(image) for image in images] == [
        (out / f"{PONG}_{kind}.png").read_bytes() for kind in ("curves", "scores")
    ]
    assert page.count("src=") == 2
    assert "http" not in page
    assert "main.py --op_mode=train" in page
    assert "abc" in page
    checker = TagChecker()
    checker.feed(page)
    assert checker.open == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", [2, 9])
def test_long_names_of_settings_stay_inside_the_pictures(count: int, tmp_path: Path) -> None:
    """Text that runs out of a picture would colour its edge; matplotlib warns where a layout fails."""
    for number in range(count):
        replays = [HALF_REPLAYED[0], {**HALF_REPLAYED[1], "capacity": 100 + number, "retention": "reservoir"}]
        run = {"replay_parameters": json.dumps(replays), "lr": 0.001 * (1 + number), "gamma": 0.9 + 0.01 * number}
        write_run(tmp_path / f"a_{number}", returns=(0.0, float(number)), env=PONG, optimizer="adam", **run)
    report(tmp_path)
    pictures = [tmp_path / "report" / f"{PONG}_{kind}.png" for kind in ("curves", "scores")]
    for path in pictures:
        pixels = read_picture(path)[:, :, :3]
        for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
            assert (edge == 1).all(), path.name


class TagChecker(HTMLParser):
    """Checks that tags are closed in the reverse order of their opening."""

    ALONE = ("meta", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_text_from_a_run_cannot_become_markup(tmp_path: Path) -> None:
    write_run(tmp_path / "a_1", commit="<script>")
    report(tmp_path)
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_markdown_has_scores_and_published_scores(tmp_path: Path) -> None:
    write_comparison(tmp_path, PONG, {"0.1": (14.6, 14.6), "0.2": (-20.7, -20.7)})
    text = report(tmp_path)
    assert f"### {PONG} at 100 emulator frames" in text
    assert "| lr=0.1 | 2 | 14.60 [14.60, 14.60] | 14.60 [14.60, 14.60] | 100.0 % |" in text
    assert "| lr=0.2 | 2 | -20.70 [-20.70, -20.70] | -20.70 [-20.70, -20.70] | 0.0 % |" in text
    assert "| IMPALA, deep network | 20.98 | 118.1 % | 200 million |" in text


def test_a_game_without_published_scores_has_no_such_column(tmp_path: Path) -> None:
    write_comparison(tmp_path, "Catch-v0", {"0.1": (0.5, 0.5)})
    text = report(tmp_path)
    assert "human" not in text
    assert "published" not in text


def test_a_bar_does_not_end_a_markdown_cell(tmp_path: Path) -> None:
    write_run(tmp_path / "a_1")
    game = compare(load_runs(find_runs([tmp_path])), None)[0]
    table = game_table(game, None)
    table.rows[0][0] = "a|b"
    assert r"| a\|b | 1 |" in markdown(table)


@pytest.mark.parametrize("env", [PONG, "ALE/Qbert-v5", "MsPacmanNoFrameskip-v4", "BeamRiderNoFrameskip-v4"])
def test_published_scores_have_a_source_and_a_protocol(env: str) -> None:
    rows = published_scores(env)
    assert len(rows) >= 6
    for row in rows:
        assert row.source
        assert row.protocol
        assert row.frames >= 40e6
        assert row.normalised == human_normalised(env, row.score)


@pytest.mark.parametrize("env", ["Catch-v0", "ALE/Adventure-v5"])
def test_other_games_have_no_published_scores(env: str) -> None:
    assert published_scores(env) == []


def test_a_threshold_that_is_no_number_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("nan", "inf"):
        with pytest.raises(SystemExit) as ended:
            main([str(tmp_path), f"--threshold={text}"])
        assert ended.value.code == 2
        assert f"--threshold: wanted a finite number, got {text}" in capsys.readouterr().err
