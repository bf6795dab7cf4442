"""Exports a trained policy for use outside this program: a PyTorch file, an ONNX file and a description of their inputs.

`policy.pt2` is written by `torch.export`, since TorchScript is deprecated. `policy.onnx` runs on any ONNX runtime, without
PyTorch. `policy.json` describes inputs and outputs. Both policy files contain the scaling and calibration of the input, so they
accept raw observations. Each file is loaded again and compared with the network on real observations.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agents.networks.base import FeatureNetwork, make_network
from learner.building import agent_class, make_network_config, make_network_shapes
from learner.evaluation.protocol import evaluation_protocol
from learner.runs.checkpoint import ACTING_MODULE, Checkpoint
from learner.runs.directory import git_commit, package_versions
from learner.settings.config import Config
from workers import random_observations
from wrappers import EnvSpec, describe_env, make_spec
from wrappers.spaces import Discrete

log = logging.getLogger("springbok")

PROGRAM, ONNX, DESCRIPTION = "policy.pt2", "policy.onnx", "policy.json"
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INPUT, OUTPUTS = "observations", ("logits", "values")
STATE_IN, STATE_OUT = "state_in", "state_out"  # of a network with a core
FRAME_AXES = {1: ("feature",), 2: ("height", "width"), 3: ("height", "width", "colour")}
"""Number of dimensions of a frame -> their names."""
CHECKED = 64
"""Number of observations on which an exported file is compared with the network."""
TOLERANCE = 1e-3
"""Largest accepted difference of a logit or value. Another runtime adds float32 numbers in another order."""

Outputs = tuple[Tensor, ...]


class ExportedPolicy(nn.Module):
    """The network with plain tensors as outputs: `[N, *observation_shape]` -> logits `[N, A]`, values `[N]`.

    With a core it also takes the state `[N, K]` and returns the next one.
    """

    def __init__(self, network: FeatureNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, observations: Tensor, state_in: Tensor | None = None) -> Outputs:
        output, _, state_out = self.network.think(observations, state_in)
        return (output.logits, output.values) if state_out is None else (output.logits, output.values, state_out)


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
            write_onnx(program, target / ONNX)
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


def write_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write `policy.onnx` as one file that contains the weights."""
    recurrent = len(program.graph_signature.user_inputs) > 1
    inputs, outputs = ([INPUT, STATE_IN], [*OUTPUTS, STATE_OUT]) if recurrent else ([INPUT], [*OUTPUTS])
    with _quietly():
        exported = torch.onnx.export(
            program,
            (),
            input_names=inputs,
            output_names=outputs,
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
    """Largest absolute difference of any output, on all inputs together and on the first of each alone.

    Raises RuntimeError if an output has another shape.
    """
    pairs = [
        (wanted, got)
        for part in (inputs, tuple(each[:1] for each in inputs))
        for wanted, got in zip(policy(*part), other(*part), strict=True)
    ]
    if wrong := next((pair for pair in pairs if pair[0].shape != pair[1].shape), None):
        raise RuntimeError(f"wanted an output {list(wrong[0].shape)}, got {list(wrong[1].shape)}")
    return max(float((wanted - got).abs().max()) for wanted, got in pairs)


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
        "outputs": {
            "logits": {"shape": ["batch", spec.action.mask_size], "meaning": "sample the action from softmax(logits)"},
            "values": {"shape": ["batch"], "meaning": agent_class(config).value_meaning(config.agent_settings)},
        },
        **_describe_state(config),
        "actions": list(spec.action.meanings) if isinstance(spec.action, Discrete) else spec.action.to_json(),
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
