"""What a machine with a GPU makes of the program: the whole experiment in one command of at most ten minutes.

    python -m benchmarks.gpu --out=gpu_results
    python -m benchmarks.gpu --device=cpu --minutes=2 --seconds=3 --workers=1 --network=mlp --env=Catch-v0 --out=/tmp/small

Measures, most wanted first: stepping alone; acting alone, by batch and precision; updates alone, by precision and with
torch.compile; batches that are half replayed, with frames in host memory and on the device; then the program for numbers of
workers, worker kinds and precisions. Every result is written to `results.json` as soon as it is there, with a table in
`results.md` and a picture of the curve; what there is no time for is named as skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents import AGENTS, Agent
from agents.compute import allow_tf32, prepare_torch
from agents.networks import ActorCritic, make_network, on_device
from agents.streams import Fence
from benchmarks.termination import unwind_when_terminated
from learner.config import DEFAULTS, Config, make_config, make_contract
from learner.host_buffers import HostBuffers
from learner.machine import Machine, detect_machine, fit_to_machine
from learner.metrics import read_metrics
from replay import make_mixture, replay_names
from replay.trajectory import Arrays, make_batch
from workers.device_policy import DevicePolicy
from workers.device_weights import DeviceWeights
from wrappers import make_spec, make_vector_env

REPOSITORY = Path(__file__).resolve().parent.parent
WINDOW_SECONDS = 2.0
START_SECONDS = 90.0  # until the first row of metrics: workers import PyTorch, torch.compile compiles
ACTING_BATCHES = (16, 64, 256, 512)
REPLAYED = 1000  # trajectories in a replay: 170 MB at 84x84 and T=20
SHOWN = (
    "charts/policy_lag",
    *("time/worker_env", "time/worker_act", "time/worker_wait"),
    *("time/learner_wait", "time/learner_update", "time/learner_publish", "feeder/depth"),
)
"""Metrics of the program that say where its time goes."""

Result = dict[str, Any]


class Experiment:
    """Runs measurements until the time is up, and keeps what they gave in files."""

    def __init__(self, out: Path, seconds: float, machine: Machine, device: str) -> None:
        self.out = out
        self._end = time.monotonic() + seconds
        gpu = torch.cuda.get_device_name(0) if device == "cuda" else None
        self.results: list[Result] = []
        self._head = {"cores": machine.cores, "gpu": gpu, "torch": torch.__version__, "python": sys.version.split()[0]}
        out.mkdir(parents=True, exist_ok=True)

    def measure(self, name: str, function: Callable[[], Result], needs: float) -> None:
        """One measurement that takes about `needs` seconds; an error is a result too, the others go on."""
        started = time.monotonic()
        if started + needs > self._end:
            result: Result = {"skipped": f"would take {needs:.0f} s, {self._end - started:.0f} s are left"}
        else:
            try:
                result = function()
            except Exception as error:  # whatever it is, the next measurement may work
                result = {"error": f"{type(error).__name__}: {error}"}
        self.results.append({"name": name, **result, "took_seconds": round(time.monotonic() - started, 1)})
        print(_line(self.results[-1]), flush=True)
        self._write()

    def _write(self) -> None:
        (self.out / "results.json").write_text(json.dumps({**self._head, "results": self.results}, indent=2) + "\n")
        rows = ["| measurement | result |", "|---|---|", *(f"| {r['name']} | {_values(r)} |" for r in self.results)]
        (self.out / "results.md").write_text(f"{self._head}\n\n" + "\n".join(rows) + "\n")


def _line(result: Result) -> str:
    return f"{result['name']:44s} {_values(result)}"


def _values(result: Result) -> str:
    left_out = ("name", "took_seconds", "workers")
    told = {name: value for name, value in result.items() if name not in left_out}
    return ", ".join(f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in told.items())


def seconds_a_call(function: Callable[[], object], device: torch.device, budget: float) -> float:
    """Median wall time of one call, the device's work included."""
    times: list[float] = []
    end = None
    while end is None or time.perf_counter() < end or len(times) < 3:
        started = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
        if end is None and len(times) == 3:
            times, end = [], time.perf_counter() + budget  # three calls of warm-up
    return statistics.median(times)


