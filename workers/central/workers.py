"""The central kind: worker processes only step; one policy on the learner's device acts for all of them.

Each worker has two groups of environments that take turns: while the policy acts for one group, the other steps.
"""

from __future__ import annotations

import multiprocessing
import traceback
from multiprocessing.connection import Connection

import torch

from agents.networks.base import FeatureNetwork
from workers.base import WorkerError, WorkerSetup
from workers.central.device_policy import DevicePolicy
from workers.central.device_weights import DeviceWeights
from workers.central.exchange import exchange_layout
from workers.central.inference import InferenceServer, Line
from workers.finite import NotFiniteError
from workers.processes.handle import Handle
from workers.processes.supervisor import ProcessWorkers
from workers.seeds import policy_seed


class CentralWorkers(ProcessWorkers):
    """The processes of `cpu` with another policy: `workers.central.inference` answers what `CentralPolicy` asks."""

    policy_class: type[DevicePolicy] = DevicePolicy

    def __init__(self, setup: WorkerSetup, network: FeatureNetwork) -> None:
        weights = DeviceWeights(network, newest_only=setup.config.on_policy)
        # The arena holds no weights, because the policy acts in the learner's process.
        super().__init__(setup, exchange_layout(setup.contract, setup.config), lambda shared: weights)
        policy = self.policy_class(
            setup, weights, setup.config.environments, torch.device(setup.device), policy_seed(setup.seeds)
        )
        self._server = InferenceServer(policy, self.shared, setup.config, self._policy_failed)

    def prepare(self) -> None:
        self._server.start()
        super().prepare()

    def _spawn(self, worker: int, seed: int, policy_pipes: tuple[Connection, ...] = ()) -> Handle:
        asks, asks_of_worker = multiprocessing.Pipe(duplex=False)
        answers_to_worker, answers = multiprocessing.Pipe(duplex=False)
        handle = super()._spawn(worker, seed, (asks_of_worker, answers_to_worker))
        self._server.connect(Line(worker, asks, answers))
        return handle

    def _policy_failed(self, error: Exception) -> None:
        # A policy that diverged is no defect of the program, so its line needs no traceback.
        details = "" if isinstance(error, NotFiniteError) else "".join(traceback.format_exception(error))
        self._fail(WorkerError(f"{details}The policy that acts for all workers failed: {error}"))

    def _has_work(self, worker: int) -> bool:
        return super()._has_work(worker) and not self._server.stalls

    def _end_processes(self) -> None:
        self._server.stop()  # first: a worker that waits for an answer then ends
        super()._end_processes()
