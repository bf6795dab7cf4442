"""Standard replay: trajectories of the past, or windows of their rows, sampled uniformly with replacement."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from replay.kinds.ring_replay import HINDSIGHT_KEYS, RingReplay


class StandardReplay(RingReplay):
    """Draws uniformly. The ring's retention decides which trajectories it keeps."""

    keys = ("retention", "device", *HINDSIGHT_KEYS)
    keeps_newest = gives_windows = True

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> Tensor | None:
        if self.ring.index:
            return self.ring.give_windows(*self.ring.uniform_rows(count), out)  # every used row is equally probable
        return self.ring.give(self.ring.uniform(count), out)
