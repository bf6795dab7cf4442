"""Short episodes are not over-represented, and the policy samples or takes the most probable action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from agents.networks.actor_critic import ActorCritic
from agents.networks.base import NetworkOutput, SampledActions, make_network
from agents.networks.exploration import with_probability
from learner.evaluation.play import EpisodeResult, divide_episodes, play
from tests.builders import network_config, network_of
from tests.learner.evaluation.support import TimedEpisodes
from workers.evaluation_policy import EvaluationPolicy
from workers.finite import NotFiniteError
from wrappers import EnvConfig, EnvSpec, Step, VectorEnv, make_spec
from wrappers.infos import MOST_NAMES, Infos
from wrappers.spaces import Discrete

SPEC = make_spec(EnvConfig(env="Catch-v0", frames_stacked=1))


def uniform_policy(seed: int = 0, *, greedy: bool = False) -> EvaluationPolicy:
    network = network_of("mlp", SPEC.observation_shape, SPEC.action)
    torch.nn.init.zeros_(network.policy_head.weight)
    return EvaluationPolicy(network, torch.device("cpu"), greedy=greedy, seed=seed)


def played(
    env: VectorEnv,
    quotas: np.ndarray,
    stop: Callable[[], bool] = lambda: False,
    steps: list[int] | None = None,
    policy: EvaluationPolicy | None = None,
) -> list[EpisodeResult]:
    episodes: list[EpisodeResult] = []
    counted: list[int] = [] if steps is None else steps
    play(env, policy or uniform_policy(), quotas, 1, on_episode=episodes.append, on_step=counted.append, stop=stop)
    return episodes


def test_short_and_long_episodes_count_equally() -> None:
    """Counting the first six to end would give a mean of about 3.5."""
    episodes = played(TimedEpisodes([2, 2, 20], SPEC), divide_episodes(6, 3))
    assert sorted(episode.length for episode in episodes) == [2, 2, 2, 2, 20, 20]
    assert [sum(episode.environment == index for episode in episodes) for index in range(3)] == [2, 2, 2]
    assert np.mean([episode.episode_return for episode in episodes]) == 8.0


class Reporting(TimedEpisodes):
    """Reports the number of the step, and a second name from the third step on."""

    def step(self, actions: np.ndarray) -> Step:
        step = super().step(actions)
        values = np.full((self.num_envs, MOST_NAMES), np.nan)
        values[:, 0] = np.where(step.reset, np.nan, self.steps)
        values[self.steps >= 3, 1] = 1.0
        return step._replace(infos=Infos(("step", "late") if (self.steps >= 3).any() else ("step",), values))


def test_an_episode_has_the_numbers_of_its_last_step_and_of_all_its_steps() -> None:
    episodes = played(Reporting([1, 4], SPEC), np.array([2, 1]))
    short, long = [[each for each in episodes if each.environment == index] for index in (0, 1)]
    assert [(each.infos, each.sums["step"]) for each in short] == [({"step": 1.0}, (1.0, 1))] * 2
    assert [(each.infos, each.sums) for each in long] == [({"step": 4.0, "late": 1.0}, {"step": (10.0, 4), "late": (2.0, 2)})]


def test_the_policy_acts_only_for_environments_below_their_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    acting: list[int] = []
    counted: list[int] = []
    policy = uniform_policy()
    choose = policy.choose

    def recorded(observations: np.ndarray, *rest: np.ndarray) -> SampledActions:
        acting.append(len(observations))
        return choose(observations, *rest)

    monkeypatch.setattr(policy, "choose", recorded)
    played(TimedEpisodes([2, 5], SPEC), np.array([1, 1]), steps=counted, policy=policy)
    assert acting == [2, 2, 1, 1, 1]
    assert counted == [0, 2, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("episodes", "environments", "quotas"), [(7, 3, [3, 2, 2]), (3, 3, [1, 1, 1]), (2, 4, [1, 1, 0, 0]), (100, 1, [100])]
)
def test_episodes_are_divided_evenly(episodes: int, environments: int, quotas: list[int]) -> None:
    assert divide_episodes(episodes, environments).tolist() == quotas


def test_an_environment_without_a_quota_counts_nothing() -> None:
    episodes = played(TimedEpisodes([3, 1], SPEC), np.array([2, 0]))
    assert [episode.environment for episode in episodes] == [0, 0]


def test_a_stop_keeps_the_finished_episodes() -> None:
    counted: list[int] = []
    episodes = played(TimedEpisodes([3, 50], SPEC), np.array([1, 1]), stop=lambda: len(counted) > 10, steps=counted)
    assert [episode.length for episode in episodes] == [3]


class SpoiledEpisodes(TimedEpisodes):
    """`TimedEpisodes` in which environment 1 gives `value` at step `at`. what: rewards, returns or observations."""

    def __init__(self, lengths: list[int], spec: EnvSpec, what: str, at: int, value: float) -> None:
        super().__init__(lengths, spec)
        self.what, self.at, self.value = what, at, value

    def step(self, actions: np.ndarray) -> Step:
        step = super().step(actions)
        self.at -= 1
        if self.at == 0:
            getattr(step, {"returns": "episode_return"}.get(self.what, self.what))[1] = self.value
        return step


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("what", "at"), [("rewards", 2), ("returns", 3), ("observations", 2)])
def test_a_number_of_an_environment_that_is_not_finite_is_refused(what: str, at: int, value: float) -> None:
    """Environment 0 ends an episode at the steps 1 and 3, environment 1 at step 3."""
    episodes: list[EpisodeResult] = []
    spec = EnvSpec("Fake-v0", (4,), "float32", 1, Discrete(2, ("NOOP", "MOVE")))
    policy = EvaluationPolicy(network_of("mlp", (1, 4), spec.action), torch.device("cpu"), greedy=True, seed=0)
    env = SpoiledEpisodes([1, 3], spec, what, at, value)
    with pytest.raises(NotFiniteError, match=f"^environment 1: wanted finite {what}, got {value}$"):
        play(env, policy, np.array([9, 1]), 1, on_episode=episodes.append, on_step=lambda _: None, stop=lambda: False)
    assert [episode[:2] for episode in episodes] == (at + 1) // 2 * [(1.0, 1)]


def test_an_environment_that_has_reached_its_quota_may_give_any_number() -> None:
    env = SpoiledEpisodes([5, 1], SPEC, "rewards", 2, np.nan)
    assert [episode.environment for episode in played(env, np.array([1, 1]))] == [1, 0]


def test_greedy_takes_the_most_probable_action_and_sampling_follows_the_distribution() -> None:
    network = network_of("mlp", SPEC.observation_shape, SPEC.action)
    torch.nn.init.zeros_(network.policy_head.weight)
    network.policy_head.bias.data = torch.log(torch.tensor([0.2, 0.5, 0.3]))
    observations = np.zeros((10_000, *SPEC.observation_shape), dtype=np.uint8)
    greedy = EvaluationPolicy(network, torch.device("cpu"), greedy=True, seed=1).choose(observations).actions.numpy()
    sampled = EvaluationPolicy(network, torch.device("cpu"), greedy=False, seed=1).choose(observations).actions.numpy()
    assert (greedy == 1).all()
    np.testing.assert_allclose(np.bincount(sampled) / 10_000, [0.2, 0.5, 0.3], atol=0.02)


@pytest.mark.parametrize("epsilon", [0.0, 0.25])
def test_a_network_that_explores_by_epsilon_is_evaluated_with_the_epsilon_that_is_asked_for(epsilon: float) -> None:
    network = make_network(replace(network_config("mlp", SPEC.observation_shape, SPEC.action), network_class=Coin))
    policy = EvaluationPolicy(network, torch.device("cpu"), greedy=False, seed=1, epsilon=epsilon)
    actions = policy.choose(np.zeros((10_000, *SPEC.observation_shape), dtype=np.uint8)).actions.numpy()
    assert np.mean(actions) == pytest.approx(epsilon, abs=0.02)


class Coin(ActorCritic):
    """Takes action 1 with probability epsilon, otherwise action 0."""

    explores_by_epsilon = True

    def choose(
        self,
        inferred: NetworkOutput,
        generator: torch.Generator | None,
        exploration: torch.Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> SampledActions:
        assert exploration is not None
        best = torch.zeros(len(inferred.features), dtype=torch.int64)
        return SampledActions(with_probability(exploration[:, 0], best + 1, best, generator), {})


def test_the_same_seed_gives_the_same_actions() -> None:
    observations = np.zeros((50, *SPEC.observation_shape), dtype=np.uint8)
    one, again, other = (uniform_policy(seed).choose(observations).actions.numpy() for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_each_environment_has_a_memory_of_its_own_which_begins_with_its_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of 2 and 5 steps; the second environment plays on alone. Then the same policy plays all anew."""
    network = network_of("mlp", SPEC.observation_shape, SPEC.action, core="gru", generator=torch.Generator().manual_seed(1))
    assert network.core is not None
    seen: list[list[int]] = []

    def count(features: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A state that counts the observations of its episode."""
        seen.append(state[:, 0].int().tolist())
        return state, state + 1

    monkeypatch.setattr(network.core, "forward", count)
    policy = EvaluationPolicy(network, torch.device("cpu"), greedy=False, seed=1)
    for _ in range(2):
        played(TimedEpisodes([2, 5], SPEC), np.array([2, 2]), policy=policy)
    assert seen == 2 * [[0, 0], [1, 1], [2, 2], [0, 3], [1, 4], [5], [0], [1], [2], [3], [4]]
