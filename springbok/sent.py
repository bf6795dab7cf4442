"""Sends an environment's class or function to the processes of a run, as a module that registers it."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from springbok.process import Refused

PREFIX = "springbok_env_"
"""Beginning of the module's name. `learner/runs/sent_environment.py` knows the modules by it."""

_MODULE = '''"""The environment that `springbok.train` was given. Springbok wrote this file; the import runs the code within."""

import base64
import pickle
import sys

import gymnasium

# At the end: no file of the user may hide a package of the program.
sys.path += [folder for folder in {folders!r} if folder not in sys.path]
make = pickle.loads(base64.b85decode({content!r}))
gymnasium.register({name!r}, entry_point=lambda **arguments: make(**arguments))
'''


def send(make: Callable[..., Any], folder: Path) -> tuple[str, dict[str, str]]:
    """Write the module into a folder. Returns the environment's id and the environment variables with which it is found.

    make: a class or function that returns an environment of Gymnasium. Raises Refused if it cannot be sent.
    """
    if not callable(make):
        raise Refused(f"env: wanted an id, a class or a function that makes an environment, got {type(make).__name__}")
    try:
        content = cloudpickle.dumps(make)
    except Exception as error:  # objects of the user may raise anything
        line = " ".join(str(error).split())
        raise Refused(f"env: wanted a class or function that cloudpickle can send, got {line}") from error
    module = f"{PREFIX}{hashlib.sha256(content).hexdigest()[:12]}"
    called = re.sub(r"\W", "", getattr(make, "__name__", "").replace("<lambda>", ""), flags=re.ASCII)
    name = f"{called or 'Env'}-v0"
    text = _MODULE.format(folders=_own_folders(), content=base64.b85encode(content).decode(), name=name)
    (folder / f"{module}.py").write_text(text)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return f"{module}:{name}", {"PYTHONPATH": path}


def _own_folders() -> list[str]:
    """The folders of the user's own modules on Python's path: those of neither Python nor installed packages."""
    paths = sysconfig.get_paths()
    installed = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
    installed.add(site.getusersitepackages())
    folders = [folder for entry in sys.path if (folder := Path(entry or os.curdir).resolve()).is_dir()]
    return [str(folder) for folder in folders if not any(folder.is_relative_to(path) for path in installed)]
