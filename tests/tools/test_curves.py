"""Tables of learning curves: what is kept, what is replaced, and the picture with a panel for each game."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from checked_files import LOCK_NAME
from tests.tools.support import write_run
from tools import curves
from tools.curves import KEPT, Curve, curves_of_runs, draw, keep, read_table, write_table
from tools.pictures import new_figure

RISING = Curve("Catch-v0", "ppo", 1, np.array([0.0, 50.0, 100.0]), np.array([-1.0, 0.5, 1.0]))
PUBLISHED = Curve("Catch-v0", "zoo", 1, np.array([100.0]), np.array([0.9]))


def test_a_table_keeps_points_at_equal_distances(tmp_path: Path) -> None:
    write_run(tmp_path / "run", returns=[None, *np.linspace(0, 1, 1000)], frames=1_001_000, seed=3)
    table = tmp_path / "new" / "table.csv"
    keep(table, curves_of_runs([tmp_path / "run"], "ours"))
    (kept,) = read_table(table)
    assert kept.key == ("Catch-v0", "ours", 3)
    np.testing.assert_allclose(kept.frames, np.linspace(2000, 1_001_000, KEPT), atol=0.5)
    np.testing.assert_allclose(kept.returns, np.linspace(0, 1, KEPT), atol=1e-5)


def test_a_curve_replaces_only_that_of_its_environment_setting_and_seed(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    others = [RISING._replace(env="Reach-v0"), RISING._replace(setting="a2c"), RISING._replace(seed=2)]
    keep(table, [RISING, *others])
    keep(table, [RISING._replace(returns=np.array([0.0, 0.0, 0.25]))])
    found = {curve.key: curve.returns.tolist() for curve in read_table(table)}
    assert found == {RISING.key: [0.0, 0.0, 0.25]} | {each.key: [-1.0, 0.5, 1.0] for each in others}
    assert list(found) == sorted(found)


def test_curves_that_are_kept_at_once_are_all_kept(tmp_path: Path) -> None:
    table, each = tmp_path / "table.csv", [[RISING._replace(seed=10 * n + m) for m in range(10)] for n in range(4)]

    def keep_one_by_one(several: list[Curve]) -> None:
        for curve in several:
            keep(table, [curve])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(keep_one_by_one, each))
    assert len(read_table(table)) == 40
    assert {path.name for path in tmp_path.iterdir()} == {LOCK_NAME, "table.csv"}


def test_a_setting_that_has_published_scores_alone_is_no_line(tmp_path: Path) -> None:
    points = np.arange(10.0)
    draw(tmp_path / "x.png", [RISING._replace(frames=points, returns=points), PUBLISHED._replace(env="Reach-v0")])
    assert (tmp_path / "x.png").is_file()


@pytest.mark.parametrize(
    "content",
    [
        "env,setting,frames\nCatch-v0,ppo,3\n",
        *(
            f"env,setting,seed,frames,return\n{line}\n"
            for line in ("a,b,1,2,x", "a,b,1,nan,2", "a,b,1,2,inf", "a,,1,2,3", "a,b,1")
        ),
        "a" * 200_000,
        None,
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_line(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"table\.csv: wanted .* got") as error:
        read_table(path)
    assert "\n" not in str(error.value)


def test_a_run_without_an_ended_episode_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", returns=[None])
    with pytest.raises(ValueError, match="got none"):
        curves_of_runs([tmp_path / "run"], None)


def test_each_game_has_a_panel_with_curves_and_published_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(curves, "new_figure", lambda *size: figures.append(Figure(figsize=size)) or figures[-1])
    games = [RISING._replace(env=f"Game{number}NoFrameskip-v4") for number in range(5)]
    second_seed = games[0]._replace(seed=2, frames=np.array([0.0, 40.0, 80.0]), returns=np.zeros(3))
    monkeypatch.setattr(curves, "FEW", 1)
    draw(tmp_path / "picture.png", [*games, second_seed, PUBLISHED._replace(env=games[4].env), PUBLISHED])
    assert (tmp_path / "picture.png").stat().st_size > 1000
    panels = [axis for axis in figures[0].axes if axis.axison]
    assert [axis.get_title() for axis in panels] == [f"Game{number}" for number in range(5)]
    (mean,) = panels[0].get_lines()
    x, y = mean.get_xdata(), mean.get_ydata()
    assert x[-1] == pytest.approx(0.08), "thousands of frames, up to the end of the shorter run"
    assert y[-1] == pytest.approx((0.8 + 0) / 2)
    assert [line.get_marker() for line in panels[4].get_lines()] == ["None", "o"]


def test_the_legend_is_not_wider_than_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(curves, "new_figure", lambda *size: figures.append(new_figure(*size)) or figures[-1])
    monkeypatch.setattr(curves, "FEW", 1)
    settings = [f"V-trace, half replayed, setting {number}" for number in range(7)]
    draw(
        tmp_path / "picture.png",
        [RISING._replace(env=f"Game{number % 4}", setting=name) for number, name in enumerate(settings)],
    )
    (figure,) = figures
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == settings
    inside = legend.get_window_extent()
    assert inside.x0 >= 0
    assert inside.x1 <= figure.bbox.width


def test_the_command_ends_with_code_2_and_one_line_on_a_bad_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["curves", "draw", str(tmp_path / "a.png"), str(tmp_path / "missing.csv")])
    assert curves.main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_published_scores_alone_are_no_picture(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got none"):
        draw(tmp_path / "picture.png", [PUBLISHED])


def test_the_commands_keep_and_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", returns=[0.1 * number for number in range(9)])
    table, picture = tmp_path / "table.csv", tmp_path / "a.png"
    write_table(table, [PUBLISHED])
    monkeypatch.setattr("sys.argv", ["curves", "keep", str(table), str(tmp_path / "run"), "--setting=mine"])
    assert curves.main() == 0
    assert [curve.setting for curve in read_table(table)] == ["mine", "zoo"]
    monkeypatch.setattr("sys.argv", ["curves", "draw", str(picture), str(table)])
    assert curves.main() == 0
    assert picture.is_file()
