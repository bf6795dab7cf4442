"""The frozen Config of one run, built from the flat table of settings.

Each part is a dataclass in the file of the code that it configures. A bad value raises ValueError with one line: what was
wanted and what came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agents import Needs, find_agent
from agents.networks.cores import NO_CORE
from agents.networks.settings import NetworkSettings
from learner.evaluation.settings import EvaluationConfig
from learner.settings.check import check_settings
from learner.settings.declarations import LoadingConfig, OutputConfig, TrainingConfig
from learner.settings.schema import DEFAULTS, MACHINE_SETTINGS, SHARED, Settings, agent_of, build, default_settings, needs_of
from learner.settings.settle import settle_network, settle_replays, settle_target_period
from replay import REPLAYS, PaceConfig, ReplayConfig, check_replays
from replay.settings import ReplaySettings
from serve.settings import ServerConfig
from setting import AUTO, listed
from workers import WorkerConfig
from workers.base import NO_RECORDING, SERVED
from wrappers import EnvConfig, EnvSpec, make_spec, served
from wrappers.spec import tasks_of

__all__ = ["AUTO", "DEFAULTS", "Config", "Settings", "check_settings", "make_config"]


@dataclass(frozen=True)
class Config:
    """One run. Every part but `replays`, `needs` and `settings` holds a part of the flat table.

    Args:
        agent_settings: an instance of the agent's `config_class`.
        replays: the replays that `replay_settings` describes.
        needs: the agent's requirements on the run.
        settings: the flat table that the run's checkpoints carry.
    """

    env: EnvConfig
    network_settings: NetworkSettings
    agent_settings: Any
    replay_settings: ReplaySettings
    workers: WorkerConfig
    server: ServerConfig
    training: TrainingConfig
    output: OutputConfig
    evaluation: EvaluationConfig
    loading: LoadingConfig
    replays: tuple[ReplayConfig, ...]
    needs: Needs
    settings: Settings

    @property
    def is_remote(self) -> bool:
        """Whether only clients have the environment, so that nothing can play in it at random, or for an evaluation."""
        return served.matches(self.env.env)

    @property
    def is_intrinsic(self) -> bool:
        """Whether the agent has intrinsic rewards."""
        return getattr(self.agent_settings, "intrinsic", "none") != "none"

    @property
    def wants_random_play(self) -> bool:
        """Whether observations of random play set a scale before training."""
        return self.network_settings.wants_random_play or self.is_intrinsic

    @property
    def columns_at_once(self) -> int:
        """Columns that are drawn together: those of a batch, or of as many batches as the agent wants at once."""
        return self.training.batch_size * self.needs.batches_at_once

    @property
    def pace(self) -> PaceConfig | None:
        """The batches for each fresh step; None if the replays alone decide."""
        needs = self.needs
        if needs.updates_per_step is None:
            return None
        return PaceConfig(needs.updates_per_step, needs.learning_starts, needs.batches_at_once)

    @property
    def epsilon(self) -> float | None:
        """Probability of a random action in test mode and evaluations; None for a policy that is sampled there."""
        return getattr(self.agent_settings, "epsilon", None)

    @property
    def agent(self) -> str:
        """The agent's name, as `agents.find_agent` takes it."""
        return self.training.agent

    @property
    def network(self) -> str:
        """The name of the network's torso."""
        return self.network_settings.network

    @property
    def saves_replay(self) -> bool:
        """Whether the replays' contents are saved with each checkpoint. A reproducible run resumes with them."""
        return self.output.save_replay or self.training.reproducible


