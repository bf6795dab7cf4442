"""Settings that follow from others: the network from the environment, reward clipping from reward scaling."""

from __future__ import annotations

from agents.networks.inputs import input_parts
from agents.networks.torsos import suitable_network
from learner.settings.schema import Settings, build
from setting import AUTO
from wrappers import make_spec
from wrappers.spec import EnvConfig

_SMALL_FIRST = ("mlp", "impala_shallow", "nature")


def settle(settings: Settings, given: Settings) -> tuple[Settings, list[str]]:
    """The settings with those that follow from others, and a line for each that changed.

    given: the settings that the command gives. Raises ValueError for an environment that does not exist.
    """
    settings, network = settle_network(settings)
    settings, rewards = _settle_rewards(settings, given)
    return settings, [*network, *rewards]


def settle_network(settings: Settings) -> tuple[Settings, list[str]]:
    """The settings with a network for the environment's observations in place of `auto`, and a line that gives the reason.

    Raises ValueError for an environment that does not exist.
    """
    if settings["network"] != AUTO:
        return settings, []
    spec = make_spec(build(EnvConfig, settings))
    parts = input_parts(spec.observation_shape, spec.leaves)
    images = [part for part in parts if not part.is_vector]  # where there are images, a separate mlp reads the vectors
    choices = [suitable_network(part.shape) for part in images or parts]
    name, reason = min(choices, key=lambda choice: _SMALL_FIRST.index(choice[0]))
    return {**settings, "network": name}, [f"network={name} ({reason})"]


def _settle_rewards(settings: Settings, given: Settings) -> tuple[Settings, list[str]]:
    """The settings without reward clipping if the command asks only for scaled rewards, and a line that says so."""
    if not (given.get("normalise_rewards") and settings.get("clip_rewards")) or "clip_rewards" in given:
        return settings, []
    return {**settings, "clip_rewards": False}, ["clip_rewards=False (normalise_rewards scales the rewards instead)"]
