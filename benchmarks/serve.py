"""Measures the speed of a served training: steps a second that clients make over loopback, and the latency of answers.

    python -m benchmarks.serve --clients=25
    python -m benchmarks.serve --clients=8 --seats=8 --env=Pendulum-v1 -- --agent=sac

Two processes play all clients, each a connection of its own with `--seats` environments. Their server trains with the flags
after `--`. Without flags that is PPO, with a batch of 128 steps of each environment: all clients wait for its updates, which is
one answer of 128, so the 99th percentile is that of the others. Behind the window the same agent trains with ordinary workers
for as long. Both figures come from the steps in metrics.csv, and the CPU time of each part is stated, because clients, server
and learner share the machine. The ratio is that of steps a CPU second.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from learner.metrics.hardware import family_of
from tools.termination import ENDLESS, REPOSITORY, end_with, training, unwind_when_terminated
from wrappers.space_json import space_to_json

PROCESSES = 2
WARM_UP_SECONDS = 8.0


def play(url: str, env_id: str, clients: int, seats: int) -> None:
    """Play clients for ever, each in a thread, because none may wait for another one's answer."""
    threads = [threading.Thread(target=play_one, args=(url, env_id, seats)) for _ in range(clients)]
    for thread in threads:
        thread.start()


def play_one(url: str, env_id: str, seats: int) -> None:
    """Play one client for ever."""
    sys.path.insert(0, str(REPOSITORY / "clients" / "python"))
    from springbok_client.agent import RemoteAgent, reset_message, step_message

    envs = [gymnasium.make(env_id) for _ in range(seats)]
    agent = RemoteAgent(url, envs[0].observation_space, envs[0].action_space, name=env_id, seats=seats)
    agent.send([reset_message(seat, env.reset()[0]) for seat, env in enumerate(envs)])
    while True:
        messages, ended = [], False
        for answer in agent.receive():
            env = envs[answer.seat]
            if answer.action is not None:
                observation, reward, terminated, truncated, _ = env.step(answer.action)
                messages.append(step_message(answer.seat, observation, float(reward), terminated, truncated))
                ended = terminated or truncated
            if answer.action is None or ended:
                messages.append(reset_message(answer.seat, env.reset()[0]))
        agent.send(messages)


def steps_of(results: Path) -> int:
    """Steps in the newest row of a run's metrics."""
    with (results / "latest" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return int(float(rows[-1]["steps"])) if rows else 0


def cpu_seconds_of(process: int) -> float:
    """CPU time that a process has used so far; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(results: Path, trainer: int, players: Sequence[int], seconds: float) -> dict[str, float]:
    """Steps a second, and CPU seconds a second of trainer and players, over a window. The arguments name their processes."""

    def cpu() -> tuple[float, float]:
        return sum(map(cpu_seconds_of, family_of(trainer))), sum(map(cpu_seconds_of, players))

    steps, used, started = steps_of(results), cpu(), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - started
    trained, played = ((now - before) / passed for now, before in zip(cpu(), used, strict=True))
    return {"steps_per_second": (steps_of(results) - steps) / passed, "trainer_cpu": trained, "clients_cpu": played}


def wait_for_steps(results: Path) -> None:
    """Wait until a run has made its first steps, and then until it is warm."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if (results / "latest" / "metrics.csv").is_file() and steps_of(results):
            time.sleep(WARM_UP_SECONDS)
            return
        time.sleep(0.2)
    raise RuntimeError("wanted the run's first steps within 120 s, got none")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def measure_served(flags: argparse.Namespace, given: Sequence[str]) -> dict[str, float]:
    """The figures of a served training."""
    env, port = gymnasium.make(flags.env), free_port()
    spaces = {"observation": space_to_json(env.observation_space), "action": space_to_json(env.action_space)}
    served = ("--worker_kind=served", f"--spaces={json.dumps(spaces)}", f"--bind=127.0.0.1:{port}")
    seats = max(64, flags.clients * flags.seats)
    with tempfile.TemporaryDirectory(prefix="springbok_serve_") as folder:
        results = Path(folder)
        output = (ENDLESS, f"--results_dir={folder}", "--log_period=0.5")
        with training(*served, f"--envs_per_worker={seats}", *output, *given) as program:
            shares = [flags.clients // PROCESSES + (rest < flags.clients % PROCESSES) for rest in range(PROCESSES)]
            context, url = multiprocessing.get_context("spawn"), f"ws://127.0.0.1:{port}"
            jobs = [(url, flags.env, share, flags.seats) for share in shares if share]
            players = [context.Process(target=play, args=job, daemon=True) for job in jobs]
            for player in players:
                player.start()
            try:
                wait_for_steps(results)
                found = measure(results, program.pid, [player.pid or 0 for player in players], flags.seconds)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10) as answer:
                    latency = json.loads(answer.read())["latency_ms"]
            finally:
                for player in players:
                    player.kill()
    return {**found, "latency_p50_ms": latency["p50"], "latency_p99_ms": latency["p99"]}


def measure_ordinary(flags: argparse.Namespace, given: Sequence[str]) -> dict[str, float]:
    """The figures of the same training with ordinary workers."""
    with tempfile.TemporaryDirectory(prefix="springbok_serve_") as folder:
        settings = (f"--env={flags.env}", ENDLESS, f"--results_dir={folder}", "--log_period=0.5")
        with training(*settings, *given) as program:
            wait_for_steps(Path(folder))
            return measure(Path(folder), program.pid, [], flags.seconds)


def main() -> int:
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=25, help="connections")
    parser.add_argument("--seats", type=int, default=1, help="environments of each")
    parser.add_argument("--env", default="CartPole-v1", help="environment of Gymnasium that clients play")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each window")
    parser.add_argument("--turns", type=int, default=1, help="how often both are measured")
    parser.add_argument("given", nargs="*", help="flags of main.py, after --")
    flags = parser.parse_args()
    given = flags.given or ["--agent=ppo", f"--batch_size={flags.clients * flags.seats}", "--unroll_length=128"]
    ratios = []
    for _ in range(flags.turns):
        served, ordinary = measure_served(flags, given), measure_ordinary(flags, given)
        for name, found in (("clients", served), ("workers", ordinary)):
            print(f"{name}: {', '.join(f'{key} {value:,.2f}' for key, value in found.items())}", flush=True)
        ratios.append(_per_cpu(served) / _per_cpu(ordinary))
    print(f"steps a CPU second, clients / workers: {statistics.median(ratios):.3f} on {os.cpu_count()} cores")
    return 0


def _per_cpu(found: dict[str, Any]) -> float:
    return float(found["steps_per_second"] / (found["trainer_cpu"] + found["clients_cpu"]))


if __name__ == "__main__":
    end_with(main)
