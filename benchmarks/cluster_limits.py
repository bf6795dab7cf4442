"""Calculates how many worker actors one learner can use, and what limits it: learning, the network, copying, or memory.

    python -m benchmarks.cluster_limits -- --env=PongNoFrameskip-v4
    python -m benchmarks.cluster_limits --learner_steps_per_second=60000 --network_gbit=25 -- --env=PongNoFrameskip-v4

The costs of stepping, acting, learning and copying are measured on one core of this machine. The sizes of trajectories and
weights are those of the program. The rest is arithmetic, so a cluster behaves like this only if its network and its machines
keep what they promise. `--learner_steps_per_second` takes the learner's speed from elsewhere, such as a GPU.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.jobs import job_of, refuse
from benchmarks.output import add_json, write_json
from learner.building import make_network_shapes
from learner.machine.measuring import fresh_part, measure_costs
from tools.termination import end_with

ACTORS = (2, 8, 32, 128, 512)
ACTORS_PER_NODE = 16
CALL_SECONDS = 0.0008
"""CPU time of the learner's process for one call of an actor, without copying. Measured with Ray 2.60 over 1,000 calls."""

PUT_BYTES = 1e9
"""Bytes of weights that one thread puts into Ray's object store per second of CPU time: 7 ms for 6.8 MB, measured."""

COPIED_BYTES = 64 * 2**20
MEASURED_SECONDS = 1.0  # of each part


