"""Measures the communication cost of several learners: the exchange of gradients, and the round before each update.

    python -m benchmarks.learners
    python -m benchmarks.learners --learners=4 --count=500

Each learner is a process with one thread on the CPU. They do nothing else, so the times hold no waiting for a slower learner.
Prints the median and the smallest time in microseconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import torch

from agents.networks.base import make_network
from benchmarks.output import add_json, print_values, write_json
from learner.feeding.feeder import Arrivals
from learner.machine.detect import detect_machine
from learner.machine.fit import fit_to_machine
from learner.plan import make_plan
from learner.ranks.group import LearnerGroup, open_store
from learner.ranks.several import SeveralLearners
from learner.settings.config import make_config
from learner.settings.schema import default_settings
from workers.processes.launcher import start_program

NETWORKS = ("mlp", "nature", "impala_deep")
WARM_UP = 5


def measured(group: LearnerGroup, names: Sequence[str], count: int) -> dict[str, list[float]]:
    """Microseconds of each exchange: of a round, and of the gradients of each network."""
    torch.set_num_threads(1)
    learners = SeveralLearners(group, whole_updates=False)
    learners.start(bool)
    times = {"round": microseconds(lambda: learners.meet(Arrivals(1, []), bool), count)}
    loss = {"loss": torch.zeros(())}
    for name in names:
        parameters = gradients_of(name)
        title = f"{name}, {sum(weights.numel() for weights in parameters):,} weights"
        times[title] = microseconds(partial(group.add_gradients, parameters, loss, sums=True), count)
    return times


def gradients_of(name: str) -> list[torch.nn.Parameter]:
    """The parameters of this network for Pong's frames, or the toy's for an mlp, with gradients."""
    env = {"env": "Catch-v0", "frames_stacked": 1} if name == "mlp" else {"env": "PongNoFrameskip-v4"}
    settings = {**default_settings(), **env, "network": name}
    config = make_config(fit_to_machine(settings, detect_machine())[0])
    parameters = list(make_network(make_plan(config).network).parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    return parameters


def microseconds(function: Callable[[], object], count: int) -> list[float]:
    """The time of each of `count` calls, after a few that do not count."""
    times = []
    for _ in range(WARM_UP + count):
        started = perf_counter()
        function()
        times.append(1e6 * (perf_counter() - started))
    return times[WARM_UP:]


def learn(rank: int, count: int, port: int, names: Sequence[str], repeats: int) -> None:
    """Entry of the process of rank 1 or up."""
    measured(LearnerGroup(rank, count, None, port, torch.device("cpu")), names, repeats)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=2, help="number of learners")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="networks whose gradients are exchanged")
    parser.add_argument("--count", type=int, default=200, help="number of exchanges")
    add_json(parser)
    arguments = parser.parse_args()
    names, count = arguments.networks.split(","), arguments.learners
    store, port = open_store(count)
    others = [
        start_program(learn, rank, count, port, names, arguments.count, name=f"learner-{rank}") for rank in range(1, count)
    ]
    times = measured(LearnerGroup(0, count, store, port, torch.device("cpu")), names, arguments.count)
    for process in others:
        process.join()
    print_values({name: f"median {statistics.median(each):,.0f}, smallest {min(each):,.0f}" for name, each in times.items()})
    write_json(arguments.json, times)


if __name__ == "__main__":
    main()
