"""The update of agents that take guarded steps on a batch, on a GPU as a CUDA graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from torch import Tensor

from agents.base import Updated
from agents.graphs import Outcome, UpdateGraphs
from agents.guarded import GuardedAgent
from agents.peers import Peers
from replay.batch import Batch


class SteppingAgent(GuardedAgent):
    """Subclasses take the steps of an update (`take_steps`). The arguments are those of `GuardedAgent`."""

    graphed: ClassVar[bool] = False
    """Whether calls of `recorded` can be CUDA graphs. Then they depend on their argument, on `variant` and on tensors that are
    changed in place, and never wait for the device. Subclasses do not inherit the value, because they may add other code."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._graphs = UpdateGraphs(self.recorded, self.guard) if self.uses_graphs else None

    @property
    def can_be_graphed(self) -> bool:
        return bool(vars(type(self)).get("graphed"))

    @abstractmethod
    def take_steps(self, batch: Batch) -> Outcome:
        """Take the guarded steps of an update and compute its metrics. `update` ends it."""

    @property
    def recorded(self) -> Callable[[Any], Any]:
        """The function whose calls can be CUDA graphs. An `update` of your own may name another one than `take_steps`."""
        return self.take_steps

    @property
    def variant(self) -> Hashable:
        """A key for the decisions that the host makes before an update. Each key has its own CUDA graph."""
        return None

    def before_update(self, progress: float) -> None:
        """Set values that follow the progress of the run, before an update's steps. progress: as for `update`."""

    def after_update(self, progress: float, sound: Tensor) -> None:
        """Set values that follow the progress of the run, after an update's steps.

        progress: the part of the run's budget that is used, in [0, 1]. sound: bool `[]` on the device, false if every step of
        the update was refused.
        """

    def update(self, batch: Batch, progress: float) -> Updated:
        learning_rate = self.set_learning_rate(progress)
        self.before_update(progress)
        found: Outcome = self.launched(batch, self.variant)
        self.end_update()
        self.after_update(progress, found.sound)
        # The next launch of a graph overwrites its results, and priorities are read after that.
        priorities = None if found.priorities is None else found.priorities.clone()
        return Updated(found.scalars, learning_rate, self.guard.steps if self.several_steps else None, priorities)

    def launched(self, given: Any, variant: Hashable = None) -> Any:
        """Call `recorded`, as a CUDA graph if possible. Returns its result, whose tensors are valid until the next call."""
        return self._graphs(given, variant) if self._graphs else self.recorded(given)

    def join(self, peers: Peers) -> None:
        super().join(peers)
        if peers.count > 1:
            self._graphs = None  # the host takes part in the exchange of gradients

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        super().load_state_dict(state, load_optimizer=load_optimizer)
        if self._graphs:
            self._graphs.forget()
