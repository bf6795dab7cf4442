"""Observations of several leaves: unpacked on the device as they were packed, read by one torso each, masked in the heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.networks.actor_critic import ActorCritic
from agents.networks.base import make_network
from agents.networks.inputs import calibrate, input_parts, scaled, unpack
from tests.builders import network_config, network_of
from wrappers.spaces import ACTION_MASK, TASK, Leaf, Packing

LEAVES = (
    Leaf(ACTION_MASK, (3,), "uint8"),
    Leaf("speed", (), "float32"),
    Leaf("camera", (24, 21, 3), "uint8"),
    Leaf("arm", (5,), "float32"),
    Leaf("buttons", (2,), "uint8"),
)
PACKING = Packing(LEAVES)
N = 4


def observed(stack: int, count: int = N) -> tuple[Tensor, dict[str, np.ndarray]]:
    """Packed observations `[N, S, bytes]` and their leaves. In the newest frames actions 1 and 2 are legal, in others 0."""
    generator = np.random.default_rng(stack)
    leaves = {
        leaf.name: generator.integers(0, 256, (count * stack, *leaf.shape)).astype(leaf.dtype)
        if leaf.dtype == "uint8"
        else generator.normal(size=(count * stack, *leaf.shape)).astype(leaf.dtype)
        for leaf in LEAVES
    }
    leaves[ACTION_MASK] = np.tile(np.array([[1, 0, 0]] * (stack - 1) + [[0, 1, 1]], np.uint8), (count, 1))
    packed = torch.from_numpy(PACKING.pack(leaves)).unflatten(0, (count, stack))
    return packed, {name: leaf.reshape(count, stack, *leaf.shape[1:]) for name, leaf in leaves.items()}


def leafy_network(stack: int, precision: str = "float32", **settings: str | bool) -> ActorCritic:
    generator = torch.Generator().manual_seed(1)
    config = network_config("impala_shallow", (stack, PACKING.size), 3, precision, LEAVES, **settings)
    network: ActorCritic = make_network(config, generator)
    return network


def innermost(observations: Tensor) -> Tensor:
    """The same values with the stack innermost in memory, as a batch has them."""
    return observations.movedim(1, -1).contiguous().movedim(-1, 1)


@pytest.mark.parametrize("stack", [1, 3])
def test_leaves_come_out_as_they_were_packed(stack: int) -> None:
    packed, leaves = observed(stack)
    for observations in (packed, innermost(packed), packed[1:2], innermost(packed)[3:]):
        first = {4: 0, 1: 1 if observations.data_ptr() == packed[1:2].data_ptr() else 3}[len(observations)]
        for name, leaf in unpack(PACKING, observations).items():
            np.testing.assert_array_equal(leaf.numpy(), leaves[name][first : first + len(observations)], err_msg=name)
            assert str(leaf.dtype).removeprefix("torch.") == leaves[name].dtype.name


def test_images_come_first_and_vectors_are_one_part() -> None:
    parts = input_parts((2, PACKING.size), LEAVES)
    assert [(part.names, part.shape) for part in parts] == [
        (("camera",), (2, 24, 21, 3)),
        (("speed", "arm", "buttons"), (2, 8)),
    ]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("stack", [1, 3])
def test_packed_leaves_and_a_dictionary_give_the_same_outputs(stack: int, precision: str) -> None:
    packed, leaves = observed(stack)
    network = leafy_network(stack, precision)
    network.calibrate(packed)
    wanted = network(packed)
    assert wanted.policy.shape == (N, 3)
    given = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}
    for got in (network(innermost(packed)), network(given), network.infer(given).output):
        torch.testing.assert_close(tuple(got), tuple(wanted), rtol=1e-4, atol=1e-4)


def test_every_leaf_but_the_mask_changes_the_features() -> None:
    _, leaves = observed(2)
    network = leafy_network(2)
    given = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}
    before = network.features(given)
    for name in given:
        changed = network.features({**given, name: given[name].flip(0)})
        assert torch.equal(changed, before) is (name == ACTION_MASK), name


def test_illegal_actions_have_no_probability_and_finite_logits() -> None:
    packed, leaves = observed(2)  # the older frame has another mask
    output = leafy_network(2)(packed)
    given = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}
    torch.testing.assert_close(leafy_network(2)(given).policy, output.policy)
    assert output.policy.isfinite().all()
    assert not output.policy.softmax(-1)[:, 0].any()
    assert (output.policy.softmax(-1)[:, 1:] > 0.1).all()


def test_gradient_reaches_every_parameter_of_every_part() -> None:
    packed, _ = observed(2)
    network = leafy_network(2, separate_value=True)
    output = network(packed)
    (output.policy[:, 1:].square().sum() + output.values.sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_vectors_beside_images_are_normalised() -> None:
    packed, leaves = observed(2)
    network = leafy_network(2, normalise_observations=True)
    vectors = network.vectors(packed)
    buttons = leaves["buttons"][:, -1] / np.float32(255)
    wanted = np.concatenate([leaves["speed"][:, -1:], leaves["arm"][:, -1], buttons], 1)
    np.testing.assert_allclose(vectors.numpy(), wanted, rtol=1e-6)
    network.set_vector_scale(vectors.mean(0), 1 / vectors.std(0))
    inputs = network.inputs_of(packed, torch.float32)[1][:, -1]
    torch.testing.assert_close(inputs, (vectors - vectors.mean(0)) / vectors.std(0), rtol=1e-4, atol=1e-4)


def test_numbers_far_from_zero_are_centred_before_they_are_rounded() -> None:
    values = 1000 + torch.randn(200, 1, 3, generator=torch.Generator().manual_seed(1))
    mean, scale = values.mean(0), torch.tensor(1 / float(values.std()))
    exact = (values - mean) * scale
    found = scaled(values, mean, scale, torch.bfloat16)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=0.01, atol=0.01)


def test_float_leaves_can_be_checked() -> None:
    packed, _ = observed(2)
    network = leafy_network(2)
    found = network.float_inputs(packed)
    assert sorted(found) == ["observations.arm", "observations.speed"]
    assert all(leaf.isfinite().all() for leaf in found.values())
    broken = packed.clone()
    broken[2, 1, PACKING.parts["arm"]] = 255  # a NaN has all bits of its exponent set
    assert not network.float_inputs(broken)["observations.arm"].isfinite().all()


def test_a_value_of_its_own_torso_does_not_share_features() -> None:
    network = network_of("mlp", (1, 4), 2, separate_value=True, hidden_sizes="8", activation="tanh")
    output = network(torch.randn(3, 1, 4))
    assert network.feature_count == 2 * network.head_feature_count == 16
    gradients = torch.autograd.grad(output.values.sum(), list(network.parameters()), allow_unused=True)
    named = zip(network.named_parameters(), gradients, strict=True)
    reached = {name for (name, _), gradient in named if gradient is not None and gradient.any()}
    assert reached == {"value_torso.1.weight", "value_torso.1.bias", "value_head.weight", "value_head.bias"}


def test_wrong_shapes_are_refused() -> None:
    _, leaves = observed(1)
    given = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}
    with pytest.raises(ValueError, match=r"^arm: wanted \[N, 1, 5\], got \[4, 1, 4\]$"):
        leafy_network(1)({**given, "arm": given["arm"][..., :4]})
    with pytest.raises(ValueError, match=r"wanted cube as a vector or an image, got shape \[1, 2, 3, 4\]"):
        input_parts((1, 24), (Leaf("cube", (1, 2, 3, 4), "uint8"),))
    with pytest.raises(ValueError, match="wanted a leaf beside action_mask, got none"):
        input_parts((1, 3), (LEAVES[0],))


@pytest.mark.parametrize(
    "values", [torch.arange(90, dtype=torch.uint8), torch.tensor([0.1, 1e6, -3.3])], ids=["bytes", "floats"]
)
def test_observations_that_never_change_are_not_scaled(values: Tensor) -> None:
    """The rounding of float32 would be their deviation, 1e-8, and the next change would be an input of millions."""
    mean, scale = torch.zeros(1, len(values)), torch.zeros(())
    calibrate(values.expand(800, 1, -1), mean, scale)
    torch.testing.assert_close(mean[0], values / 255 if values.dtype == torch.uint8 else values)
    assert float(scale) == 1.0
    changed = values.expand(800, 1, -1).clone()
    changed[::2] += 1
    calibrate(changed, mean, scale)
    assert float(scale) == pytest.approx(510 if values.dtype == torch.uint8 else 2, rel=0.02)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_of_each_task_have_a_centre_and_a_scale_of_their_own(dtype: str) -> None:
    """Task 1 shows a bright picture with small changes, and task 2 was not seen."""
    leaves = (Leaf("camera", (24, 21, 3), dtype), Leaf("speed", (), "float32"), Leaf(TASK, (1,), "uint8"))
    generator = np.random.default_rng(1)
    tasks = generator.integers(0, 2, 200)
    size = np.where(tasks, 2, 80)[:, None, None, None]
    camera = np.where(tasks, 180, 90)[:, None, None, None] + size * generator.uniform(-1, 1, (200, 24, 21, 3))
    speed = np.where(tasks, 5.0, -5.0).astype(np.float32)
    packing = Packing(leaves)
    observations = torch.from_numpy(packing.pack({"camera": camera.astype(dtype), "speed": speed, TASK: tasks[:, None]}))
    observations = observations.unsqueeze(1)  # [N, 1, bytes]
    config = network_config("impala_shallow", (1, packing.size), 3, leaves=leaves, tasks=("a", "b", "c"))
    network = make_network(config, torch.Generator().manual_seed(1))
    network.calibrate(observations)
    images, vectors = network.inputs_of(observations, torch.float32)
    assert images.is_contiguous(memory_format=torch.channels_last)
    for task in (0, 1):
        own = images[torch.from_numpy(tasks == task)]
        assert own.mean(0).abs().max() < 1e-4
        assert float(own.std()) == pytest.approx(1.0, abs=0.01)
    assert float(vectors.std()) == pytest.approx(1.0, abs=0.01)  # a constant that tells the tasks apart stays one
    assert vectors[torch.from_numpy(tasks == 1)].min() > 0.5
    scales = network.inputs[0].scale
    assert scales[1] > 10 * scales[0]
    alone = make_network(
        network_config("impala_shallow", (1, packing.size), 3, leaves=leaves), torch.Generator().manual_seed(1)
    )
    alone.calibrate(observations)
    torch.testing.assert_close(scales[2], alone.inputs[0].scale)
    torch.testing.assert_close(network.inputs[0].mean[2], alone.inputs[0].mean)
