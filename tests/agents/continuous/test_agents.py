"""SAC, TD3 and DDPG as agents: what an update changes, what it must not change, and what acting explores with."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agents import AGENTS
from agents.acting import BEHAVIOUR_LOG_PROB
from agents.base import Agent
from agents.continuous.actors import Actor
from agents.continuous.critics import STEPS, Critics, StackedLinear
from agents.distributions import ILLEGAL_LOGIT
from agents.networks.base import NetworkConfig, NetworkOutput, make_network
from agents.networks.settings import NetworkSettings
from agents.returns.nstep import transitions
from agents.sac.agent import SACAgent
from tests.agents.continuous.support import CONTINUOUS, SPACE, agent_of, changed, learn, weights, windows
from tests.support import golden, same
from wrappers.spaces import Box, Discrete, MultiDiscrete

EACH = pytest.mark.parametrize("name", CONTINUOUS)
EVERY_STEP: dict[str, dict[str, Any]] = {"td3": {"delay": 1}, "crossq": {"delay": 1}}
"""Settings with which the actor moves in every step."""
IMAGES = (1, 40, 40)
CHOICE = Discrete(3)


def followers_of(agent: Agent) -> dict[str, nn.Module]:
    """The target networks by name."""
    return {name: target.network for name, target in agent.stepper.target_networks.items()}


@EACH
@pytest.mark.parametrize(("inputs", "reward"), [(float("nan"), 0.0), (0.0, float("inf"))])
def test_a_non_finite_update_changes_nothing(name: str, inputs: float, reward: float) -> None:
    agent = agent_of(name, batches_at_once=2)
    learn(agent, windows(), 3)
    before = deepcopy(agent.state_dict())
    bad = windows()
    bad.observations[0, 0, 0, 0] += inputs
    bad.rewards[0, 1] += reward
    agent.take_skip_reasons()
    learn(agent, bad)
    assert agent.take_skip_reasons() == ["observations" if inputs else "rewards"]
    if STEPS in before["numbers"]:  # refused steps count too: a GPU tells later which they were
        before["numbers"][STEPS]["count"] += 2
    assert same(before, agent.state_dict())


@EACH
def test_non_finite_weights_of_one_network_stop_the_steps_of_all(name: str) -> None:
    """The actor's loss alone is not finite, so the critics may not move either."""
    agent = agent_of(name, batches_at_once=2, **EVERY_STEP.get(name, {}))
    agent.network.policy_head.bias.data.fill_(float("nan"))
    before = deepcopy(agent.state_dict())
    before["modules"]["network"]["acts_randomly"].zero_()
    learn(agent, windows())
    assert agent.take_skip_reasons() != [None]
    for module in ("critics", *followers_of(agent)):
        assert same(before["modules"][module], agent.state_dict()["modules"][module])


@EACH
def test_every_network_learns_and_targets_follow_slowly(name: str) -> None:
    agent = agent_of(name, **EVERY_STEP.get(name, {}))
    states = {part: weights(module) for part, module in {**agent.stepper.modules, **followers_of(agent)}.items()}
    learn(agent, windows(), 2)
    assert all(changed(states[part], module) for part, module in {**agent.stepper.modules, **followers_of(agent)}.items())
    for part, module in followers_of(agent).items():
        for moved, kept in zip(module.parameters(), states[part], strict=True):
            assert (moved - kept).abs().max() < 0.005 * 2 * 2 * 1e-2 + 1e-6


@pytest.mark.parametrize("case", [case for case in golden("td3.json") if case["name"].startswith("policy_delay")])
def test_actor_and_targets_move_at_the_multiples_of_the_delay(case: dict[str, Any]) -> None:
    agent = agent_of("td3", delay=case["policy_delay"])
    moves = []
    for update in range(1, case["inputs"]["updates"] + 1):
        before = [weights(module) for module in (agent.network, *followers_of(agent).values())]
        learn(agent, windows())
        modules = (agent.network, *followers_of(agent).values())
        moved = {changed(old, module) for old, module in zip(before, modules, strict=True)}
        assert len(moved) == 1
        moves += [update] if moved == {True} else []
    assert moves == case["outputs"]["updates_with_policy_and_targets"]


