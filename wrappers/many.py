"""Several environments as the tasks of one run: `--env=PongNoFrameskip-v4,BreakoutNoFrameskip-v4`.

Environment i of a run plays task i mod K of its K tasks, so a worker's vector mixes them as evenly as it can. Their spaces are
equal. The index of its task is a leaf of every observation, which no torso reads: it travels with frames through slots, replays
and batches. With `--task_input` the one-hot index is a further leaf, a vector that the network reads like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from wrappers.infos import MOST_LEFT_OUT, MOST_NAMES, Infos
from wrappers.previous import OBSERVATION, FrameStacks
from wrappers.spaces import TASK, TASK_INPUT, ActionSpace, Discrete, Leaf, Packing
from wrappers.spec import FAILURES, EnvConfig, EnvDescription, EnvSpec, Step, VectorEnv

MOST_TASKS = 256
"""An index is one byte."""


def joined_spec(config: EnvConfig, specs: Sequence[EnvSpec]) -> EnvSpec:
    """The spec of all tasks, whose observations have the leaves of one task and those of its index.

    The spec names no goals and no meanings of actions, which may differ. specs: of some of the tasks, at least one. Raises
    ValueError in one line for tasks whose spaces differ.
    """
    first, count = specs[0], len(config.tasks)
    for other in specs[1:]:
        _check_equal(first, other)
    leaves = first.leaves or (Leaf(OBSERVATION, first.frame_shape, first.frame_dtype),)
    if taken := {leaf.name for leaf in leaves} & {TASK, TASK_INPUT}:
        raise ValueError(f"env: wanted observations without an entry {taken.pop()}, got one in {first.env}")
    leaves = (*leaves, Leaf(TASK, (1,), "uint8"), *([Leaf(TASK_INPUT, (count,), "float32")] if config.task_input else []))
    spec = replace(first, env=config.env, action=_unnamed(first.action), goals=None)
    return replace(spec, leaves=leaves, frame_shape=(Packing(leaves).size,), frame_dtype="uint8")


def joined_description(config: EnvConfig, found: Sequence[EnvDescription]) -> EnvDescription:
    """The facts about all tasks. found: those about each. Names and protocols are those of the first, the family's."""
    first = found[0].evaluation_config
    phrases = tuple(text for text in found[0].protocol_text if all(text in each.protocol_text for each in found))
    return replace(
        found[0],
        evaluation_config=replace(first, env=config.env, core_inputs=config.core_inputs, task_input=config.task_input),
        protocol_text=phrases,  # without those of the first that are not true of all, such as its time limit
        game_name=None,
        start_seconds=max(each.start_seconds for each in found),
        reset_seconds=max(each.reset_seconds for each in found),
        needs_close=any(each.needs_close for each in found),
        has_pictures=all(each.has_pictures for each in found),
    )


