"""The interface of all kinds of workers, as the learner uses it, and the data that starts them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from agents.networks.base import FeatureNetwork, NetworkConfig, make_network
from replay.slot_store import SharedArrays, slot_layout
from replay.trajectory import Arrays, Field, TrajectoryContract
from serve.settings import ServerConfig
from setting import TRAINING_MODES, Setting
from workers.clocks import CLOCKS
from workers.infos import info_layout, slots_with_infos
from workers.served.histograms import Histogram
from workers.weights import Weights
from wrappers.spec import EnvConfig, EnvSpec

NO_RECORDING = "none"
RECORDED = "recorded"
"""The worker kind of a run that learns from recordings."""

SERVED = "served"
"""The worker kind of a run whose environments are clients."""
MOST_BLOCKS = 254  # of a worker: their numbers are bytes

LOCAL = "local"
"""The `ray_address` of a cluster that the run starts for itself."""


def _worker_kinds() -> tuple[str, ...]:
    """The names of `workers.WORKERS`, which is made of the classes that this file is the base of."""
    from workers import WORKERS

    return tuple(sorted(WORKERS))


@dataclass(frozen=True)
class WorkerConfig:
    """The workers of a run.

    blocks_per_group: blocks of slots of a group of environments; one is written while others wait. A worker has at most 255.
    on_policy: whether a group writes one block and waits until the learner has published the weights that it learned from it.
    batch: trajectories of a batch.
    """

    worker_kind: Annotated[
        str,
        Setting(
            "Where actions are computed: cpu (each worker's own copy of the policy), central (one policy on the learner's "
            "device for all workers), serial (in the learner's process), ray (as cpu, in actors of a Ray cluster), served (in "
            "one process, for clients that connect to --bind), recorded (nowhere: they stand in --recording), or auto.",
            choices=_worker_kinds,
            auto=True,
            kind="machine",
            modes=TRAINING_MODES,
        ),
    ] = "cpu"
    worker_count: Annotated[
        int,
        Setting(
            "Worker processes, or auto.",
            "auto or a whole number of processes >= 1",
            1,
            1024,
            auto=True,
            kind="machine",
            measured=True,
            modes=TRAINING_MODES,
        ),
    ] = 2
    envs_per_worker: Annotated[
        int,
        Setting(
            "Environments of one worker, or auto; it steps them together, those of a central policy in two halves.",
            "auto or a whole number of environments >= 1",
            1,
            4096,
            auto=True,
            kind="machine",
            measured=True,
            modes=TRAINING_MODES,
        ),
    ] = 16
    blocks_per_group: int = 2
    on_policy: bool = False
    batch: int = 0
    worker_timeout: Annotated[
        float,
        Setting(
            "Seconds without a step after which a worker counts as hanging and is started again; more if its environments need "
            "more to reset one after the other. Elsewhere the program ends after as long, but at least 60, with a line.",
            "a number of seconds >= 0.5",
            0.5,
            1e6,
        ),
    ] = 3.0
    ray_address: Annotated[
        str,
        Setting(
            "With worker_kind ray: the cluster whose actors are the workers. local starts one on this machine, auto joins the "
            "one that runs here or that RAY_ADDRESS names, HOST:PORT joins another.",
            "HOST:PORT",
            choices=(LOCAL, "auto"),
            pattern=r"[\w.\[\]:-]+:\d+",
            kind="output",
            modes=TRAINING_MODES,
        ),
    ] = LOCAL
    ray_runtime_env: Annotated[
        str,
        Setting(
            "With worker_kind ray: what the actors need installed, as Ray's runtime_env: a JSON object or the path of a file "
            'with one, such as {"pip": ["minigrid"]}. The program\'s own code is sent to the cluster in any case.',
            "a JSON object or a file with one",
            kind="output",
            modes=TRAINING_MODES,
        ),
    ] = "{}"
    recording: Annotated[
        str,
        Setting(
            "Learn from the recorded trajectories in this folder, and in the folders below it, instead of playing; none: play. "
            "--op_mode=test --record_to=FOLDER makes a recording. minari:NAME is a Minari dataset on this machine.",
            "none, the path of a folder or minari:NAME",
            kind="output",
            modes=TRAINING_MODES,
        ),
    ] = NO_RECORDING
    max_worker_restarts: Annotated[
        int,
        Setting(
            "Restarts of failed workers within an hour, all together; one failure more ends the run.",
            "a whole number of restarts >= 0",
            0,
            1e6,
        ),
    ] = 10

    @property
    def uses_this_machine(self) -> bool:
        """Whether the workers take cores and memory of the learner's machine."""
        return self.worker_kind != "ray" or self.ray_address == LOCAL

    @property
    def own_processes(self) -> int:
        """Processes of the workers on this machine."""
        return 0 if self.worker_kind in ("serial", RECORDED) or not self.uses_this_machine else self.worker_count

    @property
    def stepped_here(self) -> int:
        """Environments that the workers step on this machine."""
        return self.environments if self.uses_this_machine and self.worker_kind not in (RECORDED, SERVED) else 0

    @property
    def groups(self) -> int:
        """Number of groups of environments in a worker. With two, one steps while the policy computes actions for the other."""
        return self.envs_per_worker if self.worker_kind == SERVED else groups_of(self.worker_kind)

    @property
    def envs_per_group(self) -> int:
        return self.envs_per_worker // self.groups

    @property
    def blocks_per_worker(self) -> int:
        if self.worker_kind == SERVED and self.on_policy:  # each seat writes one while the learner has those of a batch
            return self.envs_per_worker + self.batch
        return self.groups * (1 if self.on_policy else self.blocks_per_group)

    @property
    def environments(self) -> int:
        """Environments of the run."""
        return self.worker_count * self.envs_per_worker

    def environments_of(self, worker: int, group: int) -> np.ndarray:
        """Which of the run's environments a group steps, int64 `[envs_per_group]`."""
        return worker * self.envs_per_worker + group * self.envs_per_group + np.arange(self.envs_per_group)


