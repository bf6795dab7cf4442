"""TQC: truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269), which are SAC with other critics."""

from __future__ import annotations

from dataclasses import dataclass

from agents.continuous.critics import CriticQuantiles, DroppedQuantiles, LayerNorm
from agents.sac.agent import SACAgent, SoftConfig
from agents.settings import PolyakRate


@dataclass(frozen=True)
class TQCConfig(SoftConfig):
    """Settings of TQC. Those of sb3-contrib are the defaults; the paper has 5 critics of three layers of 512 units."""

    critic_quantiles: CriticQuantiles = 25
    dropped_quantiles: DroppedQuantiles = 2
    target_update_rate: PolyakRate = 0.005
    critic_layer_norm: LayerNorm = False


class TQCAgent(SACAgent):
    """SAC whose critics estimate quantiles of the return. Targets leave out the largest of the pool of all critics."""

    config_class = TQCConfig
