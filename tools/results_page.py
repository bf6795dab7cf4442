"""Writes the tables of docs/results.md and README.md that are made from the curves in docs/curves/.

    python -m tools.results_page

A table stands between the lines `<!-- table: NAME -->` and `<!-- end of table -->`. `TABLES` has the names. Keep a new run with
`python -m tools.curves keep`. The end of a run whose curve is not kept is a line of ends.csv, and the mean return of test
episodes is one of evaluations.csv. Both have the columns of a table of curves. Published scores have seed 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from checked_files import replacing
from tools.curves import FEW, Curve, read_table
from tools.tables import Table, markdown
from tools.termination import REPOSITORY, end_with

CURVES = REPOSITORY / "docs" / "curves"
PAGES = (REPOSITORY / "docs" / "results.md", REPOSITORY / "README.md")
TRAINING = ("atari_small.csv", "atari_agents.csv", "rl_zoo.csv", "ends.csv")
TESTS = "evaluations.csv"
ATARI, SKIPPED = "NoFrameskip-v4", 4  # end of the id of an Atari game; frames of a step
MILESTONES = (0.5, 1.0, 1.5, 2.0, 2.5)  # million steps
CHOSEN = (
    ("CartPole-v1", "ppo_cartpole"),
    ("LunarLander-v3", "lunar_lander"),
    ("BipedalWalker-v3", "sac_bipedal_walker"),
    ("HalfCheetah-v4", "sac_halfcheetah"),
    ("Humanoid-v4", "crossq_mujoco"),
    ("MinAtar/Asterix-v1", "pqn_minatar, half its steps"),
    ("MinAtar/Seaquest-v1", "pqn_minatar, half its steps"),
    ("Pong" + ATARI, "pong_fast"),
    ("Breakout" + ATARI, "IMPACT"),
    ("Breakout" + ATARI, "V-trace, half replayed"),
    ("MsPacman" + ATARI, "V-trace, half replayed"),
    ("BeamRider" + ATARI, "atari_10m"),
    ("Enduro" + ATARI, "atari_10m"),
    ("MiniGrid-DoorKey-8x8-v0", "minigrid_doorkey"),
)
"""Environments and settings of the table in README.md."""
REGION = re.compile(r"(<!-- table: ([^\n]+) -->\n).*?(<!-- end of table -->)", re.S)
Key = tuple[str, str]
"""Environment and setting."""


def training_curves() -> list[Curve]:
    return [curve for name in TRAINING for curve in read_table(CURVES / name)]


def by_key(curves: Sequence[Curve]) -> dict[Key, list[Curve]]:
    """Return the curves of each environment and setting. Atari games come first, and published settings last in each."""
    found: dict[Key, list[Curve]] = {}
    for curve in sorted(curves, key=lambda curve: (not curve.env.endswith(ATARI), curve.env, curve.seed == 0, curve.setting)):
        found.setdefault((curve.env, curve.setting), []).append(curve)
    return found


def all_results(chosen: Sequence[Key] = ()) -> Table:
    """Return a row for each environment and setting, or for the chosen ones in their order."""
    training, tests = by_key(training_curves()), by_key(read_table(CURVES / TESTS))
    keys = chosen or list(by_key([curve for found in (training, tests) for curves in found.values() for curve in curves]))
    rows = []
    for env, setting in keys:
        trained, tested = training.get((env, setting), []), tests.get((env, setting), [])
        steps = max(steps_of(curve)[-1] for curve in [*trained, *tested])
        seeds = {curve.seed for curve in [*trained, *tested]} - {0}
        rows.append([game(env), shown(setting), f"{round(steps, -3):,.0f}", str(len(seeds) or ""), ends(trained), ends(tested)])
    return Table(["environment", "setting", "steps", "seeds", "last 100 training episodes", "test episodes"], rows)


def milestones(*settings: str) -> Table:
    """Return the mean return over seeds at `MILESTONES`, for the Atari games that the first setting has trained to the end."""
    found = by_key([curve for curve in training_curves() if curve.setting in settings])
    order = sorted(found, key=lambda key: (key[0], settings.index(key[1])))
    rows = [
        [game(env), shown(setting), *[at(found[env, setting], million * 1e6) for million in MILESTONES]]
        for env, setting in order
        if env.endswith(ATARI) and at(found.get((env, settings[0]), []), MILESTONES[-1] * 1e6)
    ]
    return Table(["game", "setting", *[f"{million:g} million steps" for million in MILESTONES]], rows)


def at(curves: Sequence[Curve], steps: float) -> str:
    """Return the mean over the curves that reach these steps; those of few points count at their own points only."""
    values = []
    for curve in curves:
        points = steps_of(curve)
        near = np.isclose(points, steps, rtol=1e-3)
        if near.any():
            values.append(curve.returns[near][-1])
        elif len(points) > FEW and points[0] <= steps <= points[-1]:
            values.append(np.interp(steps, points, curve.returns))
    return number(float(np.mean(values))) if values else ""


def ends(curves: Sequence[Curve]) -> str:
    """Return the mean of the curves' last returns, with the lowest and the highest if they differ."""
    if not curves:
        return ""
    last = np.array([curve.returns[-1] for curve in curves])
    mean, low, high = number(last.mean()), number(last.min()), number(last.max())
    return mean if low == high else f"{mean} ({low} to {high})"


def steps_of(curve: Curve) -> np.ndarray:
    return curve.frames / (SKIPPED if curve.env.endswith(ATARI) else 1)


def game(env: str) -> str:
    return env.removesuffix(ATARI)


def shown(setting: str) -> str:
    """Return the setting with its preset, if it begins with one, as code."""
    name = re.match(r"\w+", setting)
    preset = name and (REPOSITORY / "presets" / f"{name[0]}.json").is_file()
    return f"`{name[0]}`{setting[name.end() :]}" if name and preset else setting


def number(value: float) -> str:
    """Return a return with two decimals below 10, one below 1,000, and none above."""
    decimals = 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
    return f"{value:,.{decimals}f}"


PPO_ZOO, DQN_ZOO, A2C_ZOO = (f"{agent} of rl-baselines3-zoo" for agent in ("PPO", "DQN", "A2C"))
REPLAYED = "V-trace, half replayed"
TABLES: Mapping[str, Callable[[], Table]] = {
    "all": all_results,
    "chosen": lambda: all_results(CHOSEN),
    "default settings": lambda: milestones("V-trace", A2C_ZOO, PPO_ZOO, DQN_ZOO),
    "normalised advantages": lambda: milestones("V-trace, normalised advantages", "V-trace", PPO_ZOO, DQN_ZOO),
    "half replayed": lambda: milestones(REPLAYED, f"{REPLAYED}, CLEAR", f"{REPLAYED}, LASER", "V-trace", PPO_ZOO, DQN_ZOO),
    "agents": lambda: milestones("APPO", "IMPACT", "PPO", "V-trace", PPO_ZOO),
}
"""Name -> the table that pages include by it."""


def filled(text: str) -> str:
    """Return a page with its tables made anew. Raises KeyError for an unknown table."""
    return REGION.sub(lambda region: f"{region[1]}\n{markdown(TABLES[region[2]]())}\n\n{region[3]}", text)


def main() -> None:
    for page in PAGES:
        text = page.read_text()
        with replacing(page) as new_file:
            new_file.write_text(filled(text))
        print(f"{page.relative_to(REPOSITORY)}: {len(REGION.findall(text))} tables")


if __name__ == "__main__":
    end_with(main)
