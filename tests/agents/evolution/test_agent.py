"""Updates of ES and CEM: which returns count, when a generation ends, and where its weights go."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.cem.agent import CEMConfig
from agents.es.agent import ESConfig
from agents.evolution.agent import PopulationAgent
from tests.agents.evolution.support import agent_here, ended_batch
from tests.agents.support import with_nan
from tests.support import same

BOTH = pytest.mark.parametrize("name", ["es", "cem"])
SMALL: dict[str, dict[str, Any]] = {
    "es": {"population": 4, "lr": 0.1, "weight_decay": 0.25, "noise_std": 0.5},
    "cem": {"population": 4, "elites": 2, "initial_std": 0.5, "extra_variance": 0.5, "extra_variance_generations": 4},
}
WHOLE = [(1, 3.0), (2, 1.0), (3, 9.0), (4, 5.0)]


def small(name: str, **options: Any) -> PopulationAgent:
    return agent_here(name, **{**SMALL[name], **options})


def flat(agent: PopulationAgent) -> Tensor:
    return torch.cat([weights.detach().flatten() for weights in agent.network.parameters()])


@BOTH
def test_a_generation_ends_with_its_last_member(name: str) -> None:
    agent = small(name)
    before = copy.deepcopy(agent.network.state_dict())
    for update, some in enumerate((WHOLE[:2], WHOLE[2:3])):
        updated = agent.learn(ended_batch(some, seed=update), 0.0)
        assert updated.optimizer_steps == 0
        assert same(before, agent.network.state_dict())
    updated = agent.learn(ended_batch(WHOLE[3:], seed=2), 0.0)
    assert updated.optimizer_steps == 1
    assert agent.network.generation == 2
    assert not flat(agent).equal(torch.cat([before[key].flatten() for key, _ in agent.network.named_parameters()]))
    assert agent.returns.isnan().all()
    found = {key: float(value) for key, value in updated.scalars.items()}
    assert (found["evolution/mean_return"], found["evolution/best_return"], found["evolution/worst_return"]) == (4.5, 9.0, 1.0)
    assert agent.take_skip_reasons() == [None] * 3


@BOTH
def test_returns_that_come_in_any_order_and_batch_give_the_same_weights(name: str) -> None:
    together, apart = small(name), small(name)
    together.learn(ended_batch(WHOLE), 0.0)
    for member in reversed(WHOLE):
        apart.learn(ended_batch([member]), 0.0)
    assert flat(apart).equal(flat(together))


@pytest.mark.parametrize(
    "others",
    [
        [(0, 1e6)],  # the centre
        [(1, 1e6)],  # a member that has played before: its worker was replaced
        [(4, math.nan), (2, math.nan)],  # episodes that go on
    ],
)
@BOTH
def test_other_episodes_count_nothing(name: str, others: list[tuple[int, float]]) -> None:
    agent, plain = small(name), small(name)
    for each in (agent, plain):
        each.learn(ended_batch(WHOLE[:1]), 0.0)
    agent.learn(ended_batch(others), 0.0)
    for each in (agent, plain):
        each.learn(ended_batch(WHOLE[1:]), 0.0)
    assert flat(agent).equal(flat(plain))


@BOTH
def test_episodes_of_an_older_generation_count_nothing(name: str) -> None:
    agent = small(name)
    agent.learn(ended_batch(WHOLE), 0.0)
    after = flat(agent)
    agent.learn(ended_batch(WHOLE, generation=1), 0.0)
    assert flat(agent).equal(after)
    assert agent.returns.isnan().all()
    agent.learn(ended_batch(WHOLE, generation=2), 0.0)
    assert not flat(agent).equal(after)


def test_es_ascends_along_the_noise_of_the_better_members() -> None:
    """By hand: ranks 1, 0, 3, 2 of four are the weights -1/6, -1/2, 1/2, 1/6."""
    agent = small("es")
    before, noise = flat(agent), [agent.network.noise(pair) for pair in range(2)]
    updated = agent.learn(ended_batch(WHOLE), 0.0)
    gradient = (1 / 3 * noise[0] + 1 / 3 * noise[1]) / (2 * 2 * 0.5)
    torch.testing.assert_close(updated.scalars["losses/gradient_norm"], torch.linalg.vector_norm(gradient))
    first_step_of_adam = 0.1 * (gradient - 0.25 * before).sign()
    torch.testing.assert_close(flat(agent), before + first_step_of_adam, rtol=1e-3, atol=1e-4)


def test_the_learning_rate_of_es_follows_the_run_if_asked() -> None:
    steady, falling = small("es"), small("es", lr_end_value=0.05)
    assert [steady.learn(ended_batch(WHOLE, generation), 0.5).learning_rate for generation in (1, 2)] == [0.1, 0.1]
    assert falling.learn(ended_batch(WHOLE), 0.5).learning_rate == pytest.approx(0.075)


def test_cem_takes_over_mean_and_deviation_of_its_best_members() -> None:
    agent = small("cem", smoothing=0.75)
    before, members = flat(agent), torch.stack([agent.network.perturbation(member) for member in (3, 4)])
    agent.learn(ended_batch(WHOLE), 0.0)
    torch.testing.assert_close(flat(agent), before + 0.75 * members.mean(0))
    variance = 0.75 * members.var(0, correction=0) + 0.25 * 0.25 + 0.5
    torch.testing.assert_close(agent.network.std, variance.sqrt())


def test_the_extra_variance_of_cem_falls_to_zero() -> None:
    agent, found = small("cem", elites=1), []
    for generation in range(1, 7):
        agent.learn(ended_batch(WHOLE, generation), 0.0)
        found.append(float(agent.network.std[0]) ** 2)  # type: ignore[index, arg-type]
    assert found == pytest.approx([0.5, 0.375, 0.25, 0.125, 0.0, 0.0], abs=1e-6)


@BOTH
def test_the_scale_of_observations_stays_within_a_generation(name: str) -> None:
    agent = small(name, normalise_observations=True)
    agent.learn(ended_batch(WHOLE[:2]), 0.0)
    assert not agent.network.input_mean.any()
    agent.learn(ended_batch(WHOLE[2:], seed=1), 0.0)
    rows = torch.cat(
        [ended_batch(part, seed=seed).observations[:-1].flatten(0, 2) for seed, part in enumerate((WHOLE[:2], WHOLE[2:]))]
    )
    torch.testing.assert_close(agent.network.input_mean[0], rows.mean(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("field", ["rewards", "observations"])
@BOTH
def test_a_batch_with_a_non_finite_number_changes_nothing(name: str, field: str) -> None:
    agent = small(name, normalise_observations=True)
    agent.learn(ended_batch(WHOLE[:3]), 0.0)
    before = copy.deepcopy(agent.state_dict())
    agent.learn(with_nan(ended_batch(WHOLE[3:]), field), 0.0)
    assert same(before, agent.state_dict())
    assert agent.take_skip_reasons() == [None, field]


@BOTH
def test_an_agent_that_was_saved_within_a_generation_goes_on_to_the_bit(name: str) -> None:
    agent, resumed = small(name, normalise_observations=True), small(name, normalise_observations=True)
    agent.learn(ended_batch(WHOLE), 0.0)
    agent.learn(ended_batch(WHOLE[:2], generation=2), 0.25)
    state = copy.deepcopy(agent.state_dict())
    resumed.check_state_dict(state, load_optimizer=True)
    resumed.load_state_dict(state, load_optimizer=True)
    ends = [each.learn(ended_batch(WHOLE[2:], generation=2), 0.5) for each in (agent, resumed)]
    assert same(agent.state_dict(), resumed.state_dict())
    assert same(dict(ends[0].scalars), dict(ends[1].scalars))


@BOTH
def test_returns_of_another_population_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^wanted returns as float64 \[4\], got float64 \[6\]$"):
        small(name).check_state_dict(small(name, population=6).state_dict(), load_optimizer=True)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^population: wanted an even number with agent es, whose members are pairs, got 5$"):
        ESConfig(population=5)
    with pytest.raises(ValueError, match=r"^elites: wanted at most the 4 members of --population, got 5$"):
        CEMConfig(population=4, elites=5)
    with pytest.raises(ValueError, match=r"^lr_end_value: wanted -1 or a learning rate"):
        ESConfig(lr_end_value=-0.5)


@BOTH
def test_the_steps_that_counted_are_those_of_episodes_whose_return_was_awaited(name: str) -> None:
    """Two rows a column: 6 of members; at first also 2 of the centre and 2 of a repeated member; 2 of the last member."""
    agent, resumed = small(name), small(name)
    for generation, others, wanted in ((1, [(0, 1.0), (2, 1.0)], 8 / 12), (2, [], 1.0)):
        agent.learn(ended_batch(WHOLE[:3], generation), 0.0)
        if others:
            agent.learn(ended_batch(others, generation), 0.0)
        resumed.load_state_dict(copy.deepcopy(agent.state_dict()), load_optimizer=True)
        for each in (agent, resumed):
            updated = each.learn(ended_batch(WHOLE[3:], generation), 0.0)
            assert float(updated.scalars["evolution/counted_steps"]) == pytest.approx(wanted)
