"""The kind `recorded`: trajectories are read from recordings. No environment is stepped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import BEHAVIOUR_POLICY, distribution_name
from agents.networks.base import FeatureNetwork, NetworkConfig
from replay.recordings.recording import Cuts, Recording, check_recording, observations_of, open_recording
from replay.slot_store import slots_of
from replay.trajectory import EPISODE_RETURN, TrajectoryContract
from workers.base import Block, WorkerError, WorkerSetup, block_of
from workers.central.device_weights import DeviceWeights
from workers.clocks import Clocks
from workers.finite import NotFiniteError
from workers.in_process import InProcessWorkers
from wrappers.spec import EnvSpec

OBSERVATIONS = 800


def fitting_recording(folder: str, contract: TrajectoryContract, spec: EnvSpec, network: NetworkConfig) -> Recording:
    """The recordings in a folder. Raises ValueError in one line if they do not fit a run, or OSError."""
    recording = open_recording(Path(folder))
    # The parameters of the policy that acted mean what its distribution says.
    distribution = distribution_name(network) if BEHAVIOUR_POLICY in contract.acting else None
    check_recording(recording, contract, spec.to_json(), distribution)
    return recording


def summary_of(folder: str) -> str:
    """The size of the recordings in a folder, for a reader. Raises ValueError or OSError."""
    found = open_recording(Path(folder))
    played = f"{found.steps:,} steps of {found.episodes:,} episodes of {found.spec['env']}"
    return f"{played}, mean return {found.mean_return:.2f}, in {folder}"


def recorded_observations(folder: str, spec: EnvSpec, seed: int) -> Tensor:
    """800 observations of the recordings in a folder, `[N, S, *frame_shape]`, to calibrate a network's input with."""
    return torch.from_numpy(observations_of(open_recording(Path(folder)), spec.frames_stacked, OBSERVATIONS, seed))


class RecordedWorkers(InProcessWorkers):
    """Every `poll` fills one block with trajectories of recordings.

    All of them come once, in random order, before any comes again. The rows carry the version that is published when they are
    read, so the policy lag counts the updates since then.
    """

    def __init__(self, setup: WorkerSetup, network: FeatureNetwork) -> None:
        # No policy acts with the weights, but a replay that compares policies reads them in this process. It takes the newest
        # ones, because which older ones a GPU has ready depends on timing, and rows carry that version.
        weights = DeviceWeights(network, newest_only=True)
        super().__init__(setup, {}, lambda shared: weights)
        self.slots = slots_of(self.shared, setup.contract)  # recordings hold no infos
        recording = fitting_recording(setup.config.recording, setup.contract, setup.spec, setup.network)
        self._cuts = Cuts(recording, setup.contract)
        self._clocks = Clocks(self.seconds[0])
        self._order = np.zeros(0, np.int64)
        self._seed, self._round, self._next = setup.seeds[0], 0, 0
        self._free: deque[int] = deque()  # numbers of blocks

    def start(self) -> None:
        self._free = deque(range(self.setup.config.blocks_per_worker))
        self._shuffle()

    def _shuffle(self) -> None:
        """Begin the next round through all trajectories."""
        self._order = np.random.default_rng([self._seed, self._round]).permutation(len(self._cuts))
        self._round, self._next = self._round + 1, 0

    def poll(self, timeout: float) -> list[Block]:
        if not self._free:
            return []
        block = block_of(self.setup.config, 0, self._free.popleft())
        version = self.weights.published_version
        try:
            with self._clocks.stage("write"):
                for number in range(block.first_slot, block.first_slot + block.slot_count):
                    if self._next == len(self._order):
                        self._shuffle()
                    self._cuts.read(int(self._order[self._next]), self.slots, number)
                    self.slots["policy_version"][number] = version
                    self._next += 1
                self._check_finite(block)
        except (NotFiniteError, OSError) as error:
            self._free.appendleft(block.number)
            raise WorkerError(f"recording: {error}") from error
        return [block]

    def _check_finite(self, block: Block) -> None:
        """Raise NotFiniteError for a number that no network should see."""
        rows = slice(block.first_slot, block.first_slot + block.slot_count)
        for name, array in self.slots.items():
            if name != EPISODE_RETURN and array.dtype.kind == "f" and not np.isfinite(array[rows]).all():
                raise NotFiniteError(f"wanted finite {name}, got others")

    def release(self, block: Block) -> None:
        self._free.append(block.number)

    def stop(self) -> None:
        self._free.clear()
        self.shared.close()

    def state_dict(self) -> dict[str, Any]:
        blocks = self.setup.config.blocks_per_worker
        filled = [number for number in range(blocks) if number not in self._free]
        return {
            "recorded": [len(self._cuts), self._seed, self._round, self._next],
            "free": list(self._free),
            "filled": {number: self._rows(block_of(self.setup.config, 0, number)) for number in filled},
        }

    def load_state_dict(self, state: dict[str, Any], should_stop: Callable[[], bool] = lambda: False) -> None:
        count, self._seed, rounds, following = state["recorded"]
        if count != len(self._cuts):
            raise ValueError(f"recording: wanted {count:,} trajectories as before, got {len(self._cuts):,}")
        self._round = rounds - 1
        self._shuffle()
        self._next = following
        for number, rows in state["filled"].items():
            for name, own in self._rows(block_of(self.setup.config, 0, number)).items():
                own.copy_(rows[name])
        self._free = deque(state["free"])

    @staticmethod
    def steps_to_replay(state: dict[str, Any]) -> int:
        return 0
