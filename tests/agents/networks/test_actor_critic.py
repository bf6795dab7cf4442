"""Networks: sizes, initialisation, what they make of their input, and what they refuse."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.networks.actor_critic import ActorCritic
from agents.networks.base import make_network
from agents.networks.inputs import network_input
from agents.networks.torsos import TORSOS
from tests.builders import network_config, network_of

CONVOLUTIONAL = ["nature", "impala_shallow", "impala_deep"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def frames(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=seeded(1))


def assert_same_outputs(got: Tensor, expected: Tensor) -> None:
    """Equal but for the order of float32 sums: to one part in 20,000 of the largest, however small that is."""
    assert expected.any()
    torch.testing.assert_close(got, expected, rtol=0.0, atol=5e-5 * expected.abs().max().item())


@pytest.mark.parametrize(
    ("name", "shape", "actions", "count"),
    [
        ("nature", (4, 84, 84), 6, 8224 + 32832 + 36928 + 1606144 + 3078 + 513),
        ("impala_shallow", (4, 84, 84), 6, 4112 + 8224 + 663808 + 1542 + 257),
        ("impala_shallow", (4, 42, 42), 6, 4112 + 8224 + 73984 + 1542 + 257),
        ("impala_deep", (4, 84, 84), 6, 9872 + 41632 + 46240 + 991488 + 1542 + 257),
        ("nature", (4, 84, 84, 3), 6, 24608 + 32832 + 36928 + 1606144 + 3078 + 513),
        ("mlp", (1, 10, 5), 3, 13056 + 65792 + 771 + 257),
    ],
)
def test_parameter_counts_are_those_of_the_papers(name: str, shape: tuple[int, ...], actions: int, count: int) -> None:
    network = network_of(name, shape, actions)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


@pytest.mark.parametrize("name", sorted(TORSOS))
@pytest.mark.parametrize("shape", [(4, 42, 42), (2, 40, 37), (2, 38, 41, 3)])
def test_outputs_are_float32_logits_and_values(name: str, shape: tuple[int, ...]) -> None:
    network = network_of(name, shape, 5, generator=seeded())
    output = network(frames(3, *shape))
    assert output.policy.shape == (3, 5)
    assert output.values.shape == (3,)
    assert output.policy.dtype == output.values.dtype == torch.float32
    assert network.features(frames(3, *shape)).shape == (3, network.feature_count)


@pytest.mark.parametrize("name", sorted(TORSOS))
def test_forward_is_the_heads_on_the_features(name: str) -> None:
    network = network_of(name, (4, 42, 42), 5, generator=seeded())
    features = network.features(frames(2, 4, 42, 42))
    assert (features >= 0.0).all() or name == "simba"  # its last layer is a normalisation
    output = network(frames(2, 4, 42, 42))
    assert_same_outputs(output.policy, features @ network.policy_head.weight.T + network.policy_head.bias)
    assert_same_outputs(output.values, features @ network.value_head.weight[0] + network.value_head.bias)


def test_impala_deep_computes_its_figure() -> None:
    """Figure 3 of IMPALA, written out with the network's own weights."""
    network = network_of("impala_deep", (4, 21, 16), 5, generator=seeded())
    observations = frames(2, 4, 21, 16)
    parameters = iter(network.torso.parameters())

    def convolve(inputs: Tensor) -> Tensor:
        return functional.conv2d(inputs, next(parameters), next(parameters), padding=1)

    hidden = observations / 255.0
    for _ in range(3):
        hidden = functional.max_pool2d(convolve(hidden), 3, stride=2, padding=1)
        for _ in range(2):
            hidden = hidden + convolve(convolve(hidden.relu()).relu())
    expected = functional.linear(hidden.relu().flatten(1), next(parameters), next(parameters)).relu()
    assert_same_outputs(network.features(observations), expected)
    assert next(parameters, None) is None


