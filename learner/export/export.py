"""Exports a trained policy for use outside this program: a PyTorch file, an ONNX file and a description of their inputs.

`policy.pt2` is written by `torch.export`, since TorchScript is deprecated. `policy.onnx` runs on any ONNX runtime, without
PyTorch. `policy.json` describes inputs and outputs. Both policy files contain the scaling and calibration of the input, so they
accept raw observations. An observation with several leaves has one input a leaf: ONNX cannot read numbers out of packed bytes.
Each file is loaded again and compared with the network on real observations.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agents.networks.base import make_network
from checked_files import locked
from learner.export.card import write_card
from learner.export.description import describe
from learner.export.exported_policy import INPUT, STATE_IN, ExportedPolicy, Inputs, Outputs, first_of, tensors_of
from learner.plan import Plan
from learner.runs.checkpoint import ACTING_MODULE, Checkpoint
from learner.runs.directory import BEST, CHECKPOINT_PATTERN, run_of_checkpoint
from workers import random_observations
from workers.failures import failures_of
from workers.processes.out_of_memory import is_out_of_memory

log = logging.getLogger("springbok")

PROGRAM, ONNX, DESCRIPTION = "policy.pt2", "policy.onnx", "policy.json"
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
CHECKED = 64
"""Number of observations on which an exported file is compared with the network."""
LONGEST_CAUSE = 300  # characters of an exporter's error that are shown
TOLERANCE = 1e-3
"""Largest accepted difference of a number, relative to numbers above 1. Another runtime adds float32 numbers in another
order."""


def export_policy(plan: Plan, checkpoint: Checkpoint, checkpoint_path: Path, folder: Path) -> int:
    """Write the policy of a checkpoint into a folder of its own below `folder`, see `exported_name`. Returns the exit code.

    Without the ONNX packages only the PyTorch file is written, with a warning.
    """
    network = make_network(plan.network)
    network.load_state_dict(checkpoint.agent["modules"][ACTING_MODULE])
    policy = ExportedPolicy(network.only_act())
    with failures_of("random play, which shows what observations are like,"):
        played = random_observations(plan.config.env, plan.config.training.seed)
    inputs = example_inputs(policy, played[-CHECKED:])
    target = folder / exported_name(checkpoint_path, checkpoint.counters.updates)
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    try:
        target.mkdir(exist_ok=True)
        with locked(target):  # another process may be exporting the same checkpoint
            differences, failures = _write_files(policy, inputs, target, onnx=not missing)
            if differences:
                description = describe(plan, checkpoint, checkpoint_path, differences)
                (target / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
                if plan.config.output.card:
                    log.info("%s: model card", write_card(plan, checkpoint, checkpoint_path, folder, target))
    except OSError as error:
        log.error("error: the policy was not exported: %s", error)
        return 1
    for failure in failures:
        log.error("error: %s", failure)
    if not differences:
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
    return 1 if wrong or failures else 0


def exported_name(checkpoint_path: Path, update: int) -> str:
    """`exported_<update>` for a checkpoint that its run has named, otherwise `exported_<name of the file>`.

    Checkpoints that were renamed or put aside may have equal numbers of updates. One must not replace the other's files.
    """
    is_best = checkpoint_path.stem == BEST and run_of_checkpoint(checkpoint_path) is not None
    return f"exported_{update if is_best or CHECKPOINT_PATTERN.match(checkpoint_path.name) else checkpoint_path.stem}"


def _write_files(policy: ExportedPolicy, inputs: Inputs, target: Path, *, onnx: bool) -> tuple[dict[str, float], list[str]]:
    """Write the policy files and compare each with the network. onnx: whether to write `policy.onnx` too.

    Returns the largest difference of each file that was written, and one line for a file that was not: a torso of the user
    may compute what PyTorch cannot trace or ONNX lacks. Raises OSError.
    """
    differences: dict[str, float] = {}
    name = PROGRAM
    try:
        program = write_program(policy, inputs, target / PROGRAM)
        differences[PROGRAM] = largest_difference(policy, read_program(target / PROGRAM), inputs)
        name = ONNX
        if onnx:
            write_onnx(program, policy, target / ONNX)
            differences[ONNX] = largest_difference(policy, read_onnx(target / ONNX), inputs)
    except OSError:
        raise
    except Exception as error:  # the torso may be the user's, and exporters raise errors of every kind
        if is_out_of_memory(error):
            raise
        (target / name).unlink(missing_ok=True)
        cause = _root_cause(error, policy.network.config.settings.network)
        return differences, [f"{target / name}: wanted a network that can be exported, got {cause}"]
    return differences, []


def _root_cause(error: BaseException, network: str) -> str:
    """The first error of a chain on one line: its type, the line of the user's file that raised it, and its message.

    Exporters wrap errors in longer ones. network: the setting, `FILE.py:CLASS` for a torso of the user's own.
    """
    while error.__cause__:
        error = error.__cause__
    own_file = Path(network.rpartition(":")[0]).resolve()
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == own_file]
    place = f" in line {lines[-1]} of {own_file.name}" if lines else ""
    return f"{type(error).__name__}{place}: {' '.join(str(error).split())[:LONGEST_CAUSE]}"


@torch.no_grad()
def example_inputs(policy: ExportedPolicy, observations: Tensor) -> Inputs:
    """The inputs of an exported policy for N observations. The states of a core are those after one other observation."""
    network = policy.network
    if not network.state_size:
        return (policy.split(observations),)
    # States other than zeros show whether the exported file reads its state at all.
    state = network.infer(observations.flip(0), torch.zeros(len(observations), network.state_size)).state
    assert state is not None
    return policy.split(observations), state


def write_program(policy: ExportedPolicy, inputs: Inputs, path: Path) -> torch.export.ExportedProgram:
    """Write `policy.pt2` with a variable batch size. inputs: two or more of each, which give shape and dtype."""
    batch = {0: torch.export.Dim("batch", min=1)}
    of_leaves = dict.fromkeys(policy.leaves, batch) if policy.leaves else batch
    shapes = {name: shape for (name, shape), _ in zip({INPUT: of_leaves, STATE_IN: batch}.items(), inputs, strict=False)}
    with _quietly():
        # Two examples are needed: PyTorch takes a batch of one for a constant size.
        program = torch.export.export(policy, first_of(inputs, 2), dynamic_shapes=shapes)
        # PyTorch writes to and reads from open files: its own code opens no path that is not UTF-8.
        with path.open("wb") as file:
            torch.export.save(program, file)
    return program


def read_program(path: Path) -> Callable[..., Outputs]:
    """Load a `policy.pt2`."""
    with _quietly(), path.open("rb") as file:
        return torch.export.load(file).module()


def write_onnx(program: torch.export.ExportedProgram, policy: ExportedPolicy, path: Path) -> None:
    """Write `policy.onnx` as one file that contains the weights."""
    with _quietly():
        exported = torch.onnx.export(
            program,
            (),
            input_names=[f"input {name}" for name in policy.input_names],  # unlike the name of any other value
            output_names=list(policy.output_names),
            dynamic_shapes={f"input {name}": {0: "batch"} for name in policy.input_names},
            dynamo=True,
            verbose=False,
        )
        assert exported is not None
        _rename_inputs(exported.model.graph, policy.input_names)
        exported.save(path, external_data=False)


def _rename_inputs(graph: Any, names: tuple[str, ...]) -> None:
    """Give the inputs of an ONNX graph their names. Other values give way: a leaf may be named like an operation."""
    inner = [*graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    for index, value in enumerate(value for value in inner if value.name in names):
        value.name = f"inner {index} {value.name}"
    for value, name in zip(graph.inputs, names, strict=True):
        value.name = name


def read_onnx(path: Path) -> Callable[..., Outputs]:
    """Load a `policy.onnx`, to be run by onnxruntime on the CPU. It takes the arguments of the exported policy."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])

    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Tensor | dict[str, Tensor]) -> Outputs:
        arrays = session.run(None, {name: each.numpy() for name, each in zip(names, tensors_of(inputs), strict=True)})
        return tuple(torch.from_numpy(array) for array in arrays)

    return run


@torch.no_grad()
def largest_difference(policy: ExportedPolicy, other: Callable[..., Outputs], inputs: Inputs) -> float:
    """Largest difference of any number, relative to numbers above 1, on all inputs together and on the first of each alone.

    Actions that are whole numbers follow from the logits, which may be equal but for rounding, so only their shape counts.
    Raises RuntimeError if an output has another shape.
    """
    pairs = [
        (wanted, got) for part in (inputs, first_of(inputs, 1)) for wanted, got in zip(policy(*part), other(*part), strict=True)
    ]
    if wrong := next((pair for pair in pairs if pair[0].shape != pair[1].shape), None):
        raise RuntimeError(f"wanted an output {list(wrong[0].shape)}, got {list(wrong[1].shape)}")
    floats = [(wanted, got) for wanted, got in pairs if wanted.is_floating_point()]
    found = floats or [(wanted.float(), got.float()) for wanted, got in pairs]  # a network that exports its actions alone
    return max(float(((wanted - got).abs() / wanted.abs().clamp(min=1)).max()) for wanted, got in found)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the messages of PyTorch's exporters: warnings concern optional packages, and errors are raised too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # on an error PyTorch prints the graph that it has so far
                yield
        finally:
            logging.disable(logging.NOTSET)
