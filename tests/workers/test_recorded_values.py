"""Recordings whose numbers were changed are refused before anything learns from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay.recordings.recording import INDEX, open_recording
from tests.recordings import playing_at_random, record
from tests.support import run_main
from workers.recorded_values import check_values
from wrappers import make_spec
from wrappers.spec import EnvConfig

CATCH = EnvConfig(env="Catch-v0", frames_stacked=1)
WRONG: dict[str, tuple[str, Any]] = {
    "finite rewards": ("rewards", np.nan),
    "values from 0 to 2 as actions": ("actions", 3),
    "truth values as reset": ("reset", 2),
}


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    record(tmp_path, CATCH, playing_at_random, steps=39, environments=1)
    (path,) = tmp_path.glob("*.npy")
    return path


def test_a_sound_recording_is_taken(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_values(open_recording(stream.parent), make_spec(CATCH))
    monkeypatch.setattr("workers.recorded_values.ROWS", 7)
    check_values(open_recording(stream.parent), make_spec(CATCH))


@pytest.mark.parametrize("row", [0, 38])
@pytest.mark.parametrize("wanted", WRONG)
def test_an_impossible_value_is_refused_by_its_file(stream: Path, wanted: str, row: int) -> None:
    name, value = WRONG[wanted]
    records = np.load(stream)
    field = records[name].view(np.uint8) if records[name].dtype == bool else records[name]
    field[row] = value
    np.save(stream, records)
    with pytest.raises(ValueError, match=f"^{stream}: wanted {wanted}, got .* in records 0 to 39$"):
        check_values(open_recording(stream.parent), make_spec(CATCH))


def test_a_frame_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    """One that is a vector, and one of several parts, which is stored as bytes."""
    for number, kind in enumerate(("vector-discrete", "dict-discrete")):
        config, folder = EnvConfig(env=f"tests.matrix_env:Matrix-{kind}-v0", frames_stacked=1), tmp_path / str(number)
        record(folder, config, lambda seen, _: np.zeros(len(seen), np.int64), steps=40, environments=1)
        recording, spec = open_recording(folder), make_spec(config)
        check_values(recording, spec)
        records = np.array(recording.streams[0])
        records["frames"][3] = 255 if records["frames"].dtype == np.uint8 else np.inf  # bytes 255 are a NaN
        with pytest.raises(ValueError, match=f"^{recording.paths[0]}: wanted finite "):
            check_values(replace(recording, streams=(records,)), spec)


def test_episodes_that_do_not_end_are_refused(stream: Path) -> None:
    records = np.load(stream)
    records["episode_length"] = 0
    np.save(stream, records)
    with pytest.raises(ValueError, match=f"^{stream}: wanted 4 ended episodes .*, got 0$"):
        check_values(open_recording(stream.parent), make_spec(CATCH))


def test_the_program_refuses_in_one_line_and_makes_nothing(stream: Path, tmp_path: Path) -> None:
    records = np.load(stream)
    records["actions"][5] = -1
    np.save(stream, records)
    flags = ["--agent=bc", "--env=Catch-v0", "--network=mlp", f"--recording={stream.parent}"]
    done = run_main("--op_mode=train", f"--results_dir={tmp_path / 'results'}", "--environment_max_steps=100", *flags)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert stream.name in done.stderr
    assert not (tmp_path / "results").exists()
    (stream.parent / INDEX).write_bytes(b"\xff")
    done = run_main("--op_mode=train", f"--results_dir={tmp_path / 'results'}", "--environment_max_steps=100", *flags)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert INDEX in done.stderr
