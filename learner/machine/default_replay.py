"""Makes an agent's default replay smaller if the machine's memory does not hold it."""

from __future__ import annotations

import json

from agents import find_agent
from learner.machine.memory_check import host_memory
from learner.plan import Plan
from learner.settings.config import Settings

PART_OF_ROOM = 0.9
"""Part of the free memory that the replay may take: other programs need some of it later."""
LEAST_STEPS = 10_000
"""A replay is not made smaller than this. The memory check then refuses it, as it would refuse the user's own."""


def fit_default_replay(plan: Plan, available: int) -> tuple[Settings, list[str]]:
    """`replay_parameters` with fewer steps if the agent's default replay does not fit, and a line that says so.

    A reproducible run does not depend on the machine, so its replay stays as it is. available: bytes of memory.
    """
    name, config, needed = "replay_parameters", plan.config, host_memory(plan)
    text, steps = config.settings[name], [replay.steps for replay in config.replays]
    is_default = text == find_agent(config.agent).defaults.get(name) and len(steps) == 1 and steps[0] > 0
    if not is_default or config.training.reproducible or needed.total <= available:
        return {}, []
    room = PART_OF_ROOM * (available - needed.without_replays)
    fitting = int(steps[0] * room / needed.replays) // 1000 * 1000
    if fitting < LEAST_STEPS:
        return {}, []
    smaller = json.dumps([{**entry, "steps": fitting} for entry in json.loads(text)])
    return {name: smaller}, [f"{name}={smaller} (as many steps as the memory holds)"]
