"""Settings of critics and of the actor's steps: REDQ, DroQ and TQC are such settings."""

from __future__ import annotations

from typing import Any

import pytest

from agents import AGENTS
from agents.continuous.critics import StackedLinear, StackedResidual
from agents.networks.base import NetworkConfig
from agents.networks.settings import NetworkSettings
from agents.returns.nstep import transitions
from tests.agents.continuous.support import SPACE, agent_of, changed, learn, weights, windows


def test_an_actor_with_a_delay_moves_at_its_multiples_and_critics_always() -> None:
    agent = agent_of("sac", delay=3, critics=3, critic_subset=2)
    moves = []
    for update in range(1, 7):
        before = [weights(module) for module in (agent.critics, agent.network, agent.temperature)]
        scalars = agent.learn(windows(), 0.0).scalars
        moved = [changed(*pair) for pair in zip(before, (agent.critics, agent.network, agent.temperature), strict=True)]
        assert moved in ([True, False, False], [True, True, True])
        assert scalars["losses/entropy"].isnan() == (not moved[1])
        moves += [update] if moved[1] else []
    assert moves == [3, 6]


def test_all_rows_of_a_step_have_the_same_critics_in_their_targets() -> None:
    agent = agent_of("sac", critics=4, critic_subset=2)
    part = next(transitions(windows(), 0.99).split(1))
    ranks = [agent.drawn(part)[1] for _ in range(8)]
    assert all(len(each.unique(dim=0)) == 1 and each.shape == (len(part.returns), 4) for each in ranks)
    assert len({tuple(each[0].argsort()[:2].tolist()) for each in ranks}) > 1


def test_critics_may_be_wider_than_the_actor() -> None:
    agent = agent_of("td3", critics=3, critic_hidden_sizes="5,4", critic_quantiles=7, dropped_quantiles=1)
    sizes = [tuple(layer.weight.shape) for layer in agent.critics.layers if isinstance(layer, StackedLinear)]
    assert sizes == [(3, 5, 5), (3, 5, 4), (3, 4, 7)]
    before = weights(agent.critics)
    learn(agent, windows(), 2)
    assert changed(before, agent.critics)
    with pytest.raises(ValueError, match="^critic_hidden_sizes: wanted 1 to 16 sizes"):
        AGENTS["sac"].config_class(critic_hidden_sizes="5;4")


@pytest.mark.parametrize("name", ["sac", "td3", "tqc"])
def test_a_single_quantile_is_learned_as_quantiles_are(name: str) -> None:
    """The loss of a quantile grows with the error (Huber), and not with its square."""
    losses = []
    for reward in (100.0, 10000.0):
        agent, batch = agent_of(name, critic_quantiles=1, dropped_quantiles=0), windows()
        batch.rewards.fill_(reward)
        losses.append(float(agent.learn(batch, 0.0).scalars["losses/critic_loss"]))
    assert losses[1] / losses[0] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_critics_of_simba_have_its_blocks_and_learn(name: str) -> None:
    agent = agent_of(name, network="simba", critic_hidden_sizes="6")
    assert sum(isinstance(layer, StackedResidual) for layer in agent.critics.layers) == 1
    before = weights(agent.critics), weights(agent.network)
    learn(agent, windows(), 2)
    assert all(changed(*pair) for pair in zip(before, (agent.critics, agent.network), strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"critic_layer_norm": True}, "critic_layer_norm: wanted False with --network=simba, .*, got True"),
        ({"critic_dropout": 0.1}, "critic_dropout: wanted 0.0 with --network=simba, .*, got 0.1"),
        ({"critic_hidden_sizes": "8,4"}, "hidden_sizes: wanted equal sizes for --network=simba, .*, got 8,4"),
    ],
)
def test_what_critics_of_simba_do_not_use_is_refused(given: dict[str, Any], message: str) -> None:
    config, kind = AGENTS["sac"].config_class(**given), AGENTS["sac"]
    with pytest.raises(ValueError, match=f"^{message}$"):
        kind.check(config, NetworkConfig(NetworkSettings("simba"), (1, 3), SPACE, kind.network_class))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropped_quantiles": 2}, "dropped_quantiles: wanted 0 without --critic_quantiles, got 2"),
        (
            {"critic_quantiles": 5, "dropped_quantiles": 5},
            "dropped_quantiles: wanted fewer than the 5 of --critic_quantiles, got 5",
        ),
        ({"critic_subset": 3}, "critic_subset: wanted at most the 2 of --critics, got 3"),
        ({"weight_decay": 0.1, "optimizer": "rmsprop"}, "weight_decay: wanted 0 without --optimizer=adam, got 0.1"),
    ],
)
def test_settings_of_critics_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        AGENTS["sac"].config_class(**settings)
