"""Exports a trained policy for use outside this program: a PyTorch file, an ONNX file and a description of their inputs.

`policy.pt2` is written by `torch.export`, since TorchScript is deprecated. `policy.onnx` runs on any ONNX runtime, without
PyTorch. `policy.json` describes inputs and outputs. Both policy files contain the scaling and calibration of the input, so they
accept raw observations. Each file is loaded again and compared with the network on real observations.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agents.distributions import make_distribution
from agents.networks.actor_critic import ActorCritic
from agents.networks.base import FeatureNetwork, make_network
from learner.building import agent_class, make_network_config, make_network_shapes
from learner.evaluation.protocol import evaluation_protocol
from learner.runs.checkpoint import ACTING_MODULE, Checkpoint
from learner.runs.directory import git_commit, package_versions
from learner.settings.config import Config
from workers import random_observations
from wrappers import EnvSpec, describe_env, make_spec
from wrappers.spaces import ActionSpace, Box, Discrete

log = logging.getLogger("springbok")

PROGRAM, ONNX, DESCRIPTION = "policy.pt2", "policy.onnx", "policy.json"
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INPUT = "observations"
STATE_IN, STATE_OUT = "state_in", "state_out"  # of a network with a core
FRAME_AXES = {1: ("feature",), 2: ("height", "width"), 3: ("height", "width", "colour")}
"""Number of dimensions of a frame -> their names."""
CHECKED = 64
"""Number of observations on which an exported file is compared with the network."""
TOLERANCE = 1e-3
"""Largest accepted difference of a number, relative to numbers above 1. Another runtime adds float32 numbers in another
order."""

Outputs = tuple[Tensor, ...]


class ExportedPolicy(nn.Module):
    """The network with plain tensors as outputs: `[N, *observation_shape]` -> policy `[N, P]`, values `[N]`, action `[N, ...]`.

    The action is the deterministic one, as the environment takes it. With a core it also takes the state `[N, K]` and returns
    the next one.
    """

    def __init__(self, network: ActorCritic) -> None:
        super().__init__()
        self.network = network
        self.scale = ToEnvironment(network.config.action) if isinstance(network.config.action, Box) else nn.Identity()

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs. The parameters are called `logits` if they are the logits of choices."""
        policy = "policy" if isinstance(self.network.config.action, Box) else "logits"
        return (policy, "values", "action", *([STATE_OUT] if self.network.state_size else []))

    def forward(self, observations: Tensor, state_in: Tensor | None = None) -> Outputs:
        output, _, state_out = self.network.think(observations, state_in)
        distribution = self.network.distribution
        outputs = (output.policy, output.values, self.scale(distribution.action(distribution.mode(output.policy))))
        return outputs if state_out is None else (*outputs, state_out)


class ToEnvironment(nn.Module):
    """`Box.to_environment` for tensors."""

    low: Tensor
    high: Tensor
    middle: Tensor
    half_width: Tensor

    def __init__(self, box: Box) -> None:
        super().__init__()
        bounded, low, high = (torch.tensor(values) for values in (box.bounded, box.low, box.high))
        below, above = torch.where(bounded, low, -1.0), torch.where(bounded, high, 1.0)
        self.register_buffer("low", torch.where(bounded, -1.0, low))  # of actions as the policy draws them
        self.register_buffer("high", torch.where(bounded, 1.0, high))
        self.register_buffer("middle", (below + above) / 2)
        self.register_buffer("half_width", (above - below) / 2)

    def forward(self, actions: Tensor) -> Tensor:
        """Actions `[N, D]`, clipped to the bounds and rescaled from [-1, 1] between them."""
        return self.middle + self.half_width * actions.clamp(self.low, self.high)


