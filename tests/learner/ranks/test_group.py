"""Several learners with a part of a batch each take the step of one learner with the whole batch."""

from __future__ import annotations

import math
from datetime import timedelta
from operator import itemgetter
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from agents import AGENTS
from agents.base import Agent
from agents.engine.guard import clip_gradients
from agents.losses import Term
from agents.networks.actor_critic import ActorCritic, PolicyNetwork
from learner.ranks.group import LearnerGroup
from replay.batch import Batch
from tests.agents.support import B, T, random_batch, tensors
from tests.builders import network_of
from tests.learner.ranks.support import numbers_of, together
from tests.learner.ranks.test_off_policy import AGENTS_AND_BATCHES
from tests.support import golden, same

RANKS = 2
LEARNED = [
    name
    for name, agent in AGENTS.items()
    if not agent.needs(agent.config_class()).window and issubclass(agent.network_class, PolicyNetwork)
]
SMOOTH: dict[str, Any] = {"optimizer": "rmsprop", "rmsprop_eps": 0.1, "lr": 0.1, "lr_end_value": 0.1}
"""An optimiser whose step is no sign of a tiny gradient, so that weights can be compared."""
TIGHT = {"gradient_clip_by_norm_threshold": 0.05}
"""Clips every gradient of these batches, which would differ if each learner clipped its own."""
PENALTY = {"target_update_period": 2, "kl_weight": 0.5}
"""With targets for which the divergence of the first learner's part would halve the weight, and that of the whole batch not."""
FEW_PRODUCTS = {"cg_iterations": 2}
"""Conjugate gradients enlarge the rounding of each product."""

POPART = {"popart": True, "popart_rate": 0.01}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vtrace": ("vtrace", {}),
    "vtrace, CLEAR and LASER": (
        "vtrace",
        {"use_policy_cloning_loss": True, "use_value_cloning_loss": True, "use_kl_mask": True},
    ),
    "vtrace, scaled rewards": ("vtrace", {"normalise_rewards": True, "clip_rewards": False}),
    "vtrace, PopArt": ("vtrace", {**POPART, "clip_rewards": False}),
    "vtrace, RND": ("vtrace", {"intrinsic": "rnd"}),
    "a2c": ("a2c", {}),
    "a2c, ICM": ("a2c", {"intrinsic": "icm"}),
    "a2c, scaled rewards": ("a2c", {"normalise_rewards": True}),
    "ppo": ("ppo", {"advantage_normalisation": "none", "epochs": 3, "minibatches": 1}),
    "ppo, PopArt": ("ppo", {"advantage_normalisation": "none", "epochs": 2, "minibatches": 1, **POPART}),
    "ppo, early stop": ("ppo", {"advantage_normalisation": "none", "epochs": 9, "minibatches": 1, "target_kl": 0.002}),
    "ppo, columns": ("ppo", {"advantage_normalisation": "none", "minibatch_unit": "columns", "minibatches": 1}),
    "ppo, KL penalty": (
        "ppo",
        {"advantage_normalisation": "none", "minibatches": 1, "policy_objective": "kl", "target_kl": 0.01},
    ),
    "appo": ("appo", {"normalise_advantages": False, "epochs": 2}),
    "appo, KL penalty": ("appo", {"normalise_advantages": False, "target_kl": 8.7e-4, **PENALTY}),
    "bc": ("bc", {"entropy_loss_weight": 0.1}),
    "marwil": ("marwil", {"advantage_scale_rate": 0.5}),
    "marwil, scaled rewards": ("marwil", {"normalise_rewards": True, "clip_rewards": False}),
    "impact, RND": ("impact", {"intrinsic": "rnd", "normalise_advantages": False}),
    "impact": ("impact", {"target_kl": 1.1e-3, **PENALTY}),
    "vmpo": ("vmpo", {"initial_eta": 0.5, "eps_alpha": 1e-4, "target_update_period": 2}),
    "vmpo, PopArt": ("vmpo", {**POPART, "clip_rewards": False}),
    "trpo": ("trpo", {"minibatches": 1, **FEW_PRODUCTS}),
    "trpo, scaled rewards": ("trpo", {"minibatches": 1, "normalise_rewards": True, "entropy_loss_weight": 0.1, **FEW_PRODUCTS}),
}


def agent_of(name: str, **settings: Any) -> Agent:
    agent_class: Any = AGENTS[name]
    config = agent_class.config_class(**{**SMOOTH, **TIGHT, **settings})
    network = network_of(
        "mlp",
        (2, 6),
        4,
        network_class=agent_class.network_class,
        separate_value=name == "trpo",
        generator=torch.Generator().manual_seed(1),
        normalise_observations="normalise_rewards" in settings,
        agent=config,
    )
    options = {"environments": RANKS * B} if "intrinsic" in settings else {}
    torch.manual_seed(1)  # of the weights of intrinsic rewards, and of the rows that they learn from
    agent: Agent = agent_class(config, network, **options)
    return agent


