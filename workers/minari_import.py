"""Turns a Minari dataset into a recording, once: `--recording=minari:NAME` then reads the recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from replay.recordings.recorder import Recorder
from replay.recordings.recording import INDEX
from replay.recordings.stream import RecordFields
from wrappers import make_spec
from wrappers.minari_data import load_dataset, replayed
from wrappers.spec import AUTO_NAME, EnvConfig

PREFIX = "minari:"
ENV_SETTINGS = ("core_inputs", "action_mask", "ignored_observations")
"""Settings of the environment that frames depend on, by which recordings of one dataset differ."""


def import_dataset(name: str, config: EnvConfig, folder: Path) -> Path:
    """The folder of the recording made of a Minari dataset. It is made below `folder` if it is not there yet.

    Raises ValueError in one line if there is no such dataset or it is not one of this environment, and OSError.
    """
    names = ENV_SETTINGS + (("observation_layout",) if config.observation_layout != AUTO_NAME else ())
    own = "-".join(str(getattr(config, setting)) for setting in names)  # folders of earlier versions keep their names
    target = folder / name / own.replace("/", "_").replace(",", "_")
    if (target / INDEX).is_file():
        return target
    dataset, spec = load_dataset(name), make_spec(config)
    env, episodes = replayed(dataset, config)
    if any(getattr(env.spec, name) != getattr(spec, name) for name in ("frame_shape", "frame_dtype", "action", "leaves")):
        of = dataset.env_spec.id if dataset.env_spec else "another environment"
        raise ValueError(f"recording: wanted a dataset of {config.env}, got {name}, whose episodes are of {of}")
    partial = target.with_name(f"{target.name}.partial")
    _remove(partial)
    fields = RecordFields(spec.frame_shape, spec.frame_dtype, spec.action.shape, spec.action.dtype, {})
    with Recorder(partial, spec.to_json(), fields, {"dataset": name, "source": "Minari"}) as recorder:
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
    env.close()
    return partial.rename(target)


def _remove(folder: Path) -> None:
    """Remove what an import that did not end has left."""
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink()
