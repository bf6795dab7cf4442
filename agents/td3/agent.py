"""Deterministic policies with replay: TD3 (Fujimoto et al. 2018, arXiv:1802.09477), of which DDPG is a special case.

y = G + D min_k Q'_k(x', pi'(x') + clip(noise))        critics: mean (Q_k - y)^2, summed over k
actor, every `delay` steps: - mean Q_1(x, pi(x)),      then targets follow: Q', pi' += rate (Q - Q', pi - pi')
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from agents.base import Agent, Needs
from agents.continuous.actors import CORRELATED, DeterministicActor
from agents.continuous.critics import (
    CHARTS,
    CRITICS,
    STEPS,
    TARGETS,
    CriticCount,
    CriticQuantiles,
    CriticSizes,
    Dropout,
    DroppedQuantiles,
    LayerNorm,
    check_bounded,
    check_critics,
    check_network,
    make_critics,
)
from agents.continuous.losses import (
    critic_errors,
    critic_loss,
    deterministic_policy_loss,
    hard_targets,
    smoothed_actions,
)
from agents.engine.stepper import Stepper
from agents.engine.targets import TargetNetwork
from agents.losses import Losses, Term
from agents.networks.base import NetworkConfig
from agents.returns.nstep import DEFAULTS, Transitions, needs_of_windows, transitions
from agents.settings import (
    AdamMomentum,
    AgentConfig,
    BatchesAtOnce,
    ClipOfEachLoss,
    ClipRewards,
    Gamma,
    HeldLearningRate,
    LearningRate,
    LearningStarts,
    NormaliseRewards,
    OptimizerName,
    PolyakRate,
    RewardClipping,
    RmspropEpsilon,
    UpdatesPerStep,
    WeightDecay,
    WindowRows,
)
from agents.unused_settings import OF_CORES, OF_POLICIES, check_distribution
from replay.batch import Batch
from setting import Linear, Setting

TARGET_ACTOR = "target_actor"
"""Name of the module in a checkpoint."""

NoiseSize = Annotated[
    float,
    Setting(
        "Size of the noise on actions in training, which are in [-1, 1].",
        "a standard deviation in [0, 10]",
        0,
        10,
        search=Linear(0.01, 0.5),
    ),
]
NoiseKind = Annotated[
    Literal["gaussian", "ou"],
    Setting("Noise on actions: gaussian (independent), or ou (Ornstein-Uhlenbeck: correlated from step to step)."),
]
NoiseTheta = Annotated[float, Setting("Part of ou noise that a unit of time takes away.", "a number in [0, 100]", 0, 100)]
NoiseTime = Annotated[float, Setting("Time of a step, for ou noise.", "a number in (0, 1]", 1e-6, 1)]


@dataclass(frozen=True)
class DeterministicConfig(AgentConfig):
    """The settings that TD3 and DDPG share. All losses are means over the windows of a batch."""

    lr: LearningRate = 1e-3
    lr_end_value: HeldLearningRate = -1.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-8
    adam_beta1: AdamMomentum = 0.9
    weight_decay: WeightDecay = 0.0
    gradient_clip_by_norm_threshold: ClipOfEachLoss = 0.0
    gamma: Gamma = 0.99
    n_step: WindowRows = 1
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    updates_per_step: UpdatesPerStep = 1.0
    learning_starts: LearningStarts = 10_000
    batches_at_once: BatchesAtOnce = 8
    target_update_rate: PolyakRate = 0.005
    critic_hidden_sizes: CriticSizes = "same"
    critic_layer_norm: LayerNorm = False
    critic_dropout: Dropout = 0.0
    exploration_noise: NoiseSize = 0.1
    exploration_noise_kind: NoiseKind = "gaussian"
    noise_theta: NoiseTheta = 0.15
    noise_dt: NoiseTime = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        pull = self.noise_theta * self.noise_dt
        if self.exploration_noise_kind == CORRELATED and pull >= 2:
            raise ValueError(
                f"noise_theta: wanted less than 2 / noise_dt {self.noise_dt:g}, or noise grows, got {self.noise_theta:g}"
            )

    @property
    def epsilon(self) -> float:
        """Evaluations act without noise, so they are greedy."""
        return 0.0


@dataclass(frozen=True)
class TD3Config(DeterministicConfig):
    """Settings of TD3. Those of Stable-Baselines3 are the defaults."""

    critics: CriticCount = 2
    critic_quantiles: CriticQuantiles = 0
    dropped_quantiles: DroppedQuantiles = 0
    delay: Annotated[
        int,
        Setting("Steps of the critics for each step of actor and targets.", "a whole number of steps from 1 to 1000", 1, 1000),
    ] = 2
    target_noise: Annotated[
        float, Setting("Size of the noise on the target policy's actions.", "a standard deviation in [0, 10]", 0, 10)
    ] = 0.2
    target_noise_clip: Annotated[float, Setting("Largest such noise.", "a number in [0, 2]", 0, 2)] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_critics(self)


class TD3Agent(Agent):
    """Twin critics, noise on the target policy's actions, and an actor that moves every second step."""

    config_class: ClassVar[type] = TD3Config
    network_class = DeterministicActor
    tuned = ("lr", "gamma", "target_update_rate", "exploration_noise")
    compiles = False  # compiled networks took 1.2 times as long for SAC
    several_steps = True
    charts = CHARTS
    defaults = DEFAULTS
    unused = (*OF_POLICIES, *OF_CORES)

    config: Any
    network: DeterministicActor

    def __init__(self, config: DeterministicConfig, network: DeterministicActor, *arguments: Any, **options: Any) -> None:
        rate = config.target_update_rate
        self.critics = make_critics(network, config)
        self.target_critics, self.target_actor = TargetNetwork(self.critics, rate=rate), TargetNetwork(network, rate=rate)
        # The critics' loss alone changes an encoder that they share with the actor.
        self.critic_parameters = [*self.critics.parameters(), *network.encoder_parameters]
        self.actor_parameters = network.actor_parameters
        self.asked = torch.zeros((), dtype=torch.int64)  # steps of the critics, also refused ones: the host waits for no GPU
        modules, state = {CRITICS: self.critics}, {STEPS: {"count": self.asked}}
        target_networks = {TARGETS: self.target_critics, TARGET_ACTOR: self.target_actor}
        options |= {"target_networks": target_networks, "extra_state": state, "asked": self.asked, "steps_some": True}
        super().__init__(config, network, *arguments, modules=modules, **options)

    @classmethod
    def needs(cls, config: DeterministicConfig) -> Needs:
        return needs_of_windows(config)

    @classmethod
    def check(cls, config: DeterministicConfig, network: NetworkConfig) -> None:
        check_network(network, cls.name(), config)
        check_bounded(network, cls.name())
        check_distribution(network, cls.name())

    @classmethod
    def graphed(cls, config: DeterministicConfig) -> Literal["update"]:
        return "update"

    @property
    def variant(self) -> Hashable:
        return int(self.asked) % int(self.config.delay)

    def update(self, batch: Batch, step: Stepper) -> None:
        config = self.config
        self.network.acts_randomly.zero_()  # the first update comes when learning starts
        parts = transitions(batch, config.gamma).split(config.batches_at_once)
        for number, part in enumerate(parts, int(self.asked) + 1):  # steps count from 1: the first moves no actor
            noise = (torch.randn_like(part.actions),) if config.target_noise else ()  # [N, D], drawn once for all threads
            # Actor and targets move together, and seldom: the critics come near their targets first.
            moves = number % config.delay == 0
            losses = partial(self.losses, actor_learns=moves)
            step.take_rows(losses, part, *noise, draws=config.critic_dropout > 0, moves_targets=moves)

    def losses(self, part: Transitions, *noise: Tensor, actor_learns: bool = True) -> Losses:
        """The losses of N transitions, as means over them. noise: standard normal `[N, D]`, on the target policy's actions."""
        network, target_actor, config = self.network, self.target_actor.network, self.config
        encoded = network.encode(part.observations)  # [N, F]
        with torch.no_grad():
            next_encoded = network.encode(part.next_observations)  # the learned encoder, no lagged one (DrQ-v2)
            # The action of the target policy, not the stored one: windows of any age teach the value of the present policy.
            next_actions = target_actor.policy(part.next_observations, next_encoded)  # mu'(x') [N, D]
            if noise:
                # mu'(x') + clip(sigma' N, -c, c)
                next_actions = smoothed_actions(next_actions, noise[0], config.target_noise, config.target_noise_clip)
            next_q = self.target_critics.network(next_encoded, next_actions)
            targets = hard_targets(part.returns, part.discounts, next_q, config.dropped_quantiles)
        q = self.critics(encoded, part.actions)  # [critics, N], of quantiles [critics, N, K]
        # sum_k mean w (Q_k - y)^2, or the quantile loss
        terms = {"critic_loss": Term(critic_loss(q, targets, part.weights), parameters=self.critic_parameters)}
        if actor_learns:
            # The gradient passes through the critic to the action; the term names the actor's weights, so no critic changes.
            actions = network.policy(part.observations, encoded)  # mu(x) [N, D]
            loss = deterministic_policy_loss(self.critics(encoded.detach(), actions))  # - mean Q_1(x, mu(x))
            terms["actor_loss"] = Term(loss, parameters=self.actor_parameters)
        # A metric has a value in every step; NaN where there is nothing to measure.
        missing = {} if actor_learns else {"losses/actor_loss": targets.new_full((), math.nan)}
        metrics = {"losses/q": q.detach().mean(), "losses/target": targets.mean(), **missing}
        return Losses(terms, metrics, critic_errors(q, targets))
