"""Value rescaling, and the loss and the priority of a whole sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.values.q_learning import value_of, weighted_mean
from agents.values.rescaling import rescaled, unscaled
from agents.values.sequences import sequence_losses, sequence_priorities
from tests.agents.values.test_q_learning import F64, exact
from tests.support import golden

CASES = golden("r2d2.json")


def having(output: str) -> pytest.MarkDecorator:
    """Parametrises a test with the cases that record this output."""
    return pytest.mark.parametrize("case", [case for case in CASES if output in case["outputs"]], ids=lambda case: case["name"])


@having("h")
def test_rescaling_and_its_inverse(case: dict[str, Any]) -> None:
    x = torch.tensor(case["inputs"]["x"], dtype=F64)
    for function, name in ((rescaled, "h"), (unscaled, "h_inverse")):
        wanted = torch.tensor(case["outputs"][name], dtype=F64)
        torch.testing.assert_close(function(x, case["eps"]), wanted, rtol=1e-10, atol=1e-12)
        in_float32 = function(x.float(), case["eps"]).to(F64)
        torch.testing.assert_close(in_float32, wanted, rtol=2e-6, atol=2e-6)


@having("loss_of_sequence")
def test_loss_priority_and_gradient_of_a_sequence(case: dict[str, Any]) -> None:
    wanted = case["outputs"]
    online, targets, learned = *exact(case["inputs"], "q_online"), *exact(wanted, "targets", "learned")
    online.requires_grad_()
    errors = targets - value_of(online[:-1], torch.tensor(case["inputs"]["actions"]))
    losses = sequence_losses(errors, learned.bool())
    torch.testing.assert_close(losses.detach(), torch.tensor(wanted["loss_of_sequence"], dtype=F64))
    priorities = sequence_priorities(errors, learned.bool(), case["eta"])
    torch.testing.assert_close(priorities, torch.tensor(wanted["priorities"], dtype=F64))
    weighted_mean(losses, torch.tensor(wanted["weights_if_all_are_drawn"], dtype=F64)).backward()
    torch.testing.assert_close(online.grad, torch.tensor(wanted["grad_loss_wrt_q_online"], dtype=F64))
