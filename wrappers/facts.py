"""Facts about an environment that only the environment itself knows. A child process makes it and reports them.

The program must not make a user's environment before worker processes are forked: its threads and its libraries would be forked
too. An environment that crashes or hangs ends only the child process. `wrappers/probe.py` is that process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wrappers.answering import GRACE_SECONDS, START_SECONDS
from wrappers.drawing import drawing_hint
from wrappers.spaces import Leaf, action_space, goals_from_json
from wrappers.spec import EnvConfig, EnvSpec

log = logging.getLogger("springbok")

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 4.0
"""Seconds after which the wait for the probe is announced."""


@dataclass(frozen=True)
class Facts:
    """The facts that the probe reports.

    Args:
        spec: with the number of frames that the config wants.
        max_episode_steps: time limit of an episode in steps, 0 for none.
        version: package that makes the environment and its version, such as `gymnasium 1.4.0`.
        pictures_per_second: the pace of a rendered environment.
        start_seconds: seconds that it took to make one environment, to reset it and to step it once.
        reset_seconds: seconds of one later reset and step; 0 for environments that are stepped natively.
        variables: environment variables that rendering needs.
        texts: entries of the observation that are texts, which the policy does not get by default.
        lines: on how images and other arrays of the observation are read.
        has_pictures: whether the environment says that it can render pictures.
        spaces: its spaces as JSON, as clients send them; a line that begins with "wanted" if they cannot be sent.
    """

    spec: EnvSpec
    max_episode_steps: int
    version: str
    pictures_per_second: float
    start_seconds: float
    variables: Mapping[str, str]
    reset_seconds: float = 0.0
    texts: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    has_pictures: bool = True
    spaces: str = "wanted an environment of Gymnasium"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "spec": self.spec.to_json()}


_known: dict[str, Facts] = {}
"""Request as JSON -> answer. Failures are not kept."""


def probe(family: str, config: EnvConfig, *, render: bool = False) -> Facts:
    """The facts about an environment. The first call takes half a second.

    family: module of the family. render: whether the environment must also render a picture.

    Raises ValueError with one line that says why the environment cannot be made.
    """
    request = json.dumps({"family": family, "config": asdict(config), "render": render}, sort_keys=True)
    if request not in _known:
        _known[request] = _from_json(_ask(request, config.env, "made and rendered" if render else "made"))
    return _known[request]


def _ask(request: str, env_id: str, wanted: str) -> dict[str, Any]:
    """Run the probe. wanted: what it does with the environment. Raises ValueError."""
    try:
        done = _run(request, env_id)
    except subprocess.TimeoutExpired:  # it lets no Python run
        raise ValueError(f"env: wanted {env_id} to start within {START_SECONDS:g} s, got no answer") from None
    except (OSError, ValueError) as error:  # an id with a null character, or one too long for a command line
        raise ValueError(f"env: wanted an environment that can be tried out, got {env_id[:100]!r} ({error})") from None
    if done.returncode or not done.stdout:
        names = {known.value: known.name for known in signal.Signals}  # most of the real-time signals have none
        number = -done.returncode
        cause = f"signal {names.get(number, number)}" if number > 0 else f"exit code {done.returncode}"
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        hint = drawing_hint(last, env_id)  # MuJoCo ends the process if it cannot draw
        raise ValueError(f"env: wanted {env_id} to be {wanted}, got a process that died with {cause}: {last}{hint}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer


def _run(request: str, env_id: str) -> subprocess.CompletedProcess[bytes]:
    """The probe's exit code and output. Raises OSError, ValueError or TimeoutExpired."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # -P: a folder of the user named wrappers must not hide ours. The family adds the current folder at the end of the path.
    command = [sys.executable, "-P", "-m", "wrappers.probe", request, str(START_SECONDS)]
    # A pipe would end only with the last process that the environment has started, which may outlive the probe.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        announcement = threading.Timer(PATIENCE, log.info, (f"Waiting for {env_id}, which is made, reset and stepped once",))
        announcement.start()
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                timeout=START_SECONDS + GRACE_SECONDS,
                check=False,
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            announcement.cancel()
            announcement.join()  # no other thread may run when processes are forked
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(command, done.returncode, output.read(), errors.read())


def _from_json(answer: Mapping[str, Any]) -> Facts:
    spec = answer["spec"]
    leaves = tuple(Leaf(leaf["name"], tuple(leaf["shape"]), leaf["dtype"]) for leaf in spec["leaves"])
    goals = goals_from_json(spec["goals"]) if "goals" in spec else None
    made = {
        **spec,
        "goals": goals,
        "frame_shape": tuple(spec["frame_shape"]),
        "action": action_space(spec["action"]),
        "leaves": leaves,
    }
    return Facts(**{**answer, "spec": EnvSpec(**made), "texts": tuple(answer["texts"]), "lines": tuple(answer["lines"])})
