"""Settings that follow from others: a recording from a dataset, the network from the environment, circular replays from the
actions, the period of a target network from the replays, and how rewards are clipped or scaled from each other and from the
environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents import find_agent
from agents.distributions import DiagonalGaussian, make_distribution
from agents.networks.actor_critic import PolicyNetwork
from agents.networks.cores import NO_CORE
from agents.networks.inputs import input_parts
from agents.networks.torsos import suitable_network
from learner.settings.schema import Settings, agent_of, build, needs_of
from replay import ReplayConfig
from replay.settings import ReplaySettings
from setting import AUTO
from workers.minari_import import PREFIX, recording_of
from wrappers import EnvSpec, usual_settings
from wrappers.spaces import Box
from wrappers.spec import EnvConfig

CIRCULAR_OF_CHOICES, CIRCULAR_OF_NUMBERS = (4, 2), (16, 20)
"""Slots and uses of a circular replay that names none, by the environment's actions (IMPACT, arXiv:1912.00167, via RLlib)."""
TARGET_PERIOD = 2
"""Updates between two copies of a target network, in times that every slot of a circular replay is used up (RLlib)."""
UPDATES_PER_ROUND = 16
"""Stands for slots times uses without a circular replay. A copy after every second update would follow the network so closely
that a penalty on the divergence from it means nothing."""

_SMALL_FIRST = ("mlp", "impala_shallow", "nature")


_USED_WITH: Sequence[tuple[str, Callable[[Settings], bool], str]] = (
    ("core_size core_memory", lambda got: got["core"] != NO_CORE, "without --core"),
    (
        "intrinsic_gamma intrinsic_weight extrinsic_weight intrinsic_episodic predictor_share",
        lambda got: got.get("intrinsic", "none") != "none",
        "without --intrinsic",
    ),
    ("popart_rate", lambda got: got["popart"], "without --popart"),
    ("reward_clipping_method", lambda got: got["clip_rewards"], "without --clip_rewards"),
    ("rmsprop_eps", lambda got: got["optimizer"] == "rmsprop", "without --optimizer=rmsprop"),
    ("adam_eps adam_beta1", lambda got: got["optimizer"] != "rmsprop", "with --optimizer=rmsprop"),
    ("actor_value", lambda got: not got["critic_quantiles"], "with --critic_quantiles, whose policy climbs their mean"),
    ("target_entropy_scale", lambda got: got["learn_temperature"], "without --learn_temperature"),
    ("target_noise_clip", lambda got: got["target_noise"] > 0, "without --target_noise"),
    ("noise_theta", lambda got: got["exploration_noise_kind"] == "ou", "without --exploration_noise_kind=ou"),
    ("atoms", lambda got: got["return_distribution"] in ("c51", "hl_gauss"), "without --return_distribution=c51 or hl_gauss"),
    ("quantiles", lambda got: got["return_distribution"] == "qrdqn", "without --return_distribution=qrdqn"),
    (
        "fractions target_fractions acting_fractions",
        lambda got: got["return_distribution"] == "iqn",
        "without --return_distribution=iqn",
    ),
    ("munchausen_weight munchausen_temperature", lambda got: got["munchausen"], "without --munchausen"),
    ("noisy_epsilon", lambda got: got["noisy"], "without --noisy"),
    ("q_lambda", lambda got: got["retrace_lambda"] == -1, "with --retrace_lambda"),
)
"""Settings, whether one has an effect where all have such values, and why it has none."""


def settle(settings: Settings, given: Settings, saved: Settings, spec: EnvSpec) -> tuple[Settings, list[str]]:
    """The settings with those that follow from others, and a line for each that changed or is not used.

    given: the settings that the command gives. saved: those of the checkpoint, empty for a new run. spec: of the
    environment. Raises ValueError.
    """
    settings, recording = _settle_recording(settings, spec)
    settings, network = settle_network(settings, spec)
    settings, rewards = _settle_rewards(settings, given, saved)
    environments = [settings[name] for name in ("worker_count", "envs_per_worker")]
    if needs_of(settings).on_policy and AUTO not in environments and "batch_size" not in {**saved, **given}:
        settings = {**settings, "batch_size": AUTO}  # one trajectory of each, and not as many as the agent has by default
    return settings, [*recording, *network, *rewards, *_unused(settings, given, spec)]


