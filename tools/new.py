"""`--op_mode=new`: writes the folder of an app from a template, with commands that run.

A template is a folder of files in `tools/templates`. The name `my_app` in them becomes that of the app.
"""

from __future__ import annotations

import json
import keyword
import re
import runpy
import sys
from collections.abc import Mapping
from contextlib import chdir
from importlib.util import find_spec
from inspect import getsourcefile
from pathlib import Path
from tempfile import TemporaryDirectory

from agents import AGENTS, find_agent
from learner.prepare import check_trainable
from learner.runs.directory import shell_name_of_program
from learner.settings.schema import SHARED
from setting import listed
from wrappers.served import PREFIX

TEMPLATES = Path(__file__).resolve().parent / "templates"
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
IN_TEMPLATES = "my_app"
CONTINUOUS = "Pendulum-v1"
"""Environment of the template agent for a copied agent that cannot learn choices."""
AGENT_FILE, CLIENT_FILE = "agent.py", "client.py"


def describe_templates() -> dict[str, str]:
    """Each template and the first paragraph of its README.md."""
    found = sorted(path for path in TEMPLATES.iterdir() if (path / "README.md").is_file())
    return {path.name: (path / "README.md").read_text().split("\n\n")[1] for path in found}


def write_app(given: Mapping[str, str]) -> str:
    """Write the folder of an app into the current folder. Returns lines about it.

    given: the flags app and template, and perhaps agent or copy_agent. Raises ValueError with one line.
    """
    templates = describe_templates()
    app, template = _new_name(given.get("app", "")), given.get("template", "")
    if template not in templates:
        raise ValueError(f"template: wanted {listed(templates)}, got {template!r}")
    agent = _named_agent(given, app, template)
    files = {path.name: _adapted(path, app) for path in (TEMPLATES / template).iterdir() if path.is_file()}
    if copied := given.get("copy_agent"):
        files[AGENT_FILE] = _copied_agent(copied)
        files["README.md"] += (
            f"\n`{AGENT_FILE}` is a copy of the program's agent {copied}. It trains the same until you change it.\n"
        )
    settings = json.loads(files["settings.json"])
    if agent:
        name = "copy_agent" if copied else "agent"
        env = _trainable_env(files, app, template, name, given[name])
        settings["settings"] |= {"agent": agent, **env}
        files["settings.json"] = json.dumps(settings, indent=4) + "\n"
        files["README.md"] = files["README.md"].replace(f"{app}/{AGENT_FILE}:MyAgent", agent)
    _write(Path(app), files)
    shown = "\n".join(line for line in files["README.md"].splitlines() if line.startswith("    "))
    return f"Wrote {app}/ with {listed(sorted(files), 'and')}. Next:\n\n{shown}"


def _new_name(app: str) -> str:
    """The name of the app. Raises ValueError if a module cannot have it, or if it is taken."""
    if not NAME.fullmatch(app) or keyword.iskeyword(app):
        raise ValueError(
            f"app: wanted a new folder's name of at most 40 small letters, digits and underscores, got {app[:200]!r}"
        )
    if Path(app).exists() or Path(app).is_symlink():
        raise ValueError(f"app: wanted the name of a new folder, got {app!r}, which exists")
    if app in sys.stdlib_module_names or find_spec(app):
        raise ValueError(f"app: wanted a name that no module of Python or of this program has, got {app!r}")
    return app


def _named_agent(given: Mapping[str, str], app: str, template: str) -> str:
    """The agent of the app's settings; empty for that of the template. Raises ValueError."""
    agent, copied = given.get("agent", ""), given.get("copy_agent", "")
    if copied and copied not in AGENTS:
        raise ValueError(f"copy_agent: wanted {listed(sorted(AGENTS))}, got {copied!r}")
    if agent and (copied or template == "agent"):
        got = f"agent {agent!r} too"
        raise ValueError(
            f"agent: wanted none with {'copy_agent' if copied else 'template agent'}, whose agent is a file, got {got}"
        )
    if agent:
        SHARED["agent"].check(agent)
        find_agent(agent)
    return f"{app}/{AGENT_FILE}:{AGENTS[copied].__name__}" if copied else agent


def _trainable_env(files: Mapping[str, str], app: str, template: str, name: str, agent: str) -> dict[str, str]:
    """The setting of the environment in which a chosen agent trains; empty for a client, which tells its own.

    name: the flag that chooses the agent. Raises ValueError with the line that would refuse the app's own command.
    """
    named = agent if agent in AGENTS else str(Path(agent).absolute())
    settings = {**json.loads(files["settings.json"])["settings"], "agent": named}
    refusals = []
    with TemporaryDirectory() as folder, chdir(folder):  # an environment is imported from the folder of its app
        _write(Path(app), files)
        spaces = _spaces_of(Path(app, CLIENT_FILE)) if CLIENT_FILE in files else {}
        for env in ({}, {"env": CONTINUOUS}) if template == "agent" else ({},):
            try:
                check_trainable({**settings, **spaces, **env})
            except ValueError as error:
                refusals.append(error)
            else:
                return env
    wanted = f"wanted an agent that can train with template {template}"
    raise ValueError(f"{name}: {wanted}, got {agent!r} ({refusals[0]})") from refusals[0]


def _spaces_of(client: Path) -> dict[str, str]:
    """The settings that a trainer has from a client."""
    module = runpy.run_path(str(client))
    spaces = {"observation": module["OBSERVATION"], "action": module["ACTION"]}
    return {"env": f"{PREFIX}{client.stem}", "spaces": json.dumps(spaces)}


def _adapted(path: Path, app: str) -> str:
    """The text of a template's file for this app. Commands name main.py by its path from the current folder."""
    text = path.read_text().replace(IN_TEMPLATES, app)
    return text.replace("python main.py", f"python {shell_name_of_program()}")


def _copied_agent(name: str) -> str:
    """The file of an agent. Its imports name the packages of the program, so they hold in a file of the user's too."""
    source = getsourcefile(AGENTS[name])
    assert source is not None
    return Path(source).read_text()


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files into a new folder. Raises ValueError."""
    try:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise ValueError(f"app: wanted a folder that can be written to, got {folder.absolute()} ({error.strerror})") from error
