"""The child process that tries an environment out: `python -m wrappers.probe REQUEST` prints its facts, or an error, as JSON.

See `wrappers/facts.py`. What the environment itself prints goes to the standard error stream.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from wrappers.spec import EnvConfig


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
    standard_output = os.dup(1)
    # Standard output is kept for the answer, because the environment may print to it.
    os.dup2(2, 1)
    reply = json.dumps(answer(sys.argv[1]))
    with os.fdopen(standard_output, "w") as output:
        output.write(reply)
    sys.stdout.flush()
    os._exit(0)  # threads of the environment may never end


if __name__ == "__main__":
    main()
