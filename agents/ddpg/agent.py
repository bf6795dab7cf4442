"""DDPG: deep deterministic policy gradient (Lillicrap et al. 2015, arXiv:1509.02971)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agents.td3.agent import DeterministicConfig, TD3Agent


@dataclass(frozen=True)
class DDPGConfig(DeterministicConfig):
    """Settings of DDPG. Those of Stable-Baselines3 are the defaults."""

    critics: ClassVar[int] = 1  # the minimum over one critic is its value
    critic_quantiles: ClassVar[int] = 0
    dropped_quantiles: ClassVar[int] = 0
    delay: ClassVar[int] = 1  # the actor moves in every step
    target_noise: ClassVar[float] = 0.0  # y = G + D Q'(x', mu'(x')), without smoothing


class DDPGAgent(TD3Agent):
    """TD3 with one critic, without delay and without noise on the target policy's actions."""

    config_class = DDPGConfig
