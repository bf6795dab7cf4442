"""Turns a Minari dataset into a recording. `--recording=minari:NAME` reads it, until the dataset changes."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np

from checked_files import is_plain_name, locked
from replay.recordings.recorder import EpisodeRecorder
from replay.recordings.recording import INDEX
from replay.recordings.stream import RecordFields
from wrappers.minari_data import Episodes, load_dataset, replayed
from wrappers.spec import EnvConfig, EnvSpec, VectorEnv

PREFIX = "minari:"
ENV_SETTINGS = ("core_inputs", "action_mask", "ignored_observations", "observation_layout")
"""Settings of the environment that frames depend on, by which recordings of one dataset differ."""


def recording_of(name: str, config: EnvConfig, spec: EnvSpec, folder: Path) -> Path:
    """The folder below `folder` for the recording of a Minari dataset. Nothing is written: the recording may not be there yet.

    A dataset that has changed gets another folder: a run that learns from the earlier recording still needs it.

    Raises ValueError in one line if there is no such dataset or it is not one of this environment, and OSError.
    """
    if not all(map(is_plain_name, name.split("/"))):
        raise ValueError(f"recording: wanted the name of a Minari dataset, such as minari:cartpole/random-v0, got {name!r}")
    dataset = load_dataset(name)
    own = "-".join(str(getattr(config, setting)) for setting in ENV_SETTINGS)
    target = folder / name / f"{own.replace('/', '_').replace(',', '_')}-{fingerprint(Path(dataset.storage.data_path))}"
    if not (target / INDEX).is_file():
        env, _ = replayed(dataset, config)
        env.close()
        if any(getattr(env.spec, name) != getattr(spec, name) for name in ("frame_shape", "frame_dtype", "action", "leaves")):
            of = dataset.env_spec.id if dataset.env_spec else "another environment"
            raise ValueError(f"recording: wanted a dataset of {config.env}, got {name}, whose episodes are of {of}")
    return target


def import_dataset(name: str, config: EnvConfig, spec: EnvSpec, target: Path) -> None:
    """Make the recording of a Minari dataset in the folder that `recording_of` gives, if it is not there. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.parent):  # another run may be importing the same dataset
        if not (target / INDEX).is_file():
            env, episodes = replayed(load_dataset(name), config)
            _import(name, spec, env, episodes, target)
            env.close()


def fingerprint(folder: Path) -> str:
    """A name for the content of a folder, which changes with the names, sizes and times of its files. Raises OSError."""
    found = [(path.relative_to(folder).as_posix(), path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    lines = "".join(f"{name} {state.st_size} {state.st_mtime_ns}\n" for name, state in found)
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()[:16]


def _import(name: str, spec: EnvSpec, env: VectorEnv, episodes: Episodes, target: Path) -> None:
    """Record all episodes that an environment shows into a folder, which gets its name when it is complete."""
    partial = target.with_name(f".{target.name}")  # hidden, so that nothing reads it
    shutil.rmtree(partial, ignore_errors=True)  # of an import that did not end
    fields = RecordFields(spec.frame_shape, spec.frame_dtype, spec.action.shape, spec.action.dtype, {})
    with EpisodeRecorder(partial, spec.to_json(), fields, {"dataset": name, "source": "Minari"}) as recorder:
        everyone = np.zeros(1, np.int64)
        observations = env.reset(1)
        while True:
            rows = list(range(len(episodes.actions)))
            last = not episodes.left
            # After each episode but the last comes an autoreset, which ignores its action.
            for row in rows if last else [*rows, rows[-1]]:
                frames, actions = observations[:, -1].copy(), episodes.actions[row : row + 1]
                step = env.step(actions)
                recorder.add(everyone, frames, actions, {}, step, np.flatnonzero(step.episode_length > 0))
                observations = step.observations
            if last:
                break
    partial.rename(target)
