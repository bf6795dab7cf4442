"""Bad checkpoints: truncated, overwritten, with changed parts, from other programs, or made to do harm."""

from __future__ import annotations

import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from learner import launch
from learner.runs.checkpoint import read_file, write_file
from main import prepare

TINY = (
    *("--env=Catch-v0", "--network=mlp", "--frames_stacked=1", "--worker_kind=serial", "--envs_per_worker=2", "--batch_size=2"),
    *("--unroll_length=4", "--learner_threads=1", "--environment_max_steps=40", "--verbosity=0", "--precision=float32"),
)
ONE_UPDATE_MORE = "--environment_max_steps=48"
OTHERS = (
    ("--env=PongNoFrameskip-v4",),
    ("--network=nature",),
    ("--frames_stacked=2",),
    ("--optimizer=adam",),
    ("--optimizer=adam", "--noload_optimizer"),
    ("--env=BreakoutNoFrameskip-v4", "--network=impala_shallow"),
    ("--unroll_length=3",),
    ("--environment_max_steps=1",),
)


@dataclass(frozen=True)
class Case:
    """A file that was written. must_refuse: whether the program has to refuse it."""

    name: str
    arguments: tuple[str, ...]
    must_refuse: bool


@dataclass(frozen=True)
class Bases:
    """A good checkpoint of a tiny run: in today's format, in the first format without a checksum, and its content."""

    with_checksum: bytes
    without: bytes
    content: dict[str, Any]


