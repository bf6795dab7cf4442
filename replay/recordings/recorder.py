"""Writes a recording while environments are played: whole episodes, in one file for each environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from checked_files import locked, replacing
from replay.recordings.recording import FORMAT, INDEX, read_index
from replay.recordings.stream import FRAME, STEP_FIELDS, RecordFields, StreamFile


def check_folder(folder: Path, spec: Mapping[str, Any], fields: RecordFields) -> dict[str, Any]:
    """The index with which episodes can be added to a folder: a new one, or that of the recording there.

    spec: the environment as plain data. Raises ValueError in one line if the folder has a recording of another environment or
    with other fields, and OSError.
    """
    kept = {"spec": dict(spec), "fields": list(fields.dtype.names or ()), "distribution": fields.distribution}
    index = json.loads(json.dumps({"format": FORMAT, **kept, "about": [], "streams": {}}))
    if not (folder / INDEX).exists():
        return dict(index)
    found = read_index(folder)
    for name in kept:
        if found.get(name) != index[name]:
            raise ValueError(f"record_to: wanted a recording with {name} {index[name]} in {folder}, got {found.get(name)}")
    return found


class EpisodeRecorder:
    """Adds the episodes of some environments to a recording. A context manager.

    Only episodes that have ended are kept, so a recording holds whole episodes however its writer ends.

    Args:
        folder: of the recording; it is made if there is none.
        spec: the environment as plain data (`wrappers.spec.EnvSpec.to_json`).
        fields: of a record.
        about: plain data for readers, such as the checkpoint that played.

    No other process can add to the recording meanwhile. Raises what `check_folder` raises, and LockedError.
    """

    def __init__(self, folder: Path, spec: Mapping[str, Any], fields: RecordFields, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self.steps = self.episodes = 0
        self._acting, self._type = tuple(fields.acting), fields.dtype
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as exits:
            # The index is read and written as a whole, so two writers would lose each other's episodes.
            exits.enter_context(locked(folder, self._refusal))
            self._index = check_folder(folder, spec, fields)
            self._exits = exits.pop_all()
        self._index["about"].append(dict(about))
        self._files: dict[int, StreamFile] = {}

    def __enter__(self) -> EpisodeRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def add(
        self,
        environments: np.ndarray,
        frames: np.ndarray,
        actions: np.ndarray,
        fields: Mapping[str, Any],
        step: Any,
        ended: np.ndarray,
    ) -> None:
        """Add one step of n environments, and keep the episodes that ended in it.

        Args:
            environments: int `[n]`, their numbers, which are also their rows in `step`.
            frames: `[n, *frame_shape]`, the newest frames of the observations before the step.
            actions: `[n, *action_shape]`.
            fields: those of the policy, arrays or tensors `[n, *shape]`; only the declared ones are kept.
            step: the result of the step for all environments, a `wrappers.spec.Step`.
            ended: int, the environments among them whose episode ended and counts.
        """
        records = np.zeros(len(environments), self._type)
        records[FRAME], records["actions"] = frames, actions
        for name in STEP_FIELDS:
            records[name] = getattr(step, name)[environments]
        for name in self._acting:
            records[name] = fields[name]
        for row, environment in enumerate(environments.tolist()):
            self._file_of(environment).write(records[row : row + 1])
        for environment in ended.tolist():
            self._keep(environment, step.observations[environment, -1], float(step.episode_return[environment]))

    def _file_of(self, environment: int) -> StreamFile:
        """The file of an environment. Its name is the first that is free, because a killed writer leaves unused files."""
        number = len(self._index["streams"])
        while environment not in self._files:
            try:
                file = self._files[environment] = StreamFile(self.folder / f"stream_{number:05d}.npy", self._type)
                self._exits.callback(file.close)
            except FileExistsError:
                number += 1
        return self._files[environment]

    def _keep(self, environment: int, last_frame: np.ndarray, episode_return: float) -> None:
        after = np.zeros((), self._type)
        after[FRAME] = last_frame
        file = self._files[environment]
        before = file.steps
        file.keep(after)
        found = self._index["streams"].setdefault(file.path.name, {"steps": 0, "episodes": 0, "mean_return": 0.0})
        found["steps"], found["episodes"] = file.steps, found["episodes"] + 1
        found["mean_return"] += (episode_return - found["mean_return"]) / found["episodes"]
        self.steps, self.episodes = self.steps + file.steps - before, self.episodes + 1
        self._write_index()

    def _write_index(self) -> None:
        with replacing(self.folder / INDEX) as partial:
            partial.write_text(json.dumps(self._index, indent=2, allow_nan=False) + "\n")

    def _refusal(self, holder: str) -> str:
        return f"record_to: wanted a folder that no other process records into, got {self.folder}, into which {holder} records"
