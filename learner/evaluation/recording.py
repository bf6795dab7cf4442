"""Keeps the episodes of test mode as a recording, from which agents learn later (`--recording`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.networks.actor_critic import BEHAVIOUR_POLICY, distribution_name
from learner.building import agent_class
from learner.evaluation.settings import NO_FOLDER
from learner.plan import Plan
from learner.runs.directory import check_writable
from replay.recordings.recorder import EpisodeRecorder, check_folder
from replay.recordings.stream import RecordFields

log = logging.getLogger("springbok")


def check_record_to(plan: Plan) -> None:
    """Raise ValueError in one line if the episodes of a test could not be added to the folder that it names."""
    if (folder := plan.config.evaluation.record_to) == NO_FOLDER:
        return
    if plan.config.evaluation.render:
        raise ValueError("render: wanted false with --record_to, which keeps the episodes that are played unseen, got true")
    check_writable(Path(folder), "record_to")
    check_folder(Path(folder), plan.spec.to_json(), _fields(plan))


@contextmanager
def recorder_of(plan: Plan, about: Mapping[str, Any]) -> Iterator[EpisodeRecorder | None]:
    """The recorder of a test, or None if the settings name no folder. At the end a line says what was added.

    about: plain data on the player, see `EpisodeRecorder`.
    """
    if (folder := plan.config.evaluation.record_to) == NO_FOLDER:
        yield None
        return
    about = {"agent": plan.config.agent, **about, "protocol": plan.protocol}
    with EpisodeRecorder(Path(folder), plan.spec.to_json(), _fields(plan), about) as recorder:
        try:
            yield recorder
        finally:
            steps, episodes = f"{recorder.steps:,}", f"{recorder.episodes:,}"
            log.info("Recording: %s steps of %s episodes were added to %s", steps, episodes, folder)


def _fields(plan: Plan) -> RecordFields:
    config, spec = plan.config, plan.spec
    acting = agent_class(config).acting(config.agent_settings, plan.network).fields
    # Greedy actions are not drawn from this distribution, so importance ratios with it would be wrong.
    kept = {name: field for name, field in acting.items() if not (config.evaluation.greedy and name == BEHAVIOUR_POLICY)}
    shapes = (spec.frame_shape, spec.frame_dtype, spec.action.shape, spec.action.dtype)
    return RecordFields(*shapes, kept, distribution_name(plan.network))