def whole_batch(seed: int, network: ActorCritic, noise: float = 0.3) -> Batch:
    """A batch for all learners, of fresh and replayed columns, with other used steps in each half.

    noise: by which the parameters of the policy that acted differ from this network's.
    """
    parts = [random_batch(RANKS * seed + rank) for rank in range(RANKS)]
    along = {"is_replay": 0, "source": 0}
    fields = {
        name: torch.cat([getattr(part, name) for part in parts], along.get(name, 1))
        for name in ("observations", "actions", "rewards", "terminated", "reset", "action_used", "is_replay", "source")
    }
    fields["action_used"][:3, 0] = False
    with torch.no_grad():
        policy = network(fields["observations"].flatten(0, 1)).policy.unflatten(0, (T + 1, RANKS * B))[:-1]
    acting = {
        "behaviour_policy": policy + noise * torch.cat([part.acting["behaviour_policy"] for part in parts], 1),
        "behaviour_values": torch.cat([part.acting["behaviour_values"] for part in parts], 1),
    }
    return Batch(**fields, acting=acting, discounted_returns=fields["rewards"].cumsum(0))


def part_of(batch: Batch, rank: int) -> Batch:
    return batch.take_columns(torch.arange(rank * B, (rank + 1) * B))


@pytest.mark.parametrize("case", CASES)
def test_parts_of_a_batch_give_the_step_of_the_whole_batch(case: str) -> None:
    name, settings = CASES[case]
    alone = agent_of(name, **settings)
    before = numbers_of(alone)
    batches = [whole_batch(seed, alone.network, noise=0.0 if name == "ppo" else 0.3) for seed in range(3)]
    for batch in batches:
        alone.learn(batch, 0.0)

    agents = [agent_of(name, **settings) for _ in range(RANKS)]  # here: the threads share PyTorch's generator

    def learner(group: LearnerGroup) -> dict[str, Tensor]:
        agent = agents[group.rank]
        agent.join(group)
        for batch in batches:
            agent.learn(part_of(batch, group.rank), 0.0)
        return numbers_of(agent)

    first, second = together(RANKS, learner)
    assert same(first, second)
    wanted = numbers_of(alone)
    assert first.keys() == wanted.keys()
    for key in wanted:
        torch.testing.assert_close(first[key], wanted[key], rtol=2e-5, atol=2e-6, msg=lambda text, key=key: f"{key}: {text}")
    assert any(not torch.allclose(first[key].double(), before[key].double(), atol=1e-3) for key in before if "network." in key)


def test_no_agent_was_forgotten() -> None:
    assert {name for name, _ in CASES.values()} == set(LEARNED)
    alone = {name for name, kind in AGENTS.items() if kind.needs(kind.config_class()).alone}
    # The mean gradient of parts gives another step if a loss is no sum over steps, because it compares those of a batch. Such
    # an agent is named here, and its own file tests what its learners exchange (tests/agents/linucb/test_agent.py).
    elsewhere = {"linucb"}
    assert AGENTS.keys() - alone - elsewhere == set(LEARNED) | {name for name in AGENTS_AND_BATCHES if "," not in name}
    assert alone == {"es", "cem"}


EARLY_STOP = "ppo, early stop"


def test_all_learners_stop_an_update_of_ppo_at_the_same_step() -> None:
    """By the mean divergence of both. Each alone would stop elsewhere."""
    name, settings = CASES[EARLY_STOP]
    batch = whole_batch(0, agent_of(name).network, noise=0.0)

    def steps(parts: list[Batch], group: LearnerGroup | None = None) -> int:
        agent = agent_of(name, **settings)
        if group:
            agent.join(group)
        agent.learn(parts[group.rank if group else 0], 0.0)
        return agent.stepper.guard.steps

    parts = [part_of(batch, rank) for rank in range(RANKS)]
    assert together(RANKS, lambda group: steps(parts, group)) == [steps([batch])] * RANKS
    assert 0 < steps(parts[:1]) < steps([batch]) < 9


@pytest.mark.parametrize("name", ["ppo", "appo", "trpo"])
def test_a_learner_without_a_minibatch_takes_part_in_the_step(name: str) -> None:
    """The first learner has one column with used steps, the second three: they take as many steps, and stay equal."""
    settings = {"minibatches": 3, **({} if name == "appo" else {"minibatch_unit": "columns"})}
    batch = whole_batch(0, agent_of(name).network)
    batch.action_used[:, :B] = False
    batch.action_used[1, 0] = True

    def learner(group: LearnerGroup) -> tuple[int, dict[str, Tensor]]:
        agent = agent_of(name, **settings)
        agent.join(group)
        agent.learn(part_of(batch, group.rank), 0.0)
        return group.exchanges, numbers_of(agent)

    (first, weights), (second, others) = together(RANKS, learner)
    assert first == second >= 3
    assert same(weights, others)
    assert not same(weights, numbers_of(agent_of(name, **settings)))


