"""The child process that tries an environment out: `python -m wrappers.probe REQUEST` prints its facts, or an error, as JSON.

See `wrappers/facts.py`. Text that the environment itself prints goes to the standard error stream.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any

from wrappers.answering import awaited, limited
from wrappers.spec import EnvConfig

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def answer(request: str) -> dict[str, Any]:
    """The facts that the request asks for, or `{"error": LINE}`."""
    asked = json.loads(request)
    family = importlib.import_module(asked["family"])
    try:
        facts: dict[str, Any] = family.try_out(EnvConfig(**asked["config"]), render=asked["render"]).to_json()
    except ValueError as error:
        return {"error": " ".join(str(error).split())}
    return facts


def main() -> None:
    if sys.platform == "linux":  # an environment that hangs would outlive a program that is killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    standard_output = os.dup(1)
    # Standard output is kept for the answer, because the environment may print to it.
    os.dup2(2, 1)
    request, seconds = sys.argv[1:]

    def end(reply: dict[str, Any]) -> None:
        with os.fdopen(standard_output, "w") as output:
            json.dump(reply, output)
        sys.stdout.flush()
        os._exit(0)  # threads of the environment may never end

    env_id = json.loads(request)["config"]["env"]
    with limited(lambda line: end({"error": f"env: {line}"}), float(seconds), interrupts=False), awaited(env_id):
        end(answer(request))


if __name__ == "__main__":
    main()
