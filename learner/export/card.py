"""`--card`: README.md beside an exported policy, a model card as hubs show it, with copies of the run's pictures and video."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from checked_files import read_json
from learner.plan import Plan
from learner.runs.checkpoint import Checkpoint
from learner.runs.directory import RunDirectory
from learner.settings.schema import DEFAULTS

CARD, VIDEO, CURVE, ANIMATION = "README.md", "replay.mp4", "learning_curve.png", "evaluation.gif"


def write_card(plan: Plan, checkpoint: Checkpoint, checkpoint_path: Path, folder: Path, target: Path) -> Path:
    """Write README.md, and copy the pictures and the newest video that exist. Returns its path. Raises OSError.

    Args:
        plan: of the policy.
        checkpoint: that is exported.
        checkpoint_path: its file.
        folder: of the run, or of the checkpoint.
        target: folder of the exported files.
    """
    run, update = RunDirectory(folder), checkpoint.counters.updates
    videos = sorted(folder.glob(f"video_{update}_*.mp4"), key=lambda path: path.stat().st_mtime)
    found = {VIDEO: videos[-1:], CURVE: [run.curve], ANIMATION: [run.animation]}
    shown = []
    for name, sources in found.items():
        if sources and sources[0].is_file():
            shutil.copyfile(sources[0], target / name)
            shown.append(name)
    score = _score(checkpoint, folder)
    path = target / CARD
    commands = [*_training_commands(run), _test_command(plan, checkpoint, checkpoint_path, score)]
    path.write_text("\n".join([*_header(plan, score), *_body(plan, checkpoint, commands, score, shown)]) + "\n")
    return path


def _score(checkpoint: Checkpoint, folder: Path) -> dict[str, Any]:
    """The newest result of test mode for this checkpoint's update, or else the last training returns; empty without any."""
    paths = folder.glob(f"evaluation_{checkpoint.counters.updates}_*.json")
    for path in sorted(paths, key=lambda each: each.stat().st_mtime, reverse=True):
        try:
            content = read_json(path, "a result of test mode", {"episodes": list, "protocol": dict})
            returns = [float(episode["return"]) for episode in content["episodes"]]
        except (ValueError, KeyError, TypeError):
            continue
        seed = {"seed": content["seed"]} if "seed" in content else {}
        return {**_statistics(returns), "source": "test episodes", "protocol": content["protocol"], **seed}
    if not checkpoint.returns:
        return {}
    return {**_statistics(checkpoint.returns), "source": "last training episodes", "protocol": checkpoint.protocol}


def _statistics(returns: list[float]) -> dict[str, Any]:
    return {"mean": float(np.mean(returns)), "deviation": float(np.std(returns)), "count": len(returns)}


def _header(plan: Plan, score: dict[str, Any]) -> list[str]:
    """The YAML header. JSON is YAML too, and quotes every text safely."""
    env, agent = plan.config.env.env, plan.config.agent
    header: dict[str, Any] = {
        "library_name": "springbok",
        "pipeline_tag": "reinforcement-learning",
        "tags": [env, agent, "deep-reinforcement-learning", "reinforcement-learning", "springbok"],
    }
    if score:
        value = f"{score['mean']:.2f} +/- {score['deviation']:.2f}"  # as leaderboards of hubs read it
        metric = {"type": "mean_reward", "name": "mean_reward", "value": value, "verified": False}
        task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
        result = {"task": task, "dataset": {"name": env, "type": env}, "metrics": [metric]}
        header["model-index"] = [{"name": agent, "results": [result]}]
    return ["---", *(f"{name}: {json.dumps(value)}" for name, value in header.items()), "---", ""]


def _body(plan: Plan, checkpoint: Checkpoint, commands: list[list[Any]], score: dict[str, Any], shown: list[str]) -> list[str]:
    config, counters = plan.config, checkpoint.counters
    lines = [f"# {config.agent} on {config.env.env}", ""]
    lines += [f"A policy trained with Springbok for {counters.steps:,} steps ({counters.frames:,} frames).", ""]
    if score:
        mean = f"mean return {score['mean']:.2f}, standard deviation {score['deviation']:.2f}"
        lines += [f"Score: {mean}, over {score['count']} {score['source']}.", ""]
    lines += [f"<video src={VIDEO!r} controls autoplay loop></video>\n"] if VIDEO in shown else []
    lines += [f"![{name}]({name})\n" for name in (CURVE, ANIMATION) if name in shown]
    lines += ["## Commands", "", *(f"    python {shlex.join(map(str, each))}" for each in commands), ""]
    lines += ["## Protocol", "", *_table({"setting": "value", **(score.get("protocol") or plan.protocol)}), ""]
    lines += ["## Settings", "", *_table({"setting": "value", **checkpoint.settings}), ""]
    lines += ["`policy.json` describes inputs and outputs of `policy.pt2` and `policy.onnx`."]
    return lines


def _training_commands(run: RunDirectory) -> list[list[Any]]:
    """The commands that began and resumed the run, the first one first."""
    commands = []
    for path in run.config_paths():
        with contextlib.suppress(ValueError):  # a damaged file, or none for a checkpoint outside a run directory
            commands.append(read_json(path, "the config.json of a run", {"command": list})["command"])
    return [command for command in commands if command]


def _test_command(plan: Plan, checkpoint: Checkpoint, path: Path, score: dict[str, Any]) -> list[str]:
    """The command that measures the score again. path: of the checkpoint."""
    settings = checkpoint.settings
    count = max(1, score["count"] // len(plan.spec.tasks)) if score else DEFAULTS["test_episode_count"]  # of each task
    command = ["main.py", "--op_mode=test", f"--load={path}", f"--test_episode_count={count}"]
    actions = str((score.get("protocol") or plan.protocol).get("actions"))
    if (greedy := actions == "greedy") != settings.get("greedy", False):
        command.append("--greedy" if greedy else "--nogreedy")
    epsilon = re.fullmatch(r"epsilon-greedy \((.+)\)", actions)
    if epsilon and float(epsilon[1]) != settings.get("epsilon"):
        command.append(f"--epsilon={epsilon[1]}")
    if (seed := score.get("seed", settings.get("seed"))) != settings.get("seed"):
        command.append(f"--seed={seed}")
    return command


def _table(rows: dict[str, Any]) -> list[str]:
    cells = [(name, str(value).replace("|", "\\|").replace("\n", " ")) for name, value in rows.items()]
    head, *others = (f"| {name} | {value} |" for name, value in cells)
    return [head, "|---|---|", *others]
