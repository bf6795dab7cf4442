"""Passes divided among threads: the same outputs and gradients as one plain pass, in the same bits every time."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from agents.engine import passes as module
from agents.engine.passes import WORTH_DIVIDING, NetworkPasses, multiplications, threads_for
from agents.networks.actor_critic import ActorCritic
from tests.builders import network_of

pytestmark = pytest.mark.usefixtures("divided")


def small_network() -> ActorCritic:
    return network_of("impala_shallow", (2, 20, 20), 5, generator=torch.Generator().manual_seed(0))


def observations(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 2, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def loss_of(logits: Tensor, values: Tensor) -> Tensor:
    return (logits.softmax(-1)[:, 0] * values).sum() + values.square().sum()


def gradients(network: ActorCritic) -> Tensor:
    found = [parameter.grad for parameter in network.parameters()]
    assert all(gradient is not None for gradient in found)
    return torch.cat([gradient.flatten() for gradient in found if gradient is not None])


def divided(threads: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, values and gradients."""
    network = small_network()
    passes = NetworkPasses(network, threads)
    outputs = passes.forward(observations(count))
    passes.backward([loss_of(*outputs)], outputs)
    return outputs.policy.detach(), outputs.values.detach(), gradients(network)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_divided_passes_are_one_plain_pass(threads: int, count: int) -> None:
    network = small_network()
    logits, values = network(observations(count))
    loss_of(logits, values).backward()
    expected = (logits.detach(), values.detach(), gradients(network))
    for got, wanted in zip(divided(threads, count), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_two_runs_give_the_same_bits() -> None:
    first, second = divided(3, 50), divided(3, 50)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_gradients_are_set_anew_by_each_update() -> None:
    network = small_network()
    passes = NetworkPasses(network, 2)
    seen = []
    for _ in range(2):
        outputs = passes.forward(observations(6))
        passes.backward([loss_of(*outputs)], outputs)
        seen.append(gradients(network).clone())
    assert torch.equal(*seen)


def test_an_output_that_no_loss_reads_has_no_say() -> None:
    network = small_network()
    passes = NetworkPasses(network, 2)
    outputs = passes.forward(observations(6))
    passes.backward([outputs.values.square().sum()], outputs)
    assert not network.policy_head.weight.grad.any()
    assert network.value_head.weight.grad.any()


def test_each_thread_takes_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_network()
    plain, seen, meeting = network.forward, [], threading.Barrier(3, timeout=30)

    def forward(part: Tensor) -> object:
        meeting.wait()  # passes only if three threads are in their passes at once
        seen.append(len(part))
        return plain(part)

    monkeypatch.setattr(network, "forward", forward)
    NetworkPasses(network, 3).forward(observations(8))
    assert sorted(seen) == [2, 3, 3]


def test_no_thread_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="^threads: wanted 1 or more, got 0$"):
        NetworkPasses(small_network(), 0)


def test_a_compiled_pass_gives_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for the real compiler, which would take long and needs another one for C++."""
    traced: list[object] = []
    compiler = torch.compile

    def trace(network: ActorCritic, **options: bool) -> object:
        traced.append(network)
        return compiler(network, backend="aot_eager", **options)

    monkeypatch.setattr(torch, "compile", trace)
    found = []
    for compiled in (False, True):
        network = small_network()
        passes = NetworkPasses(network, compiled=compiled)
        outputs = passes.forward(observations(6))
        passes.backward([loss_of(*outputs)], outputs)
        found.append(gradients(network))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert len(traced) == 1


@pytest.mark.parametrize("worth", [0, WORTH_DIVIDING])
def test_a_pass_has_the_gradient_of_the_weighted_losses(worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Divided or not. A weight that no loss depends on has gradient 0."""
    monkeypatch.setattr(module, "WORTH_DIVIDING", worth)
    network, plain = small_network(), small_network()
    outputs = plain(observations(6))
    (2.0 * outputs.policy.square().sum() + 3.0 * outputs.policy.mean()).backward()
    passes = NetworkPasses(network, 2)
    outputs = passes.forward(observations(6))
    assert outputs.policy.is_leaf is (worth == 0)
    passes.backward([outputs.policy.square().sum(), outputs.policy.mean()], outputs, [torch.tensor(2.0), torch.tensor(3.0)])
    for parameter, other in zip(network.parameters(), plain.parameters(), strict=True):
        assert parameter.grad is not None
        wanted = torch.zeros_like(other) if other.grad is None else other.grad
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("network", "rows", "threads"),
    [
        (network_of("mlp", (1, 17), 6, hidden_sizes="256,256"), 128, 1),
        (network_of("mlp", (1, 17), 6, hidden_sizes="256,256"), 100_000, 4),
        (network_of("nature", (4, 84, 84), 6), 8, 1),
        (network_of("nature", (4, 84, 84), 6), 32, 4),
    ],
)
def test_only_a_pass_that_is_worth_it_is_divided(
    network: ActorCritic, rows: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORTH_DIVIDING", WORTH_DIVIDING)
    assert threads_for(rows * multiplications(network.parameters()), threads=4) == threads


@pytest.mark.parametrize("rows", [1, 5, 5000])
def test_a_pass_without_gradient_gives_the_same_outputs(rows: int) -> None:
    network = network_of("mlp", (1, 4), 2, hidden_sizes="8")
    given = torch.randn(rows, 1, 4)
    outputs, wanted = NetworkPasses(network, 3).without_gradient(given), network(given)
    assert not outputs.values.requires_grad
    for got, plain in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(got, plain)
