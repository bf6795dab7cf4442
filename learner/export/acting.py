"""A trained policy that acts outside of the program's environments: raw observations in, actions as the environment takes them.

`springbok.load` returns a `Policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks.base import FeatureNetwork, NetworkOutput, make_network
from learner.plan import Plan
from learner.policy_inputs import PolicyInputs, one_environment
from learner.prepare import prepare
from learner.runs.checkpoint import ACTING_MODULE
from workers.finite import NotFiniteError
from wrappers import close_quietly, make_single_env
from wrappers.folder import FolderEnv
from wrappers.gymnasium_contract import ContractError, check_observation
from wrappers.gymnasium_spaces import FrameBuffer
from wrappers.gymnasium_vector import TranslatedEnv, Translation
from wrappers.previous import OBSERVATION
from wrappers.spaces import Box, Packing
from wrappers.spec import EnvConfig, EnvSpec


class PolicyState(NamedTuple):
    """Memory of a policy within an episode. frames: `[1, S, *frame_shape]`. core: `[1, K]`, or None. action: `[1, *shape]`."""

    frames: np.ndarray
    core: Tensor | None
    action: np.ndarray


class Policy:
    """A trained policy, on the CPU. `act` keeps nothing, so one policy may play any number of episodes at once.

    Args:
        plan: of the run.
        network: with the trained weights.
        inner: the spec of the environment without the inputs of a core.
        translation: of the environment's observations and actions; None for a family whose own frames are the observations.
        seed: of actions that are sampled.

    env: the environment's id.
    """

    def __init__(self, plan: Plan, network: FeatureNetwork, inner: EnvSpec, translation: Translation | None, seed: int) -> None:
        self.env = plan.spec.env
        self._spec = plan.spec
        self._network = network.eval()
        self._translation = translation
        self._inputs = PolicyInputs(plan.spec, inner)
        self._inner = inner
        self._epsilon = plan.config.epsilon or 0.0
        self._generator = torch.Generator().manual_seed(seed)

    def act(
        self,
        observation: Any,
        state: PolicyState | None = None,
        greedy: bool = True,
        *,
        mask: Any = None,
        reward: float = 0.0,
        task: str | None = None,
    ) -> tuple[Any, PolicyState]:
        """The action for an observation, as the environment's `step` takes it, and the state for the next observation.

        Raises ValueError for an observation that the environment's space does not have, and NotFiniteError for a policy that
        diverged.

        Args:
            observation: as the environment returns it, not batched. On Atari one preprocessed frame, such as uint8 `[84, 84]`.
            state: from the call before; None at an episode's first observation.
            greedy: whether to take the best action instead of sampling one as in training.
            mask: legal actions, for an environment that has them in `info`.
            reward: that came with the observation, for a policy that sees rewards (`core_inputs`).
            task: id of the environment that is played, for a policy of several that reads it (`task_input`).
        """
        before, last = (self._inputs.empty(), None) if state is None else (state.frames, state.action)
        frame = self._frame(observation, mask)
        frames = self._inputs.push(before, frame, action=last, reward=reward, task=self._inputs.index_of(task))
        core, action = self._choose(frames, state, greedy)
        return self._decode(action), PolicyState(frames, core, action)

    def _frame(self, observation: Any, mask: Any) -> np.ndarray:
        """The frame of the environment itself, `[1, *frame_shape]`. Raises ValueError."""
        if self._translation is None:
            return self._given_frame(observation)
        plan = self._translation.plan
        buffer = FrameBuffer(plan, 1)
        try:
            check_observation(plan, observation)
            buffer.put(0, observation, {plan.mask_in_info: mask} if plan.mask_in_info and mask is not None else {})
            return buffer.frames()
        except (ContractError, RuntimeError) as error:
            raise ValueError(str(error)) from error

    def _given_frame(self, observation: Any) -> np.ndarray:
        """A frame of a family without a translation, or a dict of its leaves. Raises ValueError for another shape."""
        leaves = {leaf.name: leaf.shape for leaf in self._inner.leaves} or {OBSERVATION: self._inner.frame_shape}
        parts = observation if isinstance(observation, Mapping) else {OBSERVATION: observation}
        shapes = {name: np.shape(value) for name, value in parts.items()}
        if shapes != leaves:
            raise ValueError(f"observation: wanted {leaves}, got {shapes}")
        rows = {name: np.asarray(value)[None] for name, value in parts.items()}
        if self._inner.leaves:
            return Packing(self._inner.leaves).pack(rows)
        given = rows[OBSERVATION]
        frame = given.astype(self._inner.frame_dtype)
        if frame.dtype.kind != "f" and not np.array_equal(frame, given):
            raise ValueError(
                f"observation: wanted numbers of {frame.dtype}, got others, such as {given[frame != given].flat[0]}"
            )
        return frame

    @torch.inference_mode()
    def _choose(self, frames: np.ndarray, state: PolicyState | None, greedy: bool) -> tuple[Tensor | None, np.ndarray]:
        """The core's next state, and the action in the program's own space, `[1, *shape]`. Raises NotFiniteError."""
        network = self._network
        before = state.core if state else torch.zeros(1, network.state_size) if network.state_size else None
        output, features, core = network.infer(torch.from_numpy(frames), before)
        if not all(tensor.isfinite().all() for tensor in output):
            raise NotFiniteError("the policy's outputs are not finite: its training diverged")
        exploration = torch.full((1, 1), self._epsilon) if network.explores_by_epsilon else None
        chosen = network.choose(NetworkOutput(output, features), self._generator, exploration, greedy=greedy)
        return core, chosen.actions.numpy()

    def _decode(self, action: np.ndarray) -> Any:
        """The action as the environment takes it."""
        space = self._spec.action
        if self._translation:
            return self._translation.decode(space.check(action, 1))[0]
        if isinstance(space, Box):
            return space.to_environment(action)[0]
        return action[0] if space.shape else int(action[0])


def load_policy(load: str, seed: int = 1) -> Policy:
    """The policy of a checkpoint. load: as the setting `load` has it. Raises ValueError with one line."""
    job = prepare("test", {"load": load, "device": "cpu"}, ["springbok.load"])
    assert job.checkpoint is not None
    weights = job.checkpoint.agent["modules"][ACTING_MODULE]
    if not all(torch.isfinite(value).all() for value in weights.values()):
        raise ValueError(f"load: wanted finite weights, got a checkpoint whose training diverged: {job.checkpoint_path}")
    network = make_network(job.plan.network)
    network.load_state_dict(weights)
    return Policy(job.plan, network, *_translation_of(job.config.env), seed)


def _translation_of(config: EnvConfig) -> tuple[EnvSpec, Translation | None]:
    """The spec of the environment, or of the first of several, and how observations and actions are translated, if they are.

    Raises ValueError.
    """
    made = env = make_single_env(one_environment(config))
    close_quietly(made)
    while isinstance(env, FolderEnv):
        env = env.env
    return env.spec, env.translation if isinstance(env, TranslatedEnv) else None
