"""The whole chain of Rainbow, and the errors of plain, double, quantile and branching values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.dqn.errors import (
    NStepTransitions,
    categorical_errors,
    categorical_targets,
    expected_errors,
    expected_targets,
    quantile_errors,
    quantile_targets,
)
from agents.networks.q_network import DistributionalOutput, QOutput
from agents.values.categorical import expectation, support
from agents.values.dueling import dueling
from agents.values.q_learning import weighted_mean
from agents.values.windows import windows_of_rows
from replay.priorities.priorities import Priorities, importance_weights, normalised
from tests.agents.support import each_golden_case
from tests.agents.values.test_q_learning import F64, exact
from tests.agents.values.test_windows import flags


def at(rows: Tensor, tensor: Tensor) -> Tensor:
    """The entries of `[T+1, B, ...]` at rows `[T, B]`, flattened to `[T * B, ...]`."""
    return tensor[rows, torch.arange(rows.shape[1])].flatten(0, 1)


def output_of(case: dict[str, Any], network: str, atoms: Tensor, *, gradient: bool = False) -> tuple[DistributionalOutput, ...]:
    """The output of a network of the case for all rows, `[T+1, B, A, N]`, and the heads it is made of."""
    value, advantage = (
        tensor.requires_grad_(gradient) for tensor in exact(case["inputs"], f"value_{network}", f"advantage_{network}")
    )
    logits = dueling(value.flatten(0, 1), advantage.flatten(0, 1)).view_as(advantage)
    return DistributionalOutput(expectation(logits, atoms), logits), value, advantage


@each_golden_case("rainbow.json")
def test_the_whole_chain_of_rainbow(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    atoms = support(case["v_min"], case["v_max"], case["N"]).to(F64)
    (online, value, advantage), (target, _, _) = (
        output_of(case, name, atoms, gradient=name == "online") for name in ("online", "target")
    )
    rewards, terminated, used = *exact(given, "rewards"), *flags(given, "terminated", "action_used")
    windows = windows_of_rows(rewards, terminated, used, case["n"], case["gamma"])
    now = torch.arange(case["T"]).unsqueeze(-1).expand(-1, case["B"])
    behind = now + windows.rows
    window = NStepTransitions(
        torch.tensor(given["actions"]).view(-1, 1), windows.returns.flatten(), windows.discounts.flatten()
    )
    following = [DistributionalOutput(*(at(behind, part.detach()) for part in output)) for output in (target, online)]
    targets = categorical_targets(window, *following, atoms)
    errors = categorical_errors(
        DistributionalOutput(*(at(now, part) for part in online)), targets, window.choices, (case["A"],)
    )
    shape, mask = used.shape, used.double()
    torch.testing.assert_close(errors.losses.detach().view(shape) * mask, torch.tensor(wanted["cross_entropy"], dtype=F64))
    torch.testing.assert_close(errors.sizes.view(shape) * mask, torch.tensor(wanted["kl"], dtype=F64), rtol=1e-7, atol=1e-10)
    weights, drawn = drawn_weights(case, (errors.sizes.view(shape) * mask).numpy())
    np.testing.assert_allclose(weights, wanted["weights"], rtol=1e-7)
    loss = weighted_mean(errors.losses[drawn], torch.from_numpy(weights))
    assert abs(float(loss.detach()) - wanted["loss"]) < 1e-10
    loss.backward()
    for tensor, name in ((value, "value_online"), (advantage, "advantage_online")):
        torch.testing.assert_close(tensor.grad, torch.tensor(wanted[f"grad_loss_wrt_{name}"], dtype=F64))


def drawn_weights(case: dict[str, Any], errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of the drawn windows, and their numbers among all rows. errors: `[T, B]`, 0 where no window starts."""
    priorities = Priorities(1, errors.size, alpha=case["priority_exponent"], epsilon=0.0)
    priorities.add(0, errors.ravel() > 0)
    priorities.start(0, errors.ravel())
    numbers = np.array([t * errors.shape[1] + b for t, b in case["inputs"]["drawn"]])
    relative = priorities.count * priorities.tree[numbers] / priorities.tree.total
    return normalised(importance_weights(relative, case["beta"])), numbers


def test_double_values_take_the_action_of_the_network_that_learns() -> None:
    target, selecting = QOutput(torch.tensor([[1.0, 5.0, 2.0]])), QOutput(torch.tensor([[0.0, 1.0, 3.0]]))
    window = NStepTransitions(torch.tensor([[0]]), torch.tensor([10.0]), torch.tensor([0.5]))
    assert float(expected_targets(window, target, target, (3,))) == 12.5
    assert float(expected_targets(window, target, selecting, (3,))) == 11.0


def test_components_share_the_mean_of_their_best_values_as_target() -> None:
    counts, choices = (2, 3), torch.tensor([[1, 0]])
    target = QOutput(torch.tensor([[1.0, 2.0, 6.0, 0.0, 5.0]]))
    window = NStepTransitions(choices, torch.tensor([1.0]), torch.tensor([1.0]))
    targets = expected_targets(window, target, target, counts)
    assert float(targets) == 5.0
    online = QOutput(torch.tensor([[0.0, 4.5, 2.0, 0.0, 0.0]], requires_grad=True))
    errors = expected_errors(online, targets, choices, counts)
    assert float(errors.losses.detach()) == (0.125 + 2.5) / 2
    assert float(errors.sizes) == (0.5 + 3.0) / 2


def test_quantiles_move_with_the_return_and_the_priority_is_that_of_their_means() -> None:
    online = DistributionalOutput(torch.zeros(1, 2), torch.tensor([[[0.0, 1.0], [9.0, 9.0]]], requires_grad=True))
    following = DistributionalOutput(torch.tensor([[0.0, 1.0]]), torch.tensor([[[7.0, 7.0], [1.0, 3.0]]]))
    window = NStepTransitions(torch.tensor([[0]]), torch.tensor([2.0]), torch.tensor([0.5]))
    errors = quantile_errors(online, quantile_targets(window, following.atoms, following), window.choices, (2,))
    assert float(errors.sizes) == 2.5  # targets 2.5 and 3.5
    # u = y - theta: 2.5 and 3.5 for the first quantile (tau 1/4), 1.5 and 2.5 for the second (tau 3/4).
    assert float(errors.losses.detach()) == 0.25 * (2.0 + 3.0) / 2 + 0.75 * (1.0 + 2.0) / 2
