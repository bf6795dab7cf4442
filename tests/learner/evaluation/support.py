"""Networks that the tests of evaluation and export share."""

from __future__ import annotations

import torch

from agents.networks.actor_critic import ActorCritic, make_network
from learner.settings.config import Config
from tests.support import small_config
from wrappers import make_spec


def new_network(config: Config, generator: torch.Generator | None = None) -> ActorCritic:
    """The network of a run before its first update."""
    spec = make_spec(config.env)
    return make_network(config.network, spec.observation_shape, spec.action_count, generator=generator)


@torch.no_grad()
def network_that_does(action: int) -> ActorCritic:
    """A network that always takes the same action in Catch: 0 is LEFT, 1 STAY, 2 RIGHT."""
    network = new_network(small_config())
    network.policy_head.weight.zero_()
    network.policy_head.bias.zero_()
    network.policy_head.bias[action] = 1e4
    return network
