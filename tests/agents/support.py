"""A small batch, network and settings for tests of the agent, and recorded cases as tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.networks.actor_critic import ActorCritic
from agents.networks.statistics import Moments
from agents.returns.vtrace import VTraceReturns, vtrace
from agents.vtrace.agent import VTraceConfig
from replay.batch import Batch
from tests.builders import network_of
from tests.support import golden

T, B, A = 5, 3, 4
RATE = 1e-3
CONFIG = VTraceConfig(
    lr=RATE,
    lr_end_value=RATE,
    gamma=0.9,
    rho_bar=1.5,
    c_bar=1.0,
    pg_rho_bar=2.0,
    vtrace_lambda=0.95,
    reward_clipping_method="abs_one_clamp",
)
CLEAR = replace(
    CONFIG,
    use_policy_cloning_loss=True,
    use_value_cloning_loss=True,
    policy_cloning_loss_weight=0.7,
    value_cloning_loss_weight=0.4,
)


def each_golden_case(*file_names: str, only: Callable[[dict[str, Any]], bool] = bool) -> pytest.MarkDecorator:
    """Parametrises a test with every recorded case of the files, or with those that `only` accepts."""
    cases = [case for file_name in file_names for case in golden(file_name) if only(case)]
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["name"])


def old_start(count: float, features: int) -> Moments:
    """Moments that begin with `count` values of mean 0 and variance 1, as those of the golden files and old checkpoints do."""
    weight = torch.tensor(count, dtype=torch.float64)
    return Moments(weight, torch.zeros(features, dtype=torch.float64), weight.expand(features))


def tensors(part: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in part.items()}


def golden_targets(case: dict[str, Any], log_rhos: Tensor, discounts: Tensor, **further: Tensor | None) -> VTraceReturns:
    """V-trace targets of a recorded case with these log-ratios and discounts, `[T, B]` each.

    further: other arguments of `vtrace`, such as its mask.
    """
    inputs = tensors({name: case["inputs"][name] for name in ("rewards", "values", "bootstrap_value")})
    clips = {name: case[name] for name in ("rho_bar", "c_bar", "pg_rho_bar")}
    return vtrace(log_rhos=log_rhos, discounts=discounts, **inputs, **clips, lambda_=case["lambda"], **further)


def make_network_here() -> ActorCritic:
    return network_of("mlp", (2, 6), A, generator=torch.Generator().manual_seed(1))


def random_batch(seed: int = 0) -> Batch:
    """Row 2 of column 1 is an autoreset; in row 1 of column 2 the environment replaced the action."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    action_used = torch.ones(T, B, dtype=torch.bool)
    action_used[2, 1] = action_used[1, 2] = False
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[2, 1] = True
    terminated = torch.zeros(T, B, dtype=torch.bool)
    terminated[3, 0] = True
    return Batch(
        observations=rand(T + 1, B, 2, 6),
        actions=torch.randint(A, (T, B), generator=generator),
        rewards=3 * rand(T, B),
        terminated=terminated,
        reset=reset,
        action_used=action_used,
        acting={"behaviour_policy": rand(T, B, A), "behaviour_values": rand(T, B)},
        is_replay=torch.tensor([False, True, True]),
        source=torch.tensor([0, 1, 1]),
    )


def with_other_unused_rows(batch: Batch) -> Batch:
    """A copy of a `random_batch` with other rewards, actions and policies in the two rows whose action was not used."""
    changed = deepcopy(batch)
    for row, column in ((2, 1), (1, 2)):
        changed.rewards[row, column] = 1e4
        changed.actions[row, column] = (changed.actions[row, column] + 1) % A
        changed.acting["behaviour_policy"][row, column] += torch.arange(A)
    return changed


def with_nan(batch: Batch, name: str) -> Batch:
    """A copy with a NaN in the field `name`, of the batch or of what acting stored."""
    bad = deepcopy(batch)
    (bad.acting[name] if name in bad.acting else getattr(bad, name))[0, 0] = math.nan
    return bad
