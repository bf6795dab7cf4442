"""Shows an environment to a person: in a window if there is a display, otherwise in a video file."""

from __future__ import annotations

import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from learner.evaluation.animation import enlarge, fit
from learner.evaluation.video import VideoWriter
from learner.metrics.progress import format_duration
from wrappers import Display, EnvConfig, describe_env

log = logging.getLogger("springbok")


VIDEO_EPISODES = 3
VIDEO_SECONDS = 300.0
SYSTEMS_WITH_DISPLAY = ("darwin", "win32")  # these always have one


class NoWindowError(RuntimeError):
    """A window cannot be opened. The message is the reason."""


class Screen(ABC):
    """Shows pictures. closed: the person has closed it. full: it accepts no more pictures."""

    closed = False
    full = False

    @abstractmethod
    def show(self, picture: np.ndarray) -> None:
        """Show a rendered picture, uint8 `[H, W, 3]`."""

    @abstractmethod
    def close(self) -> Path | None:
        """Release the screen. Returns the path of the video, or None if there is none."""


class WindowScreen(Screen):
    """A live window at the pace of the environment. Closing it sets `closed`. Raises NoWindowError.

    The window of the emulator is not used: closing that one ends the whole process before the results are written.
    """

    def __init__(self, title: str, display: Display) -> None:
        try:
            import tkinter
        except ImportError:
            raise NoWindowError("this Python has no tkinter; on Debian it is the package python3-tk") from None
        self._image = tkinter.PhotoImage
        try:
            self._root = tkinter.Tk()
        except tkinter.TclError as error:
            raise NoWindowError(f"no window could be opened ({error})") from None
        self._root.title(title)
        self._root.resizable(False, False)
        self._root.protocol("WM_DELETE_WINDOW", self._closed_by_person)
        self._label = tkinter.Label(self._root, borderwidth=0)
        self._label.pack()
        self._shown: object = None  # a reference, because tkinter does not keep the picture alive
        self._display = display
        self._next = time.monotonic()

    def show(self, picture: np.ndarray) -> None:
        if self.closed:
            return
        enlarged = enlarge(picture, self._display)
        # Tk reads PPM by itself, so the window needs no imaging package.
        header = f"P6 {enlarged.shape[1]} {enlarged.shape[0]} 255\n".encode()
        image = self._image(data=header + enlarged.tobytes(), format="PPM")
        self._label.configure(image=image)
        self._shown = image
        self._root.update()
        now = time.monotonic()
        time.sleep(max(0.0, self._next - now))
        # A late picture moves the schedule, so the window does not hurry to catch up.
        self._next = max(self._next, now) + 1.0 / self._display.steps_per_second

    def close(self) -> None:
        if not self.closed:
            self._closed_by_person()

    def _closed_by_person(self) -> None:
        self.closed = True
        self._shown = None
        self._root.destroy()


class VideoScreen(Screen):
    """A video of at most `VIDEO_SECONDS`, in the size of its first picture. Later pictures are ignored.

    `close` logs a failure to write it.
    """

    def __init__(self, writer: VideoWriter, display: Display) -> None:
        self._writer = writer
        self._display = display
        self._shape: tuple[int, ...] = ()  # of the first picture
        self._failure: str | None = None

    def show(self, picture: np.ndarray) -> None:
        if self.full:
            return
        try:
            enlarged = enlarge(picture, self._display)
            self._shape = self._shape or enlarged.shape
            self._writer.write(fit(enlarged, self._shape))
        except (OSError, RuntimeError) as error:  # no disk space, or no ffmpeg for this system: the score still counts
            self._fail(error)
        self.full = self.full or self._writer.seconds >= VIDEO_SECONDS

    def close(self) -> Path | None:
        path = None
        try:
            path = self._writer.close()
        except OSError as error:
            self._fail(error)
        if self._failure is not None:
            log.warning("No video was written: %s", self._failure)
        elif path is not None:
            log.info("Video: %s (%s)", path, format_duration(round(self._writer.seconds)))
        return path

    def _fail(self, error: Exception) -> None:
        self._failure = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        self.full = True
        self._writer.discard()


def display_available() -> bool:
    """Whether this system claims to have a display."""
    return sys.platform in SYSTEMS_WITH_DISPLAY or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def open_screen(env: EnvConfig, folder: Path, update: int, episodes: int) -> tuple[Screen, int]:
    """Open a window for all episodes or, if that fails, a video of the first `VIDEO_EPISODES`.

    Args:
        env: the environment to show.
        folder: folder for the video.
        update: number of updates of the policy, for the title of the window and the name of the video.
        episodes: number of episodes to play.

    Returns the screen and the number of episodes to show on it.
    """
    display, reason = describe_env(env).display, "no display found"
    if display_available():
        try:
            window = WindowScreen(f"{env.env}, update {update:,}", display)
        except NoWindowError as error:
            reason = str(error)
        else:
            log.info("Showing the games in a window. Close it or press Ctrl-C to stop.")
            return window, episodes
    shown = min(VIDEO_EPISODES, episodes)
    log.info(
        "No window could be opened (%s). Recording a video of the first %d of %s episodes, at most %.0f minutes.",
        reason,
        shown,
        f"{episodes:,}",
        VIDEO_SECONDS / 60,
    )
    return VideoScreen(VideoWriter(folder, update, display.steps_per_second), display), shown