@pytest.mark.parametrize("name", sorted(TORSOS))
def test_weights_start_orthogonal_with_their_gains_and_zero_biases(name: str) -> None:
    network = network_of(name, (4, 42, 42), 5, generator=seeded())
    layers = {key: module for key, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
    gains = {"policy_head": 0.01, "value_head": 1.0}
    for key, layer in layers.items():
        rows = layer.weight.detach().flatten(1)
        rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
        gain = gains.get(key, network.torso.gain(layer))
        torch.testing.assert_close(rows @ rows.T, gain**2 * torch.eye(len(rows)), atol=1e-4 * gain**2, rtol=0.0)
        assert layer.bias is not None
        assert not layer.bias.any()


@pytest.mark.parametrize("name", sorted(TORSOS))
def test_a_new_policy_is_nearly_uniform_and_its_values_differ_by_state(name: str) -> None:
    network = network_of(name, (4, 42, 42), 6, generator=seeded())
    output = network(frames(16, 4, 42, 42))
    assert (output.policy.softmax(-1) - 1.0 / 6.0).abs().max() < 0.02
    assert output.values.std() > 0.01


def test_equal_generators_give_equal_weights_and_others_do_not() -> None:
    def weights(seed: int) -> Tensor:
        network = network_of("impala_shallow", (4, 42, 42), 6, generator=seeded(seed))
        return nn.utils.parameters_to_vector(network.parameters())

    first = weights(3)
    torch.manual_seed(99)
    assert torch.equal(first, weights(3))
    assert not torch.equal(first, weights(4))


def test_without_a_generator_the_global_seed_decides() -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(network_of("mlp", (1, 4), 2).parameters())

    assert torch.equal(weights(5), weights(5))
    assert not torch.equal(weights(5), weights(6))


@pytest.mark.parametrize("name", sorted(TORSOS))
def test_uint8_frames_mean_the_same_as_floats_from_zero_to_one(name: str) -> None:
    network = network_of(name, (4, 42, 42), 6, generator=seeded())
    observations = frames(2, 4, 42, 42)
    assert_same_outputs(network(observations).values, network(observations.double() / 255.0).values)


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 3)])
def test_input_keeps_values_and_dtype(shape: tuple[int, ...]) -> None:
    for observations in (frames(*shape), frames(*shape) / 255.0):
        inputs = network_input(observations)
        assert inputs.dtype == observations.dtype
        assert torch.equal(inputs, observations)


def test_input_refuses_whole_numbers_that_are_no_bytes() -> None:
    with pytest.raises(ValueError, match="^observations: wanted uint8 or floating point, got torch.int64$"):
        network_input(torch.zeros(1, 4, dtype=torch.int64))


@pytest.mark.parametrize("name", sorted(TORSOS))
@pytest.mark.parametrize("acting", [False, True])
def test_bfloat16_is_near_float32_and_gives_float32(name: str, acting: bool) -> None:
    exact, rounded = (network_of(name, (4, 42, 42), 6, precision=p, generator=seeded()) for p in ("float32", "bfloat16"))
    observations = frames(16, 4, 42, 42)
    for network in (exact, rounded):
        network.calibrate(observations)
        nn.init.normal_(network.policy_head.weight, std=0.1, generator=seeded(2))
    expected = exact.features(observations)
    with torch.set_grad_enabled(not acting):
        got = (rounded.only_act() if acting else rounded).features(observations)
    assert got.dtype == torch.float32
    assert not torch.equal(got, expected)
    assert float((got - expected).detach().square().mean() / expected.detach().square().mean()) < 1e-3
    logits, values = rounded.heads(got)
    assert logits.dtype == values.dtype == torch.float32
    torch.testing.assert_close(logits, functional.linear(got, rounded.policy_head.weight, rounded.policy_head.bias))


def test_bfloat16_gradients_and_weights_are_float32() -> None:
    network = network_of("impala_shallow", (4, 42, 42), 6, precision="bfloat16", generator=seeded())
    network(frames(3, 4, 42, 42)).values.sum().backward()
    for parameter in network.parameters():
        assert parameter.dtype == torch.float32
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in network.torso.parameters())


