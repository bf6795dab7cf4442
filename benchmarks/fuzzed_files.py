"""Damaged recordings, files of runs, suites and tables of curves, each with what has to refuse it or to bear it."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzzed_checkpoints import ONE_UPDATE_MORE, TINY, base_checkpoints, damage
from benchmarks.fuzzed_flags import NUMBERS, TEXTS
from learner import launch
from learner.runs.directory import RunDirectory
from main import prepare
from replay.recordings.recording import INDEX
from tools import curves, watch
from tools.plan import PLAN_FILE, SUITE_FILE, check_suite, plan_runs, read_suite
from tools.report import write_report
from tools.suite import progress_of

VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**63, 10**30, 0.5, float("nan"), float("inf"), 1e308),
    *("", "x", "..", "../x", "/", "auto", "Recall-v0", "x" * 1000, "\0", "\ud800", [], [1], ["a"], {}, {"a": 1}, [[[[]]]]),
)
NUMBERS_OF_RECORDS = (np.nan, np.inf, -1.0, 3.0, 255.0, 1e30)
SUITE = {
    "name": "fuzzed",
    "common": {"environment_max_steps": 40, "network": "mlp"},
    "variants": {"a": {}, "b": {"gamma": 0.9}},
    "envs": ["Catch-v0"],
    "seeds": [1],
}
Readers = dict[Path, tuple[Callable[[], object], ...]]
"""File -> what reads it."""


@dataclass(frozen=True)
class FileCase:
    """A file that is damaged: what was done, its new content, and what reads it."""

    name: str
    path: Path
    content: bytes
    read: Callable[[], object]


def base_files(folder: Path) -> Readers:
    """Make a tiny run, a recording of it, a suite with the run, and a table of curves below `folder`."""
    base_checkpoints(folder)
    run = RunDirectory((folder / "runs" / "latest").resolve())
    return files_of_recordings(folder, run) | files_of_suites(folder, run) | files_of_curves(folder)


def files_of_recordings(folder: Path, run: RunDirectory) -> Readers:
    """A recording of the run's play."""
    recording, test = folder / "recording", ("--op_mode=test", f"--load={run.path}", "--verbosity=0")
    _run(*test, f"--record_to={recording}", "--test_episode_count=4")
    learning = [flag for flag in TINY if "worker" not in flag] + [f"--results_dir={folder / 'results'}", "--agent=bc"]
    readers = (
        partial(prepare, ["main.py", *learning, f"--recording={recording}"]),
        partial(_run, *test, f"--estimate_from={recording}"),
    )
    adding = partial(prepare, ["main.py", *test, f"--record_to={recording}"])
    return {recording / INDEX: (*readers, adding), **dict.fromkeys(recording.glob("*.npy"), readers)}


def files_of_suites(folder: Path, run: RunDirectory) -> Readers:
    """A suite file, and the suite's folder with the run in the place of the first plan."""
    suite, results = folder / "suite.json", folder / "suites" / "fuzzed"
    suite.write_text(json.dumps(SUITE))
    plan = plan_runs(read_suite(suite), results)[0]
    plan.write()
    shutil.copy(suite, results / SUITE_FILE)
    planned = RunDirectory(Path(shutil.copytree(run.path, plan.folder / run.path.name)))
    resume = partial(prepare, ["main.py", "--op_mode=train_w_load", f"--load={planned.path}", ONE_UPDATE_MORE])
    check = partial(_read_suite, suite, results)
    report = partial(write_report, [results], folder / "report", None, with_unfinished=True)
    return {
        **dict.fromkeys((planned.config, planned.metrics, planned.summary), (partial(_watch, planned), check, report, resume)),
        suite: (check,),
        results / SUITE_FILE: (report,),
        plan.folder / PLAN_FILE: (check, report),
    }


def files_of_curves(folder: Path) -> Readers:
    """A table of curves."""
    table, points = folder / "table.csv", np.array([1.0, 2.0, 5.0, 6.0, 7.0, 9.0])
    curves.write_table(table, [curves.Curve("Catch-v0", name, 1, points, points) for name in ("a", "b")])
    return {table: (partial(_keep_and_draw, table),)}


