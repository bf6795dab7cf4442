"""The text of `--op_mode=list`: agents, presets, environments, replays and templates, each with a line.

The lines are those that stand elsewhere: docstrings, descriptions of presets, the first lines of templates.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from agents import AGENTS
from learner.settings.presets import PRESETS, describe_presets, load_preset
from replay import REPLAYS
from setting import listed
from tools.new import describe_templates
from wrappers import ENVIRONMENTS, family_of
from wrappers.spec import tasks_of

WIDTH = 128
EXAMPLES = 12
"""Most ids that are shown of a family."""
CUSTOM = "A standard, elite or attentive replay, named by its sample_strategy and insert_strategy."
"""The replay that has no class of its own, see `replay.parameters`."""


def text() -> str:
    """The names that a command may use, by kind."""
    parts: dict[str, Mapping[str, str]] = {
        "Agents (--agent=NAME; --agent=NAME --help shows its settings)": {
            name: _agent(AGENTS[name]) for name in sorted(AGENTS)
        },
        "Presets (--preset=NAME)": describe_presets(),
        "Environments (--env=ID, or ID,ID for one policy that plays several), by family": {
            name: _family(name) for name in ENVIRONMENTS
        },
        'Replays (--replay_parameters=\'[{"type": "NAME", ...}]\')': _replays(),
        "Templates (--op_mode=new --app=FOLDER --template=NAME)": describe_templates(),
    }
    return "\n\n".join("\n".join([title, *_lines(entries)]) for title, entries in parts.items())


def _lines(entries: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, entries)) + 4
    for name, about in entries.items():
        yield from textwrap.wrap(
            about, WIDTH, initial_indent=f"  {name:<{width - 2}}", subsequent_indent=" " * width, break_on_hyphens=False
        )


def first_sentence(documented: Any) -> str:
    """The first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def _agent(agent: type) -> str:
    """The first paragraph of the agent's module: it names the paper."""
    return first_sentence(inspect.getmodule(agent))


def _replays() -> dict[str, str]:
    """Type -> what it is, for every type that `--replay_parameters` takes."""
    return dict(sorted({"custom": CUSTOM, **{name: first_sentence(kind) for name, kind in REPLAYS.items()}}.items()))


def _family(name: str) -> str:
    """The family in a sentence, and some of its ids: those of presets, or else the first ones that it knows."""
    family = ENVIRONMENTS[name]
    known = list(dict.fromkeys(family.known_ids().values()))
    envs = {env for preset in PRESETS for env in tasks_of(str(load_preset(preset).get("env", "")))}
    used = sorted(env for env in envs if family_of(env) == name)
    shown = known if len(known) <= EXAMPLES else used[:EXAMPLES]
    count = f" {len(known):,} ids are known here, for example" if len(known) > len(shown) else " Ids:"
    return first_sentence(family) + (f"{count} {listed(shown, 'and')}." if shown else "")
