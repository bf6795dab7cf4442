"""The settings of evaluations during training, and of test mode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from learner.evaluation.protocol import AS_SET, PROTOCOLS
from setting import Setting

TEST_ONLY = ("test",)

_Machine = partial(Setting, auto=True, kind="machine")

MOST_EVALUATION_ENVIRONMENTS = 16
NO_FOLDER = "none"


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluations during training, and test mode. An evaluation plays whole episodes."""

    @property
    def evaluates(self) -> bool:
        """Whether policies are evaluated during training."""
        return self.eval_period > 0 or self.eval_seconds > 0

    @property
    def environments(self) -> int:
        """Environments that an evaluation during training steps together."""
        return min(self.eval_episodes, MOST_EVALUATION_ENVIRONMENTS)

    protocol: Annotated[
        str,
        Setting(
            "Atari: classic (no sticky actions, 0 to 29 no-ops, the game's own actions), machado (sticky actions 0.25, all 18 "
            "actions, no no-ops, a lost life is no end), or as_set: what the environment's settings say.",
            choices=(AS_SET, *PROTOCOLS),
        ),
    ] = AS_SET
    eval_period: Annotated[
        int,
        Setting(
            "Updates between evaluations that a process of low priority plays during training; 0: none. With them the best "
            "checkpoint is the one with the highest evaluation.",
            "a whole number of updates >= 0",
            0,
            1e12,
        ),
    ] = 0
    eval_seconds: Annotated[
        float,
        Setting(
            "Seconds between evaluations beside training, in place of --eval_period or in addition to it; 0: none.",
            "a number of seconds >= 0",
            0,
            1e9,
        ),
    ] = 0.0
    eval_episodes: Annotated[
        int, Setting("Whole episodes of one such evaluation.", "a whole number of episodes >= 1", 1, 1e6)
    ] = 10
    test_episode_count: Annotated[
        int,
        Setting(
            "Test mode: whole episodes to play.", "a whole number of episodes >= 1", 1, 1e9, kind="output", modes=TEST_ONLY
        ),
    ] = 100
    test_environments: Annotated[
        int,
        _Machine(
            "Test mode: environments played at once, or auto.",
            "auto or a whole number of environments >= 1",
            1,
            4096,
            modes=TEST_ONLY,
        ),
    ]
    greedy: Annotated[
        bool, Setting("Test mode and evaluations: take the most probable action instead of sampling one.", kind="output")
    ] = False
    record_to: Annotated[
        str,
        Setting(
            "Test mode: folder to which the episodes are added as a recording, for --recording; none: keep none.",
            "none or the path of a folder",
            kind="command",
            modes=TEST_ONLY,
        ),
    ] = NO_FOLDER
    estimate_from: Annotated[
        str,
        Setting(
            "Test mode: instead of playing, estimate the policy's score from the recordings in this folder; none: play.",
            "none or the path of a folder",
            kind="command",
            modes=TEST_ONLY,
        ),
    ] = NO_FOLDER
    render: Annotated[
        bool,
        Setting(
            "Test mode: show the games in a window, or write a video if there is no display.",
            kind="command",
            modes=TEST_ONLY,
        ),
    ] = False
