"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from agents.continuous.deterministic import DeterministicAgent, DeterministicConfig
from setting import Setting


@dataclass(frozen=True)
class TD3Config(DeterministicConfig):
    """Settings of TD3. Those of Stable-Baselines3 are the defaults."""

    delay: Annotated[
        int,
        Setting("Steps of the critics for each step of actor and targets.", "a whole number of steps from 1 to 1000", 1, 1000),
    ] = 2
    target_noise: Annotated[
        float, Setting("Size of the noise on the target policy's actions.", "a standard deviation in [0, 10]", 0, 10)
    ] = 0.2
    target_noise_clip: Annotated[float, Setting("Largest such noise.", "a number in [0, 2]", 0, 2)] = 0.5

    @property
    def policy_delay(self) -> int:
        return self.delay

    @property
    def smoothing(self) -> tuple[float, float]:
        return self.target_noise, self.target_noise_clip


class TD3Agent(DeterministicAgent):
    """Twin critics, noise on the target policy's actions, and an actor that moves every second step."""

    config_class = TD3Config
    graphed = True

    config: TD3Config
