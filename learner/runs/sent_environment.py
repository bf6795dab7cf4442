"""An environment that `springbok.train` was given as a class or function: a module that the run directory keeps.

The id `springbok_env_<hash>:<name>` names the module, as any id with a module does. So it is found like a module of the user's,
once the run directory is on Python's path.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec

from learner.runs.directory import RunDirectory
from wrappers.spec import tasks_of

PREFIX = "springbok_env_"


def keep_environment(env: str, run: RunDirectory) -> None:
    """Copy the modules of sent environments into the run directory, unless they are there. env: any id or a list of them.

    Raises OSError.
    """
    for module in {task.partition(":")[0] for task in tasks_of(env)}:
        kept = run.path / f"{module}.py"
        if module.startswith(PREFIX) and not kept.exists() and (found := find_spec(module)) and found.origin:
            shutil.copyfile(found.origin, kept)


def find_environment(run: RunDirectory | None) -> None:
    """Let this process and those that it starts find the modules that a run directory keeps."""
    if run is None or not any(run.path.glob(f"{PREFIX}*.py")):
        return
    sys.path.append(str(run.path))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(run.path), os.environ.get("PYTHONPATH"))))
