"""Apps that are begun from templates: their commands run, copied agents train the same, and bad names write nothing."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import main
from agents import AGENTS
from agents.user_agent import user_agent
from learner.runs import directory
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from learner.settings.presets import PRESETS
from replay.parameters import types
from tests.serve.playing import free_port
from tests.support import REPOSITORY, same
from tools.new import TEMPLATES, describe_templates, write_app
from wrappers import ENVIRONMENTS

SMALL = ("--worker_kind=serial", "--envs_per_worker=4", "--learner_threads=1", "--verbosity=0")


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in a folder of its own, which Python's path loses again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def commands(app: str) -> list[list[str]]:
    """The arguments of the commands in the README.md of an app, for shorter runs."""
    lines = [line.strip() for line in Path(app, "README.md").read_text().splitlines() if line.startswith("    python ")]
    assert len(lines) == 3
    train, *others = [shlex.split(line)[2 if "main.py" in line else 1 :] for line in lines]
    shorter = {"--more_steps=10000": "--more_steps=300"}
    return [[*train, "--environment_max_steps=600"], *([shorter.get(word, word) for word in other] for other in others)]


def newest() -> RunDirectory:
    return RunDirectory(Path("results/latest").resolve())


@pytest.mark.parametrize("template", ["bandit", "gymnasium", "agent"])
def test_the_commands_of_a_new_app_run(template: str) -> None:
    app = f"my_{template}_app"
    assert main.main(["main.py", "--op_mode=new", f"--app={app}", f"--template={template}"]) == 0
    assert not [path for path in Path(app).iterdir() if "my_app" in path.read_text()]
    for command in commands(app):
        small = () if "--help" in command else (*SMALL, "--test_episode_count=4") if "--op_mode=test" in command else SMALL
        assert main.main(["main.py", *command, *small]) == 0
    assert list(newest().path.glob("evaluation_*.json"))


def test_the_commands_of_a_program_in_a_folder_with_a_space_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "PROGRAM", Path("/some where"))
    write_app({"app": "quoted", "template": "gymnasium"})
    train = next(line for line in Path("quoted/README.md").read_text().splitlines() if line.startswith("    python "))
    assert shlex.split(train)[:2] == ["python", "/some where/main.py"]


def test_a_new_client_trains_the_agent_of_its_trainer() -> None:
    write_app({"app": "far_game", "template": "client"})
    train, play, _ = commands("far_game")
    path = {**os.environ, "PYTHONPATH": str(REPOSITORY / "clients" / "python")}
    port = free_port()
    trainer = [sys.executable, str(REPOSITORY / "main.py"), *train, f"--bind=127.0.0.1:{port}", "--learner_threads=1"]
    game = [sys.executable, "far_game/client.py", play[-1].replace("7001", str(port))]
    with subprocess.Popen(game, env=path, stderr=subprocess.DEVNULL) as client:
        try:
            done = subprocess.run(trainer, capture_output=True, text=True, timeout=120, check=False)
        finally:
            client.kill()
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((newest().path / "summary.json").read_text())["episodes"] > 0


def test_the_game_of_a_client_needs_its_package_only_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    write_app({"app": "far_game", "template": "client"})
    module = runpy.run_path("far_game/client.py")
    game = module["Corridor"]()
    returns = [game.step(game.goal > 0) for _ in range(abs(game.goal))]
    assert returns[-1] == (1.0, True, False)
    monkeypatch.setitem(sys.modules, "springbok_client", None)
    with pytest.raises(ModuleNotFoundError, match="springbok_client"):
        module["main"]("ws://127.0.0.1:1")


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_that_plays_can_be_copied(name: str) -> None:
    given = {"app": "copied", "template": "agent", "copy_agent": name}
    if AGENTS[name].needs(AGENTS[name].config_class()).recorded:
        with pytest.raises(ValueError, match=f"^copy_agent: wanted an agent .*, got '{name}' .recording: wanted a folder"):
            write_app(given)
        assert not Path("copied").exists()
        return
    write_app(given)
    agent = json.loads(Path("copied/settings.json").read_text())["settings"]["agent"]
    assert agent == f"copied/agent.py:{AGENTS[name].__name__}"
    found = user_agent(agent)
    assert found is not AGENTS[name]
    assert found.config_class.__name__ == AGENTS[name].config_class.__name__


@pytest.mark.parametrize(
    ("template", "flag", "agent"),
    [
        ("agent", "copy_agent", "td3"),
        ("gymnasium", "copy_agent", "dqn"),
        ("bandit", "agent", "mine.py:MyAgent"),
        ("client", "agent", "sqn"),
    ],
)
def test_the_first_command_of_an_app_is_accepted_with_a_chosen_agent(template: str, flag: str, agent: str) -> None:
    app = f"chosen_{template}_app"
    Path("mine.py").write_text((TEMPLATES / "agent" / "agent.py").read_text())
    write_app({"app": app, "template": template, flag: agent})
    served = ["--spaces=spaces.json", f"--bind=127.0.0.1:{free_port()}"] if template == "client" else []
    if served:
        module = runpy.run_path(f"{app}/client.py")
        Path("spaces.json").write_text(json.dumps({"observation": module["OBSERVATION"], "action": module["ACTION"]}))
    main.prepare(["main.py", *commands(app)[0], *served])


@pytest.mark.parametrize(
    ("template", "flag", "agent", "reason"),
    [
        ("gymnasium", "agent", "td3", "env: wanted actions that are real numbers"),
        ("gymnasium", "agent", "bc", "recording: wanted a folder"),
        ("bandit", "copy_agent", "ddpg", "env: wanted actions that are real numbers"),
        ("client", "agent", "es", "worker_kind: wanted another kind with agent es"),
        ("client", "copy_agent", "td3", "env: wanted actions that are real numbers"),
    ],
)
def test_an_agent_that_cannot_train_the_app_is_refused(
    template: str, flag: str, agent: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--app=refused", f"--template={template}", f"--{flag}={agent}")
    assert main.main(["main.py", "--op_mode=new", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {flag}: wanted an agent that can train with template {template}, got '{agent}' ({reason}")
    assert not list(Path().iterdir())


@pytest.mark.parametrize(("name", "env"), [("ppo", "Catch-v0"), ("dqn", "Catch-v0")])
def test_a_copied_agent_trains_the_same(name: str, env: str) -> None:
    write_app({"app": "copied", "template": "agent", "copy_agent": name})
    found = []
    for agent in (name, f"copied/agent.py:{AGENTS[name].__name__}"):
        flags = (f"--agent={agent}", f"--env={env}", "--network=mlp", "--reproducible", "--environment_max_steps=600")
        starts = ("--learning_starts=100",) if name == "dqn" else ()
        assert main.main(["main.py", "--op_mode=train", *flags, *starts, *SMALL]) == 0
        found.append(load_checkpoint(newest().checkpoint_paths()[-1]))
    assert found[0].counters.updates > 0
    assert same(found[0].agent, found[1].agent)


def test_an_app_takes_another_agent_by_name() -> None:
    write_app({"app": "other", "template": "bandit", "agent": "ppo"})
    assert json.loads(Path("other/settings.json").read_text())["settings"]["agent"] == "ppo"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"template": "agent"}, "app: wanted a new folder's name .*, got ''"),
        ({"app": "../x", "template": "agent"}, r"app: wanted a new folder's name .*, got '\.\./x'"),
        ({"app": "/tmp/x", "template": "agent"}, "app: wanted a new folder's name .*, got '/tmp/x'"),
        ({"app": "class", "template": "agent"}, "app: wanted a new folder's name .*, got 'class'"),
        ({"app": "My App", "template": "agent"}, "app: wanted a new folder's name .*, got 'My App'"),
        ({"app": "x" * 300, "template": "agent"}, "app: wanted a new folder's name .*, got 'xxx"),
        ({"app": "json", "template": "agent"}, "app: wanted a name that no module .* has, got 'json'"),
        ({"app": "agents", "template": "agent"}, "app: wanted a name that no module .* has, got 'agents'"),
        ({"app": "taken", "template": "agent"}, "app: wanted the name of a new folder, got 'taken', which exists"),
        ({"app": "a", "template": "../agent"}, r"template: wanted agent, bandit, client or gymnasium, got '\.\./agent'"),
        ({"app": "a", "template": "agent", "copy_agent": "../ppo"}, r"copy_agent: wanted a2c, .* or vtrace, got '\.\./ppo'"),
        (
            {"app": "a", "template": "bandit", "copy_agent": "ppo", "agent": "a2c"},
            "agent: wanted none with copy_agent, .*'a2c'",
        ),
        ({"app": "a", "template": "agent", "agent": "a2c"}, "agent: wanted none with template agent, .*'a2c'"),
        ({"app": "a", "template": "bandit", "agent": "other"}, "agent: wanted a2c, .*, got 'other'"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(given: dict[str, str], line: str) -> None:
    Path("taken").symlink_to("nowhere")
    with pytest.raises(ValueError, match=f"^{line}"):
        write_app(given)
    assert [path.name for path in Path().iterdir()] == ["taken"]


def test_everything_that_has_a_name_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["main.py", "--op_mode=list"]) == 0
    printed = capsys.readouterr().out
    listed = [line.split()[0] for line in printed.splitlines() if line.startswith("  ") and line[2] != " "]
    assert listed == [*sorted(AGENTS), *PRESETS, *ENVIRONMENTS, *sorted(types()), *describe_templates()]
    assert max(map(len, printed.splitlines())) <= 128
    assert all(len(line.split()) > 3 for line in printed.splitlines() if line.startswith("  ") and line[2] != " ")