def test_a_network_that_only_acts_learns_nothing_and_takes_new_weights() -> None:
    learner = network_of("impala_shallow", (4, 42, 42), 6, precision="bfloat16", generator=seeded())
    actor = network_of("impala_shallow", (4, 42, 42), 6, precision="bfloat16", generator=seeded(7)).only_act()
    assert not any(parameter.requires_grad for parameter in actor.parameters())
    actor.load_state_dict(learner.state_dict())
    observations = frames(3, 4, 42, 42)
    assert torch.equal(actor(observations).policy, learner(observations).policy)


def test_a_precision_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="^precision: wanted float32 or bfloat16, got 'float16'$"):
        network_of("mlp", (1, 4), 2, precision="float16")


@pytest.mark.parametrize("name", sorted(TORSOS))
@pytest.mark.parametrize("shape", [(4, 42, 42), (2, 38, 41, 3)])
def test_memory_layout_of_the_batch_changes_nothing(name: str, shape: tuple[int, ...]) -> None:
    network = network_of(name, shape, 6, generator=seeded())
    plain = frames(3, *shape)
    stack_innermost = plain.movedim(1, -1).contiguous().movedim(-1, 1)
    assert stack_innermost.stride() != plain.stride()
    for one, other in zip(network(plain), network(stack_innermost), strict=True):
        assert_same_outputs(one, other)


@pytest.mark.parametrize("shape", [(4, 12, 10), (4, 12, 10, 3)])
def test_image_input_is_channels_last_in_memory(shape: tuple[int, ...]) -> None:
    for observations in (frames(2, *shape), frames(2, *shape).movedim(1, -1).contiguous().movedim(-1, 1)):
        assert network_input(observations).is_contiguous(memory_format=torch.channels_last)


def test_colour_stacks_become_channels_pixel_for_pixel() -> None:
    observations = frames(2, 4, 6, 5, 3)
    inputs = network_input(observations)
    assert inputs.shape == (2, 12, 6, 5)
    for colour in range(3):
        for frame in range(4):
            assert torch.equal(inputs[:, colour * 4 + frame], observations[:, frame, :, :, colour])


def test_mlp_takes_small_frames_and_vectors() -> None:
    for shape in [(1, 10, 5), (4, 10, 5), (2, 7), (9,)]:
        output = network_of("mlp", shape, 3, generator=seeded())(torch.rand(6, *shape, generator=seeded(2)))
        assert output.policy.shape == (6, 3)


@pytest.mark.parametrize("name", sorted(TORSOS))
def test_one_observation_gives_what_it_gives_in_a_batch(name: str) -> None:
    network = network_of(name, (4, 42, 42), 6, generator=seeded())
    batch = frames(3, 4, 42, 42)
    assert_same_outputs(network(batch[1:2]).policy[0], network(batch).policy[1])


@pytest.mark.parametrize("name", sorted(TORSOS))
def test_gradient_reaches_every_parameter(name: str) -> None:
    network = network_of(name, (4, 42, 42), 6, generator=seeded())
    output = network(frames(4, 4, 42, 42))
    (output.policy.square().sum() + output.values.sum()).backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.any(), key


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_the_smallest_allowed_frame_works_and_one_pixel_less_is_refused(name: str) -> None:
    minimum = {"nature": 36, "impala_shallow": 20, "impala_deep": 1, "conv": 36}[name]
    network = network_of(name, (1, minimum, minimum), 2, generator=seeded())
    assert network(frames(2, 1, minimum, minimum)).values.shape == (2,)
    if minimum > 1:
        for height, width in [(minimum - 1, 84), (84, minimum - 1)]:
            wanted = f"network {name}: wanted frames of at least {minimum}x{minimum}, got {height}x{width}; --network=.* fits"
            with pytest.raises(ValueError, match=wanted) as refusal:
                network_of(name, (4, height, width), 2)
            assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_convolutions_refuse_vectors(name: str) -> None:
    with pytest.raises(ValueError, match=rf"network {name}: wanted observations \[S, H, W\] .*got \[4, 17\]"):
        network_of(name, (4, 17), 2)


