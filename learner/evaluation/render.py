"""Shows games to a person: in a window where there is a display, in a video file elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from learner.evaluation.video import VideoWriter
from learner.metrics.progress import format_duration
from wrappers import Display, EnvConfig, describe_env

log = logging.getLogger("springbok")

USUAL_HEIGHT = 480  # pixels, of pictures whose environment asks for no enlargement

VIDEO_EPISODES = 3
VIDEO_SECONDS = 300.0
NO_DISPLAY_VARIABLE = ("darwin", "win32")  # systems that always have a display


class NoWindowError(RuntimeError):
    """A window cannot be opened here; the message says why, for the person who asked for one."""


class Screen(ABC):
    """Where games are shown. closed: the person has had enough. full: it takes no more pictures."""

    closed = False
    full = False

    @abstractmethod
    def show(self, picture: np.ndarray) -> None:
        """Show one step's screen, uint8 `[H, W, 3]`, as the environment renders it."""

    @abstractmethod
    def close(self) -> Path | None:
        """Put the screen away; returns the file it wrote, if any."""


class Window(Screen):
    """A live window, paced as the game would be on a television; closing it sets `closed`.

    The emulator's own window is not used: closing that one ends the whole process, and the results with it.
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
        self._shown: object = None  # tkinter forgets a picture that nobody holds
        self._display = display
        self._next = time.monotonic()

    def show(self, picture: np.ndarray) -> None:
        if self.closed:
            return
        enlarged = enlarge(picture, self._display)
        header = f"P6 {enlarged.shape[1]} {enlarged.shape[0]} 255\n".encode()
        image = self._image(data=header + enlarged.tobytes(), format="PPM")
        self._label.configure(image=image)
        self._shown = image
        self._root.update()
        now = time.monotonic()
        time.sleep(max(0.0, self._next - now))
        self._next = max(self._next, now) + 1.0 / self._display.steps_per_second

    def close(self) -> None:
        if not self.closed:
            self._closed_by_person()

    def _closed_by_person(self) -> None:
        self.closed = True
        self._shown = None
        self._root.destroy()


class Recording(Screen):
    """A video of at most `VIDEO_SECONDS` of play; what comes after is not recorded."""

    def __init__(self, writer: VideoWriter, display: Display) -> None:
        self._writer = writer
        self._display = display
        self._failure: str | None = None

    def show(self, picture: np.ndarray) -> None:
        if self.full:
            return
        try:
            self._writer.write(enlarge(picture, self._display))
        except (OSError, RuntimeError) as error:  # no disk space, or no ffmpeg for this system
            self._fail(error)
        self.full = self.full or self._writer.seconds >= VIDEO_SECONDS

    def close(self) -> Path | None:
        path = None
        try:
            path = self._writer.close()
        except OSError as error:
            self._fail(error)
        if self._failure is not None:
            log.warning("No video: %s", self._failure)
        elif path is not None:
            log.info("Video: %s (%s of play)", path, format_duration(round(self._writer.seconds)))
        return path

    def _fail(self, error: Exception) -> None:
        self._failure = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        self.full = True
        self._writer.discard()


def display_available() -> bool:
    """Whether this system has a display to open a window on."""
    return sys.platform in NO_DISPLAY_VARIABLE or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def open_screen(env: EnvConfig, folder: Path, update: int, episodes: int) -> tuple[Screen, int]:
    """A window for all episodes or, where none can be opened, a video of the first; and how many episodes it shows."""
    display, reason = describe_env(env).display, "no display found"
    if display_available():
        try:
            window = Window(f"{env.env}, update {update:,}", display)
        except NoWindowError as error:
            reason = str(error)
        else:
            log.info("Showing the games in a window: close it, or press Ctrl-C, to stop")
            return window, episodes
    shown = min(VIDEO_EPISODES, episodes)
    minutes = f"at most {VIDEO_SECONDS / 60:.0f} minutes"
    rest = f"; the other {episodes - shown:,} are played unseen" if episodes > shown else ""
    log.info("No window (%s): recording the first %d of %d episodes, %s%s", reason, shown, episodes, minutes, rest)
    return Recording(VideoWriter(folder, update, display.steps_per_second), display), shown


def enlarge(picture: np.ndarray, display: Display) -> np.ndarray:
    """A screen uint8 `[H, W, 3]` or `[H, W]` in a size for people, even in both directions, its pixels kept sharp."""
    height, width = picture.shape[:2]
    factor = display.enlargement or max(1, USUAL_HEIGHT // height)
    tall = _even(height * factor)
    wide = _even(width * factor if display.aspect is None else tall * display.aspect)
    rows = np.arange(tall) * height // tall
    columns = np.arange(wide) * width // wide
    return picture[rows[:, None], columns]


def _even(size: float) -> int:
    return max(2, 2 * round(size / 2))
