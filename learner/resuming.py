"""What a run goes on with beside its checkpoint: the replays' contents and, in a reproducible run, all that is under way.

Under way are the environments, trajectories that no replay had room for yet, and the workers' random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from learner.config import Config, make_contract
from learner.feeder import BatchFeeder, Feeder
from replay import Mixture, settle_capacities
from workers import SerialWorkers, Workers
from wrappers import make_spec


class ResumeError(RuntimeError):
    """What was saved beside a checkpoint does not fit."""


def saves_replay(config: Config) -> bool:
    """Whether checkpoints come with a replay file; what has to go on to the bit needs one."""
    return config.training.save_replay or config.training.reproducible


def replay_state(mixture: Mixture, workers: Workers, feeder: Feeder, *, under_way: bool) -> dict[str, Any]:
    """The content of a replay file. under_way: with what a reproducible run needs too."""
    state: dict[str, Any] = {"mixture": mixture.state_dict()}
    if under_way:
        assert isinstance(workers, SerialWorkers)
        assert isinstance(feeder, BatchFeeder)
        state |= {"workers": workers.state_dict(), "feeder": feeder.state_dict()}
    return state


def restore_replays(state: dict[str, Any], mixture: Mixture) -> None:
    """Fill empty replays with what was saved. Raises ResumeError."""
    with _one_line("--load_model_url names a checkpoint whose replay is none of this program's"):
        mixture.load_state_dict(state["mixture"])


def restore_under_way(state: dict[str, Any], workers: Workers, feeder: Feeder) -> None:
    """Go on with what was under way, after the workers were started. Raises ResumeError."""
    assert isinstance(workers, SerialWorkers)
    assert isinstance(feeder, BatchFeeder)
    with _one_line("--noreproducible goes on with fresh episodes"):
        workers.load_state_dict(state["workers"])
        feeder.load_state_dict(state["feeder"])


@contextmanager
def _one_line(hint: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:400] or type(error).__name__
        raise ResumeError(f"wanted a saved state that fits, got another: {reason}; {hint}") from error


def trajectories_to_fill_in(config: Config) -> int:
    """How many trajectories replays that start empty take in before they give any; 0 where none gives any twice."""
    contract = make_contract(config, make_spec(config.env))
    settled = settle_capacities(config.replays, contract, config.training.batch_size)
    factor = config.training.training_fill_in_factor
    return max((max(1, math.ceil(factor * replay.capacity)) for replay in settled if replay.type != "queue"), default=0)
