"""A video has the format that browsers play (H.264, yuv420p, index at the front) and contains every picture."""

from __future__ import annotations

import time
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from learner.evaluation.video import VideoWriter


def picture(column: int, height: int = 60, width: int = 80) -> np.ndarray:
    """A grey background with a white square at column `column`."""
    image = np.full((height, width, 3), 40, dtype=np.uint8)
    image[10:30, column : column + 20] = 255
    return image


def written(folder: Path, count: int, rate: float = 15.0) -> Path:
    writer = VideoWriter(folder, 7, rate)
    for index in range(count):
        writer.write(picture(index))
    assert writer.seconds == pytest.approx(count / rate)
    path = writer.close()
    assert path is not None
    return path


def test_the_video_has_the_format_that_browsers_play(tmp_path: Path) -> None:
    path = written(tmp_path, 30)
    frames = imageio_ffmpeg.read_frames(str(path))
    metadata = next(frames)
    assert metadata["codec"] == "h264"
    assert metadata["pix_fmt"].startswith("yuv420p")
    assert metadata["size"] == (80, 60)
    assert metadata["fps"] == 15
    assert imageio_ffmpeg.count_frames_and_secs(str(path)) == (30, 2.0)
    content = path.read_bytes()
    assert 0 < content.find(b"moov") < content.find(b"mdat")


def test_the_video_contains_the_written_pictures(tmp_path: Path) -> None:
    frames = imageio_ffmpeg.read_frames(str(written(tmp_path, 12)))
    next(frames)
    for index, data in enumerate(frames):
        shown = np.frombuffer(data, dtype=np.uint8).reshape(60, 80, 3).astype(int)
        assert np.abs(shown - picture(index)).mean() < 5
        assert shown[20, index + 10].min() > 220


def test_the_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path, 7, 15.0)
    writer.write(picture(0))
    assert not list(tmp_path.glob("video_*"))
    assert writer.close() in list(tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 1


def test_an_older_video_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1700.0)
    first = written(tmp_path, 3)
    before = first.read_bytes()
    second = written(tmp_path, 5)
    assert (first.name, second.name) == ("video_7_1700.mp4", "video_7_1701.mp4")
    assert first.read_bytes() == before


def test_without_a_picture_there_is_no_file(tmp_path: Path) -> None:
    assert VideoWriter(tmp_path, 7, 15.0).close() is None
    assert not list(tmp_path.iterdir())


def test_a_discarded_video_leaves_nothing(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path, 7, 15.0)
    writer.write(picture(0))
    writer.discard()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [picture(0, height=61), picture(0, width=81), picture(0).astype(np.float32)])
def test_pictures_of_odd_size_or_wrong_type_are_refused(tmp_path: Path, wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="picture: wanted uint8"):
        VideoWriter(tmp_path, 7, 15.0).write(wrong)


def test_a_picture_of_another_size_is_refused(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path, 7, 15.0)
    writer.write(picture(0))
    with pytest.raises(ValueError, match="picture: wanted"):
        writer.write(picture(0, height=62))
    writer.discard()
