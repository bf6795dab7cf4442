"""Checks that the working tree computes the same bits as another commit.

    python -m benchmarks.same_bits HEAD
    python -m benchmarks.same_bits main --steps=20000 --only=standard --only=pong

Trains with `main.py --reproducible` in both trees, in parallel, once for each setting of `--list`. Prints a line for each
setting: `equal`, or the first difference. Exits with 1 if any setting differs.

Compared bit by bit: the weights and the optimiser's moments in the last checkpoint, its counters and random states, the replay
file, and metrics.csv. The two trees may differ in their layout, so names and places matter as little as possible:

- Weights are all tensors below the checkpoint's key "agent", in the order in which they appear there. Moments are those
  below a key that contains "optim". Both are compared one after the other by shape, dtype and bytes; their names only serve
  to report a difference.
- Counters, random states and the replay are compared by the last key that is not a number. Values of the same name are
  compared in the order in which they appear.
- Metrics are compared by column. Columns that depend on time are left out.

A name that only one tree has is listed after the result and is no difference. Every flag that would depend on the machine is
given. COMMIT must know all flags; two of them have former names that the working tree still accepts.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.jobs import refuse
from benchmarks.other_commit import commit_hash, finish, started, unpacked
from tools.termination import REPOSITORY, end_with, unwind_when_terminated

Leaf = tuple[str, Any]  # dotted path, and a tensor, number or text
Part = dict[str, list[Leaf]]  # leaves by the name that both trees must share
Parts = dict[str, Part]

STEPS = 3000
CHECKPOINTS = 4  # of a run, about; each writes a row of metrics

FIXED = {
    "op_mode": "train",
    "reproducible": True,
    "seed": 1,
    "device": "cpu",
    "precision": "float32",
    "compile": False,
    "learner_threads": 1,
    "worker_kind": "serial",
    "worker_count": 1,
    "envs_per_worker": 4,
    "prepared_batches": 0,
    "batch_size": 4,
    "eval_period": 0,
    "preflight": False,
    "log_period": 1e6,  # seconds: rows of metrics come with checkpoints only, and so at the same updates
    "verbosity": 0,
}
CATCH = {"env": "Catch-v0", "network": "mlp", "frames_stacked": 1, "unroll_length": 10}
PONG = {"env": "PongNoFrameskip-v4", "network": "nature", "frames_stacked": 4, "unroll_length": 20}


def _mixture(**replay: Any) -> dict[str, str]:
    """Half of each batch from a queue, half from this replay, which is small enough to evict trajectories."""
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    return {"replay_parameters": json.dumps([queue, {"capacity": 50, "sample_ratio": 0.5, **replay}])}


REACH = {"env": "Reach-v0", "network": "mlp", "unroll_length": 10}
WINDOWS = {"learning_starts": 200, "replay_parameters": '[{"type": "standard", "steps": 1000, "sample_ratio": 1.0}]'}
PRIORITISED = {"learning_starts": 200, "replay_parameters": '[{"type": "prioritised", "steps": 1000, "sample_ratio": 1.0}]'}
SEQUENCES = {"learning_starts": 200, "replay_parameters": '[{"type": "prioritised", "capacity": 50, "sample_ratio": 1.0}]'}
RECORDING = "RECORDING"
"""Stands for the folder of a recording that COMMIT makes first, for agents that learn from one."""

QUEUE = {"replay_parameters": '[{"type": "queue", "capacity": 1, "sample_ratio": 1.0}]'}
STANDARD = _mixture(type="standard")
CUSTOM = _mixture(type="custom", sample_strategy="attentive_sampling", insert_strategy="elite_insertion")
CLEAR = {"use_policy_cloning_loss": True, "use_value_cloning_loss": True}
LASER = {"use_kl_mask": True, "kl_div_threshold": 0.003}  # small enough to leave out steps of such a short run

SETTINGS: dict[str, dict[str, Any]] = {
    "queue": {**CATCH, **QUEUE},
    "standard": {**CATCH, **STANDARD},
    "reservoir": {**CATCH, **_mixture(type="standard", retention="reservoir")},
    "elite": {**CATCH, **_mixture(type="elite")},
    "elite_insertion": {**CATCH, **_mixture(type="elite", insert_strategy="elite_insertion")},
    "attentive": {**CATCH, **_mixture(type="attentive")},
    "custom": {**CATCH, **CUSTOM},
    "compression": {**CATCH, **STANDARD, "use_replay_compression": True},
    "clear_laser": {**CATCH, **STANDARD, **CLEAR, **LASER},
    "pong": {**PONG, **STANDARD},
    "vtrace_lstm": {**CATCH, **STANDARD, "core": "lstm", "burn_in": 4, "normalise_rewards": True, "clip_rewards": False},
    "a2c": {**CATCH, "agent": "a2c"},
    "ppo": {**CATCH, "agent": "ppo", "clip_end_value": 0.1},
    "ppo_lstm": {**REACH, "agent": "ppo", "core": "gru", "advantage_normalisation": "batch", "value_clip": 0.2},
    "ppo_kl": {**CATCH, "agent": "ppo", "policy_objective": "clip_and_kl", "target_kl": 0.01, "recompute_advantages": True},
    "ppo_early_stop": {**CATCH, "agent": "ppo", "target_kl": 0.001, "lr": 0.003},
    "trpo": {**REACH, "agent": "trpo", "minibatches": 4},
    "appo": {**CATCH, **QUEUE, "agent": "appo", "minibatches": 2, "epochs": 2, "kl_weight": 0.5, "core": "lstm", "burn_in": 3},
    "impact": {**REACH, "agent": "impact", "core": "none"},
    "vmpo": {**REACH, "agent": "vmpo"},
    "dqn": {**CATCH, **WINDOWS, "agent": "dqn", "double": True, "dueling": True, "n_step": 3},
    "rainbow": {**CATCH, **PRIORITISED, "agent": "dqn", "distributional": "c51", "noisy": True, "double": True},
    "quantiles": {**CATCH, **WINDOWS, "agent": "dqn", "distributional": "qr", "quantiles": 7, "exploration": "ladder"},
    "munchausen": {**CATCH, **WINDOWS, "agent": "dqn", "munchausen": True, "normalise_rewards": True},
    "r2d2": {**CATCH, **SEQUENCES, "agent": "r2d2", "core_size": 16, "burn_in": 4, "updates_per_step": 0.05},
    "pqn": {**CATCH, "agent": "pqn", "unroll_length": 10, "minibatches": 4},
    "pqn_retrace": {**CATCH, **STANDARD, "agent": "pqn", "core": "lstm", "burn_in": 3, "retrace_lambda": 0.9, "minibatches": 2},
    "sac": {**REACH, **WINDOWS, "agent": "sac"},
    "sac_choice": {**CATCH, **WINDOWS, "agent": "sac", "critic_layer_norm": True, "critic_dropout": 0.01},
    "sqn": {**CATCH, **WINDOWS, "agent": "sqn", "n_step": 3, "retrace_lambda": 0.9},
    "tqc": {**REACH, **WINDOWS, "agent": "tqc", "critics": 3, "critic_subset": 2},
    "crossq": {**REACH, **WINDOWS, "agent": "crossq", "renorm_warm_up": 20},
    "td3": {**REACH, **PRIORITISED, "agent": "td3", "normalise_observations": True},
    "ddpg": {**REACH, **WINDOWS, "agent": "ddpg", "exploration_noise_kind": "ou"},
    "es": {**REACH, "agent": "es", "population": 10, "normalise_observations": True},
    "cem": {**CATCH, "agent": "cem", "population": 8, "elites": 3},
    "linucb": {"env": "Bandit-v0", "unroll_length": 4, "agent": "linucb"},
    "bc": {**CATCH, "agent": "bc", "recording": RECORDING, "worker_kind": "recorded"},
    "marwil": {**CATCH, "agent": "marwil", "recording": RECORDING, "worker_kind": "recorded"},
    "bcq": {**CATCH, **WINDOWS, "agent": "bcq", "recording": RECORDING, "worker_kind": "recorded"},
}
WIDTH = 1 + max(map(len, SETTINGS))
TIMED = ("seconds", "time/", "cores/", "hardware/", "feeder/", "charts/SPS", "charts/FPS", "charts/updates_per_second")
"""Columns of metrics that depend on time begin with one of these."""

NOT_COMPARED = {"format", "settings", "spec", "protocol", "seconds"}
"""Keys of checkpoint and replay file that may differ between equal runs."""


def flags_of(setting: Mapping[str, Any], steps: int) -> list[str]:
    """Return the flags of a run of so many agent steps, without its results folder."""
    fresh_steps = FIXED["batch_size"] * setting["unroll_length"]  # of an update, at most
    period = max(1, steps // fresh_steps // CHECKPOINTS)
    values = {**FIXED, **setting, "environment_max_steps": steps, "save_model_period": period}
    return [f"--{name}={value}" for name, value in values.items()]


def leaves(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each tensor, number and text with the keys that lead to it. The items of a list have the list's keys."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from leaves(value, (*path, str(name)))
    elif isinstance(content, list | tuple):
        for value in content:
            yield from leaves(value, path)
    else:
        yield path, content


def by_name(content: Any) -> Part:
    """Return all leaves by the last of their keys that is not a number."""
    part: Part = {}
    for path, value in leaves(content):
        if NOT_COMPARED.isdisjoint(path):
            name = next((key for key in reversed(path) if not key.isdigit()), "")
            part.setdefault(name, []).append((".".join(path), value))
    return part


def agent_tensors(agent: Any) -> Parts:
    """Return weights and moments, each in the order of appearance under a single name."""
    found: Parts = {"weights": {"tensors": []}, "moments": {"tensors": []}}
    for path, value in leaves(agent):
        if isinstance(value, Tensor):
            kind = "moments" if any("optim" in key for key in path) else "weights"
            found[kind]["tensors"].append((".".join(path), value))
    return found


def metrics_part(file: Path) -> Part:
    """Return each column of metrics that does not depend on time: its cells as text, an empty one as ''."""
    with file.open(newline="") as lines:
        records = list(csv.DictReader(lines))
    names = [name for name in (records[0] if records else ()) if not name.startswith(TIMED)]
    return {name: [(f"{name} in record {number}", record[name]) for number, record in enumerate(records)] for name in names}


def read_run(results: Path) -> Parts:
    """Return what the only run in a results folder computed. Raises RuntimeError if a file is missing."""
    checkpoint = torch.load(_newest(results, "update_*.pt"), weights_only=True)
    replay = torch.load(_newest(results, "replay_*.pt"), weights_only=True)
    rest = {name: value for name, value in checkpoint.items() if name not in ("agent", "replay")}  # replay: a checksum
    return {
        **agent_tensors(checkpoint["agent"]),
        "checkpoint": by_name(rest),
        "replay": by_name(replay),
        "metrics": metrics_part(_newest(results, "metrics.csv")),
    }


def _newest(results: Path, pattern: str) -> Path:
    found = [path for path in results.rglob(pattern) if path.is_file()]
    if not found:
        raise RuntimeError(f"wanted a file {pattern} of the run, got none")
    return max(found, key=lambda path: path.name)


def bits(value: Any) -> tuple[Any, ...]:
    """Return what two values share only if all their bits are equal: 0.0 and -0.0 differ, two equal NaNs do not."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape, raw(value).numpy().tobytes()
    return type(value), repr(value)


