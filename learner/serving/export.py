"""Takes a trained policy out of this program: a PyTorch file and an ONNX file, and what one must know to feed them.

`policy.pt2` is what `torch.export` writes (TorchScript is deprecated); `policy.onnx` runs wherever an ONNX runtime is, without
PyTorch. Both take bytes and hold the input's scaling and calibration. Each is loaded again and compared with the network on
observations of real play before it counts as written.
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

from agents.networks.actor_critic import ActorCritic, make_network
from learner.evaluation.protocol import evaluation_protocol, is_atari
from learner.runs.checkpoint import Checkpoint
from learner.runs.directory import git_commit, package_versions
from learner.settings.config import Config
from workers import random_observations
from wrappers import EnvSpec, make_spec

log = logging.getLogger("springbok")

PROGRAM, ONNX, LAYOUT = "policy.pt2", "policy.onnx", "policy.json"
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INPUT, OUTPUTS = "observations", ("logits", "values")
CHECKED = 64
"""Observations that an exported file is compared on: at once, and one alone."""
TOLERANCE = 1e-3
"""Largest difference of a logit or value that another order of float32 sums may make."""

Outputs = tuple[Tensor, Tensor]


class ExportedPolicy(nn.Module):
    """The network with plain tensors out: `[N, *observation_shape]` -> logits `[N, A]`, values `[N]`."""

    def __init__(self, network: ActorCritic) -> None:
        super().__init__()
        self.network = network

    def forward(self, observations: Tensor) -> Outputs:
        output = self.network(observations)
        return output.logits, output.values


def export_policy(config: Config, checkpoint: Checkpoint, checkpoint_path: Path, folder: Path) -> int:
    """Write the files of a checkpoint's policy into a folder below `folder`; returns the exit code."""
    spec = make_spec(config.env)
    network = make_network(config.network, spec.observation_shape, spec.action_count)
    network.load_state_dict(checkpoint.agent["network"])
    policy = ExportedPolicy(network.only_act())
    observations = random_observations(config.env, config.training.seed)[-CHECKED:]
    target = folder / f"exported_{checkpoint.counters.updates}"
    try:
        target.mkdir(exist_ok=True)
        program = write_program(policy, observations, target / PROGRAM)
        differences = {PROGRAM: largest_difference(policy, read_program(target / PROGRAM), observations)}
        missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
        if not missing:
            write_onnx(program, target / ONNX)
            differences[ONNX] = largest_difference(policy, read_onnx(target / ONNX), observations)
        description = describe(config, spec, checkpoint, checkpoint_path, differences)
        (target / LAYOUT).write_text(json.dumps(description, indent=2) + "\n")
    except OSError as error:
        log.error("error: the policy was not exported: %s", error)
        return 1
    if missing:
        log.warning("No ONNX: %s not installed; pip install -r requirements-export.txt", ", ".join(missing))
    for name, difference in differences.items():
        log.info("%s: differs from the network by at most %.1e on %d observations", target / name, difference, CHECKED)
    log.info("%s: how to feed it", target / LAYOUT)
    if not all(difference <= TOLERANCE for difference in differences.values()):
        log.error("error: wanted the same logits and values within %g, got the differences above; do not use it", TOLERANCE)
        return 1
    return 0


def write_program(policy: ExportedPolicy, observations: Tensor, path: Path) -> torch.export.ExportedProgram:
    """Write `policy.pt2`, for any number of observations at once. observations: two or more, for their shape and dtype."""
    batch = torch.export.Dim("batch", min=1)
    with _quietly():
        program = torch.export.export(policy, (observations[:2],), dynamic_shapes={INPUT: {0: batch}})
        torch.export.save(program, path)
    return program


def read_program(path: Path) -> Callable[[Tensor], Outputs]:
    """The policy in a `policy.pt2`."""
    with _quietly():
        return torch.export.load(path).module()


def write_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write `policy.onnx`, weights inside."""
    with _quietly():
        exported = torch.onnx.export(
            program,
            (),
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_shapes={INPUT: {0: "batch"}},
            dynamo=True,
            verbose=False,
        )
        assert exported is not None
        exported.save(path, external_data=False)


def read_onnx(path: Path) -> Callable[[Tensor], Outputs]:
    """The policy in a `policy.onnx`, run by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(observations: Tensor) -> Outputs:
        logits, values = session.run(list(OUTPUTS), {INPUT: observations.numpy()})
        return torch.from_numpy(logits), torch.from_numpy(values)

    return run


@torch.no_grad()
def largest_difference(policy: ExportedPolicy, other: Callable[[Tensor], Outputs], observations: Tensor) -> float:
    """Of any logit or value, on all the observations at once and on the first alone."""
    pairs = [
        (wanted, got)
        for part in (observations, observations[:1])
        for wanted, got in zip(policy(part), other(part), strict=True)
    ]
    if wrong := next((pair for pair in pairs if pair[0].shape != pair[1].shape), None):
        raise RuntimeError(f"wanted an output {list(wrong[0].shape)}, got {list(wrong[1].shape)}")
    return max(float((wanted - got).abs().max()) for wanted, got in pairs)


def describe(
    config: Config, spec: EnvSpec, checkpoint: Checkpoint, checkpoint_path: Path, differences: dict[str, float]
) -> dict[str, Any]:
    """What stands in `policy.json`."""
    axes = ["batch", "frames", "height", "width", "colour"][: 1 + len(spec.observation_shape)]
    return {
        "env": spec.env,
        "protocol": evaluation_protocol(config.env, config.evaluation.greedy),
        "input": {
            "name": INPUT,
            "dtype": spec.frame_dtype,
            "shape": ["batch", *spec.observation_shape],
            "axes": axes,
            "frames": "oldest first, newest last; zeros before an episode's first frame",
            "values": "as the environment gives them, 0 to 255 for bytes: scaling and calibration are inside",
            "preprocessing": _preprocessing(config, spec),
        },
        "outputs": {
            "logits": {"shape": ["batch", spec.action_count], "meaning": "sample the action from softmax(logits)"},
            "values": {"shape": ["batch"], "meaning": _value_meaning(config)},
        },
        "actions": list(spec.action_meanings),
        "network": config.network,
        "checkpoint": checkpoint_path.name,
        "training": asdict(checkpoint.counters),
        "largest_difference": differences,
        "versions": package_versions(),
        "git_commit": git_commit(),
    }


def _preprocessing(config: Config, spec: EnvSpec) -> list[str]:
    """How a frame comes about, in order."""
    if not is_atari(spec.env):
        return []
    env = config.env
    return [
        f"repeat the action for {env.skipped_frames} emulator frames",
        "take the maximum of the last two of them, pixel by pixel",
        "grey (the emulator's luminance)" if env.grayscaling_frames else "RGB",
        f"resize to {env.frame_height} x {env.frame_width} by area (OpenCV's INTER_AREA)",
    ]


def _value_meaning(config: Config) -> str:
    clipping = config.agent_settings.reward_clipping
    rewards = f"clipped by {clipping}" if clipping else "raw"
    return f"expected sum of rewards, {rewards}, discounted by {config.agent_settings.gamma} a step"


@contextmanager
def _quietly() -> Iterator[None]:
    """PyTorch's exporters warn of packages that nobody needs here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
