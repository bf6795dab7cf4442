"""Recordings on the disk: whole episodes, in files that numpy reads."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checked_files import LOCK_NAME, LockedError
from replay.recordings.recorder import EpisodeRecorder, check_folder
from replay.recordings.recording import INDEX, open_recording, read_index
from replay.recordings.stream import STEP_FIELDS, RecordFields, StreamFile, read_stream
from replay.trajectory import Field
from tests.recordings import fields_of, playing_at_random, record
from wrappers import make_spec
from wrappers.spec import EnvConfig
from wrappers.toys.catch import EPISODE_STEPS

CATCH = EnvConfig(env="Catch-v0", frames_stacked=2)
SPEC = {"env": "X-v0", "frame_shape": [2], "frame_dtype": "float32", "action": {"kind": "discrete"}, "leaves": []}
FIELDS = RecordFields((2,), "float32", (), "int64", {"extra": Field((3,), "float32")})


def test_a_file_is_whole_whenever_steps_are_kept(tmp_path: Path) -> None:
    """The header keeps its length, whatever the number of records."""
    path, wanted = tmp_path / "stream.npy", np.zeros(0, FIELDS.dtype)
    file = StreamFile(path, FIELDS.dtype)
    for count in (1, 8, 99_999):
        records, after = np.zeros(count, FIELDS.dtype), np.zeros((), FIELDS.dtype)
        records["rewards"], records["extra"] = np.arange(count), count
        after["frames"] = count
        file.write(records[: count // 2])
        file.write(records[count // 2 :])
        file.keep(after)
        wanted = np.concatenate([wanted, records])
        found = read_stream(path)
        assert isinstance(found, np.memmap)
        assert np.array_equal(found[:-1], wanted)
        assert found[-1]["frames"].tolist() == [count, count]
    file.write(records)  # is not kept
    assert len(read_stream(path)) == len(wanted) + 1
    file.close()
    assert path.stat().st_size == file._first + (len(wanted) + 1) * FIELDS.dtype.itemsize


def test_no_file_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "stream.npy").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        StreamFile(tmp_path / "stream.npy", FIELDS.dtype)


def test_only_whole_episodes_are_kept(tmp_path: Path) -> None:
    """An episode of Catch has nine steps, and each later one begins with an autoreset."""
    seen = record(tmp_path, CATCH, playing_at_random, steps=35)
    recording = open_recording(tmp_path)
    assert len(list(tmp_path.glob("*.npy"))) == 3
    played = [EPISODE_STEPS + 2 * (EPISODE_STEPS + 1)] * 3  # the fourth episode has six of its nine steps
    assert [len(records) - 1 for records in recording.streams] == played
    assert (recording.steps, recording.episodes) == (sum(played), 9)
    returns = [row["episode_return"] for row in seen[: played[0]]]
    assert recording.mean_return == pytest.approx(float(np.nanmean(returns)))
    for column, records in enumerate(recording.streams):
        for row, found in zip(seen, records[:-1], strict=False):
            assert np.array_equal(found["frames"], row["observations"][column, -1])
            assert found["actions"] == row["actions"][column]
            for name in STEP_FIELDS:
                assert np.array_equal(found[name], row[name][column], equal_nan=name == "episode_return")
        assert np.array_equal(records[-1]["frames"], seen[played[0] - 1]["after"][column, -1])


def test_recordings_of_one_environment_are_added_up(tmp_path: Path) -> None:
    """In one folder and in several."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "stream_00001.npy").write_bytes(b"of a writer that was killed")
    for seed in (1, 2):
        record(tmp_path / "one", CATCH, playing_at_random, steps=10, seed=seed)
    record(tmp_path / "two", CATCH, playing_at_random, steps=20, environments=1)
    recording = open_recording(tmp_path)
    assert recording.episodes == 3 + 3 + 2
    assert len(recording.streams) == 7
    assert len(read_index(tmp_path / "one")["about"]) == 2