def raw(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, `[elements * bytes an element]` uint8."""
    return tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)  # a view needs a stride of 1


def first_difference(old: Parts, new: Parts, commit: str) -> str | None:
    """Return the first difference between the runs of COMMIT (old) and the working tree (new), None if they are equal."""
    for kind, part in old.items():
        shared = [name for name in part if name in new[kind]]
        if any(part.values()) and not any(part[name] and new[kind][name] for name in shared):
            return f"{kind}: wanted values that both have, got none"
        for name in shared:
            before, after = part[name], new[kind][name]
            if len(before) != len(after):
                return f"{kind}, {name}: {len(before)} values at {commit}, {len(after)} here"
            for (_, was), (path, value) in zip(before, after, strict=True):
                if bits(was) != bits(value):
                    return f"{kind}, {path}{_in_words(was, value, commit)}"
    return None


def _in_words(was: Any, value: Any, commit: str) -> str:
    """Return both values; of tensors with the same shape and dtype the first element that differs."""
    if not (isinstance(was, Tensor) and isinstance(value, Tensor) and (was.dtype, was.shape) == (value.dtype, value.shape)):
        return f": {_short(was)} at {commit}, {_short(value)} here"
    differs = (raw(was) != raw(value)).reshape(was.numel(), -1).any(dim=1)
    first = int(differs.nonzero()[0])
    index = [int(number) for number in np.unravel_index(first, was.shape)]
    numbers = f"{was.flatten()[first].item()!r} at {commit}, {value.flatten()[first].item()!r} here"
    return f" at {index}: {numbers} ({int(differs.sum())} of {was.numel()} elements differ)"


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def one_sided(old: Parts, new: Parts, commit: str) -> str:
    """Return the names that only one run has, in brackets; nothing if there are none."""
    lists = []
    for where, these, others in ((f"only at {commit}", old, new), ("only here", new, old)):
        if names := [f"{kind} {name}" for kind, part in these.items() for name in part if name not in others[kind]]:
            lists.append(f"{where}: {', '.join(names)}")
    return f" ({'; '.join(lists)})" if lists else ""


def record(tree: Path, folder: Path) -> str:
    """Record some episodes of Catch with the program of a tree. Returns the recording's folder. Raises RuntimeError."""
    results, recording = folder / "results", folder / "recording"
    train = ["main.py", *flags_of({**CATCH, **QUEUE}, 200), f"--results_dir={results}"]
    test = ["main.py", "--op_mode=test", f"--load={results / 'latest'}", f"--record_to={recording}", "--test_episode_count=100"]
    for number, arguments in enumerate((train, test)):
        output = folder / f"output_{number}.txt"
        with started(tree, arguments, output) as process:
            finish(process, output)
    return str(recording)


def run_both(trees: Mapping[str, Path], setting: Mapping[str, Any], steps: int) -> list[Parts]:
    """Train in all trees in parallel, and return what each computed. Raises RuntimeError with the tree's name on failure."""
    found = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="springbok_bits_")))
        runs = []
        for number, (name, tree) in enumerate(trees.items()):
            results, output = folder / f"results_{number}", folder / f"output_{number}.txt"
            arguments = ["main.py", *flags_of(setting, steps), f"--results_dir={results}"]
            runs.append((name, stack.enter_context(started(tree, arguments, output)), results, output))
        for name, process, results, output in runs:
            try:
                finish(process, output)
                found.append(read_run(results))
            except RuntimeError as error:
                raise RuntimeError(f"the run of {name} failed: {error}") from None
    return found


