"""Writes videos that browsers can play: H.264 in MP4, yuv420p, with the index at the front of the file."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import imageio_ffmpeg
import numpy as np

QUALITY = "20"  # constant rate factor of x264; flat graphics stay sharp
PRESET = "veryfast"


class VideoWriter:
    """Encodes pictures one by one, so that memory does not grow. The file gets its name at `close`, when it is complete.

    The name is `video_<update>_<unix time>.mp4`. If such a file exists, the next free second is used.

    Args:
        folder: folder of the file.
        update: number of updates of the policy.
        pictures_per_second: the pace of the video.
    """

    def __init__(self, folder: Path, update: int, pictures_per_second: float) -> None:
        self._folder = folder
        self._update = update
        self._pictures_per_second = pictures_per_second
        self._started = int(time.time())
        self._partial = folder / f".{self._name(self._started)}"
        self._ffmpeg: Generator[None, bytes, None] | None = None
        self._shape: tuple[int, ...] = ()
        self.picture_count = 0

    @property
    def seconds(self) -> float:
        """Playing time so far."""
        return self.picture_count / self._pictures_per_second

    def write(self, picture: np.ndarray) -> None:
        """Append a picture, uint8 `[H, W, 3]`. H and W are even, and the same for all pictures.

        Raises ValueError for another picture, and OSError or RuntimeError if ffmpeg fails.
        """
        if self._ffmpeg is None:
            self._ffmpeg = self._open(picture)
        if picture.shape != self._shape:
            raise ValueError(f"picture: wanted {list(self._shape)}, got {list(picture.shape)}")
        self._ffmpeg.send(picture.tobytes())
        self.picture_count += 1

    def close(self) -> Path | None:
        """Finish the file. Returns its path, or None if no picture was written."""
        if self._ffmpeg is None:
            return None
        self._ffmpeg.close()
        self._ffmpeg = None
        stamp = self._started
        while (path := self._folder / self._name(stamp)).exists():
            stamp += 1
        self._partial.replace(path)
        return path

    def discard(self) -> None:
        """Stop encoding and remove the file."""
        if self._ffmpeg is not None:
            self._ffmpeg.close()
            self._ffmpeg = None
        self._partial.unlink(missing_ok=True)

    def _name(self, stamp: int) -> str:
        return f"video_{self._update}_{stamp}.mp4"

    def _open(self, picture: np.ndarray) -> Generator[None, bytes, None]:
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[0] % 2 or picture.shape[1] % 2:
            raise ValueError(f"picture: wanted uint8 [even H, even W, 3], got {picture.dtype} {list(picture.shape)}")
        self._shape = picture.shape
        ffmpeg: Generator[None, bytes | None, None] = imageio_ffmpeg.write_frames(
            str(self._partial),
            (picture.shape[1], picture.shape[0]),
            pix_fmt_in="rgb24",
            pix_fmt_out="yuv420p",
            fps=self._pictures_per_second,
            codec="libx264",
            quality=None,
            macro_block_size=2,
            ffmpeg_log_level="error",
            output_params=["-crf", QUALITY, "-preset", PRESET, "-movflags", "+faststart"],
        )
        ffmpeg.send(None)
        return ffmpeg
