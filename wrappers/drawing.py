"""Drawing without a display: the environment variables and libraries of MuJoCo and pygame, and what to say if they fail."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys

_EGL = "libEGL.so.1"


def rendering_variables() -> dict[str, str]:
    """Environment variables with which an environment renders without a window. Those that the user set stay."""
    if sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        return {}
    usual = {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy"}  # read when mujoco and pygame are loaded
    return {name: value for name, value in usual.items() if name not in os.environ}


def load_egl() -> None:
    """Load the system's EGL, if it is there. EnvPool's MuJoCo draws with it only if it is loaded before EnvPool is imported."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(_EGL, mode=ctypes.RTLD_GLOBAL)


def drawing_hint(message: str, env_id: str) -> str:
    """The packages with which MuJoCo draws without a display, if OpenGL may have failed; else nothing.

    Args:
        message: of the error.
        env_id: environment that was to be drawn. EnvPool's MuJoCo does not read `MUJOCO_GL`.
    """
    if "mujoco" not in sys.modules and not re.search("GL|gl[A-Z]", message):
        return ""
    if env_id.startswith("envpool:"):
        return "; EnvPool's MuJoCo draws without a display with EGL (Debian: libegl1)"
    return "; MuJoCo draws without a display with MUJOCO_GL=egl (Debian: libegl1) or MUJOCO_GL=osmesa (libosmesa6)"
