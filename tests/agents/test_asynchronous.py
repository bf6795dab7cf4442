"""The update of APPO and IMPACT: every action space, minibatches of columns, cores, refused numbers, and the state."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.appo.agent import APPOAgent, APPOConfig, MinibatchColumns
from agents.appo.config import SurrogateConfig
from agents.impact.agent import ImpactAgent, ImpactConfig
from agents.networks.actor_critic import ActorCritic
from agents.surrogate import KL_WEIGHT_RANGE
from replay.batch import Batch
from tests.agents.networks.test_policy_heads import SPACES, network_for
from tests.agents.support import B, make_network_here, random_batch
from tests.agents.test_recurrent import BURN_IN, new_network, recurrent_batch
from tests.agents.vtrace.test_action_spaces import batch_of
from tests.support import same

AGENTS: dict[str, tuple[type[APPOAgent], SurrogateConfig]] = {
    "appo": (APPOAgent, APPOConfig(lr_end_value=5e-4)),
    "appo with a target": (APPOAgent, APPOConfig(lr_end_value=5e-4, kl_weight=1.0, target_update_period=2)),
    "impact": (ImpactAgent, ImpactConfig(lr_end_value=5e-4, target_update_period=2)),
}
EACH = pytest.mark.parametrize("name", AGENTS)


def make(name: str, network: ActorCritic, **settings: Any) -> APPOAgent:
    agent_class, config = AGENTS[name]
    return agent_class(replace(config, **settings), network)


def weights_after(agent: APPOAgent, *batches: Batch) -> dict[str, Tensor]:
    for batch in batches:
        agent.learn(batch, 0.0)
    assert set(agent.take_skip_reasons(everything=True)) == {None}
    return {key: value.clone() for key, value in agent.network.state_dict().items()}


@EACH
@pytest.mark.parametrize("space", SPACES)
def test_an_update_is_finite_and_changes_every_weight(name: str, space: str) -> None:
    network = network_for(space)
    agent = make(name, network)
    before = {key: value.clone() for key, value in network.named_parameters()}
    updated = agent.learn(batch_of(network), 0.0)
    assert all(value.isfinite() for value in updated.scalars.values())
    assert agent.take_skip_reasons(everything=True) == [None]
    assert all((value != before[key]).any() for key, value in network.named_parameters())
    wanted = {"approx_kl", "clip_fraction", "zero_gradient_fraction", "explained_variance", "entropy", "policy_loss"}
    assert {f"losses/{metric}" for metric in wanted} <= updated.scalars.keys()


@EACH
def test_rows_whose_action_was_ignored_change_nothing(name: str) -> None:
    batch, network = random_batch(), make_network_here()
    unused = ~batch.action_used
    behaviour = batch.acting["behaviour_policy"].clone()
    behaviour[unused] = torch.tensor([-1e3, 0.0, 0.0, 0.0])  # the ratio of action 0 overflows
    wild = replace(
        batch,
        rewards=torch.where(unused, 1e30, batch.rewards),
        acting={**batch.acting, "behaviour_policy": behaviour},
        actions=torch.where(unused, 0, batch.actions),
    )
    one, other = (make(name, copy.deepcopy(network), clip_rewards=False) for _ in range(2))
    first, second = weights_after(one, batch), weights_after(other, wild)
    assert same(first, second)
    log_probs = one._log_probs(MinibatchColumns(wild, behaviour, 0.2), behaviour)
    assert all(not part[unused].any() for part in log_probs if part is not None)


@EACH
def test_minibatches_are_whole_columns_in_each_epoch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, seen = make_network_here(), []
    agent = make(name, network, epochs=2, minibatches=2)
    before = Batch.take_columns

    def noted(batch: Batch, columns: Tensor) -> Batch:
        if len(batch.observations):
            seen.append(columns.tolist())
        return before(batch, columns)

    monkeypatch.setattr(Batch, "take_columns", noted)
    updated = agent.learn(random_batch(), 0.0)
    agent.take_skip_reasons(everything=True)
    assert [len(columns) for columns in seen] == [2, 1, 2, 1]
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == list(range(B))
    assert agent.stepper.guard.steps == 4
    assert updated.scalars["losses/approx_kl"].isfinite()


@EACH
@pytest.mark.parametrize("overlap", [0, BURN_IN])
def test_a_step_on_columns_is_a_step_on_a_batch_of_them(name: str, overlap: int) -> None:
    network = new_network("lstm")
    batch = recurrent_batch(network, overlap)
    taken = batch.take_columns(torch.arange(B))
    one, other = (make(name, copy.deepcopy(network)) for _ in range(2))
    assert same(weights_after(one, batch, batch), weights_after(other, taken, taken))
    few = batch.take_columns(torch.tensor([2, 0])).observations
    assert torch.equal(few, batch.observations[:, [2, 0]])
    assert few.movedim(2, -1).is_contiguous(), "stacked frames stay innermost in memory, as convolutions read them"


@EACH
def test_a_number_that_is_not_finite_changes_nothing(name: str) -> None:
    agent, batch = make(name, make_network_here()), random_batch()
    weights_after(agent, batch)
    before = copy.deepcopy(agent.state_dict())
    rewards = batch.rewards.clone()
    rewards[0, 0] = float("nan")
    for _ in range(3):
        agent.learn(replace(batch, rewards=rewards), 0.0)
    assert agent.take_skip_reasons(everything=True) == ["rewards"] * 3
    assert same(before, agent.state_dict())


@EACH
def test_a_loaded_agent_continues_with_the_same_bits(name: str) -> None:
    settings: dict[str, Any] = {"minibatches": 2}
    agent, batches = make(name, make_network_here(), **settings), [random_batch(seed) for seed in range(6)]
    weights_after(agent, *batches[:3])
    state = copy.deepcopy(agent.state_dict())
    other = make(name, make_network_here(), **settings)
    other.check_state_dict(state, load_optimizer=True)
    other.load_state_dict(state, load_optimizer=True)
    generator = torch.get_rng_state()
    wanted = weights_after(agent, *batches[3:])
    torch.set_rng_state(generator)
    assert same(wanted, weights_after(other, *batches[3:]))
    assert same(agent.state_dict(), other.state_dict())


def test_a_target_network_of_another_shape_is_refused() -> None:
    agent = make("impact", make_network_here())
    state = copy.deepcopy(agent.state_dict())
    del state["modules"]["target"]["policy_head.weight"]
    with pytest.raises(ValueError, match="^wanted policy_head.weight as float32 .*, got none$"):
        agent.check_state_dict(state, load_optimizer=True)


def test_a_run_that_had_no_target_network_may_get_one() -> None:
    """It then begins as a copy of the network."""
    plain = make("appo", make_network_here())
    weights_after(plain, random_batch())
    agent = make("appo with a target", make_network_here())
    agent.load_state_dict(copy.deepcopy(plain.state_dict()), load_optimizer=True)
    assert agent.target is not None
    assert same(dict(agent.target.network.state_dict()), dict(plain.network.state_dict()))


@pytest.mark.parametrize(("target_kl", "wanted"), [(1e-9, 2.0), (1e3, 0.5)])
def test_the_weight_of_the_penalty_follows_the_divergence(target_kl: float, wanted: float) -> None:
    """At each copy, from the divergence just before it."""
    agent = make("appo with a target", make_network_here(), target_kl=target_kl, target_update_period=2)
    weights_after(agent, random_batch())
    assert float(agent.kl_weight) == 1.0
    weights_after(agent, random_batch())
    assert float(agent.kl_weight) == wanted
    agent.kl_weight.fill_(KL_WEIGHT_RANGE[wanted > 1])
    weights_after(agent, random_batch(), random_batch())
    assert float(agent.kl_weight) == KL_WEIGHT_RANGE[wanted > 1]


def test_the_penalty_is_shown_without_its_weight() -> None:
    agent = make("appo with a target", make_network_here(), kl_weight=3.0)
    agent.learn(random_batch(), 0.0)
    scalars = agent.learn(random_batch(), 0.0).scalars
    assert float(scalars["losses/kl_loss"]) == float(scalars["losses/target_kl"]) > 0
    assert float(scalars["losses/kl_weight"]) == 3.0


def test_a_penalty_towards_a_copy_of_the_newest_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="^target_update_period: wanted 0 or at least 2 updates"):
        APPOConfig(kl_weight=1.0, target_update_period=1)
    APPOConfig(kl_weight=1.0, target_update_period=1, epochs=2)


def test_calibration_reaches_the_target_network() -> None:
    agent = make("impact", make_network_here())
    agent.calibrate(random_batch().observations.flatten(0, 1) * 7 + 3)
    assert agent.target is not None
    assert same(dict(agent.target.network.state_dict()), dict(agent.network.state_dict()))