def seconds_in_a_row(function: Callable[[], None], device: torch.device, budget: float) -> float:
    """Median wall time of a call where several are queued one after another, as updates are in a run."""
    at_once = 5 if device.type == "cuda" else 1

    def calls() -> None:
        for _ in range(at_once):
            function()

    return seconds_a_call(calls, device, budget) / at_once


def config_of(arguments: argparse.Namespace, machine: Machine, **settings: Any) -> Config:
    """The config of one measurement."""
    given = {"env": arguments.env, "network": arguments.network, "device": arguments.device, "batch_size": arguments.batch_size}
    settled, _ = fit_to_machine({**DEFAULTS, **given, **settings}, machine)
    return make_config(settled)


def stepping(config: Config, environments: int, threads: int, budget: float) -> Result:
    """The native vector environment alone, with random actions."""
    env = make_vector_env(config.env, environments, threads)
    env.reset(1)
    generator = np.random.default_rng(0)
    actions = env.spec.action_count
    call = seconds_a_call(lambda: env.step(generator.integers(actions, size=environments)), torch.device("cpu"), budget)
    env.close()
    return {"microseconds_a_step": 1e6 * call / environments, "steps_per_second": environments / call}


def acting(config: Config, count: int, budget: float) -> Result:
    """The central policy alone: newest frames up, answers down."""
    spec, device = make_spec(config.env), torch.device(config.training.device)
    network = make_network(config.network, spec.observation_shape, spec.action_count, precision=config.training.precision)
    weights = DeviceWeights(on_device(network, device))
    weights.publish(network, 1)
    acting_network = make_network(
        config.network, spec.observation_shape, spec.action_count, precision=config.training.precision
    ).only_act()
    policy = DevicePolicy(acting_network, weights, spec, count, device, seed=1, compiled=config.training.compile)
    frames = np.random.default_rng(0).integers(0, 256, (count, *spec.frame_shape)).astype(spec.frame_dtype)
    first, everyone = np.zeros(count, bool), np.arange(count)
    call = seconds_a_call(lambda: policy.act([frames], [first], [everyone]), device, budget)
    return {"milliseconds": 1e3 * call, "steps_per_second": count / call}


def agent_of(config: Config) -> tuple[ActorCritic, Agent]:
    """A network on the device, and the agent that trains it."""
    spec, training = make_spec(config.env), config.training
    network = make_network(config.network, spec.observation_shape, spec.action_count, precision=training.precision)
    agent = AGENTS["vtrace"](
        config.agent,
        on_device(network, torch.device(training.device)),
        replay_names(config.replays),
        threads=training.learner_threads,
        compiled=training.compile,
    )
    return network, agent


def fill_with_noise(columns: Arrays) -> None:
    """Trajectories without rewards or episode ends, whose frames are noise."""
    for array in columns.values():
        array.fill(0)
    columns["frames"][:] = np.random.default_rng(0).integers(0, 256, columns["frames"].shape)
    columns["action_used"].fill(True)


def updates_of(config: Config) -> tuple[ActorCritic, Callable[[], None]]:
    """A network, and a function that trains it: a batch out of host memory, stacked on the device, and an update."""
    spec, training, device = make_spec(config.env), config.training, torch.device(config.training.device)
    network, agent = agent_of(config)
    columns = HostBuffers(make_contract(config, spec), training.batch_size, pinned=device.type == "cuda").take()
    fill_with_noise(columns)
    nothing = np.zeros(training.batch_size, np.int64)

    def update() -> None:
        batch = make_batch(columns, nothing.astype(bool), nothing, spec.frames_stacked, device)
        agent.update(batch, 1e-6)

    return network, update


def learning(config: Config, budget: float) -> Result:
    """Updates alone, queued one after another as in a run."""
    training, device = config.training, torch.device(config.training.device)
    _, update = updates_of(config)
    call = seconds_in_a_row(update, device, budget)
    steps = training.batch_size * training.unroll_length
    return {"milliseconds": 1e3 * call, "steps_per_second": steps / call}