def verdict(trees: Mapping[str, Path], setting: Mapping[str, Any], steps: int) -> tuple[bool, str]:
    """Return whether two trees, COMMIT's and the working tree, compute the same bits, and the line that says so."""
    commit = next(iter(trees))
    try:
        old, new = run_both(trees, setting, steps)
    except RuntimeError as error:
        return False, str(error)
    difference = first_difference(old, new, commit)
    return difference is None, (difference or "equal") + one_sided(old, new, commit)


def main() -> int:
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", metavar="COMMIT", help="commit to compare with, by any name that git accepts")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"agent steps of each run, {STEPS} unless given")
    parser.add_argument("--only", action="append", choices=SETTINGS, metavar="NAME", help="only this setting; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the settings with their flags, and end")
    arguments = parser.parse_args()
    names = arguments.only or list(SETTINGS)
    if arguments.steps < 1:
        parser.error(f"--steps: wanted 1 or more, got {arguments.steps}")
    if arguments.list:
        for name in names:
            print(f"{name:{WIDTH}s} {shlex.join(flags_of(SETTINGS[name], arguments.steps))}")
        return 0
    if arguments.commit is None:
        parser.error("wanted a COMMIT to compare with, got none")
    try:
        commit = commit_hash(arguments.commit)
    except ValueError as error:
        refuse(error)
    differing = 0
    with unpacked(commit) as tree, tempfile.TemporaryDirectory(prefix="springbok_recording_") as folder:
        recording = record(tree, Path(folder)) if any(RECORDING in SETTINGS[name].values() for name in names) else ""
        for name in names:
            setting = {key: recording if value == RECORDING else value for key, value in SETTINGS[name].items()}
            equal, line = verdict({arguments.commit: tree, "the working tree": REPOSITORY}, setting, arguments.steps)
            print(f"{name:{WIDTH}s} {line}", flush=True)
            differing += not equal
    return 1 if differing else 0


if __name__ == "__main__":
    end_with(main)
