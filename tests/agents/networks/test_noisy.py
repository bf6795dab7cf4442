"""Noisy layers: output and gradients with given noise, initial weights, and draws."""

from __future__ import annotations

from typing import Any

import torch

from agents.networks.noisy import NoisyLinear, draw_noise
from tests.agents.support import each_golden_case
from tests.agents.values.test_q_learning import F64, exact

PARTS = {"weight": "mu_weight", "weight_sigma": "sigma_weight", "bias": "mu_bias", "bias_sigma": "sigma_bias"}
"""Name of a parameter -> its name in the golden file."""


def layer_of(case: dict[str, Any]) -> NoisyLinear:
    layer = NoisyLinear(case["inputs_count"], case["outputs_count"]).to(F64)
    layer.load_state_dict({name: torch.tensor(case["inputs"][other], dtype=F64) for name, other in PARTS.items()})
    return layer


@each_golden_case("noisy_linear.json")
def test_output_and_gradients(case: dict[str, Any]) -> None:
    layer, wanted = layer_of(case), case["outputs"]
    x, gradient = exact(case["inputs"], "x", "output_gradient")
    torch.testing.assert_close(layer(x).detach(), torch.tensor(wanted["y_without_noise"], dtype=F64))
    layer.noise_in.copy_(torch.tensor(wanted["f_noise_in"]))
    layer.noise_out.copy_(torch.tensor(wanted["f_noise_out"]))
    y = layer(x)
    torch.testing.assert_close(y.detach(), torch.tensor(wanted["y"], dtype=F64))
    y.backward(gradient)
    for name, other in PARTS.items():
        got, expected = layer.get_parameter(name).grad, torch.tensor(wanted[f"grad_{other}"], dtype=F64)
        torch.testing.assert_close(got, expected)


@each_golden_case("noisy_linear.json")
def test_initial_weights_are_within_their_bound(case: dict[str, Any]) -> None:
    layer, wanted = NoisyLinear(case["inputs_count"], 200), case["outputs"]
    layer.initialise(torch.Generator().manual_seed(1))
    for mean in (layer.weight, layer.bias):
        assert 0.9 * wanted["init_mu_bound"] < mean.abs().max() <= wanted["init_mu_bound"]
    for sigma in (layer.weight_sigma, layer.bias_sigma):
        torch.testing.assert_close(sigma, torch.full_like(sigma, wanted["init_sigma"]))


def noises_of_seed(seed: int) -> list[torch.Tensor]:
    """The noise of both sides of two layers."""
    layers = [NoisyLinear(4000, 4000) for _ in range(2)]
    draw_noise(layers, torch.Generator().manual_seed(seed))
    return [noise for layer in layers for noise in (layer.noise_in, layer.noise_out)]


def test_layers_have_independent_noise_of_the_right_size_and_equal_seeds_give_equal_noise() -> None:
    noises, again = noises_of_seed(3), noises_of_seed(3)
    assert all(map(torch.equal, noises, again))
    correlations = torch.corrcoef(torch.stack(noises))
    torch.testing.assert_close(correlations, torch.eye(4), rtol=0, atol=0.06)
    for noise in noises:  # f(x)^2 = |x|, whose mean is sqrt(2 / pi)
        torch.testing.assert_close(noise.square().mean(), torch.tensor(0.797885), rtol=0, atol=0.03)
        assert torch.unique(noise).numel() > 3900


def test_noise_is_no_part_of_a_layers_state() -> None:
    assert NoisyLinear(2, 3).state_dict().keys() == PARTS.keys()
