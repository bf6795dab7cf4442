"""What a run goes on with beside its checkpoint: the replays' contents and, in a reproducible run, all that is under way.

Under way are the environments, trajectories that no replay had room for yet, and the workers' random numbers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from learner.feeding.feeder import BatchFeeder, Feeder
from learner.settings.config import Config, make_contract
from replay import Mixture, settle_capacities
from workers import SerialWorkers, Workers
from wrappers import make_spec

log = logging.getLogger("springbok")

UNDER_WAY = "under_way"


class ResumeError(RuntimeError):
    """What was saved beside a checkpoint does not fit."""


def replay_to_save(config: Config, mixture: Mixture, workers: Workers, feeder: Feeder) -> dict[str, Any] | None:
    """The content of the replay file that goes with a checkpoint, None where the settings want none.

    A reproducible run always has one, with what is under way.
    """
    if not config.saves_replay:
        return None
    state: dict[str, Any] = {"mixture": mixture.state_dict()}
    if config.training.reproducible:
        assert isinstance(workers, SerialWorkers)
        assert isinstance(feeder, BatchFeeder)
        state |= {UNDER_WAY: {"workers": workers.state_dict(), "feeder": feeder.state_dict()}}
    return state


def restore_replays(state: dict[str, Any], mixture: Mixture) -> None:
    """Fill empty replays with what was saved. Raises ResumeError."""
    with _one_line("--load names a checkpoint whose replay is none of this program's"):
        mixture.load_state_dict(state["mixture"])


def restore_under_way(config: Config, state: dict[str, Any] | None, workers: Workers, feeder: Feeder) -> bool:
    """Go on with what was under way, after the workers were started; false where there is none. Raises ResumeError."""
    if not config.training.reproducible or UNDER_WAY not in (state or {}):
        return False
    assert state is not None
    assert isinstance(workers, SerialWorkers)
    assert isinstance(feeder, BatchFeeder)
    with _one_line("--noreproducible goes on with fresh episodes"):
        steps = sum(env["actions"].numel() for env in state[UNDER_WAY]["workers"]["envs"])
        log.info("The environments play %s steps again, to stand where they stood", f"{steps:,}")
        workers.load_state_dict(state[UNDER_WAY]["workers"])
        feeder.load_state_dict(state[UNDER_WAY]["feeder"])
    return True


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
    factor = config.replay_settings.replay_fill_fraction
    return max((max(1, math.ceil(factor * replay.capacity)) for replay in settled if replay.type != "queue"), default=0)
