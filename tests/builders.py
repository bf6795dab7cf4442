"""Small networks, contracts and batches for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from agents.networks.actor_critic import ActorCritic
from agents.networks.base import FeatureNetwork, NetworkConfig, make_network
from agents.networks.settings import NetworkSettings
from replay.batch import Batch, HostBatch, make_batch
from replay.trajectory import Field, TrajectoryContract
from wrappers.spaces import ActionSpace, Discrete, Leaf


def network_config(
    name: str,
    observation_shape: tuple[int, ...],
    action: ActionSpace | int,
    precision: str = "float32",
    leaves: tuple[Leaf, ...] = (),
    network_class: type[FeatureNetwork] = ActorCritic,
    agent: Any = None,
    tasks: tuple[str, ...] = (),
    **settings: Any,
) -> NetworkConfig:
    """An actor-critic. action: a space, or the number of discrete actions. settings: others of `NetworkSettings`."""
    space = Discrete(action) if isinstance(action, int) else action
    made = NetworkSettings(name, **settings)
    return NetworkConfig(made, observation_shape, space, network_class, precision, leaves, agent, tasks)


def network_of(
    name: str,
    observation_shape: tuple[int, ...],
    action: ActionSpace | int,
    *,
    precision: str = "float32",
    core: str = "none",
    generator: torch.Generator | None = None,
    leaves: tuple[Leaf, ...] = (),
    network_class: type[ActorCritic] = ActorCritic,
    agent: Any = None,
    tasks: tuple[str, ...] = (),
    **settings: Any,
) -> ActorCritic:
    """A new actor-critic on the CPU; equal generators give equal weights."""
    with_core = {} if core == "none" else {"core": core, "core_size": 8}
    network: ActorCritic = make_network(
        network_config(
            name, observation_shape, action, precision, leaves, network_class, agent, tasks, **with_core, **settings
        ),
        generator,
    )
    return network


def trajectory_contract(
    unroll_length: int = 2,
    frame_shape: tuple[int, ...] = (3,),
    frame_dtype: str = "uint8",
    frames_stacked: int = 1,
    action_count: int = 2,
    feature_count: int = 0,
) -> TrajectoryContract:
    """The contract of an actor-critic with `action_count` actions."""
    return TrajectoryContract(
        unroll_length=unroll_length,
        frames_stacked=frames_stacked,
        frame=Field(frame_shape, frame_dtype),
        action=Field((), "int64"),
        acting={"behaviour_policy": Field((action_count,), "float32"), "behaviour_values": Field((), "float32")},
        feature_count=feature_count,
    )


def fresh_batch(columns: Mapping[str, np.ndarray], contract: TrajectoryContract) -> Batch:
    """Stored trajectories `[B, *shape]` as a batch of fresh columns on the CPU."""
    count = len(columns["rewards"])
    host = HostBatch(dict(columns), np.zeros(count, bool), np.zeros(count, np.int64))
    return make_batch(host, contract, torch.device("cpu"))
