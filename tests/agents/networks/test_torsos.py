"""Torsos by flags: sizes, activation functions and convolutions are those asked for, or refused in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from agents.continuous.critics import Critics, StackedLinear
from agents.networks.inputs import VARIANCE_EPSILON
from agents.networks.settings import NetworkSettings
from agents.networks.spectral import spectral_layers
from agents.networks.torsos import ACTIVATIONS, TORSOS, Convolution, parse_convolutions, parse_hidden_sizes, suitable_network
from tests.builders import network_of
from tests.support import golden
from wrappers.spaces import Leaf, Packing


def layers_of(network: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [module for name, module in network.named_modules() if isinstance(module, kind) and "head" not in name]


def test_an_mlp_has_the_sizes_and_the_activation_that_are_asked_for() -> None:
    network = network_of("mlp", (1, 4), 2, hidden_sizes="64,32,16", activation="tanh")
    assert [(layer.in_features, layer.out_features) for layer in layers_of(network, nn.Linear)] == [(4, 64), (64, 32), (32, 16)]
    assert len(layers_of(network, nn.Tanh)) == 3
    assert network.feature_count == 16


def test_weights_of_the_default_mlp_keep_their_names() -> None:
    names = [name for name in network_of("mlp", (1, 4), 2).state_dict() if name.startswith("torso")]
    assert names == ["torso.1.weight", "torso.1.bias", "torso.3.weight", "torso.3.bias"]


def test_a_conv_has_the_layers_that_are_asked_for() -> None:
    network = network_of("conv", (2, 20, 12), 2, conv="8x4x2,16x3x1", hidden_sizes="32")
    layers = layers_of(network, nn.Conv2d)
    assert [(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride) for layer in layers] == [
        (2, 8, (4, 4), (2, 2)),
        (8, 16, (3, 3), (1, 1)),
    ]
    assert layers_of(network, nn.Linear)[0].in_features == 16 * 7 * 3
    assert network(torch.zeros(2, 2, 20, 12, dtype=torch.uint8)).values.shape == (2,)


def test_the_default_conv_is_that_of_nature() -> None:
    conv, nature = (layers_of(network_of(name, (4, 84, 84), 2), nn.Conv2d) for name in ("conv", "nature"))
    assert [str(layer) for layer in conv] == [str(layer) for layer in nature]


def test_a_flat_network_is_linear_in_the_observation() -> None:
    network = network_of("flat", (2, 3), 4)
    assert network.feature_count == 6
    observations = torch.arange(12.0).view(2, 2, 3)
    torch.testing.assert_close(network.features(observations), observations.flatten(1))
    assert [name for name, _ in network.named_parameters() if name.startswith("torso")] == []


def test_a_flat_network_does_not_join_images_and_vectors() -> None:
    leaves = (Leaf("image", (36, 36), "uint8"), Leaf("speed", (3,), "float32"))
    with pytest.raises(ValueError, match="^network: wanted auto or another that joins images and vectors, got flat$"):
        network_of("flat", (1, Packing(leaves).size), 2, leaves=leaves)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", sorted(TORSOS.keys() - {"flat"}))
def test_every_torso_takes_every_activation(name: str, activation: str) -> None:
    network = network_of(name, (1, 36, 36), 2, activation=activation)
    kinds = {type(module) for module in network.modules()} & {type(make()) for make in ACTIVATIONS.values()}
    assert kinds == {type(ACTIVATIONS[activation]())}
    assert network(torch.zeros(2, 1, 36, 36, dtype=torch.uint8)).values.isfinite().all()


@pytest.mark.parametrize("name", sorted(TORSOS.keys() - {"flat", "simba"}))
def test_with_layer_norm_no_layer_s_scale_matters(name: str) -> None:
    network = network_of(name, (1, 36, 36), 2, layer_norm=True, generator=torch.Generator().manual_seed(0))
    frames = torch.randint(256, (3, 1, 36, 36), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    features = network.features(frames)
    for layer in (*layers_of(network, nn.Conv2d), *layers_of(network, nn.Linear)):
        for parameter in layer.parameters():
            parameter.data.mul_(50.0)
        torch.testing.assert_close(network.features(frames), features, rtol=2e-3, atol=2e-3)
    assert features.std() > 0.1


def test_layer_norm_of_a_convolution_is_over_the_whole_image() -> None:
    network = network_of("conv", (2, 6, 5), 2, conv="3x3x1", hidden_sizes="4", layer_norm=True)
    frames = torch.randint(256, (7, 2, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    (convolution,), (linear,) = layers_of(network, nn.Conv2d), layers_of(network, nn.Linear)
    hidden = convolution(network.inputs_of(frames, torch.float32)[0])  # [7, 3, 4, 3]
    centred = hidden - hidden.mean((1, 2, 3), keepdim=True)
    hidden = linear((centred / (centred.square().mean((1, 2, 3), keepdim=True) + 1e-5).sqrt()).relu().flatten(1))
    centred = hidden - hidden.mean(-1, keepdim=True)
    expected = (centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()).relu()
    torch.testing.assert_close(network.features(frames), expected)
    assert [tuple(norm.weight.shape) for norm in layers_of(network, nn.LayerNorm)] == [(3, 4, 3), (4,)]


def load_simba(layers: Sequence[nn.Module], weights: dict[str, Any]) -> None:
    """Give the recorded weights, `[in, out]`, to the layers that have parameters: linear, blocks, norm and perhaps a head."""
    blocks = [
        [block[name] for name in ("scale", "bias", "weight1", "bias1", "weight2", "bias2")] for block in weights["blocks"]
    ]
    recorded = [
        *(weights["weight_in"], weights["bias_in"]),
        *(each for block in blocks for each in block),
        *(weights[name] for name in ("scale_out", "bias_out", "weight_head", "bias_head")),
    ]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    for parameter, values in zip(parameters, recorded, strict=False):
        tensor = torch.tensor(values, dtype=torch.float64)
        stacked = parameter.dim() == 3  # [count, in, out] of critics, [out, in] of linear layers
        parameter.data = (tensor if stacked or tensor.dim() < 2 else tensor.T).expand_as(parameter).clone()


@pytest.mark.parametrize("case", [case for case in golden("simba.json") if "weights" in case["inputs"]])
def test_simba_has_the_golden_features_also_in_critics(case: dict[str, Any]) -> None:
    x, mean, variance = (torch.tensor(case["inputs"][name], dtype=torch.float64) for name in ("x", "mean", "variance"))
    inputs = (x - mean) * (variance + VARIANCE_EPSILON).rsqrt()
    torch.testing.assert_close(inputs, torch.tensor(case["outputs"]["normalised"], dtype=torch.float64))
    sizes = ",".join([str(case["hidden"])] * case["blocks"])
    torso = TORSOS["simba"]((1, x.shape[1]), NetworkSettings("simba", hidden_sizes=sizes)).double()
    for norm in (module for module in torso.modules() if isinstance(module, nn.LayerNorm)):
        norm.eps = case["layer_norm_eps"]
    load_simba(list(torso), case["inputs"]["weights"])
    wanted = torch.tensor(case["outputs"]["features"], dtype=torch.float64)
    torch.testing.assert_close(torso(inputs.unsqueeze(1)), wanted, rtol=1e-10, atol=1e-10)
    output = torch.tensor(case["outputs"]["output"], dtype=torch.float64)
    critics = Critics(2, x.shape[1], output.shape[1], [case["hidden"]] * case["blocks"], "relu", simba=True).double()
    load_simba(list(critics.layers), case["inputs"]["weights"])
    if case["layer_norm_eps"] == 1e-5:
        torch.testing.assert_close(critics(inputs), output.expand(2, -1, -1), rtol=1e-10, atol=1e-10)


def test_the_first_weights_of_simba_have_the_variance_of_he_in_blocks() -> None:
    network = network_of("simba", (1, 64), 2, hidden_sizes="64,64", generator=torch.Generator().manual_seed(0))
    critics = Critics(2, 64, 1, (64, 64), "relu", simba=True)
    of_torso = [layer.weight for layer in layers_of(network.torso, nn.Linear)]
    of_critics = [layer.weight.mT[0] for layer in critics.modules() if isinstance(layer, StackedLinear)]
    for weights in (of_torso, of_critics[:-1]):
        assert [weight.detach().std().item() for weight in weights] == pytest.approx(
            [64**-0.5, *[(2 / 64) ** 0.5, (2 / 256) ** 0.5] * 2], rel=0.05
        )


def test_a_wide_impala_network_pools_its_last_images_to_a_fixed_size() -> None:
    network = network_of("impala_deep", (4, 84, 84), 2, width=2, adaptive_pool=6)
    convolutions = layers_of(network, nn.Conv2d)
    assert [layer.out_channels for layer in convolutions] == [32] * 5 + [64] * 10
    (linear,) = layers_of(network, nn.Linear)
    assert (linear.in_features, linear.out_features) == (64 * 6 * 6, 512)
    assert network.feature_count == 512
    frames = torch.randint(256, (2, 4, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    images = nn.Sequential(*list(network.torso.children())[:-3])(
        network.inputs_of(frames, torch.float32)[0]
    )  # behind the last sections
    assert images.shape == (2, 64, 6, 6)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_spectral_norm_bounds_the_residual_convolutions_alone(precision: str) -> None:
    network = network_of("impala_deep", (1, 20, 20), 2, spectral_norm=True, precision=precision)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    normalised = spectral_layers(network)
    assert (len(layers), len(normalised)) == (15, 12)
    frames = torch.randint(256, (3, 1, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    features = network.features(frames)
    for layer in normalised:
        exact = torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2)
        torch.testing.assert_close(layer.norm().detach(), exact, rtol=2e-2, atol=0)
        layer.weight.data.mul_(3.0)  # the norm grows as much, so the layer stays
    tolerance = 1e-4 if precision == "float32" else 0.1
    torch.testing.assert_close(network.features(frames), features, rtol=tolerance, atol=tolerance)
    for layer in normalised:
        layer.weight.data.div_(3.0)
    after = network.state_dict()
    assert {name for name in before if name.endswith((".left", ".right"))} <= set(after)
    assert all(torch.allclose(before[name], after[name]) for name in before)  # no pass moves the vectors
    torch.testing.assert_close(network.only_act().features(frames), features, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("text", ["", "0", "-3", "64,", "64,,64", "a", "70000", "6.5", ",".join(["2"] * 17)])
def test_hidden_sizes_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="^hidden_sizes: wanted 1 to 16 sizes from 1 to 65536 such as 256,256, got "):
        parse_hidden_sizes(text)


@pytest.mark.parametrize("text", ["", "32", "32x8", "32x8x4x2", "0x8x4", "32x8x0", "32x65x1", "ax8x4", "32x8x4,"])
def test_convolutions_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="^conv: wanted 1 to 16 layers CHANNELSxKERNELxSTRIDE such as 32x8x4"):
        parse_convolutions(text)


def test_sizes_are_read_in_order() -> None:
    assert parse_hidden_sizes("64, 32") == (64, 32)
    assert parse_convolutions("32x8x4,64x3x1") == (Convolution(32, 8, 4), Convolution(64, 3, 1))


@pytest.mark.parametrize(
    ("name", "shape", "settings", "message"),
    [
        ("nature", (4, 84, 84), {"hidden_sizes": "64"}, "hidden_sizes: wanted 256,256 with --network=nature, .* got 64"),
        ("mlp", (1, 4), {"conv": "8x3x1"}, "conv: wanted 32x8x4,64x4x2,64x3x1 with --network=mlp, .* got 8x3x1"),
        ("conv", (1, 4), {}, r"network conv: wanted observations \[S, H, W\] .*, got \[1, 4\]; --network=mlp fits"),
        ("conv", (1, 30, 99), {}, "network conv: wanted frames of at least 36x36, got 30x99; --network=impala_shallow fits"),
        ("nature", (1, 10, 5), {}, "network nature: wanted frames of at least 36x36, got 10x5; --network=mlp fits"),
        (
            "simba",
            (1, 4),
            {"hidden_sizes": "8,4"},
            "network simba: hidden_sizes: wanted equal sizes for .*, got 8,4; --network=mlp fits",
        ),
        ("simba", (1, 4), {"layer_norm": True}, "layer_norm: wanted False with --network=simba, .* got True"),
        (
            "flat",
            (1, 4),
            {"activation": "tanh"},
            "activation: wanted relu with --network=flat, which does not use it, got tanh",
        ),
        (
            "flat",
            (1, 4),
            {"layer_norm": True},
            "layer_norm: wanted False with --network=flat, which does not use it, got True",
        ),
        ("nature", (4, 84, 84), {"width": 2}, "width: wanted 1 with --network=nature, which does not use it, got 2"),
        ("mlp", (1, 4), {"activation": "sine"}, "activation: wanted relu, tanh, elu, silu or gelu, got 'sine'"),
    ],
)
def test_what_does_not_fit_is_refused_and_names_what_fits(
    name: str, shape: tuple[int, ...], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        network_of(name, shape, 2, **settings)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((4, 84, 84), "nature"),
        ((4, 36, 40, 3), "nature"),
        ((1, 35, 84), "impala_shallow"),
        ((1, 20, 20), "impala_shallow"),
        ((1, 19, 84), "mlp"),
        ((1, 10, 5), "mlp"),
        ((1, 17), "mlp"),
    ],
)
def test_the_suitable_network_is_the_largest_that_can_read_the_observations(shape: tuple[int, ...], name: str) -> None:
    assert suitable_network(shape)[0] == name
    assert network_of(name, shape, 2).feature_count >= 256
