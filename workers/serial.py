"""The serial kind: the same rollout inside the learner's process, one block at a time, bit-reproducible."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import torch

from agents.networks.base import FeatureNetwork
from replay.earlier_files import with_present_names
from workers.base import Block, WorkerError, WorkerSetup
from workers.failures import failures_of
from workers.in_process import InProcessWorkers
from workers.policy import CpuPolicy, cpu_policy
from workers.processes.out_of_memory import describe
from workers.rollout import Rollout, make_rollout
from workers.weights import SharedWeights, weights_layout
from wrappers import make_vector_env
from wrappers.journal import JournaledEnv
from wrappers.spec import FAILURES

log = logging.getLogger("springbok")


class SerialWorkers(InProcessWorkers):
    """Every `poll` lets the next worker in turn fill one block. Between two updates all of it can be saved."""

    def __init__(self, setup: WorkerSetup, network: FeatureNetwork) -> None:
        super().__init__(setup, weights_layout(network), SharedWeights)
        self._envs: list[JournaledEnv] = []
        self._policies: list[CpuPolicy] = []
        self._rollouts: list[Rollout] = []
        self._free: list[Block] = []

    def start(self) -> None:
        config = self.setup.config
        for worker in range(config.worker_count):
            seed = self.setup.seeds[worker]
            with failures_of(f"worker {worker}"):
                first = int(config.environments_of(worker, 0)[0])
                env = JournaledEnv(make_vector_env(self.setup.env, config.envs_per_worker, first=first))
                self._envs.append(env)  # before its first reset, so that `stop` closes it if that fails
                policy = cpu_policy(self.setup, self.weights, worker, seed)
                rollout = make_rollout(self.setup, env, policy, self.slots, self.seconds[worker], worker, seed)
            self._policies.append(policy)
            self._rollouts.append(rollout)
        self._free = [self._block(worker) for worker in range(config.worker_count)]

    def state_dict(self) -> dict[str, Any]:
        # The order is part of the state, because it decides which worker collects next.
        free = [block.worker for block in self._free]
        filled = [worker for worker in range(len(self._rollouts)) if worker not in free]
        return {
            "settings": self._settings(),
            "envs": [env.state_dict() for env in self._envs],
            "observations": [torch.from_numpy(rollout.observations.copy()) for rollout in self._rollouts],
            "returns": [torch.from_numpy(rollout.returns.copy()) for rollout in self._rollouts],
            "generators": [policy.generator.get_state() for policy in self._policies],
            "free": free,
            "filled": {worker: self._rows(self._block(worker)) for worker in filled},
            **({"recurrent": self._acting_states()} if self._keeps_states else {}),
        }

    @property
    def _keeps_states(self) -> bool:
        """Whether acting keeps a state from step to step: that of a core, or of exploration."""
        return self.setup.contract.state_size > 0 or any(policy.network.noise_size for policy in self._policies)

    def _acting_states(self) -> list[dict[str, Any]]:
        """The further state of each worker if acting keeps one."""
        return [
            {
                "rollout": rollout.state_dict(),
                "policy": policy.state if policy.state is None else policy.state.clone(),
                **({} if policy.exploration is None else {"exploration": policy.exploration.clone()}),
            }
            for rollout, policy in zip(self._rollouts, self._policies, strict=True)
        ]

    def load_state_dict(self, state: dict[str, Any], should_stop: Callable[[], bool] = lambda: False) -> None:
        # Format 2 saved a text that begins with the same two numbers.
        saved = [int(number) for number in re.findall(r"\d+", str(state["settings"]))[:2]]
        if saved != self._settings():
            raise ValueError(f"wanted [worker_count, envs_per_worker] {self._settings()}, got {saved}")
        for worker, rollout in enumerate(self._rollouts):
            with failures_of(f"worker {worker}"):
                rollout.observations = self._envs[worker].load_state_dict(state["envs"][worker], should_stop)
            if not torch.from_numpy(rollout.observations).equal(state["observations"][worker]):
                raise ValueError(
                    f"{self.setup.env.env}: wanted the observations of before from the same seed and actions, got others; was "
                    "it saved with another version of the environment's package, or is there chance that the seed does not set?"
                )
            if "returns" in state:  # before rewards could be normalised nothing needed them
                rollout.returns = state["returns"][worker].numpy().copy()
            self._policies[worker].generator.set_state(state["generators"][worker])
            if self._keeps_states and "recurrent" in state:  # the run before may have explored without a state
                self._load_acting_state(worker, state["recurrent"][worker])
        for worker, rows in state["filled"].items():
            present = with_present_names(rows)
            for name, own in self._rows(self._block(worker)).items():
                own.copy_(present[name]) if name in present else own.zero_()  # earlier files have no numbers of infos
        self._free = [self._block(worker) for worker in state["free"]]

    def _load_acting_state(self, worker: int, state: dict[str, Any]) -> None:
        """state: one of `_acting_states`."""
        policy = self._policies[worker]
        self._rollouts[worker].load_state_dict(state["rollout"])
        policy.state = state["policy"]
        saved, size = state.get("exploration"), policy.network.noise_size
        if saved is not None and policy.exploration is not None and size and saved.shape == policy.exploration.shape:
            # Only these numbers are a state. The others are constants, which the settings of a resumed run may change.
            policy.exploration = torch.cat([policy.exploration[:, :-size], saved[:, -size:]], 1)

    def _settings(self) -> list[int]:
        """The settings that decide how many environments there are and how they are divided."""
        return [self.setup.config.worker_count, self.setup.config.envs_per_worker]

    def poll(self, timeout: float) -> list[Block]:
        if not self._free:
            return []
        block = self._free.pop(0)
        rollout = self._rollouts[block.worker]
        try:
            with failures_of(f"worker {block.worker}"):
                rollout.collect(block.first_slot)
        except WorkerError:
            self._free.insert(0, block)  # it has not been filled
            if self._keeps_states:
                # The rows of the failed trajectory are lost, so the next one begins like the first: without rows of burn-in.
                rollout.load_state_dict({**rollout.state_dict(), "starts": [], "tail": {}})
            raise
        return [block]

    def release(self, block: Block) -> None:
        self._free.append(block)

    @staticmethod
    def steps_to_replay(state: dict[str, Any]) -> int:
        return sum(int(env["actions"].numel()) for env in state["envs"])

    def stop(self) -> None:
        for worker, env in enumerate(self._envs):
            try:
                env.close()
            except FAILURES as error:  # it must hide neither the error that ended the run nor other environments
                log.warning("worker %d could not close its environments: %s", worker, describe(error))
        self._envs, self._policies, self._rollouts, self._free = [], [], [], []
        self.shared.close()