def make_config(settings: Mapping[str, Any], asked: Settings | None = None, spec: EnvSpec | None = None) -> Config:
    """Build and check a Config. `auto` values must have been settled (see `learner.machine.fit`). Raises ValueError.

    Args:
        settings: flat settings; those that are absent have their defaults.
        asked: those before they were fitted to the machine. Checkpoints carry its machine settings, unless reproducible.
        spec: of the environment, if it is known already.
    """
    flat = {**default_settings(agent_of(settings)), **settings}
    check_settings(flat)
    flat, _ = settle_network(flat, spec := spec or make_spec(build(EnvConfig, flat)))
    if unsettled := [name for name, field in SHARED.items() if field.setting.auto and flat[name] == AUTO]:
        raise ValueError(f"{unsettled[0]}: wanted a value fitted to the machine, got {AUTO!r}")
    replays = settle_replays(build(ReplaySettings, flat).replays(), flat["unroll_length"], spec)
    agent_settings = settle_target_period(build(find_agent(flat["agent"]).config_class, flat), replays)
    needs = needs_of(flat)
    if needs.updates_per_step is not None:
        _check_paced(flat, replays, needs)
    if not needs.window:
        check_replays(replays, flat["batch_size"])
    _check_agent(flat, needs)
    if needs.on_policy:
        _check_on_policy(flat, replays)
    if needs.fresh and not any(replay.is_fresh for replay in replays):
        raise ValueError(
            f"replay_parameters: wanted a queue or a circular replay among the replays with agent {flat['agent']}, which needs "
            f"fresh trajectories, got {replays[0].type}"
        )
    if not needs.priorities and any(replay.type == "prioritised" for replay in replays):
        raise ValueError(f"replay_parameters: wanted no prioritised replay with agent {flat['agent']}, which has no priorities")
    encoded = [replay.insert_strategy or replay.type for replay in replays if replay.needs_encode]
    if encoded and "policy" not in find_agent(flat["agent"]).network_class.exported:
        raise ValueError(
            f"replay_parameters: wanted no replay that compares policies with agent {flat['agent']}, which has none, got "
            f"{encoded[0]}"
        )
    _check_normalisation(flat, agent_settings, replays, needs)
    return Config(
        env=build(EnvConfig, flat),
        network_settings=build(NetworkSettings, flat),
        agent_settings=agent_settings,
        replay_settings=build(ReplaySettings, flat),
        workers=replace(build(WorkerConfig, flat), on_policy=needs.on_policy, batch=flat["batch_size"] * needs.on_policy),
        server=build(ServerConfig, flat),
        training=build(TrainingConfig, flat),
        output=build(OutputConfig, flat),
        evaluation=build(EvaluationConfig, flat),
        loading=build(LoadingConfig, flat),
        replays=replays,
        needs=needs,
        settings=flat if asked is None or flat["reproducible"] else flat | {name: asked[name] for name in MACHINE_SETTINGS},
    )


def _check_agent(flat: Settings, needs: Needs) -> None:
    """Raise ValueError if the agent cannot be compiled, or learn in this precision, of these environments or with others."""
    if flat["compile"] and not find_agent(flat["agent"]).compiles:
        raise ValueError(f"compile: wanted false with agent {flat['agent']}, which learns without compiled passes, got true")
    if flat["precision"] != "float32" and find_agent(flat["agent"]).exact:
        raise ValueError(
            f"precision: wanted float32 with agent {flat['agent']}, whose steps need the exactness, got {flat['precision']}"
        )
    if needs.episodes and len(tasks_of(flat["env"])) > 1:
        agent = f"agent {flat['agent']}, which compares the returns of all episodes"
        raise ValueError(f"env: wanted one environment with {agent}, got {flat['env']}")
    if needs.alone and flat["learner_count"] > 1:
        raise ValueError(
            f"learner_count: wanted 1 with agent {flat['agent']}, whose learner has little to do: more workers play more "
            f"episodes at once; got {flat['learner_count']}"
        )


def _check_normalisation(flat: Settings, agent_settings: Any, replays: tuple[ReplayConfig, ...], needs: Needs) -> None:
    """Raise ValueError if running moments could not be learned: they come from fresh trajectories, and from a discount."""
    asked = [name for name in ("normalise_observations", "normalise_rewards") if flat.get(name)]
    if flat.get("intrinsic", "none") != "none":
        asked.append("intrinsic")
        if flat["recording"] != NO_RECORDING:
            raise ValueError(f"intrinsic: wanted none with a recording, in which nothing explores, got {flat['intrinsic']}")
    if asked and needs.updates_per_step is not None and not needs.window:
        agent = f"agent {flat['agent']}, which learns from replayed sequences alone"
        raise ValueError(f"{asked[0]}: wanted false with {agent}: only fresh trajectories would give the scale; got true")
    if asked and not needs.window and not any(replay.is_fresh for replay in replays):
        raise ValueError(
            f"{asked[0]}: wanted a queue or a circular replay, whose fresh trajectories give the scale, got {replays[0].type}"
        )
    if flat.get("normalise_rewards") and not hasattr(agent_settings, "gamma"):
        raise ValueError(f"normalise_rewards: wanted an agent with a setting gamma, got {flat['agent']}")


