"""Makes the input of a policy from observations that come from elsewhere, such as a client of a server.

A policy gets the same input as in training: the newest frames. If it was trained with the last action, the last reward or the
task, these follow each frame.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from setting import listed
from wrappers.many import index_leaves
from wrappers.previous import OBSERVATION, encode_actions
from wrappers.spaces import PREVIOUS_ACTION, PREVIOUS_REWARD, TASK_INPUT, Packing
from wrappers.spec import EnvConfig, EnvSpec


def one_environment(config: EnvConfig) -> EnvConfig:
    """The configuration of the environment, or of the first of several, without what the program adds to it."""
    return replace(config.tasks[0], core_inputs=False, episodic_count=0.0)


class PolicyInputs:
    """Pushes frames of the environment itself into the stacks that a policy was trained on.

    Args:
        spec: of the run.
        inner: of one environment, see `one_environment`.

    reads_task: whether the policy sees which of several environments it plays.
    """

    def __init__(self, spec: EnvSpec, inner: EnvSpec) -> None:
        names = [leaf.name for leaf in spec.leaves]
        self._spec, self._tasks = spec, spec.tasks if len(spec.tasks) > 1 else ()
        self.reads_task, self._has_previous = TASK_INPUT in names, PREVIOUS_ACTION in names
        self._packing = Packing(spec.leaves) if spec.leaves else None
        self._inner = Packing(inner.leaves) if inner.leaves else None
        self._no_action = np.zeros((1, *spec.action.shape), spec.action.dtype)

    def index_of(self, task: str | None, name: str = "task") -> int:
        """The index of a task by its id. A policy that does not read its task acts alike in all, and `task` may be None.

        name: of the argument or field that has the id. Raises ValueError.
        """
        if task is None and not self.reads_task:
            return 0
        if task not in self._spec.tasks:
            raise ValueError(f"{name}: wanted {listed(self._spec.tasks)}, got {'none' if task is None else task}")
        return self._spec.tasks.index(task)

    def empty(self) -> np.ndarray:
        """The stack before an episode's first frame, `[1, S, *frame_shape]`: zeros."""
        return np.zeros((1, *self._spec.observation_shape), self._spec.frame_dtype)

    def push(
        self, stack: np.ndarray, frame: np.ndarray, *, action: np.ndarray | None = None, reward: float = 0.0, task: int = 0
    ) -> np.ndarray:
        """A new stack with this frame as its newest, `[1, S, *frame_shape]`.

        frame: `[1, *frame_shape]` of the environment. action: `[1, *shape]`, the one before it; None for an episode's first
        frame. reward: that came with the frame. task: see `index_of`.
        """
        if self._has_previous or self._tasks:
            assert self._packing is not None
            values: dict[str, np.ndarray] = self._inner.unpack(frame) if self._inner else {OBSERVATION: frame}
            values |= index_leaves(np.array([task]), len(self._tasks))
            encoded = encode_actions(self._no_action if action is None else action, self._spec.action)
            values |= {PREVIOUS_ACTION: encoded * (action is not None), PREVIOUS_REWARD: np.full((1, 1), reward, np.float32)}
            frame = self._packing.pack(values)
        return np.concatenate((stack[:, 1:], frame[:, None]), axis=1)
