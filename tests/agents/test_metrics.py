"""The numbers that an update tells of itself, each against its definition."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.distributions import Categorical
from agents.metrics import masked_mean, ratio_metrics, replay_metrics, value_metrics
from tests.agents.support import random_batch

SHAPE = (5, 4)


def random_steps(seed: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def used_steps() -> Tensor:
    return random_steps(9) > -0.5


def test_a_mean_is_that_of_the_used_steps_whatever_the_others_are() -> None:
    mask = used_steps()
    spoilt = torch.where(mask, random_steps(1), math.nan)
    assert float(masked_mean(spoilt, mask)) == pytest.approx(float(spoilt[mask].mean()), rel=1e-6)
    assert math.isnan(masked_mean(spoilt, torch.zeros_like(mask)))


def test_value_metrics() -> None:
    values, targets, mask = random_steps(1), random_steps(2), used_steps()
    found = value_metrics(values, targets, mask)
    wanted, seen = targets[mask].numpy(), values[mask].numpy()
    explained = 1 - np.var(wanted - seen) / np.var(wanted)
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {
            "losses/explained_variance": explained,
            "losses/value_mean": seen.mean(),
            "losses/value_std": seen.std(),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_explained_variance_does_not_depend_on_the_scale_and_is_not_a_number_for_equal_targets(scale: float) -> None:
    values, targets, mask = random_steps(1), random_steps(2), used_steps()
    wanted, found = (float(value_metrics(k * values, k * targets, mask)["losses/explained_variance"]) for k in (1, scale))
    assert found == pytest.approx(wanted, rel=1e-4)
    equal = torch.full_like(targets, scale / 3)
    assert math.isnan(value_metrics(values, equal, mask)["losses/explained_variance"])


def test_ratio_metrics() -> None:
    log_rhos, mask = random_steps(3), used_steps()
    logits = torch.randn((*SHAPE, 3), generator=torch.Generator().manual_seed(4))
    found = ratio_metrics(Categorical(3).entropy(logits), log_rhos, mask, [("rho", 1.0), ("c", 0.5), ("pg_rho", 2.0)])
    ratios, policy = np.exp(log_rhos[mask].numpy()), logits[mask].softmax(-1).numpy()
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {
            "losses/entropy": -(policy * np.log(policy)).sum(-1).mean(),
            "vtrace/mean_rho": np.minimum(ratios, 1.0).mean(),
            "vtrace/rho_clip_fraction": (ratios > 1.0).mean(),
            "vtrace/c_clip_fraction": (ratios > 0.5).mean(),
            "vtrace/pg_rho_clip_fraction": (ratios > 2.0).mean(),
        },
        rel=1e-5,
    )


def test_replay_metrics_tell_each_replay_of_its_own_columns() -> None:
    log_rhos, relevant = random_steps(5), random_steps(6) > 0
    batch = replace(random_batch(1), action_used=used_steps(), source=torch.tensor([1, 0, 1, 1]))
    found = replay_metrics(batch, batch.action_used, log_rhos, relevant, ["queue", "old", "absent"])
    wanted = {}
    for index, name in enumerate(["queue", "old"]):
        steps = (batch.action_used & (batch.source == index)).numpy()
        ratios = np.exp(log_rhos.numpy()[steps])
        wanted[f"replay/{name}/rejected_fraction"] = (~relevant.numpy()[steps]).mean()
        wanted[f"replay/{name}/effective_sample_size"] = ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())
    nothing_of_it = {"rejected_fraction": math.nan, "effective_sample_size": math.nan}
    wanted |= {f"replay/absent/{name}": value for name, value in nothing_of_it.items()}
    assert {name: float(value) for name, value in found.items()} == pytest.approx(wanted, rel=1e-5, nan_ok=True)
    assert replay_metrics(batch, batch.action_used, log_rhos, relevant, []) == {}