def replaying(config: Config, budget: float) -> Result:
    """As many inserts as a batch takes fresh trajectories, a batch, and its update, one after another in one thread."""
    spec, training, device = make_spec(config.env), config.training, torch.device(config.training.device)
    contract = make_contract(config, spec)
    _, agent = agent_of(config)
    generator = np.random.default_rng(0)
    mixture = make_mixture(config.replays, contract, training.batch_size, 1.0, generator, device=device)
    buffers = HostBuffers(contract, training.batch_size, pinned=device.type == "cuda")
    fresh = contract.allocate(2 * training.batch_size)
    fill_with_noise(fresh)
    coming = cycle([{name: array[row] for name, array in fresh.items()} for row in range(2 * training.batch_size)])

    def update() -> None:
        while not mixture.can_sample():
            mixture.insert(next(coming))
        columns, copied = buffers.take(), Fence(device)
        host = mixture.sample(columns)
        batch = make_batch(host.columns, host.is_replay, host.source, spec.frames_stacked, device, host.device_frames)
        copied.record()
        agent.update(batch, 1e-6)
        buffers.give_back(columns, copied)

    call = seconds_in_a_row(update, device, budget)
    return {"milliseconds": 1e3 * call, "updates_per_second": 1 / call}


def half_replayed(place: str) -> str:
    """`--replay_parameters` with a replay whose frames are in host memory (`cpu`) or on the GPU."""
    replay = {"type": "standard", "capacity": REPLAYED, "sample_ratio": 0.5, "device": place}
    return json.dumps([{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, replay])


def repeating(config: Config) -> Result:
    """Whether `--reproducible` holds on the device: the same updates twice, bit by bit."""
    torch.use_deterministic_algorithms(True)
    try:
        weights = []
        for _ in range(2):
            torch.manual_seed(1)
            network, updates = updates_of(config)
            for _ in range(3):
                updates()
            weights.append(torch.cat([tensor.flatten() for tensor in network.state_dict().values()]))
        return {"equal": torch.equal(*weights), "largest_difference": float((weights[0] - weights[1]).abs().max())}
    finally:
        torch.use_deterministic_algorithms(False)


def program(arguments: argparse.Namespace, settings: dict[str, Any]) -> Result:
    """`main.py` in steady state: medians over windows, from a few seconds after the first update on."""
    given = {"env": arguments.env, "network": arguments.network, "device": arguments.device, "batch_size": arguments.batch_size}
    output = {"log_period": WINDOW_SECONDS, "environment_max_steps": 10**12, "verbosity": 0}
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--{name}={value}" for name, value in {**given, **settings, **output, "results_dir": folder}.items()]
        process = subprocess.Popen([sys.executable, "main.py", "--op_mode=train", *flags], cwd=REPOSITORY)
        try:
            _wait_for_rows(process, Path(folder), time.monotonic() + START_SECONDS)
            _sleep(process, arguments.warm_up + arguments.seconds)
        finally:
            process.kill()  # at once: nothing it would still save is wanted, and its workers die with it
            process.wait()
        columns = read_metrics(next(Path(folder).glob("*_*/metrics.csv")))
    after = columns["seconds"] > columns["seconds"][0] + arguments.warm_up
    steady = {name: column[after] for name, column in columns.items()}
    found = {name: float(np.nanmedian(steady[name])) for name in SHOWN if name in steady}
    return {"steps_per_second": float(np.median(steady["charts/SPS"])), **found, **settings}


def _wait_for_rows(process: subprocess.Popen[bytes], folder: Path, end: float) -> None:
    while not list(folder.glob("*_*/metrics.csv")):
        if process.poll() is not None:
            raise RuntimeError(f"the program ended by itself with code {process.returncode}")
        if time.monotonic() > end:
            raise RuntimeError(f"no row of metrics within {START_SECONDS:.0f} s")
        time.sleep(0.1)


def _sleep(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise RuntimeError(f"the program ended by itself with code {code}")


def run_all(arguments: argparse.Namespace) -> list[Result]:
    """The experiment, most wanted results first."""
    machine = detect_machine()
    experiment = Experiment(arguments.out, 60 * arguments.minutes, machine, arguments.device)
    prepare_torch(threads=1)
    if arguments.device == "cuda":
        allow_tf32()
    budget, cores = arguments.part_seconds, machine.cores
    config = config_of(arguments, machine, worker_kind="central")
    group = config.workers.envs_per_group
    experiment.measure(f"stepping {group}, one core", lambda: stepping(config, group, 1, budget), budget + 3)
    experiment.measure(f"stepping {32 * cores}, {cores} cores", lambda: stepping(config, 32 * cores, cores, budget), budget + 5)
    for precision in arguments.precisions:
        each = config_of(arguments, machine, worker_kind="central", precision=precision)
        for count in ACTING_BATCHES:
            experiment.measure(f"acting {count}, {precision}", partial(acting, each, count, budget), budget + 2)
        experiment.measure(f"learning, {precision}", partial(learning, each, budget), budget + 5)
    best = arguments.precisions[-1]
    for place in dict.fromkeys(("cpu", arguments.device)):
        each = config_of(arguments, machine, worker_kind="central", precision=best, replay_parameters=half_replayed(place))
        experiment.measure(f"half replayed, frames on the {place}", partial(replaying, each, budget), budget + 10)

    def run(workers: int, kind: str, needs: float = 0.0, **settings: Any) -> None:
        given = {"worker_count": workers, "worker_kind": kind, "precision": best, **settings}
        told = ", ".join(f"{name} {value}" for name, value in settings.items())
        name = f"program, {workers} workers, {kind}" + (f", {told}" if told else "")
        seconds = arguments.warm_up + arguments.seconds + 20 + needs
        experiment.measure(name, lambda: {**program(arguments, given), "workers": workers}, seconds)

    most = arguments.workers[-1]
    run(most, "central")
    run(most, "cpu")
    for workers in reversed(arguments.workers[:-1]):
        run(workers, "central")
    run(most, "central", envs_per_worker=16)
    run(most, "central", precision=arguments.precisions[0])
    for workers in reversed(arguments.workers[:-1]):
        run(workers, "cpu")
    experiment.measure("three updates, twice", lambda: repeating(config), 5)
    compiled = config_of(arguments, machine, worker_kind="central", precision=best, compile=True)
    experiment.measure(f"learning, {best}, compiled", lambda: learning(compiled, budget), budget + 60)
    experiment.measure(f"acting 256, {best}, compiled", lambda: acting(compiled, 256, budget), budget + 60)
    run(most, "central", needs=60, compile=True)
    return experiment.results


def draw(results: list[Result], path: Path) -> None:
    """Steps per second over workers, a line for each kind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for kind in ("central", "cpu"):
        plain = {
            result["workers"]: result["steps_per_second"]
            for result in results
            if result.get("worker_kind") == kind and result["name"] == f"program, {result['workers']} workers, {kind}"
        }
        axes.plot(sorted(plain), [plain[workers] for workers in sorted(plain)], "o-", label=kind)
    axes.set_xlabel("workers")
    axes.set_ylabel("agent steps per second")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> None:
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), help="folder of the results")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--minutes", type=float, default=9.3, help="no measurement is begun that would end later")
    parser.add_argument("--seconds", type=float, default=14.0, help="steady state of each run of the program")
    parser.add_argument("--warm-up", type=float, default=6.0, help="seconds after its first row of metrics")
    parser.add_argument("--part-seconds", type=float, default=1.5, help="each part measured alone")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="numbers of workers, growing")
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"], help="the last one is used for the curve")
    parser.add_argument("--env", default="PongNoFrameskip-v4")
    parser.add_argument("--network", default="impala_deep")
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as main.py does
    arguments.out = arguments.out.resolve()
    os.chdir(REPOSITORY)
    draw(run_all(arguments), arguments.out / "curve.png")


if __name__ == "__main__":
    main()