@pytest.mark.parametrize("case", [case for case in golden("ddpg.json") if case["name"] in ("polyak", "polyak_copy")])
def test_targets_follow_as_the_golden_average(case: dict[str, Any]) -> None:
    agent = agent_of("ddpg", target_update_rate=case["tau"])
    follower, learned = agent.target_critics.network.layers[-1].bias, agent.critics.layers[-1].bias
    with torch.no_grad():
        follower.copy_(torch.tensor(case["inputs"]["target"]).mean())
        steps = case["inputs"]["online_after_each_update"], case["outputs"]["target_after_each_update"]
        for online, wanted in zip(*steps, strict=True):
            learned.copy_(torch.tensor(online).mean())
            for target in agent.stepper.target_networks.values():
                target.after_step()
            torch.testing.assert_close(follower.mean(), torch.tensor(wanted).mean(), rtol=0, atol=1e-6)


@EACH
@pytest.mark.parametrize("parts", [3, 4])
def test_batches_at_once_are_steps_one_after_the_other(name: str, parts: int) -> None:
    whole, single = agent_of(name, batches_at_once=parts), agent_of(name)
    batch = windows(rows=12)
    learn(whole, batch)
    torch.manual_seed(7)
    for columns in torch.arange(12).view(-1, parts).t():  # each takes a column in turn
        single.learn(batch.take_columns(columns), 0.0)
    for one, other in zip(whole.stepper.parameters, single.stepper.parameters, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("divided")
@EACH
def test_threads_share_a_batch_without_changing_its_step(name: str) -> None:
    one, two = agent_of(name), agent_of(name, threads=2)
    batch = windows(rows=13)
    for agent in (one, two):
        learn(agent, batch, 2)
    for single, double in zip(one.stepper.parameters, two.stepper.parameters, strict=True):
        torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-5)


@EACH
def test_a_shared_encoder_learns_from_the_critics_alone(name: str) -> None:
    agent = agent_of(name, IMAGES, network="nature", n_step=2)
    assert agent.network.shares
    part = next(transitions(windows(IMAGES, length=2), 0.99).split(1))
    drawn = () if name in ("td3", "ddpg") else agent.drawn(part)
    found = agent.losses(part, *drawn).terms
    reached = {name: {id(weight) for weight in term.parameters} for name, term in found.items()}
    torso = {id(weight) for weight in agent.network.torso.parameters()}
    assert torso <= reached["critic_loss"]
    assert all(not torso & other for term, other in reached.items() if term != "critic_loss")
    before = weights(agent.network.torso)
    learn(agent, windows(IMAGES, length=2), 2)
    assert changed(before, agent.network.torso)


@pytest.mark.parametrize("outputs", [1, 3])
def test_critics_of_stacked_weights_are_the_single_ones(outputs: int) -> None:
    torch.manual_seed(1)
    critics = Critics(2, 5, outputs, (7, 6), "relu", layer_norm=True)
    inputs = torch.randn(9, 5)
    found = critics(inputs)
    found.square().sum().backward()
    for index in range(2):
        hidden = [[nn.Linear(before, size), nn.LayerNorm(size), nn.ReLU()] for before, size in ((5, 7), (7, 6))]
        layers = nn.Sequential(*hidden[0], *hidden[1], nn.Linear(6, outputs))
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        stacked = [layer for layer in critics.layers if isinstance(layer, StackedLinear)]
        with torch.no_grad():
            for layer, source in zip(linear, stacked, strict=True):
                layer.weight.copy_(source.weight[index].T)
                layer.bias.copy_(source.bias[index, 0])
        wanted = layers(inputs)
        wanted.square().sum().backward()
        torch.testing.assert_close(found[index], wanted)
        for layer, source in zip(linear, stacked, strict=True):
            torch.testing.assert_close(source.weight.grad[index].T, layer.weight.grad)
            torch.testing.assert_close(source.bias.grad[index, 0], layer.bias.grad)