def _check_paced(flat: Settings, replays: tuple[ReplayConfig, ...], needs: Needs) -> None:
    """Raise ValueError if a replay would decide the number of updates in place of the pace, or cannot give windows."""
    agent = f"agent {flat['agent']}, which learns from each step {needs.updates_per_step:g} times"
    if fresh := [replay.type for replay in replays if replay.is_fresh]:
        raise ValueError(f"replay_parameters: wanted no queue and no circular replay with {agent}, got {fresh[0]}")
    for replay in replays:
        if replay.needs_encode or (needs.window and not REPLAYS[replay.type].gives_windows):
            wanted = listed(name for name in sorted(REPLAYS, reverse=True) if REPLAYS[name].gives_windows)
            why = "which compares policies" if replay.needs_encode else "which gives whole trajectories alone"
            got = replay.insert_strategy or replay.type
            raise ValueError(f"replay_parameters: wanted {wanted} replays with {agent}, got {got}, {why}")
    if flat["replay_fill_fraction"]:
        raise ValueError(
            f"replay_fill_fraction: wanted 0 with {agent}, because --learning_starts says when it begins; got "
            f"{flat['replay_fill_fraction']:g}"
        )
    if not needs.window:
        return
    if needs.window > flat["unroll_length"]:
        raise ValueError(
            f"n_step: wanted at most the {flat['unroll_length']} rows of a trajectory (--unroll_length), got {needs.window}"
        )
    windows = f"agent {flat['agent']}, which draws windows of {needs.window} rows"
    if flat["burn_in"]:
        raise ValueError(f"burn_in: wanted 0 with {windows}, got {flat['burn_in']}")


def _check_on_policy(flat: Settings, replays: tuple[ReplayConfig, ...]) -> None:
    """Raise ValueError if a batch could hold actions that another version of the policy chose than the one that learns."""
    if flat["recording"] != NO_RECORDING:
        own = f"agent {flat['agent']}, which learns from its own actions"
        raise ValueError(f"recording: wanted {NO_RECORDING} with {own}, got {flat['recording']}")
    agent = f"agent {flat['agent']}, which learns from fresh trajectories"
    if others := [replay.type for replay in replays if replay.type != "queue"]:
        raise ValueError(f"replay_parameters: wanted only a queue with {agent}, got {others[0]}")
    if len(replays) > 1:
        raise ValueError(f"replay_parameters: wanted one queue with {agent}, got {len(replays)}")
    environments = flat["worker_count"] * flat["envs_per_worker"]
    # Clients come and go, so a batch is of the next trajectories of any of them.
    if flat["worker_kind"] != SERVED and flat["batch_size"] != environments:
        raise ValueError(
            f"batch_size: wanted {AUTO} or one trajectory of each environment with {agent}: {flat['worker_count']} workers of "
            f"{flat['envs_per_worker']} environments make {environments}, got {flat['batch_size']}"
        )
    for name, wanted in (("prepared_batches", 0), ("burn_in", 0)):
        if flat[name] != wanted:
            raise ValueError(f"{name}: wanted {wanted} with {agent}, got {flat[name]}")
    steps = flat["batch_size"] * flat["unroll_length"]
    of_columns = flat["core"] != NO_CORE or flat.get("minibatch_unit") == "columns"
    normalised, parts = flat.get("advantage_normalisation") == "minibatch", flat.get("minibatches", 1)
    if normalised and not of_columns and 2 * parts > steps:  # the normalised advantage of a single step is 0
        raise ValueError(
            f"minibatches: wanted at most {steps // 2:,}, so that each has two of the {steps:,} steps or more, got {parts:,}; "
            "--advantage_normalisation=minibatch compares the steps of each"
        )
