"""Cores: golden cells and gradients, the row of a reset, and the one unroll that acting and learning agree on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agents.networks.cores import CORES, Core, CorePair, make_core
from tests.support import golden

GOLDEN = golden("recurrent.json")


def golden_core(case: dict[str, Any]) -> Core:
    core = CORES[case["cell"]](case["input_size"], case["hidden_size"], 0).double()
    core.load_state_dict({name: exact(case["inputs"][name]) for name in core.state_dict()})
    return core


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def state_of(values: dict[str, Any], names: tuple[str, ...]) -> Tensor:
    """h, or h and c, as one vector for each column."""
    return torch.cat([exact(values[name]) for name in names if name in values], -1)


def random_core(name: str, inputs: int = 3, size: int = 4) -> Core:
    core = make_core(name, inputs, size)
    assert isinstance(core, Core)
    core.initialise(torch.Generator().manual_seed(1))
    return core


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_a_core_gives_the_golden_rows_and_gradients(case: dict[str, Any]) -> None:
    """Resets at any row, episodes that end without one, and burn-in, whose rows get no gradient."""
    core, inputs, outputs, burn_in = golden_core(case), case["inputs"], case["outputs"], case["burn_in"]
    x, reset = exact(inputs["x"]).requires_grad_(), torch.tensor(inputs["reset"], dtype=torch.bool)
    state, before = state_of(inputs, ("initial_h", "initial_c")), x[:0, :, :0]
    if burn_in:
        before, state = core.unroll(x[:burn_in], state, reset[: burn_in - 1])
        state = state.detach()
    torch.testing.assert_close(state, state_of(outputs, ("state_at_burn_in_h", "state_at_burn_in_c")))
    if burn_in:
        state = torch.where(reset[burn_in - 1][:, None], 0.0, state)
    after, final = core.unroll(x[burn_in:], state, reset[burn_in:])
    hidden = torch.cat([before, after]) if burn_in else after
    torch.testing.assert_close(hidden.detach(), exact(outputs["h"]))
    torch.testing.assert_close(final.detach(), state_of(outputs, ("final_h", "final_c")))
    loss = (exact(inputs["output_weights"]) * hidden).sum()
    torch.testing.assert_close(loss.detach(), exact(outputs["loss"]))
    loss.backward()
    torch.testing.assert_close(x.grad, exact(outputs["grad_loss_wrt_x"]))


@pytest.mark.parametrize("name", CORES)
def test_steps_of_acting_are_the_rows_of_learning(name: str) -> None:
    core, generator = random_core(name), torch.Generator().manual_seed(2)
    x, state = torch.randn(6, 2, 3, generator=generator), torch.randn(2, core.state_size, generator=generator)
    reset = torch.zeros(5, 2, dtype=torch.bool)
    reset[2, 1] = True
    hidden, final = core.unroll(x, state, reset)
    for t in range(6):
        if t:
            state = torch.where(reset[t - 1][:, None], 0.0, state)
        h, state = core(x[t], state)
        torch.testing.assert_close(h, hidden[t])
    torch.testing.assert_close(state, final)


@pytest.mark.parametrize("name", CORES)
def test_a_pair_is_two_cores_side_by_side(name: str) -> None:
    pair = make_core(name, 6, 4, pair=True)
    assert isinstance(pair, CorePair)
    pair.initialise(torch.Generator().manual_seed(1))
    assert not torch.equal(pair.first.weight_hh, pair.second.weight_hh)
    generator = torch.Generator().manual_seed(2)
    x, states = torch.randn(5, 2, 6, generator=generator), torch.randn(2, 2, pair.first.state_size, generator=generator)
    reset = torch.tensor([[False, True]] * 4)
    both = torch.cat([states[0], states[1]], -1)
    found = [*pair.unroll(x, both, reset), *pair(x[0], both)]
    first = [*pair.first.unroll(x[..., :3], states[0], reset), *pair.first(x[0, :, :3], states[0])]
    second = [*pair.second.unroll(x[..., 3:], states[1], reset), *pair.second(x[0, :, 3:], states[1])]
    assert all(torch.equal(whole, torch.cat(halves, -1)) for whole, *halves in zip(found, first, second, strict=True))
    assert (pair.size, pair.state_size) == (8, 2 * pair.first.state_size)


@pytest.mark.parametrize("name", CORES)
def test_nothing_of_an_episode_passes_its_reset(name: str) -> None:
    """Neither h nor c, neither a gradient nor a number that is not finite. The reset of row 2 clears the state of row 3."""
    core = random_core(name)
    x = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(3)).requires_grad_()
    reset = torch.zeros(4, 2, dtype=torch.bool)
    reset[2, 1] = True
    state = torch.zeros(2, core.state_size)
    hidden, _ = core.unroll(x, state, reset)
    fresh, _ = core.unroll(x[3:, 1:], state[1:], reset[3:, 1:])
    torch.testing.assert_close(hidden[3:, 1:], fresh)
    (gradient,) = torch.autograd.grad(hidden[3:].square().sum(), x)
    assert not gradient[:3, 1].any()
    assert gradient[:3, 0].any(-1).all()
    (gradient,) = torch.autograd.grad(core.unroll(x, state, reset)[0][2].square().sum(), x)
    assert gradient[:3].any(-1).all()  # the final observation, in row 2, still sees its own episode
    broken, _ = core.unroll(x, state.masked_fill(torch.tensor([[False], [True]]), float("nan")), reset)
    assert broken[:3, 1].isnan().all()
    torch.testing.assert_close(broken[3:], hidden[3:])


def test_a_new_lstm_remembers() -> None:
    core = random_core("lstm", size=8)
    assert core.bias_ih[8:16].eq(1).all()
    assert core.bias_ih.sum() == 8
    assert not core.bias_hh.any()
    for gate in core.weight_hh.detach().chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8))


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("memory", [1, 2, 30, 1000])
def test_a_new_core_with_memory_forgets_after_2_to_that_many_steps(name: str, memory: int) -> None:
    core = make_core(name, 3, 512, memory)
    assert core is not None
    core.initialise(torch.Generator().manual_seed(0))
    let_in, keeping, *others = core.bias_ih.detach().view(core.gates, 512)
    steps = 1 + keeping.exp()  # 1 / (1 - sigmoid(bias)), the time after which a unit has forgotten all but 1/e
    assert 2 <= float(steps.min()) <= float(steps.max()) <= max(memory, 2)
    assert float(steps.mean()) == pytest.approx(1 + max(memory, 2) / 2, rel=0.1)
    assert torch.equal(let_in, -keeping if name == "lstm" else torch.zeros(512))
    assert not any(other.any() for other in others)


def test_equal_generators_give_equal_cores() -> None:
    for name in CORES:
        first, second = random_core(name), random_core(name)
        assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))


def test_an_unknown_core_is_refused() -> None:
    assert make_core("none", 3, 4) is None
    with pytest.raises(ValueError, match="^core: wanted none, gru or lstm, got 'rnn'$"):
        make_core("rnn", 3, 4)
