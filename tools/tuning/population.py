"""Population-based training (Jaderberg et al. 2017, arXiv:1711.09846, and appendix of IMPALA, arXiv:1802.01561).

All members train for a round. Then a member may take over the weights of a better one (exploit), and only then change its
settings at random (explore). The journal has a line for each round, so a command that is repeated continues the round that was
running.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from checked_files import checked
from learner.runs.checkpoint import load_checkpoint, save_checkpoint
from learner.runs.directory import second_name
from learner.settings.schema import agent_settings
from setting import Log, OneOf, Search
from tools.plan import PlannedRun
from tools.programs import Program, Starter
from tools.summary import read_config
from tools.tuning.ranges import contains
from tools.tuning.study import COMPLETE, FAILED, MARKS, RUNNING, StudyPlan, Trial, assigned, reason_of, score_of

JOURNAL = "population.jsonl"
FACTOR = 1.2
"""A number is multiplied by it, or divided."""
CHANCE = 1 / 3
"""Probability that a setting is changed after a copy."""
BETTER = 0.05
"""IMPALA's part by which another member's score must be higher to be copied."""
TRUNCATED = 5
"""Jaderberg's truncation: the worst fifth copies the best fifth."""


@dataclass(frozen=True)
class Round:
    """A round that has ended.

    Args:
        scores: of each member; None if it failed or had no episode.
        sources: the member that each one copies, None for none. Nothing is copied after the last round.
        values: the searched settings of each member in the next round; after the last round those that it had in it.
        steps: of each member's checkpoint at the end of the round.
    """

    scores: list[float | None]
    sources: list[int | None]
    values: list[dict[str, Any]]
    steps: list[int]


