"""The settings of `--op_mode=tune`.

They are no settings of a run: each trial is an ordinary run, whose checkpoints know nothing of the search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from setting import AUTO, Setting, check_fields, settings_of


@dataclass(frozen=True, kw_only=True)
class TuningConfig:
    """Search of settings by --op_mode=tune, which takes the settings of training too."""

    tune: Annotated[
        str,
        Setting(
            "What is searched: names of settings, with a range (lr=1e-5..1e-2) or with values (gamma=0.9:0.99) in place of "
            "their usual ones. auto: those of the agent.",
            "auto or settings separated by commas, such as lr=1e-5..1e-2,gamma=0.9:0.99,epochs",
        ),
    ] = AUTO
    method: Annotated[
        Literal["tpe", "random", "pbt"],
        Setting(
            "How values are chosen: tpe (by the scores so far), random, or pbt: a population whose members copy better ones "
            "and change their settings while they train."
        ),
    ] = "tpe"
    trials: Annotated[int, Setting("Trials in all, those before a resume too.", "a whole number of trials >= 1", 1, 1e6)] = 20
    tune_seconds: Annotated[
        float,
        Setting(
            "Seconds after which the command ends. Running trials are saved, and the same command continues them. 0: no limit.",
            "a number of seconds >= 0",
            0,
            1e9,
        ),
    ] = 0.0
    trial_seeds: Annotated[
        int,
        Setting(
            "Runs of a trial, one after another, with seeds from --seed on; the mean of their scores counts.",
            "a whole number of seeds from 1 to 100",
            1,
            100,
        ),
    ] = 1
    trials_at_once: Annotated[
        int,
        Setting(
            "Trials side by side, each on its part of the cores; auto: one for every two cores, at least two on two cores.",
            "auto or a whole number of trials from 1 to 1024",
            1,
            1024,
            auto=True,
        ),
    ]
    trials_on: Annotated[
        Literal["here", "ray"],
        Setting(
            "Where trials run: here, or on the Ray cluster of --ray_address, whose machines see the program and --results_dir "
            "under the same paths."
        ),
    ] = "here"
    prune: Annotated[
        bool, Setting("End a trial early whose best score so far is below the median of the earlier trials at that step.")
    ] = True
    members: Annotated[int, Setting("pbt: runs of the population.", "a whole number of members from 2 to 1024", 2, 1024)] = 4
    member_steps: Annotated[
        int,
        Setting("pbt: steps of a round; 0: a tenth of the run.", "a whole number of steps >= 0", 0, 1e15),
    ] = 0
    exploit: Annotated[
        Literal["compare", "truncate", "none"],
        Setting(
            "pbt: compare copies a random other member whose score is 5 % better; truncate lets the worst fifth copy the best "
            "fifth."
        ),
    ] = "compare"
    study: Annotated[
        str, Setting("Name of the study's folder in --results_dir; auto: made of environment and agent.", "auto or a name")
    ] = AUTO

    def __post_init__(self) -> None:
        check_fields(self)


TUNING = settings_of(TuningConfig)
"""The flags of the mode that no run has."""
