"""The learning curve is drawn from metrics.csv once an episode has ended."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from learner.metrics.curve import draw_learning_curve, frames_unit, time_unit

HEADER = "seconds,steps,frames,updates,episodes,charts/episodic_return_mean,charts/episodic_return\n"


def test_a_picture_is_drawn_without_leaving_other_files(tmp_path: Path) -> None:
    metrics, picture = tmp_path / "metrics.csv", tmp_path / "learning_curve.png"
    metrics.write_text(HEADER + "10,100,400,5,0,,\n20,200,800,10,1,-21,-21\n30,300,1200,15,2,-20.5,\n")
    assert draw_learning_curve(metrics, picture, "Catch-v0, mlp, seed 1")
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width > 2 * height > 400
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learning_curve.png", "metrics.csv"]


def test_a_new_picture_replaces_the_old_one(tmp_path: Path) -> None:
    metrics, picture = tmp_path / "metrics.csv", tmp_path / "learning_curve.png"
    pictures = []
    for returns in ("-21", "21"):
        metrics.write_text(HEADER + f"10,100,400,5,1,{returns},{returns}\n20,200,800,10,2,0,0\n")
        assert draw_learning_curve(metrics, picture, "same title")
        pictures.append(picture.read_bytes())
    assert pictures[0] != pictures[1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEADER,
        HEADER + "10,100,400,5,0,,\n",
        "seconds,steps,frames,updates,episodes,losses/total_loss\n10,100,400,5,0,1.5\n",
    ],
)
def test_nothing_is_drawn_before_the_first_episode(text: str, tmp_path: Path) -> None:
    metrics, picture = tmp_path / "metrics.csv", tmp_path / "learning_curve.png"
    metrics.write_text(text)
    assert not draw_learning_curve(metrics, picture, "title")
    assert not picture.exists()


def test_the_mean_alone_is_enough(tmp_path: Path) -> None:
    metrics, picture = tmp_path / "metrics.csv", tmp_path / "learning_curve.png"
    metrics.write_text("seconds,steps,frames,updates,episodes,charts/episodic_return_mean\n10,100,400,5,1,3\n")
    assert draw_learning_curve(metrics, picture, "title")
    assert picture.stat().st_size > 1000


def test_units_fit_the_length_of_the_run() -> None:
    assert [frames_unit(frames) for frames in (40_000, 8e6)] == [(1e3, "thousands"), (1e6, "millions")]
    assert [time_unit(seconds) for seconds in (50, 420, 86_400)] == [(1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours")]
