"""DDPG: deep deterministic policy gradient (Lillicrap et al. 2015, arXiv:1509.02971)."""

from __future__ import annotations

from dataclasses import dataclass

from agents.continuous.deterministic import DeterministicAgent, DeterministicConfig


@dataclass(frozen=True)
class DDPGConfig(DeterministicConfig):
    """Settings of DDPG. Those of Stable-Baselines3 are the defaults."""


class DDPGAgent(DeterministicAgent):
    """TD3 with one critic, without delay and without noise on the target policy's actions."""

    config_class = DDPGConfig
    graphed = True
    critic_count = 1

    config: DDPGConfig
