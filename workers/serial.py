"""The serial kind: the same rollout inside the learner's process, one block at a time, bit-reproducible."""

from __future__ import annotations

from agents.networks import ActorCritic
from workers.base import Block, Workers, WorkerSetup, block_of
from workers.policy import CpuPolicy
from workers.rollout import Rollout
from wrappers import make_vector_env


class SerialWorkers(Workers):
    """Every `poll` lets the next worker in turn fill one block."""

    def __init__(self, setup: WorkerSetup, network: ActorCritic) -> None:
        super().__init__(setup, network)
        self._rollouts: list[Rollout] = []
        self._free: list[Block] = []

    def start(self) -> None:
        config = self.setup.config
        for worker in range(config.worker_count):
            seed = self.setup.seeds[worker]
            self._rollouts.append(
                Rollout(
                    make_vector_env(self.setup.env, config.envs_per_worker),
                    CpuPolicy(self.setup.make_network(), self.weights, seed, with_features=self.setup.wants_features),
                    self.slots,
                    self.seconds[worker],
                    seed=seed,
                    first_environment=worker * config.envs_per_worker,
                )
            )
        self._free = [block_of(config, worker, 0) for worker in range(config.worker_count)]

    def poll(self, timeout: float) -> list[Block]:
        if not self._free:
            return []
        block = self._free.pop(0)
        self._rollouts[block.worker].collect(block.first_slot)
        return [block]

    def release(self, block: Block) -> None:
        self._free.append(block)

    def kill(self) -> None:
        return  # nothing runs beside this process

    def stop(self) -> None:
        for rollout in self._rollouts:
            rollout.env.close()
        self._rollouts, self._free = [], []
        self.shared.close()
