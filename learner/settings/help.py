"""The text of `--help`: the settings that an agent takes, with their defaults, by what they configure; and hints of presets."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator

from agents import find_agent
from learner.settings.other_names import RENAMED
from learner.settings.presets import PRESETS, describe_presets, load_preset
from learner.settings.schema import APP_FLAGS, OWNERS, agent_of, agent_settings, table_of, untaken
from learner.settings.tuning import TUNING, TuningConfig
from setting import MODES, TOOL_MODES, TUNE, SettingField, listed, settings_of

WIDTH = 110


def help_text(agent: str) -> str:
    """All settings that a run with this agent takes, and the presets. Raises ValueError if there is no such agent."""
    return "\n".join(_lines(agent)) + "\n"


def preset_hints(agent: str, env: str) -> list[str]:
    """A line if there are presets for this agent and environment, whatever the version of its id."""
    found = []
    for name in PRESETS:
        settings = load_preset(name)
        if agent_of(settings) == agent and _without_version(settings.get("env", "")) == _without_version(env):
            found.append(f"--preset={name}")
    return [f"{listed(found)} has measured settings for {env} with agent {agent}"] if found else []


def _without_version(env: str) -> str:
    return re.sub(r"-v\d+$", "", env)


def _lines(agent: str) -> Iterator[str]:
    left_out = untaken(agent)
    table = {name: field for name, field in table_of(agent).items() if name not in left_out}
    modes = ", ".join((*MODES, TUNE, *TOOL_MODES))
    yield from _wrapped(f"--op_mode={MODES[0]}  What to do; train_w_load resumes a run. One of: {modes}.")
    yield ""
    for title, owner in OWNERS.items():
        yield from _group(title, owner.__doc__ or "", settings_of(owner), table)
        if title == "Network":
            kind = find_agent(agent).config_class
            # Without a docstring the decorator writes the signature.
            about = "" if (kind.__doc__ or "").startswith(f"{kind.__name__}(") else kind.__doc__ or ""
            yield from _group(f"Agent {agent}", about or "Settings of this agent.", agent_settings(agent), table)
    yield from _group("Search", TuningConfig.__doc__ or "", TUNING, TUNING)
    yield "New app: flags of --op_mode=new, which takes --agent too."
    for name, about in APP_FLAGS.items():
        yield from _wrapped(f"--{name}=  {about}")
    yield ""
    yield "Presets (--preset=NAME)"
    for name, about in describe_presets().items():
        yield from _wrapped(f"{name}  {about}")


def _group(title: str, about: str, names: Iterable[str], table: dict[str, SettingField]) -> Iterator[str]:
    yield f"{title}: {about.strip().splitlines()[0]}"
    for name in names:
        if name in table:
            yield from _wrapped(describe(table[name]))
    yield ""


def describe(field: SettingField) -> str:
    """`--name=DEFAULT  help. Wanted: bounds.` on one line."""
    parts = [f"--[no]{field.name}={str(field.default).lower()} " if field.type is bool else f"--{field.name}={field.default} "]
    parts.append(field.setting.help)
    if choices := field.choices():
        parts.append(f"One of: {', '.join((*choices, field.setting.wanted) if field.setting.pattern else choices)}.")
    elif field.setting.wanted:
        parts.append(f"Wanted: {field.setting.wanted}.")
    if others := [f"--{other}" for other, name in RENAMED.items() if name == field.name]:
        parts.append(f"Other name{'s' * (len(others) > 1)}: {', '.join(others)}.")
    return " ".join(parts)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False, break_long_words=False
    )
