"""APPO's targets and losses against recorded values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from agents.appo.agent import APPOAgent, APPOConfig, MinibatchColumns
from agents.returns.gae import gae
from tests.agents.asynchronous_support import Recorded
from tests.agents.returns.test_gae import golden_cases

PLAIN = APPOConfig(normalise_advantages=False)
CASES = pytest.mark.parametrize("case", golden_cases("appo.json"))


@CASES
def test_targets_and_advantages_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    kept = Recorded(APPOAgent, PLAIN, case)
    log_probs = kept.agent._log_probs(_columns(kept), kept.policy)
    found = kept.agent.estimates(kept.batch, log_probs, kept.values.detach(), kept.agent.config.gamma)
    kept.check("vs", found.targets)
    kept.check("advantages", found.advantages)


@CASES
@pytest.mark.parametrize("suffix", ["", "_normalized"])
def test_the_policy_loss_and_its_gradient_equal_the_recorded_ones(case: dict[str, Any], suffix: str) -> None:
    kept = Recorded(APPOAgent, replace(PLAIN, normalise_advantages=bool(suffix)), case)
    loss = kept.losses().terms["policy_loss"].value
    kept.check(f"policy_loss{suffix}", loss)
    kept.check_gradient(f"grad_policy_loss{suffix}_wrt_log_prob", loss)


@CASES
def test_value_loss_entropy_and_clip_fraction_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    kept = Recorded(APPOAgent, PLAIN, case)
    terms, metrics, _ = kept.losses()
    kept.check("value_loss", terms["value_loss"].value)
    kept.check("entropy", -terms["entropy_loss"].value)
    kept.check("clip_fraction", metrics["losses/clip_fraction"])


@CASES
def test_with_gae_the_ratio_is_in_the_surrogate_alone(case: dict[str, Any]) -> None:
    kept = Recorded(APPOAgent, replace(PLAIN, advantages="gae"), case)
    values, batch = kept.values.detach(), kept.batch
    wanted = gae(
        rewards=batch.rewards,
        discounts=case["gamma"] * (~batch.terminated).float(),
        values=values[:-1],
        bootstrap_value=values[-1],
        lambda_=case["lambda"],
        mask=batch.action_used,
    )
    log_probs = kept.agent._log_probs(_columns(kept), kept.policy)
    found = kept.agent.estimates(batch, log_probs, values, kept.agent.config.gamma)
    torch.testing.assert_close((found.advantages, found.targets), tuple(wanted))
    torch.testing.assert_close(found.log_ratios, log_probs.policy - log_probs.behaviour)


def _columns(kept: Recorded) -> MinibatchColumns:
    return MinibatchColumns(kept.batch, None, kept.case["clip"])