def test_other_recordings_are_refused(tmp_path: Path) -> None:
    spec, fields = make_spec(CATCH).to_json(), fields_of(CATCH)
    record(tmp_path, CATCH, playing_at_random, steps=10)
    check_folder(tmp_path, spec, fields)
    with pytest.raises(ValueError, match="^record_to: wanted a recording with spec .*Reach.* in .*, got .*Catch"):
        check_folder(tmp_path, make_spec(EnvConfig(env="Reach-v0", frames_stacked=1)).to_json(), fields)
    with pytest.raises(ValueError, match="^record_to: wanted a recording with fields .*'extra'.* in .*, got "):
        EpisodeRecorder(tmp_path, spec, fields._replace(acting={"extra": Field((), "float32")}), {})
    with pytest.raises(ValueError, match="^record_to: wanted a recording with distribution beta in .*, got $"):
        check_folder(tmp_path, spec, fields._replace(distribution="beta"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "got Expecting property name"),
        ("[]", r"got \[\]$"),
        ('{"format": 1}', "with 'spec', got none$"),
        ('{"format": 2}', "of a recording, got 2$"),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / INDEX))}: wanted .*{message}"):
        open_recording(tmp_path)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "spec": lambda index: index.update(spec=[]),
    "frame_shape": lambda index: index["spec"].pop("frame_shape"),
    "distribution": lambda index: index.update(distribution=None),
    "episodes": lambda index: stream_of(index).update(episodes=0),
    "steps": lambda index: stream_of(index).update(steps=True),
    "mean_return": lambda index: stream_of(index).update(mean_return=float("nan")),
    "'../other.npy'": lambda index: index["streams"].update({"../other.npy": stream_of(index)}),
}


def stream_of(index: dict[str, Any]) -> Any:
    return next(iter(index["streams"].values()))


@pytest.mark.parametrize("name", CHANGES)
def test_an_index_with_a_wrong_value_is_refused(tmp_path: Path, name: str) -> None:
    record(tmp_path, CATCH, playing_at_random, steps=10, environments=1)
    index = read_index(tmp_path)
    CHANGES[name](index)
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / INDEX))}: .*{name}"):
        open_recording(tmp_path)


def saved(save: Callable[..., None], *values: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    save(file, *values, **named)
    return file.getvalue()


@pytest.mark.parametrize("name", ["empty", "cut", "archive", "objects", "header", "too few", "other dtype"])
def test_a_stream_of_another_kind_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    record(tmp_path, CATCH, playing_at_random, steps=20, environments=1)
    (path,) = tmp_path.glob("*.npy")
    whole, records = path.read_bytes(), np.load(path)
    doubles = [(each, "<f8" if each == "rewards" else records.dtype[each]) for each in records.dtype.names]
    contents = {
        "empty": b"",
        "cut": whole[:-1],
        "archive": saved(np.savez, a=records),
        "objects": saved(np.save, np.array([{}], object), allow_pickle=True),
        "header": whole[:40] + b"(" * 20 + whole[60:],
        "too few": saved(np.save, records[:-1]),
        "other dtype": saved(np.save, records.astype(np.dtype(doubles))),
    }
    path.write_bytes(contents[name])
    with pytest.raises(ValueError, match=re.escape(path.name)) as refused:
        open_recording(tmp_path)
    assert len(str(refused.value).splitlines()) == 1


def test_one_process_records_into_a_folder(tmp_path: Path) -> None:
    """The index of the second would be without the episodes of the first."""
    spec, fields = make_spec(CATCH).to_json(), fields_of(CATCH)
    refused = pytest.raises(LockedError, match=rf"^record_to: .*{tmp_path}.* process {os.getpid()} ")
    with EpisodeRecorder(tmp_path, spec, fields, {}), refused:
        EpisodeRecorder(tmp_path, spec, fields, {})
    record(tmp_path, CATCH, playing_at_random, steps=10)
    assert {path.suffix for path in tmp_path.iterdir() if path.name != LOCK_NAME} == {".json", ".npy"}


def test_a_recording_that_is_being_made_is_not_read(tmp_path: Path) -> None:
    for name in ("made", ".being_made"):
        record(tmp_path / name, CATCH, playing_at_random, steps=10)
    assert open_recording(tmp_path).episodes == 3


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^recording: wanted a folder with recording.json in it or below it, got "):
        open_recording(tmp_path)
    record(tmp_path, CATCH, playing_at_random, steps=3)
    assert not list(tmp_path.glob("*.npy"))
    with pytest.raises(ValueError, match="^recording: wanted a folder with recording.json"):  # no episode, no index
        open_recording(tmp_path)
    record(tmp_path, CATCH, playing_at_random, steps=10, environments=1)
    (file,) = (tmp_path / name for name in read_index(tmp_path)["streams"])
    np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match="wanted an array of records with the fields of a recording, got float64"):
        open_recording(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match="wanted a file of a recording, got none"):
        open_recording(tmp_path)


def test_an_index_without_episodes_is_refused(tmp_path: Path) -> None:
    index = {"format": 1, "spec": SPEC, "fields": [], "distribution": "", "about": [], "streams": {}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match="^recording: wanted at least one whole episode, got none in "):
        open_recording(tmp_path)
