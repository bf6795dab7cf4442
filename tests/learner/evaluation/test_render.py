"""Where games are shown: a window that can be closed, else a video that does not grow without bound."""

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
from learner.evaluation.render import NoWindowError, Recording, Window, enlarge, open_screen
from learner.evaluation.video import VideoWriter
from tests.support import REPOSITORY
from wrappers import Display, EnvConfig, describe_env

CATCH = EnvConfig(env="Catch-v0")
PONG = EnvConfig(env="PongNoFrameskip-v4")
SLOW = Display(steps_per_second=10.0)
SCREEN = np.random.default_rng(0).integers(0, 255, (80, 40, 3), dtype=np.uint8)


@pytest.fixture
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "NO_DISPLAY_VARIABLE", ())
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)


@pytest.fixture
def display() -> Iterator[str | None]:
    """Name of a display of the test's own, None on a machine that cannot make one."""
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


def watched() -> None:
    """A window shows pictures at the game's pace until a person closes it."""
    window, shown = open_screen(CATCH, Path("unused"), 12, 1000)
    assert isinstance(window, Window)
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


def put_away() -> None:
    """The program closes a window at the end, once or twice."""
    window = Window("Catch", SLOW)
    window.show(SCREEN)
    window.close()
    window.close()
    assert window.closed
    print("checked")


@pytest.mark.usefixtures("no_display")
def test_without_a_display_one_line_says_so_and_a_video_is_made(tmp_path: Path, lines: list[str]) -> None:
    screen, shown = open_screen(CATCH, tmp_path, 12, 1000)
    assert shown == render.VIDEO_EPISODES
    assert len(lines) == 1
    assert "no display found" in lines[0]
    assert "first 3 of 1000 episodes" in lines[0]
    assert "the other 997 are played unseen" in lines[0]
    screen.show(SCREEN)
    path = screen.close()
    assert path is not None
    assert path.parent == tmp_path
    assert path.name.startswith("video_12_")
    assert str(path) in lines[-1]


@pytest.mark.usefixtures("no_display")
def test_few_episodes_are_all_in_the_video(tmp_path: Path, lines: list[str]) -> None:
    _, shown = open_screen(CATCH, tmp_path, 12, 2)
    assert shown == 2
    assert "unseen" not in lines[0]


def test_a_display_that_does_not_answer_gives_a_video_too(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":987654")
    screen, _ = open_screen(CATCH, tmp_path, 12, 5)
    assert isinstance(screen, Recording)
    assert len(lines) == 1
    assert "no display found" not in lines[0]
    assert "No window (" in lines[0]


def test_a_recording_takes_no_more_than_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "VIDEO_SECONDS", 2.0)
    recording = Recording(VideoWriter(tmp_path, 1, 10.0), SLOW)
    filled = []
    for _ in range(50):
        recording.show(SCREEN)
        filled.append(recording.full)
    assert filled.index(True) == 19
    path = recording.close()
    assert path is not None
    assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 20


def test_a_video_that_cannot_be_written_is_a_warning_and_no_failure(tmp_path: Path, lines: list[str]) -> None:
    recording = Recording(VideoWriter(tmp_path / "nowhere", 1, 10.0), SLOW)
    for _ in range(200):
        recording.show(SCREEN)
    assert recording.close() is None
    assert [line for line in lines if line.startswith("No video: ")]
    assert not (tmp_path / "nowhere").exists()


def test_an_atari_screen_has_the_shape_of_a_television() -> None:
    screen = np.random.default_rng(0).integers(0, 255, (210, 160, 3), dtype=np.uint8)
    television = describe_env(PONG).display
    enlarged = enlarge(screen, television)
    assert enlarged.shape == (630, 840, 3)
    np.testing.assert_array_equal(enlarged[1::3, 2::21][:, :10], screen[:, 0::4][:, :10])
    assert enlarge(screen[:209], television).shape[0] % 2 == 0


def test_other_screens_keep_their_shape_and_their_pixels() -> None:
    enlarged = enlarge(SCREEN, SLOW)
    assert enlarged.shape == (480, 240, 3)
    np.testing.assert_array_equal(enlarged[3::6, 3::6], SCREEN)
    assert enlarge(np.zeros((601, 333, 3), dtype=np.uint8), SLOW).shape == (600, 332, 3)


@pytest.mark.parametrize("check", [watched, put_away])
def test_a_window_shows_the_game_at_its_pace_and_closes(display: str | None, check: Callable[[], None]) -> None:
    """In a process of its own, because a program whose display goes away goes with it.

    Where no display can be made, the same program must not get as far as to claim that it showed a window.
    """
    command = f"from tests.learner import test_render; test_render.{check.__name__}()"
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


def test_a_python_without_tkinter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tkinter", None)
    with pytest.raises(NoWindowError, match="python3-tk"):
        Window("Catch", SLOW)
