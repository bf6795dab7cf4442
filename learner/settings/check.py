"""Checks of the flat table: each setting by itself, the combinations that cannot be, and settings that nothing would read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from agents import AGENTS
from learner.evaluation.protocol import check_protocol
from learner.settings.declarations import DEFAULT_AGENT
from learner.settings.presets import shown_origin
from learner.settings.schema import SHARED, agent_of, agent_settings, every_setting, needs_of, table_of
from replay import REPLAYS, parse_replay_parameters
from replay.kinds.distances import POLICY_DISTANCES
from replay.settings import NO_FOLDER
from setting import AUTO, SettingField, listed
from workers import groups_of
from workers.base import MOST_BLOCKS, NO_RECORDING, RECORDED, SERVED
from workers.runtime_env import parse_runtime_env
from wrappers import family_of, other_setting, served
from wrappers.spec import tasks_of


def find_setting(name: str, agent: str = DEFAULT_AGENT) -> SettingField:
    """The setting of this name, of this agent or else of another one. Raises ValueError."""
    table = SHARED if name in SHARED else every_setting(agent)
    if name not in table:
        raise ValueError(f"unknown setting {name!r}")
    return table[name]


def check_given(given: Mapping[str, Any]) -> None:
    """Check given values as far as the agent, which may stand in a checkpoint, does not matter. Raises ValueError."""
    for name, value in given.items():
        try:
            if name in SHARED:
                SHARED[name].check(value)
            else:
                find_setting(name, agent_of(given))
        except ValueError as error:
            raise ValueError(f"{error}{shown_origin(name, given)}") from error


def check_taken(given: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse given settings that the agent or the environment's family does not take. Raises ValueError.

    settings: all settings of the run, for its agent and its environment.
    """
    agent, env = agent_of(settings), settings["env"]
    table = table_of(agent)
    family = family_of(env)
    for name in given:
        if name not in table:
            find_setting(name)
            others = [other for other in AGENTS if name in agent_settings(other)]
            takers = f"{listed(sorted(others), 'and')} take{'s' * (len(others) == 1)} it"
            raise ValueError(f"{name}{shown_origin(name, given)}: not a setting of agent {agent}; {takers}")
        families = table[name].setting.families
        if families and family and family not in families:
            hint = other_setting(env, given["env_args"]) if name == "env_args" else ""
            takers = f"{listed(sorted(families), 'and')} environments take it{hint}"
            raise ValueError(f"{name}{shown_origin(name, given)}: not a setting of {env}; {takers}")


def check_settings(flat: Mapping[str, Any]) -> None:
    """Check every setting and the combinations that cannot be. Raises ValueError."""
    table = table_of(agent_of(flat))
    for name, value in flat.items():
        if name not in table:
            raise ValueError(f"unknown setting {name!r}")
        if name != "preset":  # a label by now: a checkpoint may name one whose file is gone, and holds all its settings
            table[name].check(value)
    check_protocol(flat)
    _check_reproducible(flat)
    if flat["worker_kind"] == "ray":
        _check_ray(flat)
    _check_recorded(flat)
    _check_shared(flat)
    if flat["worker_kind"] == SERVED:
        _check_served(flat)
    if served.matches(flat["env"]) and (flat["eval_period"] or flat["eval_seconds"]):
        only = f"{flat['env']}, which only clients play (those with --exploit show the best actions)"
        raise ValueError(f"eval_period: wanted no evaluations for {only}, got some")
    groups, envs = groups_of(flat["worker_kind"]), flat["envs_per_worker"]
    if envs != AUTO and envs % groups:
        wanted = f"a multiple of {groups} with worker_kind {flat['worker_kind']}, whose environments take turns"
        raise ValueError(f"envs_per_worker: wanted {wanted}, got {envs}")


