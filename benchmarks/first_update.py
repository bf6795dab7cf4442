"""Measures the seconds from the command to the first update: imports, preflight and the start of all processes.

    python -m benchmarks.first_update --count=5 -- --preset=pong_fast

Prints the seconds of each start and the median. The settings are flags of main.py. Each run is stopped after its first update.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.observed_program import run_in
from tools.termination import end_with, training, unwind_when_terminated

LOOK_SECONDS = 0.02
LONGEST_SECONDS = 300.0


def seconds_to_first_update(settings: Sequence[str]) -> float:
    """Train with these flags of main.py until the first update, and return its seconds. Raises RuntimeError if none came."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        with training(*settings, f"--results_dir={folder}", "--log_period=0.01") as process:
            while not has_update(Path(folder)):
                took = time.monotonic() - started
                if process.poll() is not None or took > LONGEST_SECONDS:
                    raise RuntimeError(f"no update within {took:.0f} s; exit code {process.returncode}")
                time.sleep(LOOK_SECONDS)
            took = time.monotonic() - started
            process.send_signal(signal.SIGINT)
            process.wait(60)
    return took


def has_update(results: Path) -> bool:
    """Return whether the only run in `results` has written a whole row of metrics, which needs an update."""
    metrics = run_in(results).metrics
    return metrics.is_file() and metrics.read_text().count("\n") > 1


def main() -> None:
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5, help="number of starts")
    parser.add_argument("settings", nargs="*", help="flags of main.py, after --")
    arguments = parser.parse_args()
    times = []
    for _ in range(max(1, arguments.count)):
        times.append(seconds_to_first_update(arguments.settings))
        print(f"{times[-1]:.1f} s", flush=True)
    print(f"median {statistics.median(times):.1f} s")


if __name__ == "__main__":
    end_with(main)
