"""An agent of the user's own: `--agent=my_agent.py:MyAgent`. Its class is checked before anything starts."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache

from agents.base import Agent
from agents.networks.base import FeatureNetwork
from agents.settings import AgentConfig
from agents.user_class import user_class
from setting import settings_of
from wrappers.errors import in_words


def user_agent(name: str) -> type[Agent]:
    """The class that `FILE.py:CLASS` names. Raises ValueError with one line if it cannot be an agent."""
    found = user_class("agent", name, Agent)  # type: ignore[type-abstract]
    if breach := _breach(found):
        raise ValueError(f"agent {name}: wanted {breach}")
    return found


@cache
def _breach(agent: type[Agent]) -> str:
    """The end of an error line, from the requirement that the class misses; empty if it can be an agent."""
    if agent.__abstractmethods__:
        return f"an agent with {', '.join(sorted(agent.__abstractmethods__))}, got one without"
    for name, base in (("config_class", AgentConfig), ("network_class", FeatureNetwork)):
        kind = getattr(agent, name, None)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            return f"a subclass of {base.__module__}.{base.__name__} as {name}, got {kind!r}"
    if not (is_dataclass(agent.config_class) and "__dataclass_fields__" in vars(agent.config_class)):
        return f"@dataclass(frozen=True) on {agent.config_class.__name__}, got a class without it"
    try:
        settings_of(agent.config_class)
        agent.needs(agent.config_class())
    except Exception as error:  # the class is the user's
        return f"settings and needs that can be read, got {in_words(error)}"
    return ""


def decides_on_graphs(agent: type[Agent]) -> bool:
    """Whether the user's class says itself what a CUDA graph may record. Code of the user's may decide on the host."""
    return not agent.graphed.__module__.startswith("agents.")