@dataclass(frozen=True)
class Design:
    """The numbers that the calculation starts from.

    Args:
        step_seconds: of an actor on one core, stepping and acting, for one agent step.
        learner_steps: fresh agent steps that the learner takes per second.
        frames_per_step: emulator frames of one agent step.
        unroll_length: steps of a trajectory.
        environments: of an actor.
        trajectory_bytes: of one stored trajectory.
        weight_bytes: of one version of the weights.
        blocks: slot blocks of an actor in the learner's arena.
        batch_steps: fresh steps of one update.
        network_bytes: per second, of the learner's machine in each direction.
        copy_bytes: per second, that one thread copies.
    """

    step_seconds: float
    learner_steps: float
    frames_per_step: int
    unroll_length: int
    environments: int
    trajectory_bytes: int
    weight_bytes: int
    blocks: int
    batch_steps: float
    network_bytes: float
    copy_bytes: float

    def offered(self, actors: int) -> float:
        """Agent steps per second that so many actors make."""
        return actors / self.step_seconds

    def block_rate(self, steps: float) -> float:
        """Slot blocks per second at so many steps per second."""
        return steps / (self.unroll_length * self.environments)

    def bytes_in(self, steps: float) -> float:
        """Bytes of trajectories per second that reach the learner."""
        return steps / self.unroll_length * self.trajectory_bytes

    def versions(self, steps: float, nodes: int = 1) -> float:
        """Versions of the weights that each node takes per second: at most every version, and one with each new block."""
        return min(steps / self.batch_steps, self.block_rate(steps) / nodes)

    def bytes_out(self, steps: float, actors: int) -> float:
        """Bytes of weights per second that leave the learner. Actors of one node share a version."""
        nodes = -(-actors // ACTORS_PER_NODE)
        return self.versions(steps, nodes) * nodes * self.weight_bytes

    def thread_use(self, steps: float) -> float:
        """Fraction of one thread of the learner that calls actors, copies their trajectories and gives weights to Ray."""
        calls, copies = self.block_rate(steps) * CALL_SECONDS, self.bytes_in(steps) / self.copy_bytes
        return calls + copies + self.versions(steps) * self.weight_bytes / PUT_BYTES

    def arena_bytes(self, actors: int) -> int:
        """Bytes of the learner's slots."""
        return actors * self.blocks * self.environments * self.trajectory_bytes

    def limits(self, actors: int) -> dict[str, float]:
        """The agent steps per second at which each part is full. Every use is proportional to the steps."""
        return {
            "learner": self.learner_steps,
            "network in": self.network_bytes / self.bytes_in(1.0),
            "network out": self.network_bytes / self.bytes_out(1.0, actors),
            "copying thread": 1.0 / self.thread_use(1.0),
        }


def table(design: Design) -> list[dict[str, Any]]:
    """One row for each number of actors: what they offer, what is used, and what limits it."""
    rows = []
    for actors in ACTORS:
        name, most = min(design.limits(actors).items(), key=lambda limit: limit[1])
        offered = design.offered(actors)
        used = min(offered, most)
        rows.append(
            {
                "actors": actors,
                "frames/s offered": offered * design.frames_per_step,
                "frames/s used": used * design.frames_per_step,
                "MB/s in": design.bytes_in(used) / 1e6,
                "MB/s weights out": design.bytes_out(used, actors) / 1e6,
                "copying thread": design.thread_use(used),
                "slots GB": design.arena_bytes(actors) / 1e9,
                "limit": name if offered >= most else "actors",
            }
        )
    return rows


def copied_per_second() -> float:
    """Bytes per second that one thread copies from one array into another."""
    source, target = np.ones(COPIED_BYTES, np.uint8), np.zeros(COPIED_BYTES, np.uint8)
    copies, started = 0, time.process_time()
    while (passed := time.process_time() - started) < MEASURED_SECONDS:
        target[:] = source
        copies += 1
    return copies * COPIED_BYTES / passed


def measured_design(arguments: list[str], learner_steps: float | None, network_gbit: float) -> Design:
    """The design with the costs of this machine. arguments: flags of main.py, for worker processes."""
    plan = job_of([*arguments, "--worker_kind=cpu", "--nopreflight"]).plan
    config, contract, workers = plan.config, plan.contract, plan.config.workers
    if not fresh_part(config):
        refuse(ValueError("replay_parameters: wanted a queue among the replays, got none, so that no step would be fresh"))
    costs = measure_costs(plan, MEASURED_SECONDS)
    steps = contract.unroll_length - contract.overlap
    return Design(
        step_seconds=costs.env + costs.act,
        learner_steps=learner_steps or 1.0 / costs.learn,
        frames_per_step=plan.spec.frames_per_step,
        unroll_length=steps,
        environments=workers.envs_per_worker,
        trajectory_bytes=contract.bytes_per_trajectory,
        weight_bytes=4 * sum(tensor.numel() for tensor in make_network_shapes(plan.network).state_dict().values()),
        blocks=workers.blocks_per_worker,
        batch_steps=config.training.batch_size * fresh_part(config) * steps,
        network_bytes=network_gbit * 1e9 / 8,
        copy_bytes=copied_per_second(),
    )


def print_design(design: Design) -> None:
    print(f"an actor on one core      {design.offered(1) * design.frames_per_step:12,.0f} frames/s")
    print(f"a trajectory              {design.trajectory_bytes / 1e3:12,.0f} kB")
    print(f"a version of the weights  {design.weight_bytes / 1e6:12,.1f} MB")
    print(f"one thread copies         {design.copy_bytes / 1e9:12,.1f} GB/s")
    for name, steps in design.limits(max(ACTORS)).items():
        actors = steps * design.step_seconds
        print(f"limit: {name:18} {steps * design.frames_per_step:12,.0f} frames/s, which {actors:,.0f} actors make")


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table of Markdown."""
    print("\n| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        shown = [f"{value:,.{2 if value < 10 else 0}f}" if isinstance(value, float) else str(value) for value in row.values()]
        print("| " + " | ".join(shown) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learner_steps_per_second", type=float, help="agent steps per second that the learner takes")
    parser.add_argument("--network_gbit", type=float, default=10.0, help="Gbit/s of the learner's machine in each direction")
    add_json(parser)
    parser.add_argument("settings", nargs="*", help="flags of main.py, after --")
    arguments = parser.parse_args()
    design = measured_design(arguments.settings, arguments.learner_steps_per_second, arguments.network_gbit)
    rows = table(design)
    print_design(design)
    print_rows(rows)
    write_json(arguments.json, rows)


if __name__ == "__main__":
    end_with(main)