def _unused(settings: Settings, given: Settings, spec: EnvSpec) -> list[str]:
    """A line for each given setting that has no effect, and for a scale of rewards that several environments share."""
    lines = []
    if len(spec.tasks) > 1 and settings.get("normalise_rewards"):
        lines = ["normalise_rewards: one scale for the rewards of all environments (--popart has one for each)"]
    for names, is_used, why in _USED_WITH:
        asked = [name for name in names.split() if name in given and name in settings]
        lines += [f"{name} is not used {why}" for name in asked if not is_used(settings)]
    deviations = [name for name in ("log_std", "initial_log_std") if name in given]
    if deviations and issubclass(find_agent(agent_of(settings)).network_class, PolicyNetwork):
        distribution = make_distribution(spec.action, settings["action_distribution"])
        if not isinstance(distribution, DiagonalGaussian):
            policy = f"the distribution {type(distribution).__name__.lower()}, which has no standard deviations"
            lines += [f"{name} is not used with {policy}" for name in deviations]
    return lines


def settle_network(settings: Settings, spec: EnvSpec) -> tuple[Settings, list[str]]:
    """The settings with a network for the environment's observations in place of `auto`, and a line that gives the reason."""
    if settings["network"] != AUTO:
        return settings, []
    parts = input_parts(spec.observation_shape, spec.leaves)
    images = [part for part in parts if not part.is_vector]  # where there are images, a separate mlp reads the vectors
    choices = [suitable_network(part.shape) for part in images or parts]
    # The same kind of torso reads every image, so the smallest image decides.
    name, reason = min(choices, key=lambda choice: _SMALL_FIRST.index(choice[0]))
    return {**settings, "network": name}, [f"network={name} ({reason})"]


def _settle_rewards(settings: Settings, given: Settings, saved: Settings) -> tuple[Settings, list[str]]:
    """The settings with rewards that are either clipped or scaled, and a line if that differs from the defaults."""
    for name, scaled in (("normalise_rewards", "rewards"), ("popart", "values")):
        if given.get(name) and settings.get("clip_rewards") and "clip_rewards" not in given:
            return {**settings, "clip_rewards": False}, [f"clip_rewards=False ({name} scales the {scaled} instead)"]
    # Where the family does not clip rewards, they have any size, and actor-critic agents learn poorly from large ones.
    is_family_clipped = usual_settings(settings["env"]).get("clip_rewards", True)
    is_decided = saved or is_family_clipped or settings.get("clip_rewards") or settings.get("popart")
    is_decided = is_decided or "normalise_rewards" in given
    has_fresh = any(replay.is_fresh for replay in build(ReplaySettings, settings).replays())  # they give the scale
    if is_decided or not has_fresh or not find_agent(agent_of(settings)).scales_rewards(settings):
        return settings, []
    note = f"normalise_rewards=True (usual for {settings['env']} with agent {agent_of(settings)})"
    return {**settings, "normalise_rewards": True}, [note]


def _settle_recording(settings: Settings, spec: EnvSpec) -> tuple[Settings, list[str]]:
    """The settings with the recording of the Minari dataset that they name, which `learner.launch` makes, and a line on it."""
    named = settings["recording"]
    if not named.startswith(PREFIX):
        return settings, []
    try:
        name, folder = named.removeprefix(PREFIX), Path(settings["results_dir"]) / "minari"
        folder = recording_of(name, build(EnvConfig, settings), spec, folder)
    except OSError as error:
        raise ValueError(f"recording: wanted a dataset that can be read, got {named}: {error}") from error
    return {**settings, "recording": str(folder)}, [f"recording={folder} (made of {named})"]


def settle_replays(replays: Sequence[ReplayConfig], length: int, spec: EnvSpec) -> tuple[ReplayConfig, ...]:
    """The replays with the capacity of those that name their size in steps, and the slots and uses of circular ones that do not
    name theirs. length: steps of a trajectory."""
    replays = [each if not each.steps else replace(each, capacity=-(-each.steps // length)) for each in replays]
    if all(replay.type != "circular" or (replay.slots and replay.uses) for replay in replays):
        return tuple(replays)
    slots, uses = CIRCULAR_OF_NUMBERS if isinstance(spec.action, Box) else CIRCULAR_OF_CHOICES
    return tuple(
        replace(each, slots=each.slots or slots, uses=each.uses or uses) if each.type == "circular" else each
        for each in replays
    )


def settle_target_period(agent_settings: Any, replays: Sequence[ReplayConfig]) -> Any:
    """The agent's settings with a period in place of a `target_update_period` of 0, if the agent has this setting."""
    if getattr(agent_settings, "target_update_period", None) != 0:
        return agent_settings
    updates = max((replay.slots * replay.uses for replay in replays if replay.type == "circular"), default=UPDATES_PER_ROUND)
    return replace(agent_settings, target_update_period=TARGET_PERIOD * updates)