def fuzzed_file(generator: random.Random, files: Readers) -> FileCase:
    """Return a random case. The file itself stays as it is."""
    path = generator.choice(list(files))
    whole = path.read_bytes()
    change = {".json": _changed_object, ".npy": _changed_records, ".csv": _changed_cells}[path.suffix]
    name, content = damage(generator, whole) if generator.random() < 0.3 else change(generator, whole)
    read: Any = generator.choice(files[path])
    return FileCase(f"{path.name}, {name}, read by {read.func.__name__}", path, content, read)


def _run(*flags: str) -> None:
    launch.run(prepare(["main.py", *flags]))


def _read_suite(file: Path, folder: Path) -> None:
    suite = read_suite(file)
    check_suite(suite, folder)
    for plan in plan_runs(suite, folder):
        plan.is_finished()
        progress_of(plan)


def _watch(run: RunDirectory) -> None:
    columns, budget = watch.read_run(run)
    watch.screen(columns, budget, "run", 80, watch.end_of(run))


def _keep_and_draw(table: Path) -> None:
    copy = Path(shutil.copy(table, table.with_name("copy.csv")))
    found = curves.read_table(copy)
    curves.keep(copy, found[:1])
    curves.draw(table.with_suffix(".png"), found)


def _changed_object(generator: random.Random, whole: bytes) -> tuple[str, bytes]:
    """JSON with something replaced, removed or added at a random depth."""
    content = part = json.loads(whole)
    if generator.random() < 0.1:
        content = generator.choice(VALUES)
        return f"all is {content!r:.40}", json.dumps(content).encode()
    where = ""
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        if not keys:
            break
        key = generator.choice(keys)
        where = f"{where}.{key}"
        if isinstance(part[key], dict | list) and generator.random() < 0.7:
            part = part[key]
        elif generator.random() < 0.2:
            del part[key]
            break
        else:
            renamed = generator.choice(("..", "../x", "new")) if isinstance(part, dict) and generator.random() < 0.2 else key
            part[renamed] = part.pop(key) if renamed != key else generator.choice(VALUES)
            break
    return f"{where} changed", json.dumps(content).encode()


def _changed_records(generator: random.Random, whole: bytes) -> tuple[str, bytes]:
    """An array with other values, fields, dtypes or shapes."""
    records, file = np.load(io.BytesIO(whole)), io.BytesIO()
    name = generator.choice(records.dtype.names)
    kind = generator.choice(("value", "value", "dtype", "removed", "shape", "rows", "objects", "archive"))
    if kind == "value":
        rows = slice(generator.randrange(len(records)), None, generator.choice((1, 1000)))
        field = records[name].view(np.uint8) if records.dtype[name].kind == "b" else records[name]
        with np.errstate(all="ignore"):
            field[rows] = np.array(generator.choice(NUMBERS_OF_RECORDS)).astype(field.dtype)
    elif kind in ("dtype", "removed"):
        other = generator.choice((">f4", "<f8", "<i2", "S3", "<f4"))
        fields = [(each, other if each == name else records.dtype[each]) for each in records.dtype.names]
        records = np.zeros(len(records), [field for field in fields if kind == "dtype" or field[0] != name])
    elif kind == "shape":
        records = records.reshape(generator.choice(((-1, 1), (1, -1), (1, 1, -1))))
    elif kind == "rows":
        records = records[: generator.randrange(len(records))]
    elif kind == "objects":
        records = np.array([{}, 1], object)
    np.savez(file, records) if kind == "archive" else np.save(file, records)
    return f"{kind} of {name}", file.getvalue()


def _changed_cells(generator: random.Random, whole: bytes) -> tuple[str, bytes]:
    """A table with another cell, without a line, or with one twice."""
    lines = [line.split(",") for line in whole.decode().splitlines()]
    line = generator.choice(lines)
    kind = generator.choice(("cell", "cell", "cell", "removed", "twice"))
    if kind == "cell":
        line[generator.randrange(len(line))] = generator.choice(generator.choice((TEXTS, NUMBERS)))
    elif kind == "removed":
        lines.remove(line)
    else:
        lines.append(line)
    return f"{kind} of {','.join(line):.80}", "\n".join(",".join(each) for each in lines).encode(errors="surrogatepass")
