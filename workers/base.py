"""What the learner asks of its workers, whatever kind they are, and what they need to start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from agents.networks import ActorCritic, make_network
from replay.slot_store import SharedArrays, slot_layout, slots_of
from replay.trajectory import Arrays, Field, TrajectoryContract
from workers.rollout import CLOCKS
from workers.weights import SharedWeights, weights_layout
from wrappers.spec import EnvConfig, EnvSpec


@dataclass(frozen=True)
class WorkerConfig:
    """Workers of a run. blocks_per_worker: how many blocks of slots (at most 255) a worker owns; one is written while others
    wait. timeout: seconds without a step after which a worker hangs. max_restarts: restarts within an hour, all together.
    """

    kind: str = "cpu"
    worker_count: int = 2
    envs_per_worker: int = 16
    blocks_per_worker: int = 2
    timeout: float = 3.0
    max_restarts: int = 10


@dataclass(frozen=True)
class WorkerSetup:
    """All that a worker needs to build its part of the run; plain data, so that it can be sent to a spawned process."""

    env: EnvConfig
    spec: EnvSpec
    network: str
    contract: TrajectoryContract
    config: WorkerConfig
    seeds: tuple[int, ...]  # one a worker
    precision: str = "float32"  # what the acting network computes in
    poison: bool = False

    @property
    def wants_features(self) -> bool:
        """Whether a replay in use compares the features of the policy that acted."""
        return self.contract.feature_count > 0

    def make_network(self) -> ActorCritic:
        """The network that acts; it never learns."""
        shape, actions = self.spec.observation_shape, self.spec.action_count
        return make_network(self.network, shape, actions, precision=self.precision).only_act()


@dataclass(frozen=True)
class Block:
    """A run of slots that one worker filled together: one trajectory an environment."""

    worker: int
    number: int
    first_slot: int
    slot_count: int


class WorkerError(RuntimeError):
    """Workers failed more often than they may; the message holds the first one's traceback or stack, or says how it died."""


class Workers(ABC):
    """The workers of a run: blocks of trajectories come in, released blocks go back.

    slots: the arena's arrays, `[slot_count, *shape]` each field. weights: what the workers act with.
    seconds: float64 `[worker_count, len(CLOCKS)]`, what each worker's time went into so far. restarts: how often a worker was
    started in place of one that had failed.
    """

    restarts: int = 0

    def __init__(self, setup: WorkerSetup, network: ActorCritic) -> None:
        self.setup = setup
        self.shared = allocate_arena(setup, network)
        self.slots: Arrays = slots_of(self.shared, setup.contract, poison=setup.poison)
        self.weights = SharedWeights(self.shared)
        self.seconds: np.ndarray = worker_clocks(self.shared)

    @abstractmethod
    def start(self) -> None:
        """Start to collect; the first weights must be published by then."""

    @abstractmethod
    def poll(self, timeout: float) -> list[Block]:
        """Blocks filled since the last call; waits at most `timeout` seconds for the first. A block stays as it is until it is
        released, whatever becomes of its worker. Raises WorkerError."""

    @abstractmethod
    def release(self, block: Block) -> None:
        """Give a block's slots back to its worker, or to the one that was started in its place."""

    @abstractmethod
    def kill(self) -> None:
        """End whatever runs beside this process at once, without a word; takes no lock, so a signal handler may call it."""

    @abstractmethod
    def stop(self) -> None:
        """End every worker and give the memory back; safe to call at any time and twice."""


def allocate_arena(setup: WorkerSetup, network: ActorCritic) -> SharedArrays:
    """One arena for slots, weights and clocks."""
    config = setup.config
    slot_count = config.worker_count * config.blocks_per_worker * config.envs_per_worker
    clocks = {"seconds": Field((config.worker_count, 8), "float64")}  # 8: a cache line each
    return SharedArrays({**weights_layout(network), **clocks, **slot_layout(setup.contract, slot_count)})


def worker_clocks(shared: SharedArrays) -> np.ndarray:
    """The clocks' part of an arena, float64 `[worker_count, len(CLOCKS)]`."""
    return shared.arrays["seconds"][:, : len(CLOCKS)]


def block_of(config: WorkerConfig, worker: int, number: int) -> Block:
    """Block `number` of `worker`; each worker owns its share of the slots alone."""
    first = (worker * config.blocks_per_worker + number) * config.envs_per_worker
    return Block(worker, number, first, config.envs_per_worker)
