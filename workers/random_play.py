"""Observations of a policy that knows nothing: what the network's input is calibrated with before training."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from workers.base import WorkerError
from wrappers import make_vector_env
from wrappers.spec import EnvConfig

ENVIRONMENTS = 4  # a seventh of a second each to make
STEPS = 800
EVERY = 4  # steps between two observations that are kept: neighbours look alike


def random_observations(env_config: EnvConfig, seed: int, threads: int = 1) -> Tensor:
    """800 observations `[N, S, *frame_shape]` of uniformly random play; about a second on two cores. Raises WorkerError."""
    env = make_vector_env(env_config, ENVIRONMENTS, threads)
    env.reset(seed + 1)
    generator = np.random.default_rng(seed)
    seen = []
    for index in range(STEPS):
        step = env.step(generator.integers(env.spec.action_count, size=ENVIRONMENTS))
        if index % EVERY == 0:
            seen.append(torch.from_numpy(step.observations.copy()))
    env.close()
    observations = torch.cat(seen)
    if observations.is_floating_point() and not observations.isfinite().all():
        raise WorkerError("random play before training: wanted finite observations, got others")
    return observations