def _check_recorded(flat: Mapping[str, Any]) -> None:
    """Raise ValueError if the kind of the workers and the recording do not go together."""
    kind, recording = flat["worker_kind"], flat["recording"]
    if kind == RECORDED and recording == NO_RECORDING:
        raise ValueError(f"recording: wanted the folder of a recording with worker_kind {RECORDED}, got {NO_RECORDING}")
    if recording == NO_RECORDING:
        return
    for name, wanted in (("worker_kind", RECORDED), ("worker_count", 1)):
        if flat[name] not in (wanted, AUTO):
            raise ValueError(f"{name}: wanted {wanted} with a recording in place of environments, got {flat[name]}")


def _check_shared(flat: Mapping[str, Any]) -> None:
    """Raise ValueError if no replay can take the trajectories of other runs, or the run must not depend on them."""
    if (folder := flat["share_experience"]) == NO_FOLDER:
        return
    if flat["reproducible"] or flat["recording"] != NO_RECORDING:
        setting = "reproducible" if flat["reproducible"] else "recording"
        raise ValueError(f"share_experience: wanted {NO_FOLDER} with {setting}, got {folder}")
    if find_spec("fcntl") is None:
        raise ValueError(f"share_experience: wanted a system with locks of files, got one without; use {NO_FOLDER}")
    replays = parse_replay_parameters(flat["replay_parameters"])
    kinds = [replay.type for replay in replays]
    if needs_of(flat).on_policy or not any(REPLAYS[kind].takes_others for kind in kinds):
        raise ValueError(
            f"share_experience: wanted a replay such as standard, which gives trajectories again, got {listed(kinds)}"
        )
    for replay in replays:
        if replay.needs_features:
            wanted = f"wanted dist_function {listed(POLICY_DISTANCES)} with {replay.insert_strategy or replay.type}"
            why = "because features of another run's network mean nothing to this run's"
            raise ValueError(f"share_experience: {wanted}, {why}; got {replay.dist_function}")


def _check_served(flat: Mapping[str, Any]) -> None:
    """Raise ValueError if clients cannot play a run with these settings."""
    if len(tasks_of(flat["env"])) > 1:
        raise ValueError(f"env: wanted one environment with worker_kind {SERVED}, got {flat['env']}")
    for name, wanted in (("worker_count", 1), ("learner_count", 1), ("core_inputs", False)):
        if flat[name] not in (wanted, AUTO):
            raise ValueError(f"{name}: wanted {str(wanted).lower()} with worker_kind {SERVED}, got {str(flat[name]).lower()}")
    seats, batch, needs = flat["envs_per_worker"], flat["batch_size"], needs_of(flat)
    if needs.episodes:
        agent = f"agent {flat['agent']}, whose environments play the members of a population in turn"
        raise ValueError(f"worker_kind: wanted another kind with {agent}, got {SERVED}")
    if needs.recorded:
        agent = f"agent {flat['agent']}, which learns from recordings alone"
        raise ValueError(f"worker_kind: wanted another kind with {agent}, got {SERVED}")
    on_policy = needs.on_policy
    if seats == AUTO or (on_policy and batch == AUTO):
        return
    slots = seats + batch if on_policy else 2 * seats
    if slots > MOST_BLOCKS:
        most = MOST_BLOCKS - batch if on_policy else MOST_BLOCKS // 2
        raise ValueError(f"envs_per_worker: wanted at most {most} seats with worker_kind {SERVED}, got {seats}")


def _check_ray(flat: Mapping[str, Any]) -> None:
    parse_runtime_env(flat["ray_runtime_env"])  # only now: the file may be missing on a machine that does not use it
    if find_spec("ray") is None:
        raise ValueError(
            "worker_kind: wanted the package ray with worker_kind ray, got an installation without it; run "
            "pip install -r requirements-ray.txt"
        )


def _check_reproducible(flat: Mapping[str, Any]) -> None:
    if not flat["reproducible"]:
        return
    for name, values in (("worker_kind", ("serial", RECORDED, AUTO)), ("prepared_batches", (0, AUTO))):
        if flat[name] not in values:
            raise ValueError(f"reproducible: wanted {name} {values[0]} or {AUTO} with it, got {flat[name]!r}")
