"""The plan of a run: all that follows from its settings and its environment. It is computed once and passed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.networks.base import NetworkConfig
from agents.user_agent import check_heads
from learner.building import agent_class, make_network_shapes
from learner.evaluation.protocol import evaluation_protocol
from learner.settings.config import Config
from replay import needs_features
from replay.trajectory import Field, TrajectoryContract
from wrappers import EnvSpec, make_spec


@dataclass(frozen=True)
class Plan:
    """One run, before anything of it starts.

    Args:
        config: the settings as dataclasses, with the replays and the agent's needs.
        spec: shapes and counts of the environment.
        network: the description of the network, in float32.
        contract: of the trajectories.
        protocol: by which the policy is evaluated, as plain data.
    """

    config: Config
    spec: EnvSpec
    network: NetworkConfig
    contract: TrajectoryContract
    protocol: dict[str, Any]


def make_plan(config: Config, spec: EnvSpec | None = None) -> Plan:
    """The plan of a run. Raises ValueError in one line if environment and agent do not fit, or no network can be made.

    spec: of the environment, if it is known already.
    """
    spec, agent, settings = spec or make_spec(config.env), agent_class(config), config.agent_settings
    network = NetworkConfig(
        config.network_settings,
        spec.observation_shape,
        spec.action,
        agent.network_class,
        leaves=spec.leaves,
        agent=settings,
        tasks=spec.tasks if len(spec.tasks) > 1 else (),
    )
    agent.check(settings, network)  # before a network is made for the actions
    shapes, burn_in = make_network_shapes(network), config.network_settings.burn_in
    check_heads(config.agent, shapes)
    contract = TrajectoryContract(
        # Rows of burn-in repeat the trajectory before, so they come on top of the rows that are learned from.
        unroll_length=config.training.unroll_length + burn_in,
        frames_stacked=spec.frames_stacked,
        frame=Field(spec.frame_shape, spec.frame_dtype),
        action=Field(spec.action.shape, spec.action.dtype),
        acting=agent.acting(settings, network).fields,
        feature_count=shapes.feature_count if needs_features(config.replays) else 0,
        return_discount=settings.gamma if getattr(settings, "normalise_rewards", False) else None,
        state_size=shapes.state_size,
        overlap=burn_in,
        window=config.needs.window,
        episodes=config.needs.episodes,
        environments=config.is_intrinsic,
    )
    protocol = evaluation_protocol(config.env, spec, config.evaluation.greedy, config.epsilon)
    return Plan(config, spec, network, contract, protocol)