def test_dropout_leaves_hidden_units_out_in_learning() -> None:
    agent = agent_of("sac", critic_dropout=0.5, critic_layer_norm=True)
    inputs, actions = torch.randn(4, 3), torch.randn(4, 2)
    assert not agent.critics(inputs, actions).equal(agent.critics(inputs, actions))


def acted(network: Actor, count: int, *, greedy: bool = False, explores: bool = True) -> Tensor:
    with torch.no_grad():
        inferred: NetworkOutput = network.infer(torch.zeros(count, *network.config.observation_shape))
        exploration = network.exploration(torch.arange(count), count) if explores else None
        return network.choose(inferred, torch.Generator().manual_seed(1), exploration, greedy=greedy).actions


@EACH
def test_actions_are_uniform_until_the_first_update(name: str) -> None:
    agent = agent_of(name)
    actions = acted(agent.network, 4000)
    assert actions.abs().max() <= 1
    torch.testing.assert_close(actions.std(0), torch.full((2,), 3**-0.5), rtol=0.05, atol=0)
    learn(agent, windows())
    assert acted(agent.network, 4000).std(0).max() < (0.15 if name in ("td3", "ddpg") else 0.75)
    assert acted(agent.network, 3, greedy=True).unique(dim=0).shape[0] == 1


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_noise_is_for_training_alone_and_correlated_noise_is_a_state(kind: str) -> None:
    agent = agent_of("td3", exploration_noise_kind=kind, exploration_noise=0.3, noise_dt=0.25)
    learn(agent, windows())
    network, best = agent.network, acted(agent.network, 2000, greedy=True)
    assert acted(network, 2000, explores=False).equal(best)
    deviation = (acted(network, 2000) - best).std(0)
    wanted = 0.3 if kind == "gaussian" else 0.3 * 0.25**0.5
    torch.testing.assert_close(deviation, torch.full((2,), wanted), rtol=0.1, atol=0)
    assert network.noise_size == (2 if kind == "ou" else 0)


def test_discrete_actions_obey_the_entropy_form_and_their_mask() -> None:
    agent = agent_of("sac", action=CHOICE)
    before = weights(agent.network)
    learn(agent, windows(action=CHOICE), 3)
    assert changed(before, agent.network)
    output = agent.network.heads(torch.zeros(500, 8), torch.tensor([[1, 0, 1]], dtype=torch.uint8).expand(500, 3))
    for randomly in (1.0, 0.0):
        agent.network.acts_randomly.fill_(randomly)
        chosen = agent.network.choose(NetworkOutput(output, torch.zeros(500, 8)), None).actions
        assert set(chosen.tolist()) == {0, 2}


