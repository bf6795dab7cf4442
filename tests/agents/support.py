"""A small batch, network and settings for tests of the agent."""

from __future__ import annotations

from dataclasses import replace

import torch

from agents.networks.actor_critic import ActorCritic
from agents.vtrace.agent import VTraceConfig
from replay.batch import Batch
from tests.builders import network_of

T, B, A = 5, 3, 4
RATE = 1e-3
CONFIG = VTraceConfig(
    lr=RATE,
    lr_end_value=RATE,
    gamma=0.9,
    rho_bar=1.5,
    c_bar=1.0,
    pg_rho_bar=2.0,
    vtrace_lambda=0.95,
    reward_clipping_method="abs_one_clamp",
)
CLEAR = replace(
    CONFIG,
    use_policy_cloning_loss=True,
    use_value_cloning_loss=True,
    policy_cloning_loss_weight=0.7,
    value_cloning_loss_weight=0.4,
)


def make_network_here() -> ActorCritic:
    return network_of("mlp", (2, 6), A, generator=torch.Generator().manual_seed(1))


def random_batch(seed: int = 0) -> Batch:
    """Row 2 of column 1 is an autoreset; in row 1 of column 2 the environment replaced the action."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    action_used = torch.ones(T, B, dtype=torch.bool)
    action_used[2, 1] = action_used[1, 2] = False
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[2, 1] = True
    terminated = torch.zeros(T, B, dtype=torch.bool)
    terminated[3, 0] = True
    return Batch(
        observations=rand(T + 1, B, 2, 6),
        actions=torch.randint(A, (T, B), generator=generator),
        rewards=3 * rand(T, B),
        terminated=terminated,
        reset=reset,
        action_used=action_used,
        acting={"behaviour_policy": rand(T, B, A), "behaviour_values": rand(T, B)},
        is_replay=torch.tensor([False, True, True]),
        source=torch.tensor([0, 1, 1]),
    )