class RunsCode:
    """Ends this process when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import os; os._exit(66)",)


def base_checkpoints(folder: Path) -> Bases:
    """Train a tiny run below `folder` and return its last checkpoint."""
    if launch.run(prepare(["main.py", f"--results_dir={folder}/runs", *TINY])):
        raise RuntimeError("the training run for a good checkpoint failed")
    path = next((folder / "runs" / "latest").resolve().glob("checkpoints/update_*.pt"))
    content, _ = read_file(path)
    return Bases(path.read_bytes(), _saved({**content, "format": 1}), content)


def fuzzed_checkpoint(generator: random.Random, bases: Bases, path: Path) -> Case:
    """Write a random case to `path`."""
    make = generator.choice(
        (_damaged, _damaged, _damaged, _damaged_first_format, _changed, _changed, _changed, _foreign, _fitting)
    )
    return make(generator, bases, path)


def _damaged(generator: random.Random, bases: Bases, path: Path) -> Case:
    name, data = damage(generator, bases.with_checksum)
    path.write_bytes(data)
    return Case(f"damaged: {name}", (ONE_UPDATE_MORE, _mode(generator)), must_refuse=data != bases.with_checksum)


def _damaged_first_format(generator: random.Random, bases: Bases, path: Path) -> Case:
    """The first format has no checksum, so unnoticed damage is allowed, but must be trainable."""
    name, data = damage(generator, bases.without)
    path.write_bytes(data)
    return Case(f"first format, damaged: {name}", (ONE_UPDATE_MORE, _mode(generator)), must_refuse=False)


def damage(generator: random.Random, whole: bytes) -> tuple[str, bytes]:
    """Return what was done to the bytes of a file, and the bytes then."""
    data = bytearray(whole)
    place = generator.randrange(len(data))
    length = generator.choice((1, 1, 4, 64, 1000))
    kind = generator.choice(("cut", "bit", "bytes", "zeros", "inserted", "removed", "appended", "swapped"))
    if kind == "cut":
        del data[place:]
    elif kind == "bit":
        data[place] ^= 1 << generator.randrange(8)
    elif kind == "bytes":
        data[place : place + length] = generator.randbytes(len(data[place : place + length]))
    elif kind == "zeros":
        data[place : place + length] = bytes(len(data[place : place + length]))
    elif kind == "inserted":
        data[place:place] = generator.randbytes(length)
    elif kind == "removed":
        del data[place : place + length]
    elif kind == "appended":
        data += generator.randbytes(length)
    else:
        data = data[place:] + data[:place]
    return f"{kind} at {place}, {length} long", bytes(data)


def _changed(generator: random.Random, bases: Bases, path: Path) -> Case:
    """A complete checkpoint with some part replaced, with a valid checksum or in the first format."""
    content = _copy(bases.content)
    names = []
    for _ in range(generator.choice((1, 1, 2))):
        names.append(_change(generator, content))
    if generator.random() < 0.5:
        write_file(path, content)
    else:
        path.write_bytes(_saved({**content, "format": 1}))
    return Case(f"changed: {', '.join(names)}", (ONE_UPDATE_MORE, _mode(generator)), must_refuse=False)


def _change(generator: random.Random, content: dict[str, Any]) -> str:
    """Replace, remove or add something at a random depth, also inside JSON texts. Returns where."""
    where, part = "", content
    while True:
        if not part:
            part["new"] = _anything(generator)
            return f"{where}.new"
        key = generator.choice(list(part))
        where, value = f"{where}.{key}", part[key]
        if isinstance(value, dict) and generator.random() < 0.85:
            part = value
        elif isinstance(value, str) and value.startswith("{") and generator.random() < 0.9:
            table = json.loads(value)
            inner = generator.choice(list(table))
            table[inner] = generator.choice((None, -1, 0, 3, 1e300, "text", "auto", [], {}, True, [1, 2], "x" * 1000))
            part[key] = json.dumps(table)
            return f"{where}.{inner}={table[inner]!r:.40}"
        elif generator.random() < 0.15:
            del part[key]
            return f"{where} removed"
        else:
            part[key] = _other(generator, value) if generator.random() < 0.6 else _anything(generator)
            return f"{where}={part[key]!r:.40}"


def _other(generator: random.Random, value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, torch.Tensor):
        changes: tuple[Callable[[], torch.Tensor], ...] = (
            lambda: value.clone().fill_(float("nan")) if value.is_floating_point() else value.clone().fill_(1),
            lambda: value.reshape(-1)[:-1].clone(),
            lambda: value[None].clone(),
            lambda: value.double() if value.is_floating_point() else value.float(),
            lambda: torch.zeros(0),
            lambda: value * 1e30 if value.is_floating_point() else value.clone(),
            lambda: torch.zeros(1, dtype=value.dtype).expand(2**20, 2**10),
        )
        return generator.choice(changes)()
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return generator.choice((-1, 0, 1, value + 1, 2**63, 10**40))
    if isinstance(value, float):
        return generator.choice((-1.0, 0.0, float("nan"), float("inf"), 1e300))
    if isinstance(value, str):
        return generator.choice(("", "x", "{}", "[]", "[" * 10**5, value[:-1], '{"a": NaN}'))
    return type(value)() if isinstance(value, list | dict) else None


def _anything(generator: random.Random) -> Any:
    return generator.choice((None, True, -1, 10**30, float("nan"), "text", [], [1, "a"], {}, {"a": 1}, torch.zeros(2), (1, 2)))


def _foreign(generator: random.Random, bases: Bases, path: Path) -> Case:
    kinds = foreign_files(generator, bases)
    name = generator.choice(list(kinds))
    path.write_bytes(kinds[name]())
    return Case(f"foreign: {name}", (ONE_UPDATE_MORE, _mode(generator)), must_refuse=True)


def foreign_files(generator: random.Random, bases: Bases) -> dict[str, Callable[[], bytes]]:
    """Name -> content of a file of another program, or of one that would run code or fill the memory."""
    return {
        "nothing": lambda: b"",
        "noise": lambda: generator.randbytes(5000),
        "text": lambda: b"not a checkpoint\n" * 100,
        "picture": lambda: b"\x89PNG\r\n\x1a\n" + generator.randbytes(500),
        "weights alone": lambda: _saved(bases.content["agent"]["modules"]["network"]),
        "a list": lambda: _saved([1, 2, 3]),
        "a later format": lambda: _saved({**bases.content, "format": 99}),
        "pickle with code": lambda: pickle.dumps({"format": 2, "agent": RunsCode()}),
        "torch with code": lambda: _saved({**bases.content, "agent": RunsCode()}),
        "old torch with code": lambda: _saved({"agent": RunsCode()}, zipped=False),
        "a zip of something": lambda: _zipped({"a/data.pkl": b"\x80\x02}.", "a/version": b"3\n"}),
        "a bomb": lambda: _zipped({"a/data.pkl": b"\x80\x02" + b"0" * 10**8, "a/version": b"3\n"}, zipfile.ZIP_DEFLATED),
        "a tensor of a terabyte": lambda: _saved({**bases.content, "x": torch.zeros(1).expand(2**20, 2**18)}),
    }


def _fitting(generator: random.Random, bases: Bases, path: Path) -> Case:
    """A good checkpoint together with the flags of another game, network or optimiser."""
    path.write_bytes(bases.with_checksum)
    arguments = generator.choice(OTHERS)
    budget = () if any("max_steps" in argument for argument in arguments) else (ONE_UPDATE_MORE,)
    return Case(f"good, with {' '.join(arguments)}", (*budget, *arguments, "--op_mode=train_w_load"), must_refuse=False)


def _mode(generator: random.Random) -> str:
    return "--op_mode=train_w_load" if generator.random() < 0.8 else "--op_mode=test"


def _copy(content: Any) -> Any:
    return {name: _copy(part) for name, part in content.items()} if isinstance(content, dict) else content


def _saved(content: object, *, zipped: bool = True) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def _zipped(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()
