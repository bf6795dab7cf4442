"""Measures a policy server: requests of single observations a second, and their latency.

    python -m benchmarks.policy_server
    python -m benchmarks.policy_server --env=PongNoFrameskip-v4 -- --network=nature
    python -m benchmarks.policy_server --load=results/latest

Trains a policy for a moment with the flags after `--`, unless `--load` names a run, and serves it with `--op_mode=serve`. One
process plays all clients. Each keeps a connection, sends a random observation to `POST /act` as MessagePack, and sends the next
when it has the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from benchmarks.serve import cpu_seconds_of, free_port
from tools.termination import REPOSITORY, end_with, training_command, unwind_when_terminated
from wrappers.space_json import space_from_json

TRAINING_STEPS = 2000
START_SECONDS = 120
WARM_UP_SECONDS = 2.0
READ_BYTES = 1 << 16


@contextmanager
def policy_server(run: str) -> Iterator[tuple[int, int]]:
    """Serve a run's newest checkpoint. Yields the port and the number of the process."""
    port = free_port()
    command = (sys.executable, "main.py", "--op_mode=serve", f"--load={run}", f"--bind=127.0.0.1:{port}")
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGINT)


def wait_for(port: int) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            asked(port, "/health")
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"wanted an answer of the server within {START_SECONDS} s, got none")


def asked(port: int, path: str) -> Any:
    """The server's answer to `GET`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.loads(answer.read())


def request_of(observation: np.ndarray) -> bytes:
    """A request for the action of an observation."""
    little = observation.astype(observation.dtype.newbyteorder("<"))
    array = {"dtype": observation.dtype.name, "shape": list(observation.shape), "data": little.tobytes()}
    body: bytes = msgpack.packb({"observation": array})
    head = f"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def is_whole(answer: bytes) -> bool:
    """Whether an answer has arrived to its end. Raises RuntimeError if it is an error."""
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"wanted an action, got {head.splitlines()[0].decode()}: {body.decode()}")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return len(body) >= int(length.split(b":")[1])


def play(port: int, clients: int, requests: Sequence[bytes], seconds: float) -> np.ndarray:
    """Seconds of each answer, in the order of their ends, `[answers]`."""
    connections = {each.fileno(): each for each in (socket.create_connection(("127.0.0.1", port)) for _ in range(clients))}
    poll, sent, answers = select.poll(), dict.fromkeys(connections, 0.0), dict.fromkeys(connections, b"")
    latencies: list[float] = []

    def ask(client: int) -> None:
        answers[client], sent[client] = b"", time.perf_counter()
        connections[client].sendall(requests[len(latencies) % len(requests)])

    for client in connections:
        poll.register(client, select.POLLIN)
        ask(client)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for client, _ in poll.poll(1000):
            answers[client] += connections[client].recv(READ_BYTES)
            if is_whole(answers[client]):
                latencies.append(time.perf_counter() - sent[client])
                ask(client)
    for connection in connections.values():
        connection.close()
    return np.array(latencies)


def main() -> int:
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32, help="connections")
    parser.add_argument("--env", default="CartPole-v1", help="environment that the policy is trained for")
    parser.add_argument("--load", default="", help="run that is served instead of a new one")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of the measurement")
    parser.add_argument("given", nargs="*", help="flags of the training, after --")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="springbok_policy_") as results:
        if not flags.load:
            training = training_command(f"--env={flags.env}", f"--environment_max_steps={TRAINING_STEPS}", *flags.given)
            subprocess.run([*training, f"--results_dir={results}"], cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=True)
        with policy_server(flags.load or str(Path(results) / "latest")) as (port, process):
            space = space_from_json(asked(port, "/spaces")["observation"])
            requests = [request_of(np.asarray(space.sample())) for _ in range(64)]
            play(port, flags.clients, requests, WARM_UP_SECONDS)
            used, started = cpu_seconds_of(process), time.monotonic()
            latencies = play(port, flags.clients, requests, flags.seconds)
            passed, used = time.monotonic() - started, cpu_seconds_of(process) - used
    middle, slow = np.percentile(latencies, (50, 99)) * 1e3
    print(
        f"{len(latencies) / passed:,.0f} requests/s of {flags.clients} clients; "
        f"latency p50 {middle:.1f} ms, p99 {slow:.1f} ms; CPU of the server {used / passed:.2f} of {os.cpu_count()}"
    )
    return 0


if __name__ == "__main__":
    end_with(main)