def groups_of(kind: str) -> int:
    """Groups of environments in one worker of this kind."""
    return 2 if kind == "central" else 1


@dataclass(frozen=True)
class WorkerSetup:
    """The plan from which a worker builds its part of the run. It is plain data, so it can be sent to another process.

    Args:
        env, spec: the environment.
        network: the network that acts.
        contract: the trajectories that are written.
        config: the workers of the run.
        seeds: one for each worker.
        poison: fill the slots with absurd values first (debug mode).
        device: where the policy of the central kind acts.
        compiled: whether that policy goes through torch.compile.
        agent: its name.
        server: where clients connect; None without any.
        first_step: steps of the run before this command.
    """

    env: EnvConfig
    spec: EnvSpec
    network: NetworkConfig
    contract: TrajectoryContract
    config: WorkerConfig
    seeds: tuple[int, ...]
    poison: bool = False
    device: str = "cpu"
    compiled: bool = False
    agent: str = ""
    server: ServerConfig | None = None
    first_step: int = 0

    @property
    def wants_features(self) -> bool:
        """Whether a replay in use compares the features of the policy that acted, so that they are stored."""
        return self.contract.feature_count > 0

    def make_network(self) -> FeatureNetwork:
        """A network that acts and never learns. Its weights come from the learner later."""
        return make_network(self.network).only_act()


@dataclass(frozen=True)
class Block:
    """A slot block: contiguous slots that a worker's group of environments filled together, one trajectory per environment."""

    worker: int
    number: int
    first_slot: int
    slot_count: int


class WorkerError(RuntimeError):
    """The environments or the workers failed, and the run cannot continue.

    If workers failed too often, the message holds the first failure's traceback, stack or cause. In the learner's own process
    one failure is enough.
    """


class Workers(ABC):
    """The workers of a run: blocks of trajectories come in, released blocks go back.

    slots: the arena's arrays, `[slot_count, *shape]` each field. weights: what is acted with, for the learner to publish.
    seconds: float64 `[worker_count, len(CLOCKS)]`, what each worker's time went into so far. restarts: how often a worker was
    started in place of one that had failed.
    """

    restarts: int = 0

    def __init__(
        self, setup: WorkerSetup, layout: Mapping[str, Field], make_weights: Callable[[SharedArrays], Weights]
    ) -> None:
        """layout: fields of the arena that the policies need."""
        self.setup = setup
        self.shared = allocate_arena(setup, layout)
        self.slots: Arrays = slots_with_infos(self.shared, setup.contract, poison=setup.poison)
        self.weights = make_weights(self.shared)
        self.seconds: np.ndarray = worker_clocks(self.shared)

    @abstractmethod
    def prepare(self) -> None:
        """Begin the start-up of the workers, which takes seconds, in the background. Needs no weights. `start` calls it if
        needed."""

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

    def metrics(self) -> dict[str, float]:
        """Metrics of this kind of workers alone."""
        return {}

    def histograms(self) -> Mapping[str, Histogram]:
        """Numbers of the environments' own metrics since the last call, by their names."""
        return {}

    def announce_end(self) -> None:  # noqa: B027  (most environments need not know)
        """The run has made all its steps. Called before `stop`."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the present workers on this machine."""
        return []

    @abstractmethod
    def kill(self) -> None:
        """End all processes of the workers at once, without a message. Takes no lock, so a signal handler may call it."""

    @abstractmethod
    def stop(self) -> None:
        """End every worker and give the memory back; may be called at any time, also twice."""


def allocate_arena(setup: WorkerSetup, layout: Mapping[str, Field]) -> SharedArrays:
    """Return one arena for slots, clocks, and the fields that the policies need."""
    config = setup.config
    slot_count = config.worker_count * config.blocks_per_worker * config.envs_per_group
    clocks = {"seconds": Field((config.worker_count, 8), "float64")}  # 8: a cache line each
    slots = {**slot_layout(setup.contract, slot_count), **info_layout(setup.contract, slot_count)}
    return SharedArrays({**layout, **clocks, **slots})


def worker_clocks(shared: SharedArrays) -> np.ndarray:
    """The clocks' part of an arena, float64 `[worker_count, len(CLOCKS)]`."""
    return shared.arrays["seconds"][:, : len(CLOCKS)]


def block_of(config: WorkerConfig, worker: int, number: int) -> Block:
    """Block `number` of `worker`; each worker owns its share of the slots alone."""
    first = (worker * config.blocks_per_worker + number) * config.envs_per_group
    return Block(worker, number, first, config.envs_per_group)
