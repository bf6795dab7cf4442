"""Intrinsic rewards in an update: which rows and frames count, how often, and what a checkpoint keeps."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents import AGENTS
from agents.base import Agent
from agents.intrinsic.rewards import Intrinsic
from agents.intrinsic.scale import RewardFilter
from agents.intrinsic.streams import stream_of
from agents.networks.actor_critic import PolicyNetwork
from replay.batch import Batch
from tests.agents.support import A, B, T, random_batch, with_nan, with_other_unused_rows
from tests.builders import network_of
from tests.support import same
from wrappers.spaces import Leaf

CPU = torch.device("cpu")
ENVIRONMENTS = 5
EXPLORING = [name for name, agent in AGENTS.items() if "intrinsic" in agent.config_class.__dataclass_fields__]
EACH = pytest.mark.parametrize("name", EXPLORING)
KINDS = pytest.mark.parametrize("kind", ["rnd", "icm"])


def agent_of(name: str, kind: str, leaves: tuple[Leaf, ...] = (), shape: tuple[int, ...] = (2, 6), **own: Any) -> Any:
    torch.manual_seed(3)
    one = {"epochs": 1, "minibatches": 1} if name in ("ppo", "appo", "impact") else {}
    config = AGENTS[name].config_class(**{"intrinsic": kind, **one, **own})
    network = network_of("mlp", shape, A, generator=torch.Generator().manual_seed(1), agent=config, leaves=leaves)
    make: Any = AGENTS[name]
    return make(config, network, environments=ENVIRONMENTS)


def batch_here(seed: int = 0, **changed: Any) -> Batch:
    batch = random_batch(seed)
    fresh = {"is_replay": torch.zeros(B, dtype=torch.bool), "environment_id": torch.tensor([2, 0, 4])}
    return replace(batch, **{**fresh, **changed})


def rewards_of(agent: Any, batch: Batch) -> Tensor:
    found = agent.stepper.intrinsic.rewarded(agent.stepper.intrinsic.drawn(batch)).intrinsic_rewards
    assert found is not None
    return found


def filtered(agent: Agent) -> Tensor:
    return agent.state_dict()["numbers"]["intrinsic_rewards"]["filtered"].clone()


def of_module(agent: Agent) -> dict[str, Tensor]:
    return copy.deepcopy(agent.state_dict()["modules"]["intrinsic"])


def test_the_five_agents_have_them() -> None:
    assert EXPLORING == ["vtrace", "a2c", "appo", "impact", "ppo"]
    assert all(issubclass(AGENTS[name].network_class, PolicyNetwork) for name in EXPLORING)


@EACH
@KINDS
def test_an_update_learns_the_module_and_the_second_value(name: str, kind: str) -> None:
    agent, batch = agent_of(name, kind, entropy_loss_weight=0.1), batch_here()
    before, head = of_module(agent), agent.network.intrinsic_head.weight.clone()
    scalars = agent.learn(batch, 0.0).scalars
    assert agent.take_skip_reasons(everything=True) == [None]
    wanted = ("losses/predictor_loss", "losses/intrinsic_value_loss", "intrinsic/reward", "intrinsic/value")
    assert all(float(scalars[each].abs()) > 0 for each in wanted)
    after = of_module(agent)
    assert {key for key in before if torch.equal(before[key], after[key])} == {key for key in before if "target" in key}
    assert not torch.equal(agent.network.intrinsic_head.weight, head)
    assert (filtered(agent) > 0).tolist() == [True, False, True, False, True]


@EACH
def test_unused_rows_and_old_frames_change_nothing(name: str) -> None:
    """The reward of a step depends on the frame behind it, and an autoreset row has none."""
    ends = []
    for change in (lambda batch: batch, with_other_unused_rows):
        agent = agent_of(name, "rnd")
        agent.learn(change(batch_here()), 0.0)
        ends.append(copy.deepcopy(agent.state_dict()["numbers"]))
    assert all(same(*(end[moments] for end in ends)) for moments in ("intrinsic_rewards", "intrinsic_observations"))
    agent, batch = agent_of(name, "rnd"), batch_here()
    rewards = rewards_of(agent, batch)
    assert ((rewards > 0) == batch.action_used).all()
    older = batch.observations.clone()
    older[:, :, 0] += 1.0
    assert torch.equal(rewards_of(agent, replace(batch, observations=older)), rewards)
    older[0] += 1.0  # no step leads to row 0
    assert torch.equal(rewards_of(agent, replace(batch, observations=older)), rewards)
    older[3, 0] += 1.0
    assert (rewards_of(agent, replace(batch, observations=older)) != rewards)[2, 0]


@pytest.mark.parametrize("name", ["vtrace", "appo", "impact"])
@KINDS
def test_replayed_columns_are_rewarded_but_counted_once(name: str, kind: str) -> None:
    agent, replayed = agent_of(name, kind), batch_here(is_replay=torch.ones(B, dtype=torch.bool))
    agent.learn(batch_here(), 0.0)
    module, numbers = of_module(agent), copy.deepcopy(agent.state_dict()["numbers"])
    assert (rewards_of(agent, replayed) > 0).any()
    other = agent_of(name, kind, optimizer="rmsprop")  # whose step without a gradient is none
    other.load_state_dict(agent.state_dict(), load_optimizer=False)
    other.learn(replayed, 0.0)
    assert same(of_module(other), module)
    moments = ("intrinsic_rewards", "intrinsic_observations")
    assert all(same(other.state_dict()["numbers"][each], numbers[each]) for each in moments)


def test_a_refused_update_leaves_scale_and_moments() -> None:
    agent = agent_of("a2c", "icm")
    agent.learn(batch_here(), 0.0)
    before = copy.deepcopy(agent.state_dict())
    agent.learn(with_nan(batch_here(1), "rewards"), 0.0)
    assert agent.take_skip_reasons(everything=True) == [None, "rewards"]
    assert same(agent.state_dict(), before)


def test_trajectories_of_one_environment_continue_each_other() -> None:
    """In one batch they give what they give one after the other."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.rand(T, 5, generator=generator, dtype=torch.float64)
    used = torch.rand(T, 5, generator=generator) < 0.7
    environments = torch.tensor([1, 0, 1, 1, 0])
    together, apart = (RewardFilter(3, 0.9, CPU) for _ in range(2))
    steps, change = together.fold(raw, used, environments)
    for column in range(5):
        one = slice(column, column + 1)
        alone, moved = apart.fold(raw[:, one], used[:, one], environments[one])
        torch.testing.assert_close(alone, steps[:, one])
        apart.filtered += moved
    torch.testing.assert_close(change, apart.filtered)