def test_the_temperature_aims_at_the_entropy_that_legal_actions_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three actions are legal. The policy is as random as it can be, so the temperature falls."""
    agent = agent_of("sac", action=CHOICE)
    policy, mask = agent.network.policy, torch.tensor([1, 0, 1])
    monkeypatch.setattr(agent.network, "policy", lambda *inputs: policy(*inputs).masked_fill(mask == 0, ILLEGAL_LOGIT))
    update = agent.learn(windows(action=CHOICE), 0.0)
    assert float(update.scalars["losses/entropy"]) == pytest.approx(math.log(2), abs=1e-3)
    found = agent.state_dict()["modules"]["temperature"]["log_alpha"]
    assert float(found) < 0


@pytest.mark.parametrize("threads", [1, 2])
def test_dropout_gives_the_same_bits_with_any_number_of_threads(threads: int, divided: None) -> None:
    one, other = (agent_of("sac", critic_dropout=0.3, threads=each) for each in (1, threads))
    for agent in (one, other):
        learn(agent, windows(rows=13), 2)
    assert same(one.state_dict(), other.state_dict())


def test_hidden_layers_that_follow_a_shared_encoder_may_be_chosen() -> None:
    settings = NetworkSettings("nature", hidden_sizes="7", activation="tanh", calibrate_input=False)
    kind = AGENTS["sac"]
    network = make_network(NetworkConfig(settings, IMAGES, SPACE, kind.network_class, agent=kind.config_class()))
    assert network.policy_head.in_features == 7
    assert any(isinstance(layer, nn.Tanh) for layer in network.hidden)


def test_a_fixed_temperature_stays() -> None:
    agent = agent_of("sac", learn_temperature=False, temperature=0.2)
    learn(agent, windows(), 3)
    assert float(agent.stepper.modules["temperature"]()) == pytest.approx(0.2)


@pytest.mark.parametrize(("learns", "wanted"), [(False, 0.01), (True, 0.2)])
def test_a_fixed_temperature_is_a_setting_of_the_resumed_run(learns: bool, wanted: float) -> None:
    saved = agent_of("sac", temperature=0.2).state_dict()
    agent = agent_of("sac", learn_temperature=learns, temperature=0.01)
    agent.load_state_dict(saved, load_optimizer=True)
    assert float(agent.stepper.modules["temperature"]()) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "action", "settings", "message"),
    [
        ("td3", CHOICE, {}, "env: wanted actions that are real numbers between finite bounds with agent td3, got"),
        (
            "sac",
            MultiDiscrete((2, 2)),
            {},
            "env: wanted one choice, or actions that are real numbers between .* with agent sac, got",
        ),
        ("sac", Box((-1.0,), (float("inf"),)), {}, "env: wanted one choice, or actions that are real numbers"),
        (
            "sac",
            SPACE,
            {"core": "lstm"},
            "core: wanted none with agent sac, .*; ppo, vtrace and r2d2, among others, have one, got lstm",
        ),
        ("td3", SPACE, {"separate_value": True}, "separate_value: wanted false with agent td3"),
        (
            "sac",
            SPACE,
            {"action_distribution": "beta"},
            "action_distribution: wanted auto or squashed_gaussian with agent sac, got",
        ),
        ("ddpg", SPACE, {"action_distribution": "gaussian"}, "action_distribution: wanted auto with agent ddpg, got"),
        ("sac", SPACE, {"initial_log_std": -1.0}, "initial_log_std: wanted 0.0 with agent sac, .*, got -1.0"),
        ("tqc", CHOICE, {}, "env: wanted actions that are real numbers between finite bounds with agent tqc, got"),
        ("crossq", SPACE, {"network": "flat"}, "network: wanted mlp with agent crossq, which normalises it, got flat"),
        ("td3", SPACE, {"log_std": "network"}, "log_std: wanted shared with agent td3, .*, got network"),
    ],
)
def test_what_such_an_agent_cannot_learn_is_refused_in_one_line(name: str, action: Any, settings: Any, message: str) -> None:
    network = NetworkConfig(NetworkSettings(**{"network": "mlp", **settings}), (1, 3), action, AGENTS[name].network_class)
    with pytest.raises(ValueError, match=f"^{message}") as refused:
        AGENTS[name].check(AGENTS[name].config_class(), network)
    assert "\n" not in str(refused.value)


def test_the_part_of_clipped_steps_counts_each_loss_by_itself() -> None:
    """The norm of both gradients together may be above a limit that neither reaches."""

    def updated(limit: float) -> tuple[Agent, dict[str, float]]:
        agent = agent_of("sac", learn_temperature=False, gradient_clip_by_norm_threshold=limit)
        return agent, {name: value.item() for name, value in agent.learn(windows(), 0.0).scalars.items()}

    agent, free = updated(0.0)
    norms = [
        torch.linalg.vector_norm(torch.stack([parameter.grad.norm() for parameter in parameters])).item()
        for parameters in (agent.actor_parameters, agent.critic_parameters)
    ]
    assert free["losses/gradient_norm"] == pytest.approx(math.hypot(*norms))
    assert free["losses/gradient_clipped"] == 0
    assert updated((max(norms) + math.hypot(*norms)) / 2)[1]["losses/gradient_clipped"] == 0
    assert updated(max(norms) * 0.99)[1]["losses/gradient_clipped"] == 1


@pytest.mark.parametrize("name", ["td3", "ddpg"])
def test_noise_that_would_grow_is_refused(name: str) -> None:
    config_class = AGENTS[name].config_class
    config_class(exploration_noise_kind="gaussian", noise_theta=15.0, noise_dt=1.0)
    config_class(exploration_noise_kind="ou", noise_theta=1.9, noise_dt=1.0)
    with pytest.raises(ValueError, match=r"^noise_theta: wanted less than 2 / noise_dt 0\.5, or noise grows, got 15$"):
        config_class(exploration_noise_kind="ou", noise_theta=15.0, noise_dt=0.5)


def test_retraced_targets_of_a_choice_are_those_of_the_recursion() -> None:
    """Windows of two rows. Without a trace the target is the usual one of a single step."""
    settings: dict[str, Any] = {"action": CHOICE, "n_step": 2, "gamma": 0.9, "temperature": 0.5, "learn_temperature": False}
    batch = windows(action=CHOICE, length=2)
    log_mu = torch.log(torch.rand(batch.rewards.shape))
    batch = replace(batch, acting={BEHAVIOUR_LOG_PROB: log_mu})
    agent, without = (agent_of("sac", retrace_lambda=lambda_, **settings) for lambda_ in (0.8, 0.0))
    assert isinstance(agent, SACAgent)
    assert isinstance(without, SACAgent)
    with torch.no_grad():
        encoded = [agent.network.encode(row) for row in batch.observations]
        log_pi = [agent.network.policy(x, e).log_softmax(-1) for x, e in zip(batch.observations, encoded, strict=True)]
        q = [agent.target_critics.network(each).amin(0) for each in encoded]
    values = [(pi.exp() * (each - 0.5 * pi)).sum(-1) for pi, each in zip(log_pi, q, strict=True)]
    discounts = 0.9 * (~batch.terminated).float()
    chosen = batch.actions[1].unsqueeze(-1)
    one_step = batch.rewards + discounts * torch.stack(values[1:])
    ratio = (log_pi[1].gather(-1, chosen).squeeze(-1) - log_mu[1]).exp().clamp(max=1.0)
    correction = 0.8 * ratio * (one_step[1] - q[1].gather(-1, chosen).squeeze(-1))
    torch.testing.assert_close(without.traced_targets(batch), one_step[0])
    torch.testing.assert_close(agent.traced_targets(batch), one_step[0] + discounts[0] * correction)
    found = []
    for each in (agent, without):
        each.learn(batch, 0.0)
        found.append(nn.utils.parameters_to_vector(each.critics.parameters()))
    assert not torch.equal(*found)


def test_retrace_is_refused_for_real_numbers_and_stores_the_probability_of_a_choice() -> None:
    kind = AGENTS["sac"]
    config = kind.config_class(retrace_lambda=0.9, n_step=2)
    network = NetworkConfig(NetworkSettings("mlp"), (1, 3), SPACE, kind.network_class, agent=config)
    with pytest.raises(ValueError, match=r"^retrace_lambda: wanted -1 for .*, got 0\.9"):
        kind.check(config, network)
    agent = agent_of("sac", action=CHOICE, n_step=2, retrace_lambda=0.9)
    agent.network.acts_randomly.zero_()
    features = torch.randn(5, agent.network.feature_count)
    output = agent.network.heads(features)
    actions, fields, _ = agent.network.choose(NetworkOutput(output, features), None)
    wanted = output.policy.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(fields[BEHAVIOUR_LOG_PROB], wanted)
