"""Distributions against the ground truth, draws against their own densities, and draws against PyTorch's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.distributions import (
    ILLEGAL_LOGIT,
    Beta,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    make_distribution,
    sample_categorical,
)
from tests.agents.support import each_golden_case, golden_targets, tensors
from wrappers.spaces import ActionSpace, Box, Discrete, MultiDiscrete

EACH: list[Distribution] = [
    Categorical(4),
    MultiCategorical((2, 4, 3)),
    MultiCategorical((3, 3)),
    DiagonalGaussian(3),
    SquashedGaussian(3),
    Beta(3),
]
DISTRIBUTIONS = pytest.mark.parametrize("distribution", EACH, ids=str)
BOUNDED, UNBOUNDED = Box((-2.0, 0.0), (3.0, 1.0)), Box((-2.0, -math.inf), (3.0, 1.0))


def distribution_of(case: dict[str, Any]) -> Distribution:
    inputs = case["inputs"]
    kind, size = case["distribution"], np.shape(inputs["actions"])[-1]
    if kind == "categorical":
        return Categorical(np.shape(inputs["target_logits"])[-1])
    if kind == "multi_categorical":
        return MultiCategorical(tuple(case["nvec"]))
    return {"gaussian": DiagonalGaussian, "tanh_gaussian": SquashedGaussian, "beta": Beta}[kind](size)


def parameters_of(case: dict[str, Any], whose: str, dtype: torch.dtype) -> Tensor:
    """Parameters `[T, B, P]`; a shared log_std is expanded."""
    names = ("logits", "mean", "log_std", "raw_alpha", "raw_beta")
    found = [
        torch.tensor(case["inputs"][f"{whose}_{name}"], dtype=dtype) for name in names if f"{whose}_{name}" in case["inputs"]
    ]
    return torch.cat([part.expand(*found[0].shape[:-1], -1) for part in found], -1)


@each_golden_case("distributions.json")
def test_every_number_equals_the_recorded_one(case: dict[str, Any]) -> None:
    exact = case["name"] == "beta_peaked"  # float32 has an error of 2e-4 there
    dtype = torch.float64 if exact else torch.float32
    distribution, outputs = distribution_of(case), case["outputs"]
    drawn = torch.tensor(case["inputs"]["actions"], dtype=None if case["distribution"].endswith("categorical") else dtype)
    behaviour, target = (parameters_of(case, whose, dtype) for whose in ("behaviour", "target"))
    found = {
        "behaviour_log_prob": distribution.log_prob(behaviour, drawn),
        "target_log_prob": distribution.log_prob(target, drawn),
        "log_ratio": distribution.log_prob(target, drawn) - distribution.log_prob(behaviour, drawn),
        "behaviour_entropy": distribution.entropy(behaviour),
        "target_entropy": distribution.entropy(target),
        "kl_behaviour_target": distribution.kl(behaviour, target),
        "kl_target_behaviour": distribution.kl(target, behaviour),
        "target_mode": distribution.action(distribution.mode(target)),
    }
    if isinstance(distribution, SquashedGaussian):
        found["target_entropy_21_nodes"] = found.pop("target_entropy")
        found["squashed_actions"] = distribution.action(drawn)
        exact_entropy = torch.tensor(outputs["target_entropy"], dtype=dtype)
        torch.testing.assert_close(found["target_entropy_21_nodes"], exact_entropy, rtol=0, atol=0.07)
        del found["behaviour_entropy"]
    for name, got in found.items():
        assert got.dtype in (dtype, torch.int64)
        wanted = torch.tensor(outputs[name], dtype=got.dtype)
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-5, msg=name)


@each_golden_case("vtrace_distributions.json")
def test_vtrace_targets_of_vector_actions_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    """The ratio is one number per step, clipped after the sum over the components."""
    distribution, used = distribution_of(case), torch.tensor(case["inputs"]["action_used"])
    inputs, wanted = tensors(case["inputs"]), tensors(case["outputs"])
    behaviour, target = (
        distribution.log_prob(parameters_of(case, whose, torch.float32), inputs["actions"]) for whose in ("behaviour", "target")
    )
    log_rhos = torch.where(used, target - behaviour, 0.0)
    targets = golden_targets(case, log_rhos, case["gamma"] * (~inputs["terminated"]).float(), mask=used)
    torch.testing.assert_close(log_rhos[used], wanted["log_rhos"][used], rtol=2e-5, atol=1e-5)
    torch.testing.assert_close(targets.vs, wanted["vs"], rtol=2e-5, atol=1e-5)
    torch.testing.assert_close(targets.pg_advantages, wanted["pg_advantages"], rtol=2e-5, atol=1e-5)


def random_parameters(distribution: Distribution, *rows: int, seed: int = 0) -> Tensor:
    return torch.randn(*rows, distribution.parameter_count, generator=torch.Generator().manual_seed(seed))


@DISTRIBUTIONS
def test_the_mean_of_drawn_log_probabilities_is_minus_the_entropy(distribution: Distribution) -> None:
    """So draws follow the density that `log_prob` claims, and `entropy` is that of the same density."""
    parameters = random_parameters(distribution, 1).expand(200_000, -1)
    drawn = distribution.sample(parameters, torch.Generator().manual_seed(1))
    log_probs = distribution.log_prob(parameters, drawn)
    tolerance = 5 * float(log_probs.std()) / math.sqrt(len(log_probs))
    assert -float(log_probs.mean()) == pytest.approx(float(distribution.entropy(parameters[0])), abs=tolerance)


@DISTRIBUTIONS
def test_the_mean_of_drawn_log_ratios_is_the_divergence(distribution: Distribution) -> None:
    one, other = (random_parameters(distribution, 1, seed=seed).expand(200_000, -1) for seed in (0, 5))
    drawn = distribution.sample(one, torch.Generator().manual_seed(1))
    log_ratios = distribution.log_prob(one, drawn) - distribution.log_prob(other, drawn)
    tolerance = 5 * float(log_ratios.std()) / math.sqrt(len(log_ratios))
    divergence = float(distribution.kl(one[0], other[0]))
    assert float(log_ratios.mean()) == pytest.approx(divergence, abs=tolerance)
    assert divergence > 10 * tolerance


@DISTRIBUTIONS
def test_equal_generators_draw_the_same_from_one_generator_alone(distribution: Distribution) -> None:
    parameters = random_parameters(distribution, 50)
    drawn: list[Tensor] = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(drawn))  # the global generator must not matter
        drawn.append(distribution.sample(parameters, torch.Generator().manual_seed(seed)))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@DISTRIBUTIONS
def test_divergences_broadcast_and_are_zero_between_equals(distribution: Distribution) -> None:
    one, other = random_parameters(distribution, 4), random_parameters(distribution, 3, seed=1)
    found = distribution.kl(one[:, None], other[None])
    assert found.shape == (4, 3)
    torch.testing.assert_close(found[2, 1], distribution.kl(one[2], other[1]))
    torch.testing.assert_close(distribution.kl(one, one), torch.zeros(4), rtol=0, atol=1e-5)


@DISTRIBUTIONS
def test_wrong_rows_are_refused_with_wanted_and_got(distribution: Distribution) -> None:
    parameters = random_parameters(distribution, 4, 2)
    drawn = distribution.mode(parameters)
    with pytest.raises(ValueError, match=r"actions: wanted \[4, 2.*got \[3, 2"):
        distribution.log_prob(parameters, drawn[1:])


@DISTRIBUTIONS
def test_actions_are_what_the_space_takes(distribution: Distribution) -> None:
    parameters = 5 * random_parameters(distribution, 1000)
    actions = distribution.action(distribution.sample(parameters, torch.Generator().manual_seed(2))).numpy()
    if isinstance(distribution, Categorical):
        assert Discrete(4).check(actions, 1000) is actions
    elif isinstance(distribution, MultiCategorical):
        assert MultiDiscrete(distribution.counts).check(actions, 1000) is actions
    else:
        assert actions.dtype == np.float32
        assert np.isfinite(actions).all()
        if isinstance(distribution, SquashedGaussian | Beta):
            assert np.abs(actions).max() <= 1
    if isinstance(distribution, Beta):
        assert np.abs(actions).max() < 1


@pytest.mark.parametrize("distribution", [Categorical(4), MultiCategorical((2, 2)), MultiCategorical((3, 1))], ids=str)
def test_illegal_actions_are_never_taken_and_everything_stays_finite(distribution: Distribution) -> None:
    logits, other = random_parameters(distribution, 500), random_parameters(distribution, 500, seed=1)
    for parameters in (logits, other):
        parameters[:, 1] = ILLEGAL_LOGIT
    drawn = distribution.sample(logits, torch.Generator().manual_seed(1))
    chosen = [drawn, distribution.mode(logits)]
    first = [actions if actions.dim() == 1 else actions[:, 0] for actions in chosen]
    assert all((actions != 1).all() for actions in first)
    logits.requires_grad_()
    quantities = (distribution.log_prob(logits, drawn), distribution.entropy(logits), distribution.kl(logits, other))
    (gradient,) = torch.autograd.grad(torch.stack([quantity.sum() for quantity in quantities]).sum(), logits)
    for quantity in (*quantities, gradient):
        assert quantity.isfinite().all()
        assert quantity.abs().max() < 100


def test_a_beta_action_never_is_at_a_bound_where_its_density_would_be_zero() -> None:
    """However peaked the density is: y of 1 in float32 is clamped."""
    parameters = torch.tensor([[1e9, -20.0], [-20.0, 1e9]]).expand(100, 2, 2)
    drawn = Beta(1).sample(parameters, torch.Generator().manual_seed(1))
    assert (1 - drawn.abs()).min() == 2.0**-19
    assert Beta(1).log_prob(parameters, drawn).isfinite().all()


def test_nearly_certain_beta_policies_have_a_mode_and_divergences_that_are_not_negative() -> None:
    generator = torch.Generator().manual_seed(2)
    one = 1e5 * (1 + 1e-4 * torch.randn((200, 2), generator=generator))
    assert Beta(1).kl(one, one.flip(0)).min() > -0.01
    assert Beta(1).mode(torch.tensor([[-200.0, -200.0]])).item() == 0.0


def test_a_component_whose_values_are_all_masked_takes_one_of_them() -> None:
    drawn = MultiCategorical((3, 2)).sample(torch.full((200, 5), ILLEGAL_LOGIT), torch.Generator().manual_seed(1))
    assert drawn.amax(0).tolist() == [2, 1]


def test_one_choice_of_several_is_that_choice() -> None:
    one, several = Categorical(4), MultiCategorical((4,))
    logits, other = random_parameters(one, 6), random_parameters(one, 6, seed=1)
    drawn = one.sample(logits, torch.Generator().manual_seed(1))
    assert torch.equal(several.sample(logits, torch.Generator().manual_seed(1)).squeeze(-1), drawn)
    assert torch.equal(several.log_prob(logits, drawn[:, None]), one.log_prob(logits, drawn))
    assert torch.equal(several.entropy(logits), one.entropy(logits))
    assert torch.equal(several.kl(logits, other), one.kl(logits, other))


def test_the_gradient_of_a_clamped_standard_deviation_is_zero() -> None:
    parameters = torch.tensor([[0.0, -7.0], [0.0, 3.0], [0.0, 0.5]], requires_grad=True)
    (gradient,) = torch.autograd.grad(DiagonalGaussian(1).entropy(parameters).sum(), parameters)
    assert gradient[:, 1].tolist() == [0.0, 0.0, 1.0]


def test_a_squashed_action_at_the_bound_has_a_finite_density() -> None:
    drawn = torch.tensor([[300.0], [-300.0]])
    found = SquashedGaussian(1).log_prob(torch.tensor([[300.0, 0.0], [-300.0, 0.0]]), drawn)
    torch.testing.assert_close(found, torch.full((2,), -0.9189385 + 600 - 2 * math.log(2)))


@pytest.mark.parametrize(
    ("space", "name", "wanted"),
    [
        (Discrete(3), "auto", Categorical(3)),
        (Discrete(3), "categorical", Categorical(3)),
        (MultiDiscrete((2, 3)), "auto", MultiCategorical((2, 3))),
        (MultiDiscrete((2, 3)), "categorical", MultiCategorical((2, 3))),
        (BOUNDED, "auto", DiagonalGaussian(2, (True, True))),
        (BOUNDED, "squashed_gaussian", SquashedGaussian(2)),
        (BOUNDED, "beta", Beta(2)),
        (UNBOUNDED, "auto", DiagonalGaussian(2, (True, False))),
        (UNBOUNDED, "gaussian", DiagonalGaussian(2, (True, False))),
    ],
)
def test_a_space_has_a_distribution(space: ActionSpace, name: str, wanted: Distribution) -> None:
    assert make_distribution(space, name) == wanted


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (Discrete(3), "gaussian"),
        (MultiDiscrete((2, 3)), "beta"),
        (BOUNDED, "categorical"),
        (UNBOUNDED, "beta"),
        (UNBOUNDED, "squashed_gaussian"),
    ],
)
def test_a_distribution_that_does_not_fit_the_space_is_refused_in_one_line(space: ActionSpace, name: str) -> None:
    with pytest.raises(ValueError, match=f"action_distribution: wanted .*got {name}$") as caught:
        make_distribution(space, name)
    assert len(str(caught.value).splitlines()) == 1


def test_log_probabilities_are_those_of_the_actions_taken() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [3.0, 3.0, 3.0]]).log()
    got = Categorical(3).log_prob(logits, torch.tensor([2, 0]))
    torch.testing.assert_close(got, torch.tensor([0.5, 1.0 / 3.0]).log())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_log_probabilities_accept_narrow_integers_and_stay_finite(dtype: torch.dtype) -> None:
    got = Categorical(2).log_prob(torch.tensor([[1000.0, -1000.0]]), torch.tensor([1], dtype=dtype))
    assert got.item() == pytest.approx(-2000.0)


def test_entropy_of_a_uniform_policy_is_log_of_the_action_count() -> None:
    torch.testing.assert_close(Categorical(6).entropy(torch.full((2, 3, 6), 0.7)), torch.full((2, 3), math.log(6)))


def test_entropy_of_a_certain_policy_is_zero() -> None:
    assert Categorical(3).entropy(torch.tensor([200.0, 0.0, 0.0])).item() == pytest.approx(0.0, abs=1e-6)


def test_actions_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.7, 0.25, 0.05])
    logits = probabilities.log().expand(40_000, 3) + 5.0
    actions = sample_categorical(logits, torch.Generator().manual_seed(3))
    shares = np.bincount(actions.numpy(), minlength=3) / 40_000
    np.testing.assert_allclose(shares, probabilities, atol=0.015)  # five standard deviations


def test_the_draws_are_those_of_multinomial() -> None:
    """Runs made before `sample_categorical` existed drew by `torch.multinomial`; they resume with the same bits."""
    ours, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for actions in range(1, 19):
        logits = 3 * torch.randn(16, actions, generator=torch.Generator().manual_seed(actions))
        wanted = torch.multinomial(logits.softmax(-1), 1, generator=theirs).squeeze(-1)
        assert torch.equal(sample_categorical(logits, ours), wanted)
    assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize(("space", "expected"), [(BOUNDED, [0.29, 0.0, 1.0]), (UNBOUNDED, [0.25, 0.0, 1.0])], ids=str)
def test_the_excess_is_the_squared_distance_of_bounded_means_beyond_1_1(space: Box, expected: list[float]) -> None:
    means, log_stds = torch.tensor([[-1.6, 1.3], [1.1, -1.1], [2.1, 0.5]]), torch.full((3, 2), 9.0)
    excess = make_distribution(space).excess(torch.cat([means, log_stds], -1))
    assert excess is not None
    torch.testing.assert_close(excess, torch.tensor(expected))


@pytest.mark.parametrize("name", ["squashed_gaussian", "beta"])
def test_an_action_that_cannot_leave_its_bounds_has_no_excess(name: str) -> None:
    assert make_distribution(BOUNDED, name).excess(torch.full((1, 4), 9.0)) is None
    assert make_distribution(Box((-math.inf,), (math.inf,))).excess(torch.full((1, 2), 9.0)) is None