def export_policy(config: Config, checkpoint: Checkpoint, checkpoint_path: Path, folder: Path) -> int:
    """Write the policy of a checkpoint into the folder `exported_<update>` below `folder`. Returns the exit code.

    Without the ONNX packages only the PyTorch file is written, with a warning.
    """
    spec = make_spec(config.env)
    network = make_network(make_network_config(config))
    network.load_state_dict(checkpoint.agent["modules"][ACTING_MODULE])
    policy = ExportedPolicy(network.only_act())
    inputs = example_inputs(network, random_observations(config.env, config.training.seed)[-CHECKED:])
    target = folder / f"exported_{checkpoint.counters.updates}"
    try:
        target.mkdir(exist_ok=True)
        program = write_program(policy, inputs, target / PROGRAM)
        differences = {PROGRAM: largest_difference(policy, read_program(target / PROGRAM), *inputs)}
        missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
        if not missing:
            write_onnx(program, policy.output_names, target / ONNX)
            differences[ONNX] = largest_difference(policy, read_onnx(target / ONNX), *inputs)
        description = describe(config, spec, checkpoint, checkpoint_path, differences)
        (target / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
    except OSError as error:
        log.error("error: the policy was not exported: %s", error)
        return 1
    if missing:
        log.warning(
            "%s was not written: wanted the packages %s; run pip install -r requirements-export.txt", ONNX, ", ".join(missing)
        )
    for name, difference in differences.items():
        log.info("%s: largest difference from the network %.1e on %d observations", target / name, difference, CHECKED)
    log.info("%s: description of inputs and outputs", target / DESCRIPTION)
    wrong = {name: difference for name, difference in differences.items() if not difference <= TOLERANCE}  # also NaN
    for name, difference in wrong.items():
        log.error("error: %s: wanted a difference of at most %g, got %g; do not use it", target / name, TOLERANCE, difference)
    return 1 if wrong else 0


@torch.no_grad()
def example_inputs(network: FeatureNetwork, observations: Tensor) -> tuple[Tensor, ...]:
    """The inputs of an exported policy for N observations. The states of a core are those after one other observation."""
    if not network.state_size:
        return (observations,)
    state = network.think(observations.flip(0), torch.zeros(len(observations), network.state_size)).state
    assert state is not None
    return observations, state


def write_program(policy: ExportedPolicy, inputs: tuple[Tensor, ...], path: Path) -> torch.export.ExportedProgram:
    """Write `policy.pt2` with a variable batch size. inputs: two or more of each, which give shape and dtype."""
    batch = torch.export.Dim("batch", min=1)
    shapes = {name: {0: batch} for name, _ in zip((INPUT, STATE_IN), inputs, strict=False)}
    with _quietly():
        program = torch.export.export(policy, tuple(each[:2] for each in inputs), dynamic_shapes=shapes)
        torch.export.save(program, path)
    return program


def read_program(path: Path) -> Callable[..., Outputs]:
    """Load a `policy.pt2`."""
    with _quietly():
        return torch.export.load(path).module()


def write_onnx(program: torch.export.ExportedProgram, output_names: Sequence[str], path: Path) -> None:
    """Write `policy.onnx` as one file that contains the weights."""
    recurrent = len(program.graph_signature.user_inputs) > 1
    inputs = [INPUT, STATE_IN] if recurrent else [INPUT]
    with _quietly():
        exported = torch.onnx.export(
            program,
            (),
            input_names=inputs,
            output_names=list(output_names),
            dynamic_shapes={name: {0: "batch"} for name in inputs},
            dynamo=True,
            verbose=False,
        )
        assert exported is not None
        exported.save(path, external_data=False)


def read_onnx(path: Path) -> Callable[..., Outputs]:
    """Load a `policy.onnx`, to be run by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Tensor) -> Outputs:
        arrays = session.run(None, {name: each.numpy() for name, each in zip(names, inputs, strict=True)})
        return tuple(torch.from_numpy(array) for array in arrays)

    return run


@torch.no_grad()
def largest_difference(policy: ExportedPolicy, other: Callable[..., Outputs], *inputs: Tensor) -> float:
    """Largest difference of any number, relative to numbers above 1, on all inputs together and on the first of each alone.

    Actions that are whole numbers follow from the logits, which may be equal but for rounding, so only their shape counts.
    Raises RuntimeError if an output has another shape.
    """
    pairs = [
        (wanted, got)
        for part in (inputs, tuple(each[:1] for each in inputs))
        for wanted, got in zip(policy(*part), other(*part), strict=True)
    ]
    if wrong := next((pair for pair in pairs if pair[0].shape != pair[1].shape), None):
        raise RuntimeError(f"wanted an output {list(wrong[0].shape)}, got {list(wrong[1].shape)}")
    floats = [(wanted, got) for wanted, got in pairs if wanted.is_floating_point()]
    return max(float(((wanted - got).abs() / wanted.abs().clamp(min=1)).max()) for wanted, got in floats)


def describe(
    config: Config, spec: EnvSpec, checkpoint: Checkpoint, checkpoint_path: Path, differences: dict[str, float]
) -> dict[str, Any]:
    """The content of `policy.json`."""
    return {
        "env": spec.env,
        "protocol": evaluation_protocol(config.env, config.evaluation.greedy),
        "input": {
            "name": INPUT,
            "dtype": spec.frame_dtype,
            "shape": ["batch", *spec.observation_shape],
            "axes": ["batch", "frames", *FRAME_AXES[len(spec.frame_shape)]],
            "frames": "oldest first, newest last; zeros before the first frame of an episode",
            "values": "raw observations, 0 to 255 for uint8; the policy scales and calibrates them itself",
            "preprocessing": list(describe_env(config.env).preprocessing),
        },
        "outputs": _describe_outputs(config, spec),
        **_describe_state(config),
        "actions": _describe_actions(spec.action),
        "network": config.network,
        "checkpoint": checkpoint_path.name,
        "training": asdict(checkpoint.counters),
        "largest_difference": differences,
        "versions": package_versions(),
        "git_commit": git_commit(),
    }


def _describe_state(config: Config) -> dict[str, Any]:
    """The part of `policy.json` about the core's state; empty without a core."""
    if not (size := make_network_shapes(config).state_size):
        return {}
    meaning = f"zeros at an episode's first observation, otherwise {STATE_OUT} of the observation before"
    return {"state": {"input": STATE_IN, "output": STATE_OUT, "shape": ["batch", size], "dtype": "float32", "values": meaning}}


def _describe_outputs(config: Config, spec: EnvSpec) -> dict[str, Any]:
    distribution = make_distribution(spec.action, config.network_settings.action_distribution)
    meaning, box = distribution.describe(), isinstance(spec.action, Box)
    if box:
        meaning += "; then clip the action to [-1, 1] and rescale it to the bounds, or only clip it if it has no two bounds"
    return {
        "policy" if box else "logits": {"shape": ["batch", distribution.parameter_count], "meaning": meaning},
        "values": {"shape": ["batch"], "meaning": agent_class(config).value_meaning(config.agent_settings)},
        "action": {
            "shape": ["batch", *spec.action.shape],
            "dtype": spec.action.dtype,
            "meaning": "the deterministic action, as the environment takes it",
        },
    }


def _describe_actions(action: ActionSpace) -> list[str] | dict[str, Any]:
    """The names of the actions, or the space if they have none."""
    return list(action.meanings) if isinstance(action, Discrete) and action.meanings else action.to_json()


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress warnings of PyTorch's exporters, which concern optional packages that are not used here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
