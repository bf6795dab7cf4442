"""Games are shown in a window that can be closed, or in a video of bounded length."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from learner.evaluation import render
from learner.evaluation.animation import enlarge
from learner.evaluation.render import NoWindowError, VideoScreen, WindowScreen, open_screen
from learner.evaluation.video import VideoWriter
from tests.support import REPOSITORY
from wrappers import Display, EnvConfig, describe_env

CATCH = EnvConfig(env="Catch-v0")
PONG = EnvConfig(env="PongNoFrameskip-v4")
SLOW = Display(steps_per_second=10.0)
SCREEN = np.random.default_rng(0).integers(0, 255, (80, 40, 3), dtype=np.uint8)


@pytest.fixture
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "SYSTEMS_WITH_DISPLAY", ())
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)


@pytest.fixture
def display() -> Iterator[str | None]:
    """Name of a virtual display of this test; None on a machine without Xvfb or tkinter."""
    if shutil.which("Xvfb") is None or importlib.util.find_spec("tkinter") is None:
        yield None
        return
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", "1280x1024x24"]
    with subprocess.Popen(command, pass_fds=(write,), stderr=subprocess.DEVNULL) as server:
        os.close(write)
        with os.fdopen(read) as pipe:
            number = pipe.readline().strip()
        yield f":{number}"
        server.terminate()


def window_closed_by_the_user() -> None:
    """The window shows pictures at the pace of the game until the user closes it."""
    window, shown = open_screen(CATCH, Path("unused"), 12, 1000)
    assert isinstance(window, WindowScreen)
    assert shown == 1000
    started = time.monotonic()
    for _ in range(6):
        window.show(SCREEN)
    assert time.monotonic() - started >= 0.45
    assert (window._label.winfo_width(), window._label.winfo_height()) == (240, 480)
    assert not window.closed
    window._root.tk.call(window._root.protocol("WM_DELETE_WINDOW"))
    assert window.closed
    window.show(SCREEN)
    assert window.close() is None
    print("checked")


def window_closed_by_the_program() -> None:
    """The program may close the window twice."""
    window = WindowScreen("Catch", SLOW)
    window.show(SCREEN)
    window.close()
    window.close()
    assert window.closed
    print("checked")


@pytest.mark.usefixtures("no_display")
def test_without_a_display_a_video_is_made_and_one_line_says_why(tmp_path: Path, lines: list[str]) -> None:
    screen, shown = open_screen(CATCH, tmp_path, 12, 1000)
    assert shown == render.VIDEO_EPISODES
    assert len(lines) == 1
    assert "no display found" in lines[0]
    assert "first 3 of 1,000 episodes" in lines[0]
    screen.show(SCREEN)
    path = screen.close()
    assert path is not None
    assert path.parent == tmp_path
    assert path.name.startswith("video_12_")
    assert str(path) in lines[-1]


@pytest.mark.usefixtures("no_display")
def test_few_episodes_are_all_in_the_video(tmp_path: Path) -> None:
    _, shown = open_screen(CATCH, tmp_path, 12, 2)
    assert shown == 2


def test_a_display_that_does_not_answer_leads_to_a_video(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":987654")
    screen, _ = open_screen(CATCH, tmp_path, 12, 5)
    assert isinstance(screen, VideoScreen)
    assert len(lines) == 1
    assert "no display found" not in lines[0]
    assert ("display" if importlib.util.find_spec("tkinter") else "python3-tk") in lines[0]


def test_a_recording_is_full_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "VIDEO_SECONDS", 2.0)
    recording = VideoScreen(VideoWriter(tmp_path, 1, 10.0), SLOW)
    filled = []
    for _ in range(50):
        recording.show(SCREEN)
        filled.append(recording.full)
    assert filled.index(True) == 19
    path = recording.close()
    assert path is not None
    assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 20


def test_pictures_of_another_size_get_that_of_the_first(tmp_path: Path) -> None:
    """Enlarged, the first picture has 480 by 240 pixels, and the others 432 by 432 and 500 by 500."""
    recording = VideoScreen(VideoWriter(tmp_path, 1, 10.0), SLOW)
    for shape in ((80, 40), (72, 72), (500, 500)):
        recording.show(np.full((*shape, 3), 200, np.uint8))
    path = recording.close()
    assert path is not None
    frames = imageio_ffmpeg.read_frames(str(path))
    assert next(frames)["size"] == (240, 480)
    light = [(np.frombuffer(data, np.uint8).reshape(480, 240, 3) > 100).all(2) for data in frames]
    assert [picture[:430].all() for picture in light] == [True, True, True]
    assert [picture[434:].any() for picture in light] == [True, False, True]


def test_a_video_that_cannot_be_written_is_only_a_warning(tmp_path: Path, lines: list[str]) -> None:
    recording = VideoScreen(VideoWriter(tmp_path / "nowhere", 1, 10.0), SLOW)
    for _ in range(200):
        recording.show(SCREEN)
    assert recording.close() is None
    assert len(lines) == 1
    assert "No video" in lines[0]
    assert not (tmp_path / "nowhere").exists()


def test_an_atari_screen_gets_the_shape_of_a_television() -> None:
    screen = np.random.default_rng(0).integers(0, 255, (210, 160, 3), dtype=np.uint8)
    television = describe_env(PONG).display
    enlarged = enlarge(screen, television)
    assert enlarged.shape == (630, 840, 3)
    np.testing.assert_array_equal(enlarged[1::3, 2::21][:, :10], screen[:, 0::4][:, :10])
    assert enlarge(screen[:209], television).shape[0] % 2 == 0


def test_other_screens_keep_their_shape_and_pixels() -> None:
    enlarged = enlarge(SCREEN, SLOW)
    assert enlarged.shape == (480, 240, 3)
    np.testing.assert_array_equal(enlarged[3::6, 3::6], SCREEN)
    assert enlarge(np.zeros((601, 333, 3), dtype=np.uint8), SLOW).shape == (600, 332, 3)


@pytest.mark.parametrize("check", [window_closed_by_the_user, window_closed_by_the_program])
def test_a_window_shows_the_game_at_its_pace_and_closes(display: str | None, check: Callable[[], None]) -> None:
    """The check runs in another process, because a process whose display disappears dies with it.

    Without a display, the same program must fail because there is no window, and for no other reason.
    """
    command = f"from tests.learner.evaluation import test_render; test_render.{check.__name__}()"
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=REPOSITORY,
        env={**os.environ, "DISPLAY": display or ":none"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode == 0) is (display is not None), done.stderr
    assert done.stdout.endswith("checked\n") is (display is not None)
    if display is None:
        assert "isinstance(window, WindowScreen)" in done.stderr or "NoWindowError" in done.stderr


def test_without_tkinter_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tkinter", None)
    with pytest.raises(NoWindowError, match="python3-tk"):
        WindowScreen("Catch", SLOW)
