"""`policy.json`: the description of an exported policy's inputs, outputs and origin."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents.distributions import Distribution
from agents.networks.base import NetworkConfig
from agents.networks.q_network import Q_VALUES
from learner.building import agent_class, make_network_shapes
from learner.export.exported_policy import ACTION, INPUT, LOGITS, POLICY, STATE_IN, STATE_OUT, VALUES, leaf_names
from learner.plan import Plan
from learner.runs.checkpoint import Checkpoint
from learner.runs.directory import git_commit, package_versions
from learner.settings.config import Config
from wrappers import EnvSpec, describe_env
from wrappers.gymnasium_spaces import VECTOR
from wrappers.spaces import (
    ACTION_MASK,
    PREVIOUS_ACTION,
    PREVIOUS_REWARD,
    TASK,
    TASK_INPUT,
    ActionSpace,
    Box,
    Discrete,
    Leaf,
    MultiDiscrete,
)

FRAME_AXES = {0: (), 1: ("feature",), 2: ("height", "width"), 3: ("height", "width", "colour")}
"""Number of dimensions of a frame -> their names."""
RAW = "raw observations, 0 to 255 for uint8; the policy scales and calibrates them itself"


def describe(plan: Plan, checkpoint: Checkpoint, checkpoint_path: Path, differences: dict[str, float]) -> dict[str, Any]:
    """The content of `policy.json`."""
    config, spec = plan.config, plan.spec
    return {
        "env": spec.env,
        "protocol": plan.protocol,
        **_describe_inputs(config, spec),
        "outputs": _describe_outputs(plan),
        **_describe_state(plan.network),
        "actions": _describe_actions(spec.action),
        "network": config.network,
        "checkpoint": checkpoint_path.name,
        "training": asdict(checkpoint.counters),
        "largest_difference": differences,
        "versions": package_versions(),
        "git_commit": git_commit(),
    }


def _describe_inputs(config: Config, spec: EnvSpec) -> dict[str, Any]:
    """The part of `policy.json` about the observations: `input`, or `inputs` with an entry for each leaf."""
    frames = {"frames": "oldest first, newest last; zeros before the first frame of an episode"}
    steps = {"preprocessing": list(describe_env(config.env).preprocessing)}
    if not spec.leaves:
        return {"input": {**_describe_input(INPUT, Leaf(INPUT, spec.frame_shape, spec.frame_dtype), spec), **frames, **steps}}
    by_name = {leaf.name: leaf for leaf in spec.leaves}
    names = leaf_names(spec.leaves).items()
    return {"inputs": [_describe_input(name, by_name[leaf], spec) for name, leaf in names], **frames, **steps}


def _describe_input(name: str, leaf: Leaf, spec: EnvSpec) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": leaf.dtype,
        "shape": ["batch", spec.frames_stacked, *leaf.shape],
        "axes": ["batch", "frames", *FRAME_AXES[len(leaf.shape)]],
        "values": _meaning_of(leaf.name, spec.action),
    }


def _meaning_of(name: str, action: ActionSpace) -> str:
    """The meaning of the values of one leaf, in words."""
    one_hot = "one-hot" if isinstance(action, Discrete) else "a one-hot vector for each component, joined"
    taken = f"as {POLICY} describes it, before it is clipped and rescaled" if isinstance(action, Box) else one_hot
    meanings = {
        ACTION_MASK: "1 for a legal action, 0 for an illegal one; the newest frame decides",
        PREVIOUS_ACTION: f"the action before each frame, {taken}; zeros for an episode's first frame",
        PREVIOUS_REWARD: "the raw reward that came with each frame; zero for an episode's first frame",
        TASK: "the index of the environment in the list of the run, which only values depend on",
        TASK_INPUT: "the same index as a one-hot vector",
        VECTOR: "all vectors of the observation, joined in the order of its space and not scaled; discrete ones are one-hot",
    }
    return meanings.get(name, RAW)


def _describe_state(network: NetworkConfig) -> dict[str, Any]:
    """The part of `policy.json` about the core's state; empty without a core."""
    if not (size := make_network_shapes(network).state_size):
        return {}
    meaning = f"zeros at an episode's first observation, otherwise {STATE_OUT} of the observation before"
    return {"state": {"input": STATE_IN, "output": STATE_OUT, "shape": ["batch", size], "dtype": "float32", "values": meaning}}


def _describe_outputs(plan: Plan) -> dict[str, Any]:
    config, spec, network = plan.config, plan.spec, make_network_shapes(plan.network)
    return {
        **_describe_policy(network.distribution, spec),
        **({Q_VALUES: _describe_q_values(config, spec)} if Q_VALUES in network.exported else {}),
        **({} if VALUES not in network.exported else {VALUES: {"shape": ["batch"], "meaning": _value_meaning(config)}}),
        ACTION: {
            "shape": ["batch", *spec.action.shape],
            "dtype": spec.action.dtype,
            "meaning": _describe_deterministic(spec.action),
        },
    }


def _describe_deterministic(action: ActionSpace) -> str:
    """The meaning of the exported action."""
    if isinstance(action, Box):
        return "the deterministic action, as the environment takes it; to be rounded for whole numbers or truth values"
    return "the deterministic action, counted from 0; add the `start` of the environment's space if it has another"


def _describe_q_values(config: Config, spec: EnvSpec) -> dict[str, Any]:
    """The entry of the values of all actions."""
    several = ""
    if isinstance(spec.action, MultiDiscrete):
        several = " of each component, one component after the other; the mean over the components is the value of an action"
    meaning = f"{_value_meaning(config)}, of each action{several}; -1e9 if it is illegal"
    return {"shape": ["batch", spec.action.mask_size], "meaning": meaning}


def _describe_policy(distribution: Distribution | None, spec: EnvSpec) -> dict[str, Any]:
    """The entry of the policy's parameters; empty for a deterministic policy, whose action is all that it gives."""
    if distribution is None:
        return {}
    meaning, box = distribution.describe(), isinstance(spec.action, Box)
    if box:
        meaning += "; then clip the action to [-1, 1] and rescale it to the bounds, or only clip it if it has no two bounds"
    return {POLICY if box else LOGITS: {"shape": ["batch", distribution.parameter_count], "meaning": meaning}}


def _value_meaning(config: Config) -> str:
    return agent_class(config).value_meaning(config.agent_settings)


def _describe_actions(action: ActionSpace) -> list[str] | dict[str, Any]:
    """The names of the actions, or the space if they have none."""
    return list(action.meanings) if isinstance(action, Discrete) and action.meanings else action.to_json()