@EACH
def test_each_agents_estimator_goes_on_over_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the policy that learns has acted and lambda is 1, all of them are the sum of rewards to x_T, and its value."""
    trace = "gae_lambda" if name in ("a2c", "ppo") else "vtrace_lambda"
    agent = agent_of(name, "rnd", intrinsic_weight=3.0, extrinsic_weight=0.0, intrinsic_gamma=0.9, **{trace: 1.0})
    batch, intrinsic, seen = batch_here(), agent.stepper.intrinsic, []
    with torch.no_grad():
        policy, _, values = (each.unflatten(0, (T + 1, B)) for each in agent.network(batch.observations.flatten(0, 1)))
    batch.acting["behaviour_policy"] = policy[:-1]
    rewards = rewards_of(agent, batch)

    def combined(*arguments: Any) -> tuple[Tensor, Tensor | None]:
        seen.append(type(intrinsic).combined(intrinsic, *arguments))
        return seen[-1]

    monkeypatch.setattr(intrinsic, "combined", combined)
    agent.learn(batch, 0.0)
    ((advantages, targets),) = seen
    for b in range(B):
        following = values[T, b]
        for t in reversed(range(T)):
            if not batch.action_used[t, b]:
                assert float(advantages[t, b]) == 0.0
                continue
            following = rewards[t, b] + 0.9 * following
            torch.testing.assert_close(targets[t, b], following, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(advantages[t, b], 3.0 * (following - values[t, b]), rtol=1e-4, atol=1e-5)


def test_returns_end_with_episodes_if_asked() -> None:
    batch, values = batch_here(), torch.arange(float((T + 1) * B)).view(T + 1, B)
    stream = stream_of(batch, batch.rewards, values, 0.9, episodic=True)
    assert torch.equal(stream.batch.terminated, batch.terminated)
    assert stream.back(stream.rows(values)) is values
    assert not stream_of(batch, batch.rewards, values, 0.9, episodic=False).batch.terminated.any()


def test_a_mask_and_the_inputs_of_a_core_are_not_read() -> None:
    vector = (Leaf("seen", (3,), "float32"),)
    others = (Leaf("action_mask", (A,), "uint8"), Leaf("previous_action", (A,), "float32"))
    agent = agent_of("a2c", "rnd", leaves=(*vector, *others), shape=(1, 12 + A + 4 * A))
    frames = agent.stepper.intrinsic._frames
    observations = torch.zeros(2, 1, 12 + 5 * A, dtype=torch.uint8)
    observations[1, :, 12:] = 1  # mask and previous action come behind the vector
    assert frames.size == 3
    assert torch.equal(*frames.flat(observations))


def test_a_checkpoint_holds_all_and_fits_other_numbers_of_environments() -> None:
    agent = agent_of("ppo", "rnd")
    agent.calibrate(torch.randn(30, 2, 6))
    agent.learn(batch_here(), 0.0)
    other = agent_of("ppo", "rnd")
    with torch.no_grad():
        for weights in other.stepper.modules["intrinsic"].state_dict().values():
            weights.add_(1.0)  # another f
    state = copy.deepcopy(agent.state_dict())
    other.check_state_dict(state, load_optimizer=True)
    other.load_state_dict(state, load_optimizer=True)
    assert torch.equal(rewards_of(other, batch_here(1)), rewards_of(agent, batch_here(1)))
    assert len(state["optimizers"]["network"]["state"]) == len(agent.stepper.parameters)
    fewer = Intrinsic(agent.network, agent.config, type(agent.stepper.modules["intrinsic"]), 3)
    running = fewer.moments["intrinsic_rewards"]
    running.check_state_dict(state["numbers"]["intrinsic_rewards"])
    running.load_state_dict(state["numbers"]["intrinsic_rewards"])
    assert torch.equal(running.state_dict()["filtered"], filtered(agent)[:3])


@pytest.mark.parametrize(("share", "steps", "rows"), [(1.0, 8, 7), (0.5, 8, 3), (0.001, 8, 1)])
def test_rows_are_thinned_and_each_step_takes_others(share: float, steps: int, rows: int) -> None:
    agent = agent_of("ppo", "rnd", epochs=4, minibatches=2, predictor_share=share)
    drawn = agent.stepper.intrinsic.drawn(batch_here()).predictor_rows
    assert drawn.shape == (steps, rows)
    epochs = drawn.view(4, -1)
    assert all(len(set(each.tolist())) == each.numel() for each in epochs)
    assert epochs.max() < T * B
    assert not torch.equal(epochs[0], epochs[1])
