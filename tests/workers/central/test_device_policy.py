"""The policy that keeps the stacks: it sees what the environments show, acts by its probabilities, and says when it cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.networks.actor_critic import ActorCritic
from replay.trajectory import FEATURES
from tests.builders import network_of, trajectory_contract
from workers.base import WorkerConfig, WorkerSetup
from workers.central.device_policy import DevicePolicy
from workers.central.device_weights import DeviceWeights
from wrappers import EnvConfig, make_spec, make_vector_env

CPU = torch.device("cpu")
CATCH = EnvConfig(env="Catch-v0", frames_stacked=3)
BREAKOUT = EnvConfig(env="BreakoutNoFrameskip-v4", frame_scale_resolution="12,14", max_episode_frames=60, noop_threshold=3)
COLOURS = EnvConfig(env="PongNoFrameskip-v4", frame_scale_resolution="12,12", max_episode_frames=40, grayscaling_frames=False)
GROUP = 2
GROUPS = 3


def make_policy(env: EnvConfig, environments: int) -> tuple[DevicePolicy, ActorCritic]:
    spec = make_spec(env)
    network = network_of("mlp", spec.observation_shape, spec.action)
    weights = DeviceWeights(network)
    weights.publish(network, 4)
    contract = trajectory_contract(
        frame_shape=spec.frame_shape,
        frames_stacked=spec.frames_stacked,
        action_count=spec.action.mask_size,
        feature_count=network.feature_count,
    )
    setup = WorkerSetup(env, spec, network.config, contract, WorkerConfig(worker_kind="central"), ())
    return DevicePolicy(setup, weights, environments, CPU, seed=3), network


@pytest.mark.parametrize("env", [CATCH, BREAKOUT, COLOURS])
def test_stacks_are_what_the_environments_show(env: EnvConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups ask in any order and in any company; each answer is that of the group's own observations."""
    policy, network = make_policy(env, GROUP * GROUPS)
    seen: list[Tensor] = []
    infer = policy.network.infer
    monkeypatch.setattr(policy, "_infer", lambda given: (seen.append(given.clone()), infer(given))[1])
    envs = [make_vector_env(env, GROUP) for _ in range(GROUPS)]
    shown = [each.reset(1 + group) for group, each in enumerate(envs)]
    first = [np.ones(GROUP, bool) for _ in envs]
    generator, resets = np.random.default_rng(0), 0
    for _ in range(40):
        asking = generator.permutation(GROUPS)[: generator.integers(1, GROUPS + 1)]
        acted = policy.act(
            [shown[group][:, -1] for group in asking],
            [first[group] for group in asking],
            [np.arange(GROUP) + GROUP * group for group in asking],
        )
        observations = np.concatenate([shown[group] for group in asking])
        np.testing.assert_array_equal(seen[-1].numpy(), observations)
        with torch.no_grad():
            hidden = network.features(torch.from_numpy(observations))
            wanted = network.heads(hidden)
        np.testing.assert_allclose(acted.fields["behaviour_policy"], wanted.policy, atol=1e-5)
        np.testing.assert_allclose(acted.fields["behaviour_values"], wanted.values, atol=1e-5)
        np.testing.assert_allclose(acted.fields[FEATURES], hidden, atol=1e-5)
        for index, group in enumerate(asking):
            step = envs[group].step(acted.actions[GROUP * index : GROUP * (index + 1)])
            shown[group], first[group] = step.observations.copy(), step.reset.copy()
            resets += int(step.reset.sum())
    assert policy.version == 4
    assert resets > 3


def test_numbers_that_are_not_finite_are_refused() -> None:
    policy, network = make_policy(CATCH, 2)
    with torch.no_grad():
        network.policy_head.bias[1] = float("nan")
    policy.weights.publish(network, 5)
    spec = make_spec(CATCH)
    with pytest.raises(RuntimeError, match="policy of update 5"):
        policy.act([np.zeros((2, *spec.frame_shape), np.uint8)], [np.ones(2, bool)], [np.arange(2)])
