"""The flat table of settings, computed from the dataclasses that declare them.

The table is what the command line sets, what config.json shows and what a checkpoint carries. It holds the settings that every
run has and those of the run's agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from agents import AGENTS, Needs, find_agent
from agents.networks.settings import NetworkSettings
from learner.evaluation.settings import EvaluationConfig
from learner.settings.declarations import DEFAULT_AGENT, LoadingConfig, OutputConfig, TrainingConfig
from learner.settings.other_names import FOREIGN, RENAMED
from learner.settings.tuning import TUNING
from replay.settings import ReplaySettings
from serve.settings import ServerConfig
from setting import Kind, SettingField, settings_of
from workers import WorkerConfig
from wrappers.spec import EnvConfig

Settings = dict[str, Any]
SettingTable = dict[str, SettingField]
Owner = TypeVar("Owner")

OWNERS: dict[str, type] = {
    "Run": TrainingConfig,
    "Workers": WorkerConfig,
    "Server of clients": ServerConfig,
    "Replay": ReplaySettings,
    "Network": NetworkSettings,
    "Environment": EnvConfig,
    "Output": OutputConfig,
    "Evaluation and test mode": EvaluationConfig,
    "Loading": LoadingConfig,
}
"""Title in `--help` -> dataclass of settings that every run has."""

APP_FLAGS = {
    "app": "Name of the folder to write.",
    "template": "What the folder begins with; --op_mode=list describes each.",
    "copy_agent": "Agent of this program whose file is copied into the folder, to be changed there.",
}
"""Flag of `--op_mode=new` -> its help. That mode also takes `agent`."""
COMMAND_FLAGS = ("op_mode", "flagfile", "undefok", "help", "helpfull", *APP_FLAGS)
"""Flags that are no settings, beside those of `learner.settings.other_names`."""

SHARED: SettingTable = {name: field for owner in OWNERS.values() for name, field in settings_of(owner).items()}


def agent_settings(agent: str) -> SettingTable:
    """The settings that an agent adds. Raises ValueError if there is no such agent or it declares a name that is taken."""
    SHARED["agent"].check(agent)
    own = settings_of(find_agent(agent).config_class)
    if taken := sorted(own.keys() & {*SHARED, *RENAMED, *FOREIGN, *COMMAND_FLAGS, *TUNING}):
        raise ValueError(f"{taken[0]}: wanted another name for a setting of agent {agent}: the command line has this one")
    return own


def table_of(agent: str) -> SettingTable:
    """All settings of a run with this agent, with the agent's defaults. Raises ValueError."""
    own = agent_settings(agent)
    defaults = find_agent(agent).defaults
    if unknown := sorted(defaults.keys() - {**SHARED, **own}.keys()):
        raise ValueError(f"agent {agent}: wanted names of settings in its defaults, got {unknown[0]!r}")
    return {name: replace(field, default=defaults.get(name, field.default)) for name, field in {**SHARED, **own}.items()}


def every_setting(agent: str = DEFAULT_AGENT) -> SettingTable:
    """The settings of this agent and of all that have a name. If several declare one, this agent's, or else the first's."""
    own = [agent_settings(each) for each in (*reversed(AGENTS), agent)]
    return {**SHARED, **{name: field for table in own for name, field in table.items()}}


def default_settings(agent: str = DEFAULT_AGENT) -> Settings:
    """Every setting of a run with this agent at its default. Raises ValueError."""
    return {name: field.default for name, field in table_of(agent).items()}


def agent_of(settings: Mapping[str, Any]) -> str:
    """The agent that the settings name."""
    agent: str = settings.get("agent", DEFAULT_AGENT)
    return agent


def build(owner: Callable[..., Owner], flat: Mapping[str, Any]) -> Owner:
    """The dataclass `owner` with its part of the flat table."""
    return owner(**{name: flat[name] for name in settings_of(owner)})


def needs_of(flat: Mapping[str, Any]) -> Needs:
    """The requirements of the run's agent. flat: all settings. Raises ValueError."""
    agent = find_agent(agent_of(flat))
    return agent.needs(build(agent.config_class, flat))


def untaken(agent: str) -> frozenset[str]:
    """Settings that a run with this agent takes at their defaults only, or never reads. Raises ValueError."""
    needs = needs_of({**default_settings(agent), "agent": agent})
    kind, paced = find_agent(agent), needs.updates_per_step is not None
    rules = (
        (kind.unused, True),
        (("compile",), not kind.compiles),
        (("learner_count",), needs.alone),
        (("recording",), needs.on_policy),
        (("burn_in",), needs.on_policy or needs.window > 0),
        (("replay_fill_fraction",), paced),
        (("normalise_observations", "normalise_rewards"), paced and not needs.window),  # sequences are never fresh
    )
    return frozenset(name for names, holds in rules if holds for name in names)


def _of_kind(*kinds: Kind) -> tuple[str, ...]:
    return tuple(name for name, field in SHARED.items() if field.setting.kind in kinds)


TOTAL, MORE = BUDGET_SETTINGS = ("environment_max_steps", "more_steps")
"""Settings that say when a run ends. `learner/runs/budget.py` settles them for a resumed run."""

DEFAULTS = default_settings()
"""Every setting of a run with the default agent."""

MACHINE_SETTINGS = _of_kind("machine")
"""Settings that are fitted to the machine and do not decide what is learned: `auto` stays `auto` in a checkpoint."""

COMMAND_SETTINGS = _of_kind("command")
"""Settings that belong to a command, not to the run that it loads."""

STORED_SETTINGS = tuple(name for name, field in SHARED.items() if field.setting.stored)
"""Settings that stored trajectories and their stores depend on."""

MEASURED_SETTINGS = tuple(name for name, field in SHARED.items() if field.setting.measured)
"""Settings that the measurement before a run may decide."""

UNLEARNED_SETTINGS = tuple(
    name for name, field in SHARED.items() if field.setting.kind in ("command", "output") or field.setting.modes == ("test",)
)
"""Settings that change neither what is learned nor what a score means."""