def index_leaves(tasks: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """The leaves of the index of each environment's task, int64 `[N]`, of `count` tasks; a frame may hold only the first."""
    return {TASK: tasks[:, None], TASK_INPUT: np.eye(max(1, count), dtype=np.float32)[tasks]}


def _unnamed(action: ActionSpace) -> ActionSpace:
    return Discrete(action.count) if isinstance(action, Discrete) else action


def _check_equal(first: EnvSpec, other: EnvSpec) -> None:
    """Raise ValueError, which names the first difference, if the spaces of two tasks are not equal."""

    def leaves(spec: EnvSpec) -> str:
        parts = [f"{leaf.name} {list(leaf.shape)} {leaf.dtype}" for leaf in spec.leaves]
        return ", ".join(parts) or f"{list(spec.frame_shape)} {spec.frame_dtype}"

    def action(spec: EnvSpec) -> str:
        same, space = spec.action.summary() == (first if spec is other else other).action.summary(), spec.action
        return str(_unnamed(space).to_json()) if same else space.summary()

    for name, got in (
        ("observations", [(leaves(spec), leaves(spec)) for spec in (first, other)]),
        ("actions", [(_unnamed(spec.action), action(spec)) for spec in (first, other)]),
        ("frames in a step", [(spec.frames_per_step, str(spec.frames_per_step)) for spec in (first, other)]),
    ):
        if got[0][0] != got[1][0]:
            raise ValueError(
                f"env: wanted environments with equal {name}, got {got[0][1]} in {first.env} and {got[1][1]} in {other.env}"
            )


class ManyEnv(VectorEnv):
    """N environments that play the tasks in turn: environment i plays task (first + i) mod K.

    The j-th environment of each task gets the seed `seed + j`.

    Args:
        config: with the tasks.
        num_envs: N, at least 1.
        first: number of environment 0 in the run.
        make: makes some environments of one task.
    """

    def __init__(self, config: EnvConfig, num_envs: int, first: int, make: Callable[[EnvConfig, int], VectorEnv]) -> None:
        count = len(config.tasks)
        tasks = (first + np.arange(num_envs)) % count
        self._parts: list[tuple[slice, VectorEnv]] = []
        try:
            for index, task in enumerate(config.tasks):
                if playing := int((tasks == index).sum()):
                    self._parts.append((slice((index - first) % count, None, count), make(task, playing)))
            self.spec = joined_spec(config, [env.spec for _, env in self._parts])
        except FAILURES:
            self.close()
            raise
        self.num_envs = num_envs
        self.needs_close = any(env.needs_close for _, env in self._parts)
        inner = self._parts[0][1].spec.leaves
        self._inner, self._stacks = Packing(inner) if inner else None, FrameStacks(self.spec, num_envs)
        self._index = index_leaves(tasks, count)
        self._names: dict[str, int] = {}  # of infos, to their columns

    def reset(self, seed: int) -> np.ndarray:
        self._stacks.clear(np.ones(self.num_envs, bool))
        return self._push([(rows, env.reset(seed)) for rows, env in self._parts])

    def step(self, actions: np.ndarray) -> Step:
        steps = [(rows, env.step(np.ascontiguousarray(actions[rows]))) for rows, env in self._parts]

        def joined(name: str) -> np.ndarray:
            return self._joined([(rows, getattr(step, name)) for rows, step in steps])

        fields = {name: joined(name) for name in Step._fields if name not in ("observations", "infos")}
        self._stacks.clear(fields["reset"])
        observations = self._push([(rows, step.observations) for rows, step in steps])
        return Step(observations, **fields, infos=self._joined_infos([(rows, step.infos) for rows, step in steps]))

    def render(self) -> np.ndarray:
        return self._parts[0][1].render()

    def close(self) -> None:
        for _, env in self._parts:
            env.close()

    def _joined(self, parts: Sequence[tuple[slice, np.ndarray]]) -> np.ndarray:
        """`[N, ...]` of the arrays of each task."""
        array = np.empty((self.num_envs, *parts[0][1].shape[1:]), parts[0][1].dtype)
        for rows, values in parts:
            array[rows] = values
        return array

    def _push(self, parts: Sequence[tuple[slice, np.ndarray]]) -> np.ndarray:
        """The observations `[N, S, bytes]` with the newest frames of each task, from `[n, S, *frame_shape]`."""
        newest = self._joined([(rows, observations[:, -1]) for rows, observations in parts])
        values = self._inner.unpack(newest) if self._inner else {OBSERVATION: newest}
        return self._stacks.push({**values, **self._index})

    def _joined_infos(self, parts: Sequence[tuple[slice, Infos | None]]) -> Infos | None:
        """The numbers of all tasks. Those of one name share a column, and a task without the name has NaN there."""
        values = np.full((self.num_envs, MOST_NAMES), np.nan)
        for rows, infos in parts:
            for column, name in enumerate(infos.names if infos else ()):
                if name in self._names or len(self._names) < MOST_NAMES + MOST_LEFT_OUT:
                    own = self._names.setdefault(name, len(self._names))
                    if infos and column < MOST_NAMES and own < MOST_NAMES:
                        values[rows, own] = infos.values[:, column]
        return Infos(tuple(self._names), values) if self._names else None


class ManySingle(ManyEnv):
    """One environment that can be rendered. A reset with a seed begins task `seed` mod K, which is played until the next one.

    make: makes the environment of one task.
    """

    def __init__(self, config: EnvConfig, make: Callable[[EnvConfig], VectorEnv]) -> None:
        self._config, self._make = config, make
        self._begin(0)

    def reset(self, seed: int) -> np.ndarray:
        if (index := seed % len(self._config.tasks)) != int(self._index[TASK][0, 0]):
            self.close()
            self._begin(index)
        return super().reset(seed)

    def _begin(self, index: int) -> None:
        super().__init__(self._config, 1, index, lambda task, _: self._make(task))