def test_unknown_names_and_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="network: wanted auto, .* impala_deep, .* or FILE.py:CLASS, got 'alexnet'"):
        network_of("alexnet", (4, 84, 84), 6)
    with pytest.raises(ValueError, match="actions: wanted 1 or more, got 0"):
        network_of("nature", (4, 84, 84), 0)
    with pytest.raises(ValueError, match=r"observation_shape: wanted sizes of 1 or more, got \(0, 4\)"):
        network_of("mlp", (0, 4), 2)


def test_observations_of_another_shape_or_type_are_refused() -> None:
    network = network_of("impala_shallow", (4, 42, 42), 6)
    with pytest.raises(ValueError, match=r"observations: wanted \[N, 4, 42, 42\], got \[2, 42, 42, 4\]"):
        network(frames(2, 42, 42, 4))
    with pytest.raises(ValueError, match=r"wanted uint8 or floating point, got torch.int64"):
        network(frames(2, 4, 42, 42).long())


def test_the_config_of_a_network_builds_it_again_after_pickling() -> None:
    network = network_of("mlp", (2, 7), 3)
    config = pickle.loads(pickle.dumps(network.config))
    assert config == network_config("mlp", (2, 7), 3)
    twin: ActorCritic = make_network(config)
    twin.load_state_dict(network.state_dict())
    observations = torch.rand(4, 2, 7)
    assert torch.equal(twin(observations).policy, network(observations).policy)


def flickering_frames(count: int) -> torch.Tensor:
    """A bright constant picture in which one pixel differs between observations, as most of an Atari frame never changes."""
    observations = torch.full((count, 4, 42, 42), 90, dtype=torch.uint8)
    for index in range(count):
        observations[index, :, 5 + index % 30, 20] = 250
    return observations


@pytest.mark.parametrize("name", sorted(TORSOS))
def test_calibration_lets_features_differ_between_states(name: str) -> None:
    observations = flickering_frames(60)
    network = network_of(name, (4, 42, 42), 5, generator=seeded())

    def contrast() -> float:
        with torch.no_grad():
            features = network.features(observations)
        return float(features.std(0).mean() / features.abs().mean())

    before = contrast()
    network.calibrate(observations)
    assert contrast() > 0.5
    assert contrast() > 5 * before


def test_calibration_centres_each_pixel_and_scales_all_alike() -> None:
    observations = torch.randint(0, 256, (120, 2, 20, 20), generator=seeded(), dtype=torch.uint8)
    network = network_of("impala_shallow", (2, 20, 20), 3)
    network.calibrate(observations)
    inputs = (observations / 255.0 - network.input_mean) * network.input_scale
    torch.testing.assert_close(inputs.mean(0), torch.zeros(2, 20, 20), atol=1e-5, rtol=0)
    assert float(inputs.square().mean()) == pytest.approx(1.0, rel=1e-4)
    assert network.input_scale.dim() == 0
    expected = network.heads(network.torso(inputs))
    for given in (observations, observations / 255.0):
        untouched = given.clone()
        torch.testing.assert_close(network(given).values, expected.values, rtol=1e-4, atol=1e-4)
        assert torch.equal(given, untouched)


def test_calibration_survives_observations_that_never_change() -> None:
    network = network_of("impala_shallow", (1, 20, 20), 3)
    network.calibrate(torch.full((10, 1, 20, 20), 7, dtype=torch.uint8))
    assert torch.isfinite(network(torch.zeros(1, 1, 20, 20, dtype=torch.uint8)).values).all()


def test_calibration_travels_with_the_weights() -> None:
    network = network_of("mlp", (2, 6), 3)
    network.calibrate(torch.randn(40, 2, 6, generator=seeded()) * 3 + 5)
    other = network_of("mlp", (2, 6), 3)
    other.load_state_dict(network.state_dict())
    observations = torch.randn(4, 2, 6, generator=seeded())
    torch.testing.assert_close(other(observations).values, network(observations).values, rtol=0, atol=0)