class TunedPopulation:
    """The members of a study. Raises ValueError with one line if the journal of an earlier command is damaged.

    Args:
        study: what is searched.
        start: starts a run.
        parts: the cores of each run that trains at the same time.
    """

    def __init__(self, study: StudyPlan, start: Starter, parts: Sequence[Sequence[int]]) -> None:
        self.study, self._start, self._parts = study, start, parts
        self.budget = int({**study.defaults, **study.settings}["environment_max_steps"])
        self.period = study.tuning.member_steps or -(-self.budget // 10)
        self.rounds = self._read()
        self.failed: dict[int, str] = {}
        self._running: dict[int, tuple[int, Program]] = {}  # part -> member and its program

    @property
    def count(self) -> int:
        """Number of members."""
        return self.study.tuning.members

    def values(self, member: int) -> dict[str, Any]:
        """The searched settings of a member in the present round."""
        if self.rounds:
            return self.rounds[-1].values[member]
        given, generator = self.study.given_values, np.random.default_rng([self.study.seed, 0, member])
        if member == 0 and all(contains(search, given[name]) for name, search in self.study.ranges.items()):
            return given
        return {name: self._typed(name, drawn(search, generator)) for name, search in self.study.ranges.items()}

    def plan(self, member: int) -> PlannedRun:
        """The run of a member up to the end of the present round."""
        end = min(self.budget, self.period * (len(self.rounds) + 1))
        stop = {} if end == self.budget else {"stop_at_steps": end}
        plan = self.study.planned(member + 1, {**self.values(member), **stop})[0]
        return replace(plan, seed=self.study.seed + member)

    def make(self, should_stop: Callable[[], bool], look_seconds: float) -> None:
        """Train in rounds until the budget is used, or until a stop is asked for."""
        while self.period * len(self.rounds) < self.budget and not should_stop():
            if self.rounds:
                self._copy(self.rounds[-1])
            if not self._train(should_stop, look_seconds) or len(self.failed) == self.count:
                return  # a round in which all have failed is made again by the next command
            self._end_round()

    def _train(self, should_stop: Callable[[], bool], look_seconds: float) -> bool:
        """Let all members reach the end of the round. Returns whether they have."""
        waiting = [member for member in range(self.count) if self._is_short(member)]
        while waiting or self._running:
            for part, cores in enumerate(self._parts):
                if part not in self._running and waiting and not should_stop():
                    plan = self.plan(member := waiting.pop(0))
                    plan.folder.mkdir(parents=True, exist_ok=True)
                    self._running[part] = member, self._start(plan, cores)
            for part, (member, program) in list(self._running.items()):
                if should_stop():
                    program.stop()
                if (code := program.wait(0)) is not None:
                    del self._running[part]
                    if code and not should_stop():
                        self.failed[member] = reason_of(self.plan(member).folder, code)
            if should_stop() and not self._running:
                return False
            time.sleep(look_seconds)
        return True

    def _is_short(self, member: int) -> bool:
        plan = self.plan(member)
        end = plan.settings.get("stop_at_steps", self.budget)
        return member not in self.failed and int(plan.summary().get("steps", 0)) < end

    def _end_round(self) -> None:
        """Decide who copies whom, keep the checkpoints that are copied, and write the line of the round."""
        number = len(self.rounds) + 1
        generator = np.random.default_rng([self.study.seed, number])
        plans = [self.plan(member) for member in range(self.count)]
        newest = [run.checkpoint_paths()[-1:] if (run := plan.run()) else [] for plan in plans]
        scores = [
            None if member in self.failed or not newest[member] else score_of(plan, self.study.score)
            for member, plan in enumerate(plans)
        ]
        is_last = self.period * number >= self.budget  # a copy would never train, and its score would belong to other values
        sources = [None] * self.count if is_last else choose_sources(scores, self.study.tuning.exploit, generator)
        sources = [source if newest[member] else None for member, source in enumerate(sources)]
        values = [
            self.values(member) if source is None else self._explored(self.values(source), generator)
            for member, source in enumerate(sources)
        ]
        for copied in {source for source in sources if source is not None}:
            kept = self._kept(number, copied)
            kept.parent.mkdir(exist_ok=True)
            second_name(newest[copied][0], kept)
        steps = [load_checkpoint(paths[0]).counters.steps if paths else 0 for paths in newest]
        ended = Round(scores, sources, values, steps)
        with (self.study.folder / JOURNAL).open("a") as file:
            file.write(json.dumps(vars(ended)) + "\n")
        self.rounds.append(ended)
        self.failed = {member: why for member, why in self.failed.items() if sources[member] is None}
        for member, source in enumerate(sources):
            if source is not None:
                print(f"Round {number}: member {member + 1} copies member {source + 1}, {assigned(values[member])}", flush=True)

    def _kept(self, number: int, member: int) -> Path:
        return self.study.folder / "sources" / f"round_{number:03d}_member_{member + 1}.pt"

    def _copy(self, ended: Round) -> None:
        """Give members the network, optimiser, moments and targets of others; steps, replay and seed stay their own.

        A checkpoint that is later than the round has them already.
        """
        for member, source in enumerate(ended.sources):
            run = self.plan(member).run()
            if source is None or run is None:
                continue
            newest = run.checkpoint_paths()[-1]
            own = load_checkpoint(newest)
            if own.counters.steps == ended.steps[member]:
                other = load_checkpoint(self._kept(len(self.rounds), source))
                taken = replace(own, agent=other.agent, learning_rate=other.learning_rate, returns=other.returns)
                save_checkpoint(newest, replace(taken, infos=other.infos, task_returns=other.task_returns))

    def _explored(self, values: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        ranges = self.study.ranges
        return {
            name: self._typed(name, changed(value, ranges[name], generator)) if generator.random() < CHANCE else value
            for name, value in values.items()
        }

    def _typed(self, name: str, value: Any) -> Any:
        return round(value) if agent_settings(self.study.agent)[name].type is int else float(value)

    def _read(self) -> list[Round]:
        """The rounds of earlier commands. A kill may have left a part of a line."""
        path = self.study.folder / JOURNAL
        text = path.read_text() if path.is_file() else ""
        lines = text[: text.rfind("\n") + 1]
        if lines != text:
            path.write_text(lines)
        return [self._checked(path, number, line) for number, line in enumerate(lines.splitlines(), 1)]

    def _checked(self, path: Path, number: int, line: str) -> Round:
        """The round of a line. Raises ValueError if it is not one of this study."""
        wanted = f"{path}: wanted the round {number} of {self.count} members"
        try:
            content = checked(json.loads(line), wanted, dict.fromkeys(("scores", "sources", "values", "steps"), list))
        except json.JSONDecodeError:
            raise ValueError(f"{wanted}, got {line[:80]!r}") from None
        if any(len(each) != self.count for each in content.values()) or len(content) > len(Round.__dataclass_fields__):
            raise ValueError(f"{wanted}, got {line[:80]!r}")
        return Round(**content)

    def trials(self) -> list[Trial]:
        """The members as trials, each with its score after every round."""
        done = self.period * len(self.rounds) >= self.budget
        found = []
        for member in range(self.count):
            scores = [ended.scores[member] for ended in self.rounds]
            share = MARKS / max(1, -(-self.budget // self.period))
            curve = {math.ceil(share * number): score for number, score in enumerate(scores, 1) if score is not None}
            score = scores[-1] if scores else None
            reason = self.failed.get(member, "")
            if done and score is None and not reason:
                has_ended = self.rounds[-1].steps[member] >= self.budget  # an earlier command knew why it did not
                reason = "no episode has ended in its run" if has_ended else "its run has not reached its end"
            state = FAILED if reason else COMPLETE if done else RUNNING
            run = self.plan(member).run()
            batch_size = read_config(run)["settings"]["batch_size"] if run else None
            found.append(Trial(member + 1, self.values(member), state, score, reason, curve, batch_size))
        return found

    def kill(self) -> None:
        """End all runs at once."""
        for _, program in self._running.values():
            program.kill()


def choose_sources(scores: Sequence[float | None], exploit: str, generator: np.random.Generator) -> list[int | None]:
    """The member that each one copies, None for none. exploit: compare (IMPALA), truncate (Jaderberg) or none."""
    worth = [-math.inf if score is None else score for score in scores]
    found: list[int | None] = [None] * len(scores)
    if exploit == "truncate" and len(scores) > 1:
        order = sorted(range(len(scores)), key=worth.__getitem__)
        few = max(1, len(scores) // TRUNCATED)
        for member in order[:few]:
            source = int(generator.choice(order[-few:]))
            found[member] = source if worth[source] > worth[member] else None
    if exploit == "compare" and len(scores) > 1:
        for member, own in enumerate(worth):
            other = int(generator.choice([each for each in range(len(scores)) if each != member]))
            margin = BETTER * abs(own) if math.isfinite(own) else 0.0
            found[member] = other if worth[other] > own + margin else None
    return found


def drawn(search: Search, generator: np.random.Generator) -> Any:
    """A value of the range."""
    if isinstance(search, OneOf):
        return search.values[generator.integers(len(search.values))]
    if isinstance(search, Log):
        return math.exp(generator.uniform(math.log(search.low), math.log(search.high)))
    return generator.uniform(search.low, search.high)


def changed(value: Any, search: Search, generator: np.random.Generator) -> Any:
    """A number times or over `FACTOR` within its range, or the value before or after it in a list."""
    up = generator.random() < 0.5
    if isinstance(search, OneOf):
        place = search.values.index(value) + (1 if up else -1)
        return search.values[min(max(place, 0), len(search.values) - 1)]
    moved = value * FACTOR if up else value / FACTOR
    if isinstance(value, int):  # 1 and 2 would be rounded back to themselves
        moved = max(value + 1, round(moved)) if up else min(value - 1, round(moved))
    return min(max(moved, search.low), search.high)
