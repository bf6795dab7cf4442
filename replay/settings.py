"""Settings of the replays of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from replay.base import ReplayConfig
from replay.parameters import parse_replay_parameters
from setting import TRAINING_MODES, Setting

NO_FOLDER = "none"


@dataclass(frozen=True)
class ReplaySettings:
    """The mixture of replays that batches are drawn from."""

    replay_parameters: Annotated[
        str,
        Setting(
            "JSON list of replays: type (queue, circular, standard, prioritised, elite, attentive, custom), capacity "
            "(trajectories), steps (of the environments) or memory (a size such as 8GB), sample_ratio (sum 1), and what the "
            "type takes; see docs/algorithms.md.",
            check=parse_replay_parameters,
            stored=True,
        ),
    ] = '[{"type": "queue", "capacity": 1, "sample_ratio": 1.0}]'
    replay_fill_fraction: Annotated[
        float,
        Setting(
            "Part of a replay's capacity that is filled before the replay gives anything.",
            "a part of the replay's capacity in [0, 1]",
            0,
            1,
        ),
    ] = 0.2
    compress_replay: Annotated[
        bool,
        Setting("Keep replayed frames compressed (LZ4): a tenth of the memory or less, for a little time.", stored=True),
    ] = False

    share_experience: Annotated[
        str,
        Setting(
            "Learn from the trajectories of other runs with this folder too, which may have other settings of the agent; none: "
            "from this run's alone. Every replay but a queue and a circular one takes them.",
            "none or the path of a folder",
            modes=TRAINING_MODES,
        ),
    ] = NO_FOLDER

    def replays(self) -> tuple[ReplayConfig, ...]:
        """The replays in order. Raises ValueError."""
        return tuple(
            replace(replay, compress=self.compress_replay) for replay in parse_replay_parameters(self.replay_parameters)
        )
