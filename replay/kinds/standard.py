"""Standard replay: trajectories of the past, sampled uniformly with replacement."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from replay.kinds.ring_replay import RingReplay


class StandardReplay(RingReplay):
    """Draws uniformly. The ring's retention decides which trajectories it keeps."""

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> Tensor | None:
        return self.ring.give(self.ring.uniform(count), out)