@pytest.mark.parametrize("name", LEARNED)
def test_a_number_that_is_not_finite_skips_the_update_of_all_learners(name: str) -> None:
    batch = whole_batch(0, agent_of(name).network)
    batch.rewards[2, B] = math.inf  # of the second learner; clipped rewards would hide it

    def learner(group: LearnerGroup) -> tuple[list[str | None], dict[str, Tensor]]:
        agent = agent_of(name)
        agent.join(group)
        agent.learn(part_of(batch, group.rank), 0.0)
        return agent.take_skip_reasons(), numbers_of(agent)

    (first, weights), (second, others) = together(RANKS, learner)
    assert first == ["numbers of rank 1"]
    assert second == ["rewards"]
    assert same(weights, others)
    unchanged = numbers_of(agent_of(name))
    assert [key for key in unchanged if not same(weights[key], unchanged[key])] == []


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_learners_get_the_same_bits(count: int) -> None:
    def learner(group: LearnerGroup) -> Tensor:
        generator = torch.Generator().manual_seed(group.rank)
        weights = torch.zeros(100_003, requires_grad=True)
        weights.grad = torch.randn(100_003, generator=generator)
        group.add_gradients([weights], {"loss": torch.zeros(())}, sums=True)
        return weights.grad

    first, *others = together(count, learner)
    assert first.abs().sum() > 0
    assert all(same(first, other) for other in others)


def test_channels_last_gradients_keep_their_layout() -> None:
    def learner(group: LearnerGroup) -> bool:
        weights = torch.zeros(4, 3, 2, 2).contiguous(memory_format=torch.channels_last).requires_grad_()
        weights.grad = torch.arange(48.0).view(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        group.add_gradients([weights], {"loss": torch.zeros(())}, sums=True)
        assert weights.grad.stride() == weights.stride()
        return torch.equal(weights.grad, 2 * torch.arange(48.0).view(4, 3, 2, 2))

    assert together(2, learner) == [True, True]


@pytest.mark.parametrize("case", [case for case in golden("parameter_server.json") if "shards" in case], ids=itemgetter("name"))
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_gradients_are_those_of_the_recorded_case(case: dict[str, Any], reduction: Literal["sum", "mean"]) -> None:
    """Sums are added and means are averaged by their number of steps. The norm is clipped once, after that."""
    inputs, outputs, shards = tensors(case["inputs"]), tensors(case["outputs"]), case["shards"]
    xs, ys = inputs["x"].split(shards), inputs["y"].split(shards)

    def learner(group: LearnerGroup) -> tuple[Tensor, Tensor]:
        weights = inputs["weights"].clone().requires_grad_()
        errors = 0.5 * (xs[group.rank] @ weights - ys[group.rank]).square()
        loss = Term(errors.sum() if reduction == "sum" else errors.mean(), 1.0, reduction)
        (weights.grad,) = torch.autograd.grad(loss.value, [weights])
        group.add_gradients([weights], {"loss": loss.value}, len(errors), sums=reduction == "sum")
        added = weights.grad.clone()
        clip_gradients([weights], case["clip_norm"])
        return added, weights.grad.clone()

    wanted = outputs["sum_of_sums" if reduction == "sum" else "weighted_mean_of_means"]
    for added, clipped in together(len(shards), learner):
        torch.testing.assert_close(added, wanted, rtol=1e-5, atol=1e-6)
        if reduction == "sum":
            torch.testing.assert_close(clipped, outputs["clipped_after_summing"], rtol=1e-5, atol=1e-6)


def test_means_among_sums_are_averaged() -> None:
    """An agent whose losses are sums may add a term that is a mean: all learners have as many steps."""

    def learner(group: LearnerGroup) -> Tensor:
        weights = torch.ones((), requires_grad=True)
        terms = {"sum": Term(group.rank * weights, 1.0, "sum"), "mean": Term((10.0 + group.rank) * weights, 2.0, "mean")}
        shares = [torch.tensor(weight) for weight in group.weights(terms)]
        (weights.grad,) = torch.autograd.grad([term.value for term in terms.values()], [weights], shares)
        group.add_gradients([weights], {"loss": weights}, sums=True)
        return weights.grad

    assert together(2, learner) == [torch.tensor(0.0 + 1.0 + 2.0 * 10.5)] * 2


def test_a_step_without_any_learner_is_refused() -> None:
    def learner(group: LearnerGroup) -> Tensor:
        weights = torch.ones(3, requires_grad=True)
        weights.grad = torch.zeros(3)
        group.add_gradients([weights], {"loss": torch.zeros(())}, 0, present=False)
        return weights.grad

    assert all(gradient.isnan().all() for gradient in together(2, learner))


def test_an_operation_that_ends_just_after_a_wait_is_not_an_error() -> None:
    class Late:
        """An operation that is over between the end of the first wait and the next question."""

        waits = 0

        def is_completed(self) -> bool:
            return self.waits > 0

        def wait(self, timeout: timedelta | None = None) -> None:
            self.waits += 1
            if timeout:
                raise RuntimeError("Operation timed out!")

    class Host:
        work = Late()

        def broadcast(self, tensors: list[Tensor], options: Any) -> Late:
            return self.work

    (group,) = together(1, lambda group: group)
    group._host = host = Host()
    group.from_first({})
    assert host.work.waits > 1
