"""An agent of the user's own: `--agent=my_agent.py:MyAgent`. Its class is checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

from agents.base import Agent, Needs
from agents.losses import Losses, Term
from agents.networks.base import FeatureNetwork
from agents.settings import AgentConfig
from agents.user_class import user_class, user_file
from setting import settings_of
from wrappers.errors import in_words


def user_agent(name: str) -> type[Agent]:
    """The class that `FILE.py:CLASS` names. Raises ValueError with one line if it cannot be an agent."""
    found = user_class("agent", name, Agent)  # type: ignore[type-abstract]
    if breach := _breach(found):
        raise ValueError(f"agent {name}: wanted {breach}")
    _check_its_losses(found)
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
    if missing := sorted(agent.network_class.__abstractmethods__):
        return f"{agent.network_class.__name__} with {', '.join(missing)}, got one without"
    if not (is_dataclass(agent.config_class) and "__dataclass_fields__" in vars(agent.config_class)):
        return f"@dataclass(frozen=True) on {agent.config_class.__name__}, got a class without it"
    try:
        settings_of(agent.config_class)
        needs = agent.needs(agent.config_class())
    except Exception as error:  # the class is the user's
        return f"settings and needs that can be read, got {in_words(error)}"
    if not isinstance(needs, Needs):
        return f"Needs(...) from needs, got {needs!r}"
    return ""


@cache
def _check_its_losses(agent: type[Agent]) -> None:
    """Let a user's `losses` raise ValueError in one line for a result that is no `Losses` of scalars."""
    if "losses" not in vars(agent):
        return
    losses: Callable[..., Losses] = vars(agent)["losses"]

    @wraps(losses)
    def checked(*arguments: Any, **options: Any) -> Losses:
        found = losses(*arguments, **options)
        check_losses(found)
        return found

    agent.losses = checked  # type: ignore[attr-defined]


def check_losses(losses: object) -> None:
    """Raise ValueError in one line unless these are `Losses` of scalars."""
    if not isinstance(losses, Losses):
        raise ValueError(f"losses: wanted Losses(...), got {losses!r:.80}")
    for name, term in losses.terms.items():
        if not isinstance(term, Term):
            raise ValueError(f"loss {name}: wanted a Term, got a {type(term).__name__}")
        if term.reduction not in ("sum", "mean"):
            raise ValueError(f"loss {name}: wanted the reduction 'sum' or 'mean', got {term.reduction!r}")
    for name, value in [*((name, term.value) for name, term in losses.terms.items()), *losses.metrics.items()]:
        # Metrics without a group are for `update`, which may want whole tensors, as PPO's ratios are.
        is_scalar = name in losses.terms or "/" in name
        if not isinstance(value, Tensor) or (is_scalar and value.dim()):
            got = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ValueError(f"loss or metric {name}: wanted a scalar tensor, got {got}")


def check_heads(name: str, network: FeatureNetwork) -> None:
    """Raise ValueError in one line unless the heads of a user's network return what others read.

    network: on the meta device.
    """
    kind = type(network)
    if user_file(kind.__module__) is None:
        return
    if network.distribution is None and kind.best_actions is FeatureNetwork.best_actions:
        raise ValueError(f"agent {name}: wanted {kind.__name__} with best_actions or a distribution, got one without")
    try:
        outputs = network.heads(torch.zeros(2, network.feature_count, device="meta"))
    except NotImplementedError:  # an operation that the meta device lacks
        return
    except Exception as error:  # the class is the user's
        raise ValueError(f"agent {name}: wanted outputs of {kind.__name__}.heads, got {in_words(error)}") from error
    if not (hasattr(outputs, "_fields") and all(isinstance(each, Tensor) and each.shape[:1] == (2,) for each in outputs)):
        got = f"[{', '.join(map(_kind, outputs))}]" if isinstance(outputs, tuple) else _kind(outputs)
        raise ValueError(f"agent {name}: wanted a NamedTuple of tensors [N, ...] from {kind.__name__}.heads, got {got}")


def _kind(value: object) -> str:
    return f"a tensor {list(value.shape)} for N=2" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def decides_on_graphs(agent: type[Agent]) -> bool:
    """Whether the user's class says itself what a CUDA graph may record. Code of the user's may decide on the host."""
    return not agent.graphed.__module__.startswith("agents.")
